"""Repair: re-creates damaged shards of a complete dataset from their sources, and lengths.parquet from the index.

index of a damaged shard ──▶ its inputs ──write──▶ DATASET/.jpeg2tpu/FINGERPRINT, with a receipt
                                        ──if the sha256 is the manifest's──▶ move into place
every index              ──▶ DATASET/lengths.parquet, if that is damaged

A shard is written again on this machine or by a worker, from its own inputs: nothing else is listed or read. If the
index is damaged, the inputs are the keys of the records in the folders of the sources. Only if that does not name them
either, all sources are listed and planned again.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from beam_pipelines import storage
from beam_pipelines.conversion import output_folder, row_lines, working_folder
from beam_pipelines.conversion.commit import index_lengths, write_lengths
from beam_pipelines.conversion.output_folder import (
    LOCK_NAME,
    create,
    index_content,
    manifest_digest,
    unchanged_manifest,
)
from beam_pipelines.conversion.planning.make_plan import make_plan
from beam_pipelines.conversion.shard_writing import Unwanted, write_shard
from beam_pipelines.conversion.units import UnitWriter
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.options import (
    URL_CONTENT_OPTIONS,
    WORK_NAME,
    ConvertOptions,
    ImageOptions,
    Source,
    UrlOptions,
    complete,
)
from beam_pipelines.runners.executors import Executor, is_much_work, local_executor, threads_or_inline
from beam_pipelines.sources.listing import kind_of
from beam_pipelines.sources.lists import rows_of_list
from beam_pipelines.sources.rows import Row, find_all, locate
from beam_pipelines.sources.url_names import is_url, origin
from beam_pipelines.verify import Findings
from tpu_input.command_line.cores import num_cores
from tpu_input.command_line.dataclass_options import checks_arguments, from_fields
from tpu_input.command_line.wording import enumerated
from tpu_input.dataset_format import json_fields, lengths as lengths_format
from tpu_input.dataset_format.index import IndexRow, features_json, index_path, read_index
from tpu_input.dataset_format.lengths import lengths_name
from tpu_input.dataset_format.records import (
    MANIFEST_NAME,
    Manifest,
    Shard,
    decode,
    frame,
    parse_shard_name,
    read_frames,
    shard_name,
)

if TYPE_CHECKING:  # a repair on this machine does without Beam
    from apache_beam.options.pipeline_options import PipelineOptions

_MAX_NAMED = 5  # inputs in a message


@checks_arguments
def repair(
    findings: Findings, beam_options: PipelineOptions | None = None, num_threads: int | None = None
) -> list[str]:
    """Re-creates the files that verify found damaged: shards with their indexes, and lengths.parquet; returns names.

    The inputs of a shard are those that its index names, in the sources that the manifest names. Data from them is kept
    only if it is the dataset's: a shard is moved into place only if it has the SHA-256 in the manifest.
    lengths.parquet is computed from the indexes, whatever it held before, so that no source is read for it.

    Args:
      findings: From verify().
      beam_options: The Beam runner whose workers write the shards, and its options; None for this machine.
      num_threads: Maximum number of processes of this machine that make records, or of threads for few images; None
        for all cores.

    Raises:
      ValueError: The inputs of a shard have changed since the conversion, or do not match the manifest.
    """
    manifest = findings.manifest
    options = options_of(manifest) if findings.damaged else None
    if options and not options.sources:
        raise ValueError(
            f"{manifest.path!r} was written by a pipeline with WriteDataset, which alone can make its shards again; "
            "run it again"
        )
    if options and beam_options:
        from beam_pipelines.runners import launch_checks

        launch_checks.check(beam_options, [source.path for source in options.sources])
    with output_folder.locked(manifest.path):
        try:
            if options:
                _repair_shards(manifest, findings.damaged, options, beam_options, num_threads or num_cores())
            if findings.lengths_damaged:
                write_lengths(manifest)
            else:
                _correct_lengths(manifest, findings.damaged)
        finally:
            _remove_working_files(manifest)
    return [*findings.damaged, *([lengths_name(manifest.edition)] if findings.lengths_damaged else [])]


def _remove_working_files(manifest: Manifest) -> None:
    """Removes all working files, except of an unfinished conversion that is to replace the dataset."""
    if working_folder.unfinished(manifest.path) - {_folder(manifest)}:
        working_folder.remove_one(_folder(manifest))
        working_folder.remove_lock(manifest.path)
    else:
        working_folder.remove(manifest.path)


def remove_leftovers(manifest: Manifest) -> None:
    """Removes the lock and working files of a killed repair, unless a command holds the lock; ignores errors."""
    folder = _folder(manifest)
    leftovers = [path for path in working_folder.working_files(manifest.path) if _is_of_repair(path, folder)]
    if leftovers:
        with contextlib.suppress(OSError, ValueError), output_folder.locked(manifest.path):
            working_folder.remove_chosen(manifest.path, lambda path: _is_of_repair(path, folder))


def _is_of_repair(path: str, folder: WorkingFolder) -> bool:
    is_part = "/" not in path and ".part-" in path
    return path == LOCK_NAME or is_part or path.startswith(f"{folder.name}/")


def _repair_shards(
    manifest: Manifest,
    names: list[str],
    options: ConvertOptions,
    beam_options: PipelineOptions | None,
    num_workers: int,
) -> None:
    folder = _folder(manifest)
    working_folder.remove_one(folder)  # a receipt from before may name a file that is in its place already, damaged
    _write_again(manifest, names, False, beam_options, num_workers)
    if unwritten := [name for name in names if not storage.exists(f"{folder.folder}/{name}.receipt")]:
        plan = make_plan(options, beam_options)
        if plan.fingerprint != manifest.fingerprint:
            raise ValueError(
                f"{[source.path for source in options.sources]} no longer contain the inputs that "
                f"{manifest.path!r} was made from: {manifest.num_inputs} inputs then, {plan.num_inputs} now, or "
                "their names or sizes differ; restore the inputs, or convert them again; nothing was changed"
            )
        if plan.classes != manifest.classes:
            raise ValueError(
                f"{manifest.path}/{MANIFEST_NAME} has other classes than its inputs: "
                f"{list(manifest.classes)[:5]!r}, not {list(plan.classes)[:5]!r}; restore the manifest from a "
                "copy, or convert the images again; nothing was changed"
            )
        _write_again(manifest, unwritten, True, beam_options, num_workers)
    _replace(folder, names, len(manifest.classes))


def _folder(manifest: Manifest) -> WorkingFolder:
    return WorkingFolder(manifest.path, manifest.fingerprint[:16])


def _write_again(
    manifest: Manifest, names: list[str], planned: bool, beam_options: PipelineOptions | None, num_workers: int
) -> None:
    """Writes shards again, on this machine or on workers; see _make_again()."""
    if not beam_options:
        shards = [shard for shard in manifest.shards if shard.name in set(names)]
        is_much = is_much_work(sum(shard.num_examples for shard in shards), sum(shard.num_bytes for shard in shards))
        with local_executor(num_workers, is_much, UnitWriter.__module__) as executor:
            for name in names:
                _make_again(name, manifest, planned, executor)
        return
    import apache_beam as beam

    from beam_pipelines.runners import execution

    with execution.pipeline(beam_options) as pipeline:
        (
            pipeline
            | "Damaged shards" >> beam.Create(names)
            | "Spread shards" >> beam.Reshuffle()
            | "Write shards" >> beam.Map(_make_again_on_worker, manifest.path, manifest_digest(manifest), planned)
        )


def _make_again_on_worker(name: str, dataset: str, digest: str, planned: bool) -> None:
    with threads_or_inline(num_cores()) as executor:
        _make_again(name, unchanged_manifest(dataset, digest), planned, executor)


def _make_again(name: str, manifest: Manifest, planned: bool, executor: Executor) -> None:
    """Writes a shard in files of this attempt, and its receipt last; nothing if its inputs are not known.

    With `planned`, the sources were planned again, and the working folder names the inputs.

    Raises:
      ValueError: Its inputs do not give the shard that the manifest promises.
    """
    folder, options = _folder(manifest), options_of(manifest)
    split, shard = next(
        (split, shard) for split in manifest.splits.values() for shard in split.shards if shard.name == name
    )
    if planned:
        parts = parse_shard_name(name)
        plan_name = shard_name(parts.split, parts.number, parts.num_shards) if parts else name
        units = folder.read_units(plan_name, row_lines.MOST_ROWS)
    elif rows := _known_rows(manifest, shard, options):
        units = row_lines.units_of(rows)
    else:
        return
    attempt = uuid.uuid4().hex
    paths = folder.attempt_paths(name, attempt)
    try:
        receipt = write_shard(
            name,
            *paths,
            units,
            split.num_examples,
            options,
            manifest.classes,
            executor,
            # A worker that comes late, after the repair, leaves nothing.
            is_wanted=lambda: storage.exists(f"{manifest.path}/{WORK_NAME}/{LOCK_NAME}"),
        )
    except Unwanted:
        return
    if receipt.sha256 != shard.sha256:
        why = _difference(manifest, shard, paths[1])
        folder.remove_attempt(name, attempt)
        raise ValueError(why)
    receipt.attempt = attempt
    if not folder.write_receipt(receipt):
        folder.remove_attempt(name, attempt)


def _replace(folder: WorkingFolder, names: list[str], num_classes: int) -> None:
    """Moves shards and indexes to their names, if each has the size and the checksum of its receipt."""
    present = {
        f"{WORK_NAME}/{folder.name}/{path}": (num_bytes, checksum)
        for path, num_bytes, checksum in storage.list_checksums(folder.folder)
    }
    places = [
        place for receipt in folder.read_receipts(names, num_classes) for place in folder.places(receipt, "", present)
    ]
    moves = [place for place in places if place]
    if len(moves) != len(places):
        raise OSError(f"files in {folder.folder!r} have disappeared or differ from their receipts; nothing was changed")
    for source, target in moves:
        storage.move(f"{folder.output}/{source}", f"{folder.output}/{target}")


def _correct_lengths(manifest: Manifest, names: list[str]) -> None:
    """Writes lengths.parquet again if it has other lengths for these shards than their indexes.

    verify cannot tell: it knows the lengths of the records of a damaged shard only by their sum.
    """
    path = lengths_name(manifest.edition)
    listed = lengths_format.parse_lengths(storage.read_bytes(f"{manifest.path}/{path}")).by_shard()
    shards = [shard for shard in manifest.shards if shard.name in set(names)]
    right = {shard.name: index_lengths(manifest.path, shard) for shard in shards}
    if any(list(listed[name]) != list(lengths) for name, lengths in right.items()):
        with create(manifest.path, path) as file:
            lengths_format.write_lengths(file, listed | right)


def options_of(manifest: Manifest) -> ConvertOptions:
    """Returns the options that a dataset was converted with.

    Raises:
      ValueError: The manifest has invalid options.
    """
    try:
        sources = tuple(from_fields(Source, source) for source in manifest.sources)
        usual = complete(ConvertOptions(sources, manifest.path).shaping())
        fields = _checked_options(complete(manifest.options), usual, "options")
        return ConvertOptions(
            sources=sources,
            output=manifest.path,
            splits=tuple(fields.pop("splits").items()),
            num_shards=tuple(fields.pop("num_shards").items()),
            labels=tuple(fields.pop("labels")),
            features=tuple(fields.pop("features").items()),
            images=ImageOptions(**fields.pop("images")),
            urls=UrlOptions(**{name: fields.pop(name) for name in URL_CONTENT_OPTIONS}),
            **fields,
        )
    except ValueError as error:
        raise ValueError(
            f"{manifest.path}/{MANIFEST_NAME} does not contain the options of a conversion: {error}; convert the "
            "images again"
        ) from error


def _checked_options(fields: dict[str, Any], usual: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the options `fields`; raises ValueError unless each has the type of the default in `usual`."""
    for key, value in json_fields.fields(fields, name, list(usual)).items():
        if key == "splits":
            for split, share in json_fields.mapping(value, key).items():
                json_fields.number(share, f"share of {split!r}", 0, 1)
        elif key in ("num_shards", "features"):
            continue  # Manifest.from_json() has checked them
        elif key == "labels":
            for label in json_fields.array(value, key):
                json_fields.text(label, "a label")
        elif isinstance(usual[key], dict):
            _checked_options(json_fields.mapping(value, key), usual[key], key)
        elif type(value) is not type(usual[key]):
            raise ValueError(f"{key} must have the type of {usual[key]!r}, got {json_fields.short_repr(value)}")
    return dict(fields)


