"""Lists → rows: .csv and .jsonl files of image,label[,split][,group]; and text files of a class name a line."""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Iterable, Iterator

from beam_pipelines import storage
from beam_pipelines.rows import Row


def read_names(path: str) -> tuple[str, ...]:
    """Returns the lines of a text file, without the mark that editors of Windows put before the first.

    Raises:
      ValueError: It is not UTF-8.
    """
    try:
        return tuple(line.strip() for line in storage.read_bytes(path).decode("utf-8-sig").splitlines())
    except UnicodeDecodeError as error:
        raise ValueError(f"{path!r} is not UTF-8, save it as such: {error}") from error


def list_columns(path: str) -> list[str]:
    """Returns the columns of a .csv: its header's, or image, label where it has none, as in tensorflow/tpu.

    Raises:
      ValueError: The header lacks a column, or there is none and the lines have not two fields; or it is no CSV.
    """
    with _open_text(path) as text:
        _, first = next(_csv_lines(path, text), (0, []))
    if not _is_text("".join(first)) or "\0" in "".join(first):
        raise ValueError(f"{path!r} is not UTF-8 from its first line on; save it as such")
    if "image" in first and "label" in first:
        return first
    if "image" in first or len(first) != 2:
        raise ValueError(f"{path!r} begins with {','.join(first)!r}, needs the header image,label[,split][,group]")
    return ["image", "label"]


def rows_of_list(path: str) -> Iterator[Row]:
    """Yields a Row for every line of a list."""
    with _open_text(path) as text:
        for number, fields in _json_lines(text) if path.endswith(".jsonl") else _csv_fields(path, text):
            yield _row(number, fields, path)


def _row(number: int, fields: dict[str, str], path: str) -> Row:
    image, label = fields.get("image", ""), fields.get("label", "")
    if not image or not _is_text("".join(fields.values())):
        seen = "is not UTF-8; save the list as such" if image else "names no image"
        return Row(f"line {number}", path, number=number).reject("bad_line", f"line {number} {seen}")
    uri = image
    if not storage.is_uri(image):
        image = posixpath.normpath(image)  # one file is one key, however it is spelled
        uri = posixpath.join(posixpath.dirname(path), uri)
    row = Row(image, uri, label, fields.get("split", ""), fields.get("group", ""), number=number)
    return row if label else row.reject("no_label", f"line {number} names no label")


def _is_text(value: str) -> bool:
    """Returns whether UTF-8 can write it: not JSON's \\ud800 alone, which is half a character, nor escaped bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _open_text(path: str) -> io.TextIOWrapper:
    # A line that is not UTF-8 must not end the job, nor give names that nobody wrote: it is a bad one.
    return io.TextIOWrapper(storage.open_file(path), encoding="utf-8-sig", errors="surrogateescape", newline="")


def _csv_fields(path: str, text: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    columns = list_columns(path)
    for first, (number, fields) in enumerate(_csv_lines(path, text)):
        if fields and not (first == 0 and fields == columns):
            yield number, dict(zip(columns, fields, strict=False))


def _csv_lines(path: str, text: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields (number, fields) of every line, which quotes may stretch over several.

    Raises:
      ValueError: Its quotes do not match: what belongs to which line from here on is a guess.
    """
    reader = csv.reader(text, strict=True)  # else a quote that is not closed takes in all lines after it
    number = 1
    try:
        for fields in reader:
            yield number, fields
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path!r}, line {number}: {error}; close each quote that opens a field, and write one inside as two"
        ) from error


def _json_lines(text: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(text, start=1):
        if line.strip():
            yield number, _json_fields(line)


def _json_fields(line: str) -> dict[str, str]:
    """Returns the fields of a line; none if it cannot be read."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):  # nested a thousand times
        return {}
    return {name: str(value) for name, value in fields.items() if value is not None} if isinstance(fields, dict) else {}
