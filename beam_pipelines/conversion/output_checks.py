"""What a conversion checks before it writes: that the plan makes a dataset, and what the output holds already.

plan, DATASET ──▶ manifest of a complete dataset, None if it has to be written, or an error about what is there
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Collection, Sequence

import pyarrow as pa

from beam_pipelines import storage
from beam_pipelines.conversion import extension, working_folder
from beam_pipelines.conversion.commit import check_budget
from beam_pipelines.conversion.option_flags import flags_of
from beam_pipelines.conversion.output_folder import (
    ON_DEMAND_NAMES,
    dataset_files,
    every_shard,
    files_of,
    index_content,
    is_dataset_file,
    list_dataset,
    optional_files,
    read_manifest,
)
from beam_pipelines.conversion.plan import Plan
from beam_pipelines.conversion.working_folder import Conversion, Output, WorkingFolder
from beam_pipelines.options import WORK_NAME, ConvertOptions, Source
from beam_pipelines.sources import layouts
from tpu_input.command_line.wording import enumerated
from tpu_input.dataset_format.index import index_path, read_columns
from tpu_input.dataset_format.lengths import lengths_name
from tpu_input.dataset_format.records import MANIFEST_NAME, Manifest, decode, read_frames
from tpu_input.dataset_format.split_names import split_named


def check_output(options: ConvertOptions) -> None:
    """Checks, before any input is listed, that the output has only files that a conversion may have written.

    Raises:
      ValueError: It has others, cannot be reached or written to, or an input is in it, or it in an input.
    """
    output = options.output
    for source in options.sources:
        _check_apart(source.folder if source.is_pattern else source.path, output)
    storage.check_writable(output)
    storage.check(output)
    if not storage.is_uri(output) and os.path.exists(output) and not os.path.isdir(output):
        raise ValueError(f"output {output!r} is a file, but must be a folder; choose another output")
    files = [path for path, _ in list_dataset(output)]
    foreign = [path for path in files if not is_dataset_file(path) and not working_folder.is_in_working_folder(path)]
    if foreign and not any(path == MANIFEST_NAME or working_folder.is_in_working_folder(path) for path in files):
        raise ValueError(
            f"output {output!r} contains other files and no dataset: {_listed(files)}; choose another output"
        )
    _refuse_foreign(output, foreign)


def _check_apart(source: str, output: str) -> None:
    source_path, output_path = storage.real(source).rstrip("/"), storage.real(output).rstrip("/")
    if f"{output_path}/".startswith(f"{source_path}/") or f"{source_path}/".startswith(f"{output_path}/"):
        raise ValueError(
            f"input {source!r} and output {output!r} overlap: one contains the other; use separate folders"
        )


def _refuse_foreign(output: str, foreign: Collection[str]) -> None:
    if foreign:
        raise ValueError(
            f"output {output!r} contains files that are not part of this dataset: {_listed(foreign)}; move them "
            "away, or choose another output"
        )


def check_plan(options: ConvertOptions, plan: Plan) -> None:
    where = ", ".join(repr(source.path) for source in options.sources) or "of the pipeline"
    if options.parent and not any(plan.totals.values()):  # nothing new
        return
    if not plan.num_inputs:
        raise ValueError(f"input {where} is empty")
    if not any(plan.totals.values()):
        message = f"none of the {plan.num_inputs} inputs of {where} can be used, e.g. {min(plan.examples.values())}"
        has_layout = not {"no_label", "no_class", "other_file"}.intersection(plan.num_rejected)
        raise ValueError(message if has_layout else f"{message}; {_closest_layouts(options.sources)}")
    num_known = len(extension.known_images(options)) if options.parent else 0
    check_budget(options, num_known + plan.num_inputs, plan.num_rejected, plan.examples)
    if options.splits_required and plan.all_named and not options.stratify:
        names = ", ".join(map(repr, plan.totals))
        shares = ",".join(f"{name}={100 * share:g}%" for name, share in options.splits)
        raise ValueError(
            f"every input of {where} already specifies its split ({names}), so --splits={shares} would have no effect; "
            "leave it out, or specify the folders as inputs of one split"
        )
    if options.groups_by_key and not options.parent and plan.num_ungrouped == sum(plan.num_images.values()):
        raise ValueError(
            f"--group_by={options.group_by} is in the key of no image of {where}, so no images would stay together; a "
            "key is the path below the input, such as CLASS/IMAGE.jpg"
        )
    if len(plan.classes) < 2 and options.label_kind.needs_classes:
        raise ValueError(
            f"input {where} has only one class, {plan.classes[0]!r}; a classifier needs at least 2; "
            + _closest_layouts(options.sources)
        )
    for split, other, one_class, other_class in plan.disjoint_splits:
        raise ValueError(
            f"the splits {split!r} and {other!r} of {where} have no class in common: {split!r} has {one_class!r}, "
            f"{other!r} has {other_class!r}, …; a model trained on one cannot be tested on the other. Use the same "
            "class names in both (replace the numbers of a ground-truth file with the class names of the other split)"
        )
    for split, count in options.num_shards:
        total = sum(total for name, total in plan.totals.items() if split_named(name) == split)
        if total < count:
            raise ValueError(f"split {split!r} has {total} images, too few for --num_shards={split}={count}")


def _closest_layouts(sources: Sequence[Source]) -> str:
    return layouts.unknown(sources[0]) if sources else "give images labels of at least two classes"


def existing(options: ConvertOptions, plan: Plan, output: Output) -> Output:
    """Returns what the output holds; is_complete() says whether that is the dataset of the plan.

    With options.overwrite, the files that another unfinished plan names are removed. Another dataset stays as it is
    until commit() has replaced its manifest. Without a plan, files in the output must belong to this conversion.

    Args:
      options: Options of the conversion.
      plan: Plan of the conversion.
      output: What the output held before it was planned.

    Raises:
      ValueError: The output holds something else.
    """
    manifest, unfinished = output.manifest, output.unfinished()
    if not manifest and not unfinished:
        _check_leftover(options, plan, output)
    others = unfinished - {WorkingFolder.for_plan(options.output, plan)}
    if not options.overwrite:
        _check_same(options, plan, manifest, others)
    shard_names = [other.shard_names() for other in others]
    check_files(plan, output, shard_names)
    for other, names in zip(others, shard_names, strict=True):
        _remove_shards(options.output, names, manifest)
        working_folder.remove_one(other)
    return Output(options.output) if others else output


def is_complete(output: Output, plan: Plan) -> bool:
    """Returns whether an output holds the dataset of a plan."""
    manifest = output.manifest
    return manifest is not None and manifest.fingerprint == plan.fingerprint


def _check_leftover(options: ConvertOptions, plan: Plan, output: Output) -> None:
    """Checks that shards without a manifest or a plan were written by an earlier run of this conversion.

    Such shards are left when the output was removed during a conversion, and its workers wrote shards after that. They
    are accepted if each has the name of a shard of this plan, and its first record is of an image of that shard.
    """
    folder, planned = WorkingFolder.for_plan(options.output, plan), plan.shard_names
    present = sorted(output.others())
    shard_by_path = {index_path(shard): shard for shard in planned} | {shard: shard for shard in planned}
    for path in present:
        if path not in shard_by_path or not _begins_as(f"{options.output}/{path}", folder, shard_by_path[path]):
            raise ValueError(
                f"output {options.output!r} contains other files and no dataset: {_listed(present)}; "
                "choose another output"
            )


def _begins_as(path: str, folder: WorkingFolder, shard: str) -> bool:
    """Returns whether the first record of a shard, or of its index, is an image that the plan assigns to the shard."""
    keys = {row.key for row in folder.read_rows(shard)}
    try:
        if path.endswith(".parquet"):
            return read_columns(index_content(path), names=["key"], most_rows=len(keys))["key"][0].as_py() in keys
        with storage.open_file(path) as file:
            return decode(next(read_frames(file))[1]).key in keys
    except (OSError, ValueError, IndexError, StopIteration, pa.ArrowException):
        return False


def _check_same(options: ConvertOptions, plan: Plan, manifest: Manifest | None, others: set[WorkingFolder]) -> None:
    if manifest and manifest.fingerprint not in (plan.fingerprint, options.parent):
        why = difference(options, plan, manifest, manifest.num_inputs)
        # Commands that change a dataset, such as relabel, have no --extend.
        is_rewritten = any(source.is_of_dataset for source in options.sources)
        is_moved = _paths(manifest) != [source.path for source in options.sources]
        grown = (
            "add what is new with --extend, with --extend --prune also apply changed labels, splits and files, "
            if why.startswith(_INPUT_DIFFERENCE) and not is_moved and not is_rewritten
            else ""
        )
        raise ValueError(
            f"output {options.output!r} holds another dataset: {why}; {grown}choose another output, or replace it with "
            "--overwrite"
        )
    for other in sorted(others, key=lambda other: other.name):
        other_plan, conversion = other.read_plan(), other.read_conversion()
        why = difference(options, plan, conversion, other_plan.num_inputs)
        # The command that began it would be refused too if the files of its sources have changed since.
        is_moved = _paths(conversion) != [source.path for source in options.sources]
        changed = why.startswith(_INPUT_DIFFERENCE) and not is_moved
        go_on = "" if changed else f"{_go_on(conversion)}, "
        raise ValueError(
            f"output {options.output!r} holds an unfinished conversion of other inputs or options: {why}; {go_on}"
            "choose another output, or replace it with --overwrite"
        )


def check_files(plan: Plan, output: Output, shard_names: list[list[str]]) -> None:
    """Checks that every file belongs to the plan, the manifest or `shard_names`, and that a dataset is complete."""
    present, manifest = output.others(), output.manifest
    shards = every_shard(manifest) if manifest else []
    own_files = files_of(manifest) if manifest else set()
    names = [*WorkingFolder.for_plan(output.path, plan).shard_names(plan), *shards, *itertools.chain(*shard_names)]
    if manifest and plan.pruned_keys:  # perhaps written before a commit was interrupted
        names += extension.names_without(manifest, frozenset(plan.pruned_keys))
    _refuse_foreign(output.path, present - own_files - dataset_files(names) - optional_files(names))
    # Datasets of earlier builds have no lengths.parquet, and are complete without it: training reads every index.
    needed = own_files - {lengths_name(manifest.edition if manifest else "")}
    if manifest and manifest.fingerprint == plan.fingerprint and (missing := needed - present):
        raise ValueError(
            f"output {output.path!r} holds this dataset without {_listed(missing)}; re-create what is missing with: "
            f"jpeg2tpu verify --repair {output.path}"
        )


_INPUT_DIFFERENCE = "it was made from"


def difference(options: ConvertOptions, plan: Plan, present: Manifest | Conversion | None, num_inputs: int) -> str:
    """Returns a text on the options, by flag, that differ from this conversion; if none do, on the inputs.

    Args:
      options: Options of this conversion.
      plan: Its plan.
      present: The dataset or the unfinished conversion in the output; None if it is not known.
      num_inputs: Number of files or lines that it has as inputs.
    """
    if present:
        flags, earlier = dict(flags_of(options.shaping())), dict(flags_of(present.options))
        defaults = dict(flags_of(ConvertOptions(options.sources, options.output).shaping()))
        names = [name for name in flags | earlier if earlier.get(name) != flags.get(name)]
        differences = [
            f"its {name} is {earlier.get(name, 'unknown')}, not {flags.get(name, 'known')}"
            + " (the default)" * (flags.get(name) not in (None, "not given") and flags.get(name) == defaults.get(name))
            for name in names
        ]
        if differences:
            return "; ".join(differences)
    where = [source.path for source in options.sources]
    earlier_paths = _paths(present)
    moved = f" of {', '.join(map(repr, earlier_paths))}" if earlier_paths and earlier_paths != where else ""
    origin = f"{_INPUT_DIFFERENCE} {num_inputs} inputs{moved}"
    if num_inputs == plan.num_inputs:
        return f"{origin}, and now some have other names, sizes, labels or features"
    return f"{origin}, and now there are {plan.num_inputs}"


def _paths(present: Manifest | Conversion | None) -> list[str]:
    return [source.get("path", "") for source in present.sources] if present else []


def _go_on(conversion: Conversion | None) -> str:
    """Returns advice on how to continue an unfinished conversion."""
    if not conversion or not conversion.command:
        return "rerun its command to resume it"
    where = "" if conversion.folder == os.getcwd() else f", in {conversion.folder!r}"
    return f"resume it with: jpeg2tpu {shlex.join(conversion.command)}{where}"


def remove_replaced(output: str) -> None:
    """Removes the files of a dataset whose manifest a commit has copied to REPLACED_NAME and then replaced.

    If the process is killed before the new manifest stands, the replaced dataset is complete, and nothing of it is
    removed; if it is killed later, the next call continues. A manifest can only name shards in its own folder: see
    Manifest.from_json().
    """
    if replaced := working_folder.read_replaced(output):
        manifest = read_manifest(output)
        if not manifest or manifest.shards != replaced.shards:
            _remove_shards(output, every_shard(replaced), manifest)
            storage.delete([f"{output}/{name}" for name in ON_DEMAND_NAMES])  # they describe the replaced dataset
        storage.delete([f"{output}/{WORK_NAME}/{working_folder.REPLACED_NAME}"])


def _remove_shards(output: str, names: list[str], manifest: Manifest | None) -> None:
    """Removes the files of a dataset with shards of these names, but none of the dataset of `manifest`."""
    needed = files_of(manifest) | optional_files(every_shard(manifest)) if manifest else set()
    removed = (dataset_files(names) | optional_files(names)) - needed
    # Those that name the shards of earlier versions last, for another call if this one is interrupted.
    storage.delete([f"{output}/{path}" for path in sorted(removed, key=lambda path: path.startswith("manifest-"))])


def _listed(paths: Collection[str]) -> str:
    return enumerated(list(map(repr, sorted(paths))), 5)