def _known_rows(manifest: Manifest, shard: Shard, options: ConvertOptions) -> list[Row] | None:
    """Returns the inputs of the records of a shard, with sizes; None if neither index nor records name them.

    Raises:
      ValueError: Inputs that the index names are missing, or are not in the sources.
    """
    index, records = _index_rows(manifest, shard), _records(manifest, shard)
    from_index = index and (records is None or records == [(row.key, row.label, row.features or "") for row in index])
    if from_index:
        inputs = [(row.key, row.label, row.uri, row.features or "") for row in index or []]
    elif records and all(kind_of(source).has_paths_as_keys(source) for source in options.sources):
        inputs = [(key, label, "", features) for key, label, features in records]
    else:
        return None
    kind = manifest.label_kind
    if not all(kind.are_classes(label, len(manifest.classes)) for _, label, _, _ in inputs):
        return None
    rows = [
        locate(
            Row(key, uri, kind.text(manifest.classes[index] for index in kind.indices(label)), features=features),
            options.sources,
        )
        for key, label, uri, features in inputs
    ]
    if strange := _not_in_sources(rows, options):
        raise ValueError(
            f"the index of {shard.name} names the input {strange[0]!r}, which is not in the sources of the dataset; "
            + _restore(shard)
        )
    by_key = {row.key: row for row in find_all(_with_whole_urls(rows, options))}
    located = [by_key[row.key] for row in rows]
    missing = [f"{row.uri!r} ({row.detail})" for row in located if row.reason]
    if missing and not from_index:  # perhaps members of an archive in the folder
        return None
    if missing:
        raise ValueError(f"inputs of {shard.name} are missing: {enumerated(missing, _MAX_NAMED)}; {_restore(shard)}")
    return located


