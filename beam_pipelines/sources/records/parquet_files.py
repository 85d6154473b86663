"""Parquet with the bytes of images, as Hugging Face's datasets have them, as rows.

    train-00000-of-00042.parquet ──▶ its images, one behind the other ──▶ Row(FILE/000123-NAME, COPY#bytes=BEGIN-END)

Images lie in compressed pages of hundreds, so they are copied once to a working file of the conversion.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, RecordFormat
from beam_pipelines.sources.rows import Row, label_row, with_features
from beam_pipelines.sources.unpacking import inflates_too_much, limited, unpacked
from tpu_input.dataset_format.parquet_footer import column_chunks
from tpu_input.dataset_format.split_names import split_column

_ROWS_A_BATCH = 64
_BATCH_BYTES = 64 << 20  # of a batch, whose values may all be the largest one of a dictionary
_CHUNK_BYTES = 256 << 20  # to which the column of a row group may always inflate, as a member of a zip
_VALUE_BYTES = 64  # of memory that a value takes at least, whatever the file has of it
_ROW_BYTES = 1 << 10  # of memory that a row takes
_BUFFER_BYTES = 1 << 20  # with a buffer, pages are read one after another, not a whole group of rows
_METADATA = b"huggingface"
_USUAL_LABELS = ("label", "labels")  # one of these counts if no ClassLabel is declared


class _Columns(NamedTuple):
    """Columns of a file.

    Attributes:
      image: Column with the image: bytes, or a struct with `bytes` and maybe `path`.
      is_struct: Whether it is a struct.
      label: Column with the label.
      classes: Names of the classes by number, as the file has them; () if it has none.
      name: Column with the name of the class; "" if the label is it.
      key: Column with the name of the image's file; "" if the struct's path is it.
      split: Column with the name of the split; "" if there is none.
      id: Column with the key; "" if it is made of the names of file and image.
    """

    image: str
    is_struct: bool
    label: str
    classes: tuple[str, ...]
    name: str
    key: str
    split: str
    id: str

    @property
    def needed(self) -> list[str]:
        """Columns that are read, besides the features'."""
        return list(dict.fromkeys(filter(None, (self.image, self.label, self.name, self.key, self.split, self.id))))


def check_first(path: str, record_format: RecordFormat, unlabelled: bool) -> None:
    """Raises ValueError if a column of a file is missing."""
    with _opened(path) as (_, parquet):
        _columns(path, parquet.schema_arrow, record_format, unlabelled)


def not_stored(path: str, record_format: RecordFormat, options: ConvertOptions) -> tuple[str, list[str]]:
    """Returns what the parts of a file are called, and those that are neither stored nor read."""
    with _opened(path) as (_, parquet):
        columns = _columns(path, parquet.schema_arrow, record_format, not options.label_kind.needs_classes)
        used = {*columns.needed, *dict(options.features)}
        return "columns", [name for name in parquet.schema_arrow.names if name not in used]


def _value_type(kind: pa.DataType) -> pa.DataType:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    values = kind.value_type if is_list else kind
    return values.value_type if pa.types.is_dictionary(values) else values


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def has_images(path: str) -> bool:
    """Returns whether a file is Parquet with a column of images."""
    try:
        with _opened(path) as (_, parquet):
            return bool(_image_columns(parquet.schema_arrow))
    except ValueError:
        return False


def rows_of_file(folder: str, name: str, record_format: RecordFormat, options: ConvertOptions) -> Iterator[Row]:
    """Yields a row for each row of a file.

    Raises:
      ValueError: It is damaged or no Parquet, or lacks a column.
    """
    path = f"{folder}/{name}"
    return copied_rows(path, options, lambda write: _rows(path, name, record_format, options, write))


