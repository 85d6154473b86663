"""Inputs → rows: class folders, or a .csv or .jsonl list.

Every input becomes one Row. One that cannot become a record is a Row with a reason, and goes the same way as all others
to the writer, who accounts for it: nothing is dropped on the way.
"""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Iterator
from typing import NamedTuple

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, valid_split
from tpu_input.schema import FRAME_BYTES, Record, encode


class Row(NamedTuple):
    """One input.

    Attributes:
      key: Path relative to the input folder, or the image as the list names it.
      uri: Where its bytes are.
      label: Class name.
      split: "" to choose by hash.
      group: Inputs of one group share a split; "" stands for the key.
      num_bytes: Size of the source.
      reason: Why it is rejected before it is read; "" if it is not.
      detail: What was seen.
    """

    key: str
    uri: str
    label: str = ""
    split: str = ""
    group: str = ""
    num_bytes: int = 0
    reason: str = ""
    detail: str = ""


def list_rows(options: ConvertOptions) -> Iterator[Row]:
    """Yields a Row for every file of the input folder, or for every line of the input list."""
    source = storage.absolute(options.input)
    if is_list(source):
        yield from _rows_of_list(source)
        return
    for path, num_bytes in storage.list_files(source):
        label, separator, _ = path.partition("/")
        row = Row(path, f"{source}/{path}", label if separator else "", num_bytes=num_bytes)
        yield row if separator else row._replace(reason="no_label", detail="lies in no class folder")


def is_list(source: str) -> bool:
    """Returns whether the input is a list rather than a folder."""
    return source.endswith((".csv", ".jsonl"))


def check_row(row: Row, options: ConvertOptions) -> Row:
    """Returns `row` with its size, and with a reason if it is known not to become a record."""
    if row.reason:
        return row
    if not row.num_bytes:
        row = row._replace(num_bytes=storage.file_bytes(row.uri))
    if row.num_bytes < 0:
        return row._replace(reason="missing", detail="no such file", num_bytes=0)
    if not row.label:
        return row._replace(reason="no_label", detail="the line names no label")
    if options.labels and row.label not in options.labels:
        return row._replace(reason="unknown_label", detail=f"{row.label!r} is not in --labels")
    if row.split and not valid_split(row.split):
        return row._replace(reason="bad_split", detail=f"{row.split!r} is not made of letters, digits and _")
    if record_bytes(row) > options.shard_bytes:
        return row._replace(reason="too_large", detail=f"{row.num_bytes} bytes do not fit --shard_size")
    return row


def record_bytes(row: Row) -> int:
    """Returns the size of the row's TFRecord if its image is stored as it is, to a few bytes; 0 for a rejected row."""
    if row.reason:
        return 0
    empty = Record(row.key, b"", 1 << 12, 1 << 12, 3, 0, row.label, "0" * 64)
    return len(encode(empty)) + FRAME_BYTES + row.num_bytes


def _rows_of_list(source: str) -> Iterator[Row]:
    folder = posixpath.dirname(source)
    with _open_text(source) as text:
        for number, fields in _lines(source, text):
            image = fields.get("image", "")
            if not image:
                yield Row(f"line {number}", source, reason="bad_line", detail="names no image")
                continue
            uri = image if storage.is_uri(image) else posixpath.join(folder, image)
            label, split, group = (fields.get(name, "") for name in ("label", "split", "group"))
            yield Row(image, uri, label, split, group)


def list_columns(source: str) -> list[str]:
    """Returns the columns of a .csv: its header's, or image, label where it has none, as in tensorflow/tpu.

    Raises:
      ValueError: The header lacks a column, or there is none and the lines have not two fields.
    """
    with _open_text(source) as text:
        first = next(csv.reader(text), [])
    if "image" in first and "label" in first:
        return first
    if "image" in first or len(first) != 2:
        raise ValueError(f"{source!r} begins with {','.join(first)!r}, needs the header image,label[,split][,group]")
    return ["image", "label"]


def _open_text(source: str) -> io.TextIOWrapper:
    # A name that is not UTF-8 must not end the job: it becomes a file that is missing.
    return io.TextIOWrapper(storage.open_file(source), encoding="utf-8-sig", errors="replace", newline="")


def _lines(source: str, text: io.TextIOWrapper) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (line number, fields); a line that cannot be read has no fields."""
    if source.endswith(".jsonl"):
        for number, line in enumerate(text, start=1):
            if line.strip():
                yield number, _json_fields(line)
        return
    columns, reader = list_columns(source), csv.reader(text)
    for first, fields in enumerate(reader):
        if fields and not (first == 0 and fields == columns):
            yield reader.line_num, dict(zip(columns, fields, strict=False))


def _json_fields(line: str) -> dict[str, str]:
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return {name: str(value) for name, value in fields.items()} if isinstance(fields, dict) else {}