def _index_rows(manifest: Manifest, shard: Shard) -> list[IndexRow] | None:
    """Returns the rows of the index of a shard, None if it cannot be used."""
    try:
        content = index_content(f"{manifest.path}/{index_path(shard.name)}")
    except (FileNotFoundError, ValueError):
        return None
    try:
        rows = read_index(content, shard.num_examples)
    except (OSError, ValueError, pa.ArrowException):
        return None
    return rows if all(row.uri for row in rows) else None  # of unpacked inputs, no place is known


def _records(manifest: Manifest, shard: Shard) -> list[tuple[str, int | tuple[int, ...], str]] | None:
    """Returns (key, label, features) of every record of a shard, None if it is damaged."""
    records, digest = list[tuple[str, int | tuple[int, ...], str]](), hashlib.sha256()
    try:
        with storage.open_file(f"{manifest.path}/{shard.name}") as file:
            for _, payload in read_frames(file):
                digest.update(frame(payload))
                record = decode(payload, manifest.first_label)
                records.append((record.key, record.label, features_json(record.features)))
    except (FileNotFoundError, ValueError):
        return None
    return records if digest.hexdigest() == shard.sha256 else None


def _not_in_sources(rows: list[Row], options: ConvertOptions) -> list[str]:
    """Returns the URIs that are in none of the sources. An index may come from somebody else, and is not followed."""
    places = tuple(place for source in options.sources for place in kind_of(source).places(source))
    strange = [row.uri for row in rows if not row.uri.startswith(places) or ".." in row.uri.split("/")]
    for source in options.sources if strange else ():
        if source.is_list:  # which may name any file
            listed = {origin(row.uri) for row in rows_of_list(source, options)}
            strange = [uri for uri in strange if uri not in listed]
    return strange


