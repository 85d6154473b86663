"""Examples of a dataset as rows of another conversion, from its indexes: no record is read to list them.

    manifest.json ──▶ a part for each shard ──index──▶ Row(key, SHARD#record=BEGIN-END, label, split) ──changes──▶ Row

relabel, merge, filter, split and reshard are conversions of such rows. The image of a record is read when its new
record is written. The checksum of the record is verified then, and the bytes of the image stay the same.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipelines import storage
from beam_pipelines.options import FILES_OF_CHANGES, ConvertOptions, Source
from beam_pipelines.sources.input_kinds import InputKind, Part
from beam_pipelines.sources.lists import delimiter_of, is_json_list, read_json_list, read_names
from beam_pipelines.sources.rows import Row, label_row
from tpu_input.command_line.wording import enumerated, first_line
from tpu_input.dataset_format.class_names import canonical
from tpu_input.dataset_format.csv_cells import text_of_cell
from tpu_input.dataset_format.index import as_labels, check_room, index_path, read_columns, text_bytes
from tpu_input.dataset_format.label_kinds import LabelKind
from tpu_input.dataset_format.manifest import Shard
from tpu_input.dataset_format.parquet_footer import column_chunks
from tpu_input.dataset_format.records import MANIFEST_NAME, MAX_INDEX_BYTES, MAX_MANIFEST_BYTES, Manifest

LABEL_COLUMNS = ("key", "label")
# In the list that `report` writes: of the predicted class, which is its label, and of the label on disk.
PROBABILITY_COLUMNS = ("probability", "label_probability")
_COLUMNS = ["key", "label", "offset", "length", "features"]
_SEPARATOR = ";"  # between names of classes in new labels
_MAX_SHOWN = 5  # names in a message
_INFINITE = "Infinity"  # as JSON has it in the features of an example


class Dataset(InputKind):
    """A dataset of this package, whose examples are the inputs."""

    name = "a dataset"
    has_splits = True

    def is_kind(self, source: Source) -> bool:
        return read_dataset(source.path) is not None

    def check(self, source: Source, options: ConvertOptions) -> None:
        if manifest := read_dataset(source.path):
            check_labels(manifest, options)

    def rows(self, part: Part, options: ConvertOptions) -> Iterator[Row | Part]:
        if part.shard:
            yield from rows_of_shard(part.source, part.shard, options)
        else:
            shards = shards_by_name(read_dataset(part.source.path)).items()
            only_split = part.source.only_split
            yield from (Part(part.source, shard=name) for name, (split, _) in shards if only_split in ("", split))


def read_dataset(path: str, allow_export: bool = False) -> Manifest | None:
    """Returns the manifest of the dataset in a folder; None if there is none, or another kind of manifest.json.

    With `allow_export`, it may be the manifest of an export.
    """
    version = storage.replaceable(f"{path}/{MANIFEST_NAME}")
    return _read_manifest(path, version, allow_export) if version else None


@functools.lru_cache(maxsize=8)  # it is needed for each shard, and has some hundred bytes for each
def _read_manifest(path: str, _version: int, allow_export: bool) -> Manifest | None:
    try:
        content = storage.read_bytes(f"{path}/{MANIFEST_NAME}", most=MAX_MANIFEST_BYTES)
        return Manifest.from_json(content, path, allow_export)
    except storage.Unavailable:
        raise
    except (OSError, ValueError):  # it cannot be read, or is another kind of file
        return None


def shards_by_name(manifest: Manifest | None) -> dict[str, tuple[str, Shard]]:
    """Returns (split, shard) by name of the shard; {} if there is no dataset."""
    splits = manifest.splits.items() if manifest else ()
    return {shard.name: (name, shard) for name, split in splits for shard in split.shards}


def rows_of_shard(source: Source, name: str, options: ConvertOptions) -> Iterator[Row]:
    """Yields a row for each record of a shard of a dataset, with the changes that the source describes.

    Raises:
      ValueError: There is no such shard any more, or it is missing, or its index is damaged.
    """
    manifest = read_dataset(source.path)
    split, shard = shards_by_name(manifest).get(name, ("", None))
    if not manifest or not shard:
        raise ValueError(f"{source.path!r} was replaced while it was listed; run the command again")
    index = _index(source.path, name, shard.num_examples)
    columns = [column.to_pylist() for column in index.columns]
    columns[1] = as_labels(index.column(1))
    path, kind, num_classes = f"{source.path}/{name}", manifest.label_kind, len(manifest.classes)
    if not shard.is_filled_by(index["offset"].to_numpy(), index["length"].to_numpy()) or not all(
        key and kind.are_classes(label, num_classes) for key, label in zip(columns[0], columns[1], strict=True)
    ):
        raise _damaged(source.path, name, f"it does not match shard {name!r} and the manifest")
    num_bytes, version = storage.look(storage.record_uri(path, 0, 0))
    if num_bytes < 0:
        raise ValueError(
            f"shard {name!r} of {source.path!r} is missing; write it again with: jpeg2tpu verify --repair {source.path}"
        )
    changes = _changes(source)
    for key, label, offset, length, features in zip(*columns, strict=True):
        row = Row(key, storage.record_uri(path, offset, length), "", split, "", length, version=version)
        row = row._replace(features=features or "")
        names = [manifest.classes[index] for index in kind.indices(label)]
        if _INFINITE in row.features:  # stored by an earlier version
            yield row.reject("bad_feature", "a feature of it is infinite, beyond the range of float32")
        else:
            yield _changed(row, names, source, changes, options)


def check_labels(manifest: Manifest, options: ConvertOptions) -> None:
    """Checks that the examples of a dataset or an export have labels of the kind that is to be stored.

    Raises:
      ValueError: They have not.
    """
    if not options.label_kind.takes(manifest.label_kind):
        source_kind, output_kind = manifest.label_kind, options.label_kind
        advice = "or leave this dataset out" if len(options.sources) > 1 or options.extend else "or label its images"
        raise ValueError(
            f"the images of {manifest.path!r} have {source_kind.phrase}, but {output_kind.phrase} is what is stored; "
            f"use --label_type={source_kind.name}, {advice}"
        )


def check_changes(source: Source) -> None:
    """Checks the files of a source that change the examples of a dataset.

    Raises:
      ValueError: They cannot be read, name keys or classes that the dataset lacks, or the source is not a dataset.
    """
    if not source.is_of_dataset:
        return
    manifest = read_dataset(source.path)
    if not manifest:
        raise ValueError(
            f"{source.path!r} contains no {MANIFEST_NAME} of a dataset; name the folder of a dataset that is complete"
        )
    changes = _changes(source)
    for path, names in ((source.only_classes, changes.only_classes), (source.without_classes, changes.without_classes)):
        if unknown := list(map(repr, sorted((names or set()) - set(map(canonical, manifest.classes))))):
            raise ValueError(
                f"{path!r} names {enumerated(unknown, _MAX_SHOWN)}, not among the classes of {source.path!r}; correct "
                "the names"
            )
    keys_by_path = {
        source.new_labels: set(changes.new_labels),
        source.only_keys: changes.only_keys,
        source.without_keys: changes.without_keys,
        source.near_duplicates: set(changes.near_duplicates or ()),
    }
    if not any(keys_by_path.values()):
        return
    dataset_keys: set[str] = set()
    for _, shard in shards_by_name(manifest).values():
        dataset_keys.update(_index(source.path, shard.name, shard.num_examples)["key"].to_pylist())
    for path, keys in keys_by_path.items():
        if unknown := list(map(repr, sorted((keys or set()) - dataset_keys))):
            raise ValueError(
                f"{path!r} has {len(unknown):,} keys that {source.path!r} does not have: "
                f"{enumerated(unknown, _MAX_SHOWN)}; correct them, or remove their lines"
            )


def labels_of(path: str) -> dict[str, str]:
    """Returns {key: class name} of a .csv with the header key,label, or with the columns of likely_wrong_labels.csv.

    Raises:
      ValueError: It has another header, a line has more or fewer fields, a key is named twice, or it has
        no line below its header.
    """
    text = "\n".join(read_names(path))
    lines = csv.reader(io.StringIO(text), strict=True, delimiter=delimiter_of(text.partition("\n")[0]))
    labels: dict[str, str] = {}
    try:
        if tuple(header := next(lines, [])) not in (LABEL_COLUMNS, LABEL_COLUMNS + PROBABILITY_COLUMNS):
            raise ValueError(f"{path!r} begins with {','.join(header)!r}, but must have the header key,label")
        for cells in filter(None, lines):
            fields = list(map(text_of_cell, cells))
            if len(fields) != len(header) or not all(map(canonical, fields[:2])):
                raise ValueError(f"{path!r}, line {lines.line_num}: {','.join(fields)!r} must be a key and a label")
            if fields[0] in labels:
                raise ValueError(f"{path!r}, line {lines.line_num}: {fields[0]!r} has a label already; name it once")
            labels[fields[0]] = fields[1]
    except csv.Error as error:
        raise ValueError(f"{path!r} is no .csv: line {lines.line_num}: {error}") from error
    if not labels:
        raise ValueError(
            f"{path!r} has no label after its header; write a line of key,label for each example to change"
        )
    return labels


class _Changes(NamedTuple):
    """Content of the files of a source that change the examples of a dataset; None where there is no file."""

    new_labels: dict[str, str]
    only_keys: frozenset[str] | None
    without_keys: frozenset[str] | None
    only_classes: frozenset[str] | None
    without_classes: frozenset[str] | None
    near_duplicates: dict[str, str] | None  # key of the image to keep, by the key of each image of its group
    conflicting: Mapping[str, str]  # labels of the images of a group with several, by the key of the one to keep


def _changes(source: Source) -> _Changes:
    """Returns the changes of a source; read once in a process, unless the files change."""
    files = tuple(getattr(source, name) for name in FILES_OF_CHANGES)
    return _read_changes(source, tuple(storage.replaceable(path) if path else 0 for path in files))


@functools.lru_cache(maxsize=8)
def _read_changes(source: Source, _versions: tuple[int, ...]) -> _Changes:
    def names(path: str) -> frozenset[str] | None:
        return _unique_names(path, str) if path else None

    return _Changes(
        labels_of(source.new_labels) if source.new_labels else {},
        names(source.only_keys),
        names(source.without_keys),
        class_set(source.only_classes) if source.only_classes else None,
        class_set(source.without_classes) if source.without_classes else None,
        *(_read_groups(source.near_duplicates) if source.near_duplicates else (None, {})),
    )


def _read_groups(path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Returns what _Changes has of the images in a file of write_pairs(); without its classes, no labels conflict."""
    content = storage.read_bytes(path, most=MAX_INDEX_BYTES)
    try:
        a, b, keepers = (_texts_of_pairs(content, name) for name in ("key_a", "key_b", "kept"))
        has_classes = {"class_a", "class_b"} <= {*pq.read_schema(pa.BufferReader(content)).names}
        classes = [_texts_of_pairs(content, name) for name in ("class_a", "class_b")] if has_classes else []
    except (pa.ArrowException, KeyError, IndexError, ValueError) as error:
        raise ValueError(
            f"{path!r} is not a Parquet file of pairs: {first_line(error)}; write it with: report --pairs=FILE"
        ) from error
    if None in (*a, *b, *keepers):
        raise ValueError(f"{path!r} has a pair without a key; write it again with: report --pairs=FILE")
    labels: dict[str, set[str]] = {}
    for column in classes:
        for key, class_name in zip(keepers, column, strict=True):
            labels.setdefault(key, set()).add(repr(class_name))
    conflicting = {key: " and ".join(sorted(names)) for key, names in labels.items() if len(names) > 1}
    return dict(zip(a, keepers, strict=True)) | dict(zip(b, keepers, strict=True)), conflicting


