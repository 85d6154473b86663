"""Commit of a conversion: shards are moved into place, then rejected.jsonl and lengths.parquet, then manifest.json.

    receipts ──compared with the files──▶ shards and indexes at their names ──▶ lengths.parquet ──▶ manifest.json

The manifest is written last: a dataset with a manifest is complete. A manifest that is replaced stands until that
moment, and so do all files that it names, as none of the new files has the name of one of them (see edition_beside()).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator

import pyarrow as pa

from beam_pipelines import storage
from beam_pipelines.conversion import extension
from beam_pipelines.conversion.output_folder import (
    complete_manifest,
    create,
    edition_beside,
    index_content,
    read_manifest,
    rejected_name,
    write_manifest,
)
from beam_pipelines.conversion.plan import Plan
from beam_pipelines.conversion.receipts import Receipt, Rejection
from beam_pipelines.conversion.working_folder import REPLACED_NAME, Output, WorkingFolder
from beam_pipelines.images.rejection_reasons import explain
from beam_pipelines.options import WORK_NAME, ConvertOptions, ImageOptions
from beam_pipelines.runners import phases
from beam_pipelines.runners.executors import map_in_threads
from beam_pipelines.shard_formats.all_formats import EXPORTS, SHARD_FORMATS
from tpu_input.command_line.distribution import __version__
from tpu_input.dataset_format import lengths as lengths_format
from tpu_input.dataset_format.index import index_path, read_positions
from tpu_input.dataset_format.lengths import Positions, lengths_name
from tpu_input.dataset_format.records import MANIFEST_NAME, Manifest, Shard, Split, decode, in_edition, read_frames
from tpu_input.stored_images.check import SAMPLE_SIDE, check_image

_MOVES = 256  # files that are moved between two updates of what is shown
_MAX_SHOWN = 3  # rejected inputs of each reason in a message
_IN_FLIGHT = 32  # index files that are read at the same time, because an object store takes 30 ms for each


def commit(options: ConvertOptions, plan: Plan, receipts: dict[str, list[Receipt]]) -> Manifest:
    """Writes and returns the manifest of a dataset whose shards are all written, after its other files.

    Args:
      options: Options of the conversion.
      plan: Plan of the conversion.
      receipts: Receipts of the shards by split, in the order of the shards.

    Raises:
      ValueError: Too many inputs were rejected, no input became a record, or records and rejections do not add up to
        the number of inputs, or an index does not match its shard.
      FileExistsError: Another conversion has written its manifest in the meantime.
    """
    # Both before anything is moved: who replaces the same dataset in the meantime changes the version.
    version, replaced = storage.replaceable(f"{options.output}/{MANIFEST_NAME}"), read_manifest(options.output)
    every = [receipt for split in receipts.values() for receipt in split]
    totals = {name: _total(split) for name, split in sorted(receipts.items())}
    total = _total(totals.values())
    rejected, num_examples = sorted(total.rejected), total.num_examples
    num_rejected = dict(sorted(Counter(rejection.reason for rejection in rejected).items()))
    num_known = replaced.num_examples if options.parent and replaced else 0
    num_inputs = num_known + plan.num_inputs
    if options.parent and not num_examples and replaced:
        check_budget(options, num_inputs, num_rejected, plan.examples)
        extension.say_nothing_new(num_rejected)
        return leave_out(options.output, options.parent, plan)
    if num_examples + len(rejected) != plan.num_inputs:
        raise ValueError(
            f"{plan.num_inputs} inputs gave {num_examples} records and {len(rejected)} rejected inputs, which do not "
            f"add up; the receipts in {options.output!r} are damaged; convert into another output"
        )
    folder = WorkingFolder.for_plan(options.output, plan)
    edition = edition_beside(replaced, folder.name)
    rejected_path = rejected_name(edition)
    if options.format not in EXPORTS:
        with create(options.output, rejected_path) as file:
            file.writelines(json.dumps(line._asdict(), ensure_ascii=False).encode() + b"\n" for line in rejected)
    check_budget(options, num_inputs, num_rejected, _examples(rejected, f"{options.output}/{rejected_path}"))
    if not num_examples:
        raise ValueError(f"none of the {plan.num_inputs} inputs became a record: {num_rejected}")
    _publish(folder, every, edition)
    manifest = _manifest(options, plan, receipts, totals, num_rejected, edition)
    if options.parent:
        before_it = _next_version(options.output, options.parent, plan)
        if plan.pruned_keys:
            extension.store_version(before_it)
        manifest = extension.merged(before_it, manifest)
    if options.format in EXPORTS:
        for path, text in SHARD_FORMATS[options.format].side_files(manifest):
            with create(options.output, path) as file:
                file.write(text.encode())
    else:
        write_lengths(manifest)
    if replaced and not options.parent:
        write_manifest(replaced, f"{WORK_NAME}/{REPLACED_NAME}")
    write_manifest(manifest, new=not version, version=version)
    return manifest


def leave_out(output: str, parent: str, plan: Plan) -> Manifest:
    """Writes and returns the version of a dataset without the images that the plan leaves out of it.

    Args:
      output: The dataset.
      parent: Fingerprint of the version that is extended.
      plan: Plan of the extension.

    Raises:
      FileExistsError: Another conversion has written its manifest in the meantime.
    """
    version = storage.replaceable(f"{output}/{MANIFEST_NAME}")
    if not plan.pruned_keys:
        return extension.parent_of(output, parent)
    manifest = _next_version(output, parent, plan)
    write_manifest(manifest, version=version)
    return manifest


def _next_version(output: str, parent: str, plan: Plan) -> Manifest:
    """Returns the dataset that is extended, without the images that the plan leaves out, whose files are written.

    The manifest of each version is stored under its name.
    """
    extended = extension.parent_of(output, parent)
    extension.keep_version(extended)
    if not plan.pruned_keys:
        return extended
    manifest, lines = extension.without(extended, frozenset(plan.pruned_keys))
    with create(output, rejected_name(manifest.edition)) as file:
        file.writelines(json.dumps(line._asdict(), ensure_ascii=False).encode() + b"\n" for line in lines)
    write_lengths(manifest)
    return manifest


def _manifest(
    options: ConvertOptions,
    plan: Plan,
    receipts: dict[str, list[Receipt]],
    totals: dict[str, Receipt],
    num_rejected: dict[str, int],
    edition: str,
) -> Manifest:
    """Returns the manifest of a dataset whose shards are in place."""
    total = _total(totals.values())
    return Manifest(
        path=options.output,
        classes=plan.classes,
        first_label=options.first_label,
        splits={
            name: _split(options, name, receipts[name], split_total, len(plan.classes), edition)
            for name, split_total in totals.items()
            if split_total.num_examples
        },
        num_inputs=plan.num_inputs,
        num_rejected=num_rejected,
        num_fixed=dict(sorted(total.fixed.items())),
        # What a check of an export's images finds, the manifest of its dataset has already.
        num_noted={} if options.format in EXPORTS else dict(sorted(total.noted.items())),
        sources=[source.fields() for source in options.sources],
        options=options.shaping(),
        fingerprint=plan.fingerprint,
        written_by=f"jpeg2tpu {__version__}",
    )


def commit_once(options: ConvertOptions, plan: Plan) -> Manifest:
    """Commits what workers have written unless that is done, as a step of a pipeline that an engine may run twice.

    Raises:
      ValueError: As commit() does, or another conversion has written its dataset into the output in the meantime.
    """
    manifest = read_manifest(options.output)
    if manifest and manifest.fingerprint == plan.fingerprint:
        return manifest
    if manifest and options.parent and not plan.num_inputs:
        return leave_out(options.output, options.parent, plan) if manifest.fingerprint == options.parent else manifest
    if manifest and not options.overwrite and manifest.fingerprint != options.parent:
        raise ValueError(
            f"another conversion has written its dataset into {options.output!r} in the meantime; choose another "
            "output, or replace it with overwrite"
        )
    return commit(options, plan, WorkingFolder.for_plan(options.output, plan).receipts_of(plan))


def _publish(folder: WorkingFolder, receipts: list[Receipt], edition: str) -> None:
    """Moves the shards and indexes that receipts name into place, if each has the size and checksum of its receipt.

    Raises:
      ValueError: One is missing, or differs from its receipt.
    """
    present = Output(folder.output).files  # now, as the files are moved that are there now
    places = [place for receipt in receipts for place in folder.places(receipt, edition, present)]
    if missing := [receipt.name for receipt in receipts if None in folder.places(receipt, edition, present)]:
        raise ValueError(
            f"{missing[0]!r} or its index in {folder.folder!r} is missing or differs from its receipt; rerun the same "
            "command, which writes it again"
        )
    moves = [place for place in places if place and place[0] != place[1]]
    # No manifest names these: they are left by a commit that was interrupted.
    storage.delete([f"{folder.output}/{target}" for _, target in moves if target in present])
    phases.begin("moving", len(moves))
    for start in range(0, len(moves), _MOVES):
        batch = moves[start : start + _MOVES]
        storage.publish([(f"{folder.output}/{source}", f"{folder.output}/{target}") for source, target in batch])
        phases.advance("moving", len(batch))


def write_lengths(manifest: Manifest) -> None:
    """Writes the dataset's lengths.parquet from the index of each shard; several are read at the same time.

    The receipts do not carry the lengths, so that they stay small. The index of a shard of 100 MB takes 1 ms to read,
    and the shard takes seconds to write.

    Raises:
      ValueError: An index cannot be read or does not match its shard.
    """
    shards = manifest.shards
    phases.begin("committing", len(shards))
    lengths = {}
    read = map_in_threads(functools.partial(index_lengths, manifest.path), shards, _IN_FLIGHT)
    for shard, shard_lengths in zip(shards, read, strict=True):
        lengths[shard.name] = shard_lengths
        phases.count_units("committing")
    with create(manifest.path, lengths_name(manifest.edition)) as file:
        lengths_format.write_lengths(file, lengths)


def index_lengths(dataset: str, shard: Shard) -> Positions:
    """Returns the length of each record of a shard with its framing, [records] int64, from its index."""
    path = f"{dataset}/{index_path(shard.name)}"
    try:
        positions = read_positions(index_content(path), shard)
    except (ValueError, KeyError, pa.ArrowException) as error:
        raise ValueError(f"{path!r} is damaged: {error}; remove it, and rerun the same command") from error
    if positions is None:
        raise ValueError(
            f"{path!r} does not match shard {shard.name!r}, which has {shard.num_examples} records in "
            f"{shard.num_bytes} bytes; remove it, and rerun the same command"
        )
    return positions[:, 1].copy()  # without the offsets, which a view would keep in memory


def check_budget(
    options: ConvertOptions, num_inputs: int, num_rejected: dict[str, int], examples: dict[str, str]
) -> None:
    """Checks the number of rejected inputs; the error has the count of each reason and some examples.

    Raises:
      ValueError: More than options.max_rejected of the inputs are rejected for a reason that counts; or, in an export,
        any.
    """
    if num_rejected and options.format in EXPORTS:
        (source,) = options.sources
        raise ValueError(
            f"{sum(num_rejected.values())} of {num_inputs} examples cannot be exported: "
            f"{'; '.join(examples.values())}; correct the dataset: jpeg2tpu verify --repair {source.path}"
        )
    counted = {reason: number for reason, number in num_rejected.items() if explain(reason).counts}
    count = sum(counted.values())
    # With a tolerance, as 0.29 * 100 is slightly below 29 in floating point.
    if count > options.max_rejected * num_inputs + 1e-6:
        counts = ", ".join(f"{reason} {number}" for reason, number in counted.items())
        raise ValueError(
            f"{count} of {num_inputs} inputs were rejected ({100 * count / num_inputs:.3g} %), more than "
            f"--max_rejected={100 * options.max_rejected:g}%: {counts} ({'; '.join(examples.values())}); "
            "rerun the command with a larger --max_rejected to resume, or correct the inputs and rerun it with "
            "--overwrite"
        )


def _examples(rejected: list[Rejection], path: str) -> dict[str, str]:
    """Returns a text about some of the rejected inputs that count, by reason, and where all are listed."""
    examples: dict[str, list[str]] = {}
    for rejection in rejected:
        if explain(rejection.reason).counts:
            examples.setdefault(rejection.reason, []).append(rejection.key)
    messages = {reason: f"{reason}: {', '.join(map(repr, keys[:_MAX_SHOWN]))}" for reason, keys in examples.items()}
    return messages | {"all": f"all are listed in {path}"}


def _total(receipts: Iterable[Receipt]) -> Receipt:
    total = Receipt("")
    for receipt in receipts:
        total.extend(receipt)
    return total


def _split(
    options: ConvertOptions, name: str, receipts: list[Receipt], total: Receipt, num_classes: int, edition: str
) -> Split:
    nonempty = [receipt for receipt in receipts if receipt.num_examples]
    shards = tuple(
        Shard(in_edition(shard.name, edition), shard.num_examples, shard.num_bytes, shard.sha256) for shard in nonempty
    )
    if options.format in EXPORTS:
        (source,) = options.sources
        split = complete_manifest(source.path).split(name)
        if split.num_examples != sum(shard.num_examples for shard in shards):
            raise ValueError(f"{source.path!r} has changed while it was exported; run the command with --overwrite")
        return dataclasses.replace(split, shards=shards)
    measured = total if total.num_measured else _measure_stored(options.output, shards, options.images)
    num_pixels = measured.num_measured * SAMPLE_SIDE**2
    means, stds = [], []
    for sums, squares in zip(measured.sums, measured.squares, strict=True):
        mean = sums / num_pixels
        means.append(round(mean, 3))
        stds.append(round(math.sqrt(max(squares / num_pixels - mean * mean, 0)), 3))
    return Split(
        shards=shards,
        class_counts=tuple(total.class_counts[label] for label in range(num_classes)),
        height=_extent(total.heights, total.num_examples),
        width=_extent(total.widths, total.num_examples),
        channel_mean=(means[0], means[1], means[2]),
        channel_std=(stds[0], stds[1], stds[2]),
    )


_MEASURED_LATE = 1000  # images; they take a few seconds


def _measure_stored(output: str, shards: tuple[Shard, ...], images: ImageOptions) -> Receipt:
    """Returns the statistics of the first stored images of a split whose whole sample was rejected.

    This happens if nearly all inputs of a large split are rejected. The first images of a split are the same whatever
    its shards.
    """
    measured = Receipt("")
    # Stored images are not checked again; those that were made smaller may have a side below --min_side.
    images = dataclasses.replace(images, reencode="needed", min_side=1)
    for payload in itertools.islice(_stored_records(output, shards), _MEASURED_LATE):
        measured.add(check_image(decode(payload).encoded, images), 0, len(payload))
    return measured


def _stored_records(output: str, shards: tuple[Shard, ...]) -> Iterator[bytes]:
    for shard in shards:
        with storage.open_file(f"{output}/{shard.name}") as file:
            yield from (payload for _, payload in read_frames(file))


def _extent(sizes: list[int], num_examples: int) -> tuple[int, float, int]:
    smallest, total, largest = sizes
    return smallest, round(total / num_examples, 1), largest