def _with_whole_urls(rows: list[Row], options: ConvertOptions) -> list[Row]:
    """Returns rows with the URLs as lists have them: the index has neither their queries nor their user info."""
    if not any(is_url(row.uri) for row in rows):
        return rows
    urls = dict[str, str]()
    for source in options.sources:
        prefix = f"{source.split}/" if source.split and len(options.sources) > 1 else ""
        urls |= {f"{prefix}{row.key}": row.uri for row in rows_of_list(source, options)} if source.is_list else {}
    num_bytes = options.urls.url_image_bytes
    return [
        row._replace(uri=urls.get(row.key, row.uri), num_bytes=num_bytes) if is_url(row.uri) else row for row in rows
    ]


def _difference(manifest: Manifest, shard: Shard, new_index: str) -> str:
    """Returns why a shard that was written again is not the manifest's, naming the inputs that have changed."""
    try:
        new = {row.key: row.sha256 for row in read_index(index_content(f"{manifest.path}/{new_index}"))}
    except FileNotFoundError:  # none of the inputs became a record
        new = {}
    changed = [repr(row.key) for row in _index_rows(manifest, shard) or [] if new.get(row.key) != row.sha256]
    if changed:
        some = enumerated(changed, _MAX_NAMED)
        return f"inputs of {shard.name} have changed since the conversion: {some}; {_restore(shard)}"
    return (
        f"the inputs of {shard.name} no longer give the records that {MANIFEST_NAME} promises: they have changed, or "
        f"{MANIFEST_NAME} has other classes or options than the conversion, or the index other labels; "
        + _restore(shard)
    )


def _restore(shard: Shard) -> str:
    return (
        "restore what has changed, or convert all inputs again; if only the index is damaged, remove "
        f"{index_path(shard.name)} and run the command again, which then lists all inputs; nothing was changed"
    )