def _texts_of_pairs(content: bytes, name: str) -> list[str]:
    """Returns a column of a file of pairs, with None where a key is missing.

    Raises:
      ValueError: It takes more memory than such a file's can.
    """
    chunks = [chunk for chunk in column_chunks(io.BytesIO(content)) if chunk.path == (name,)]
    check_room(sum(chunk.num_values for chunk in chunks), sum(chunk.unpacked_bytes for chunk in chunks))
    # Dictionary-encoded: otherwise, a long text that the file stores once would take memory per row.
    parquet = pq.ParquetFile(pa.BufferReader(content), read_dictionary=[name])
    column = parquet.read(columns=[name], use_threads=False)[name]
    check_room(len(column), text_bytes(column))
    return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def _unique_names(path: str, form: Callable[[str], str]) -> frozenset[str]:
    names = frozenset(map(form, read_names(path))) - {""}
    if not names:
        raise ValueError(f"{path!r} is empty; it must have one name per line")
    return names


def class_set(path: str) -> frozenset[str]:
    """Returns the names in a file of class names that are to be kept or left out, in canonical form.

    Raises:
      ValueError: It has none.
    """
    return _unique_names(path, canonical)


def _changed(row: Row, names: list[str], source: Source, changes: _Changes, options: ConvertOptions) -> Row:
    """Returns the row of an example whose classes have these names, with the changes."""
    key, row = row.key, label_row(row, names, options, are_names=True)
    if source.splits == "again":
        row = row._replace(split="")
    if source.name:
        row = row._replace(key=f"{source.name}/{key}")
    if (changes.only_keys is not None and key not in changes.only_keys) or (
        changes.without_keys is not None and key in changes.without_keys
    ):
        return row.reject("left_out", "its key was left out on request")
    if changes.near_duplicates is not None and (first := changes.near_duplicates.get(key, key)):
        if source.splits == "again":
            row = row._replace(group=first) if key in changes.near_duplicates else row
        elif first in changes.conflicting:
            return row.reject("conflicting_label", f"images that look alike are labeled {changes.conflicting[first]}")
        elif first != key:
            return row.reject("left_out", f"it looks like {first!r}, which is kept")
    remaining = [
        name
        for name in map(canonical, names)
        if (changes.only_classes is None or name in changes.only_classes)
        and (changes.without_classes is None or name not in changes.without_classes)
    ]
    if names and not remaining:
        subject = f"class {names[0]!r} was" if len(names) == 1 else f"classes {', '.join(names)} were"
        return row.reject("left_out", f"its {subject} left out on request")
    if key in changes.new_labels:
        remaining = new_names(changes.new_labels[key], options.label_kind)
    elif len(remaining) == len(names):
        return row  # its label is the one above
    return label_row(row, remaining, options, are_names=True)


def new_names(text: str, kind: LabelKind) -> list[str]:
    """Returns the names of the classes in a label of labels_of(): of several, as a JSON list or separated by ";"."""
    if kind.takes_several and is_json_list(text):
        parts = read_json_list(text, "in --labels,")
    else:
        parts = text.split(_SEPARATOR) if kind.takes_several else [text]
    return [name for name in map(canonical, parts) if name]


def _index(dataset: str, name: str, num_rows: int) -> pa.Table:
    try:
        content = storage.read_bytes(f"{dataset}/{index_path(name)}", most=MAX_INDEX_BYTES)
        return read_columns(content, num_rows, _COLUMNS)
    except (FileNotFoundError, ValueError, pa.ArrowException) as error:
        raise _damaged(dataset, name, str(error)) from error


def _damaged(dataset: str, name: str, why: str) -> ValueError:
    return ValueError(
        f"the index of {name!r} in {dataset!r} cannot be used: {why}; repair the dataset with: jpeg2tpu "
        f"verify --repair {dataset}"
    )