def copied_rows(
    path: str, options: ConvertOptions, list_rows: Callable[[Callable[[bytes, int], Any]], Iterator[Row]]
) -> Iterator[Row]:
    """Yields the rows of a file whose images are copied, once, to a working file of the conversion.

    Args:
      path: The file.
      options: Options of the conversion.
      list_rows: Yields its rows without their URIs; calls its argument with each image, as limited() does.
    """
    rows = list[Row]()
    copy = unpacked(
        path,
        options.output,
        lambda copy: rows.extend(list_rows(limited(path, options.output, copy.write))),
    )
    _, version = storage.look(storage.slice_uri(copy, 0, 0))
    begin = 0
    for row in rows or list_rows(lambda image, least: None):
        yield row._replace(uri=storage.slice_uri(copy, begin, row.num_bytes), version=version)
        begin += row.num_bytes


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[IO[bytes], pq.ParquetFile]]:
    """Context manager: a file, and the same as Parquet, whose errors are ValueErrors that name it."""
    with storage.open_file(path) as file:
        try:
            yield file, pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            if storage.is_failure(error):
                raise
            line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"{path!r} is not a complete Parquet file: {line}; copy it again") from error


def _rows_a_batch(path: str, file: IO[bytes], columns: list[str]) -> int:
    """Returns how many rows of these columns may be in memory together.

    A file of a kilobyte may state a million rows, lists of a billion values, or a value of a gigabyte that each row has
    again by its number in a dictionary.

    Raises:
      ValueError: They inflate to more than images can be.
    """
    try:
        chunks = [chunk for chunk in column_chunks(file) if chunk.path and chunk.path[0] in columns]
    except ValueError as error:
        raise ValueError(f"{path!r} is not a complete Parquet file: {error}; copy it again") from error
    packed_bytes = storage.file_bytes(path)
    largest = max((chunk.unpacked_bytes for chunk in chunks), default=0)
    num_bytes = sum(max(chunk.unpacked_bytes, _VALUE_BYTES * chunk.num_values) for chunk in chunks)
    if why := inflates_too_much(largest, packed_bytes, _CHUNK_BYTES) or inflates_too_much(num_bytes, packed_bytes):
        raise ValueError(f"{path!r} {why}; write its images to files if you trust it")
    return min(max(_BATCH_BYTES // max(largest, 1), 1), _ROWS_A_BATCH)


def _image_columns(schema: pa.Schema) -> list[str]:
    """Returns the columns that may hold images: structs with bytes, or else columns of bytes."""
    structs = [
        field.name for field in schema if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0
    ]
    binary = [field.name for field in schema if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)]
    return structs or binary


def _columns(path: str, schema: pa.Schema, record_format: RecordFormat, unlabelled: bool) -> _Columns:
    for role in ("image", "label", "name", "key", "id"):
        name = getattr(record_format, role)
        if name and schema.get_field_index(name) < 0:
            raise ValueError(
                f"{path!r} has no column {name!r} for the {role}, only {', '.join(map(repr, schema.names))}; name it: "
                f"--record=huggingface,{role}=COLUMN"
            )
    declared = _declared_classes(schema)
    usual = [name for name in _USUAL_LABELS if name in schema.names]
    candidates = {
        "image": [record_format.image] if record_format.image else _image_columns(schema),
        "label": [record_format.label] if record_format.label else (list(declared) or usual[:1]),
    }
    if unlabelled:
        candidates["label"] = [""]
    for role, names in candidates.items():
        if len(names) != 1:
            problem = f"the columns {', '.join(map(repr, names))}" if names else f"no column among {schema.names!r}"
            raise ValueError(f"{path!r} has {problem} for the {role}; name one: --record=huggingface,{role}=COLUMN")
    image, label = candidates["image"][0], candidates["label"][0]
    kind = schema.field(image).type
    is_struct = pa.types.is_struct(kind)
    if not (image in _image_columns(schema) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise ValueError(f"the column {image!r} of {path!r} has {kind}, not the bytes of images; name another one")
    texts = [field.name for field in schema if field.name != label and _is_text(_value_type(field.type))]
    split, class_name = split_column(texts), "" if unlabelled else record_format.name
    if column := class_name or label:
        class_type = _value_type(schema.field(column).type)
        if not (pa.types.is_integer(class_type) or _is_text(class_type)):
            raise ValueError(
                f"the column {column!r} of {path!r} has {class_type}; labels must be whole numbers or text"
            )
    classes = declared.get(label, ())
    return _Columns(image, is_struct, label, classes, class_name, record_format.key, split, record_format.id)


def _declared_classes(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Returns the names of the classes of each column that Hugging Face's metadata declare as ClassLabel."""
    try:
        features = json.loads((schema.metadata or {}).get(_METADATA, b"{}"))["info"]["features"]
        names_by_column = {}
        for column, feature in features.items():
            feature = feature.get("feature", feature) if isinstance(feature, dict) else feature[0]  # of a list
            if feature.get("_type") == "ClassLabel" and column in schema.names:
                names = feature.get("names") or ()
                ordered = [names[str(number)] for number in range(len(names))] if isinstance(names, dict) else names
                if all(isinstance(name, str) and name for name in ordered) and len(set(ordered)) == len(ordered):
                    names_by_column[column] = tuple(ordered)
        return names_by_column
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}  # the metadata of another program


def _rows(
    path: str,
    name: str,
    record_format: RecordFormat,
    options: ConvertOptions,
    write: Callable[[bytes, int], Any],
) -> Iterator[Row]:
    """Yields the rows of a file without their URIs; writes their images, one behind the other, with limited()."""
    number = 0
    with _opened(path) as (file, parquet):
        columns = _columns(path, parquet.schema_arrow, record_format, not options.label_kind.needs_classes)
        features = [name for name, _ in options.features]
        if missing := [name for name in features if name not in parquet.schema_arrow.names]:
            raise ValueError(f"{path!r} has no column {missing[0]!r}; correct --feature")
        names = list(dict.fromkeys([*columns.needed, *features]))
        for batch in parquet.iter_batches(_rows_a_batch(path, file, names), columns=names, use_threads=False):
            for values in _values(path, batch):
                row, data = _row(values, f"{name}/{number:06d}", columns, options)
                write(data, _ROW_BYTES)
                yield row
                number += 1


def _values(path: str, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Returns the rows of a batch; raises ValueError for what Python has no type for, such as years after 9999."""
    try:
        return list(batch.to_pylist())
    except (pa.ArrowException, UnicodeDecodeError):  # damage, which _opened() explains
        raise
    except (ValueError, ArithmeticError) as error:
        columns = " or ".join(f"{field.name!r} of {field.type}" for field in batch.schema if not _is_plain(field.type))
        why = str(error).partition(". ")[0]
        raise ValueError(f"{path!r} has values that cannot be read, in {columns}: {why}; leave them out") from error


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_binary(kind) or _is_text(kind))


def _row(values: dict[str, Any], key: str, columns: _Columns, options: ConvertOptions) -> tuple[Row, bytes]:
    image = values[columns.image]
    data = (image or {}).get("bytes") if columns.is_struct else image
    image_path = values[columns.key] if columns.key else (image or {}).get("path") if columns.is_struct else None
    base = posixpath.basename(image_path) if isinstance(image_path, str) else ""
    split = values[columns.split] if columns.split else ""
    row = Row(f"{key}-{base}" if base else key, split=split or "", num_bytes=len(data or b""))
    if columns.id:
        if not isinstance(values[columns.id], str) or not values[columns.id]:
            return row.reject("bad_record", f"it has no key in the column {columns.id!r}"), data or b""
        row = row._replace(key=values[columns.id])
    row = with_features(row, values, options)
    if row.reason:
        return row, data or b""
    if not isinstance(data, bytes) or not data:
        where = f", only the path {image_path!r}" if image_path else ""
        return row.reject("bad_record", f"it has no bytes of an image{where}"), b""
    if not options.label_kind.needs_classes:
        return label_row(row, "", options), data
    label = values[columns.name or columns.label]
    if label is None or (label == "" and not options.label_kind.is_list):
        return row.reject("no_label", f"it has no class in the column {columns.name or columns.label!r}"), data
    if isinstance(label, list) and None in label:
        return row.reject("bad_record", f"the list in the column {columns.name or columns.label!r} has a null"), data
    return label_row(row, label, options, columns.classes), data
