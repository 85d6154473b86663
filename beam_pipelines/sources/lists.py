"""Rows of lists: .csv, .tsv and .jsonl files of image,label[,split][,group]; text files with one class name per line.

Images are paths, URIs of buckets, or URLs, which url_reading.py reads.

No content of a list is silently ignored: an unknown or repeated column, and a label that is not a single class, raise
an error that names the list and the line. Only if the columns of the image or the label are named by flags, others may
be there, and a remark names them. The first line of a .csv or .tsv tells what separates the fields: a tab if there is
one, else a semicolon if there is one and no comma, else a comma.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from beam_pipelines import storage
from beam_pipelines.options import NEAR_DUPLICATES, ConvertOptions, Source
from beam_pipelines.sources.input_kinds import InputKind, Part
from beam_pipelines.sources.rows import Row, label_row, with_features
from beam_pipelines.sources.url_names import is_url, key_of, without_secrets
from tpu_input.command_line.text_files import MAX_TEXT_BYTES, encoding_of, lines_of
from tpu_input.dataset_format.class_names import canonical, class_table
from tpu_input.dataset_format.label_kinds import ONE

COLUMNS = ("image", "label", "split", "group")
_USAGE = "image,label[,split][,group]"
_NAME_OF_COLUMN = re.compile(
    r"[A-Za-z][A-Za-z _-]*"
)  # hardly any image has such a name, without an extension or a number
_NAME_BEFORE_NUMBER = re.compile(r".*[^\s,;:][,;\t]\s*\d{1,9}")
NUMBERED = re.compile(r"(\d{1,9})[\s,;:]+(.*\S)")  # number and name of a class
_FEATURE = "feature "  # before the names of features among the fields of a line
_LINE_CHARACTERS = (
    1_000_000  # a path has at most 4,096 bytes; a file that is not a list may be a single line of any length
)


class List(InputKind):
    """A list of images with their labels: .csv, .tsv or .jsonl."""

    name = "a list"

    def is_kind(self, source: Source) -> bool:
        return source.is_list

    def check(self, source: Source, options: ConvertOptions) -> None:
        if not source.path.endswith(".jsonl"):
            with _without_secrets():
                _columns(source, options)

    def rows(self, part: Part, options: ConvertOptions) -> Iterator[Row | Part]:
        with _without_secrets():
            yield from rows_of_list(part.source, options)

    def remarks(self, source: Source, options: ConvertOptions) -> Iterator[str]:
        with _without_secrets():
            if unstored := ", ".join(map(repr, _unstored(source, options))):
                yield without_secrets(f"{source.path}: the columns {unstored} are not stored")


@contextlib.contextmanager
def _without_secrets() -> Iterator[None]:
    """Leaves queries and user info of URLs out of the errors in which a line of a list is quoted."""
    try:
        yield
    except ValueError as error:
        if (text := without_secrets(str(error))) == str(error):
            raise
        raise ValueError(text) from None


def read_names(path: str) -> tuple[str, ...]:
    """Returns the lines of a text file, stripped; on encodings and line ends see text_files.py.

    Raises:
      ValueError: It is not UTF-8, nor UTF-16 with a byte order mark, or has more than MAX_TEXT_BYTES.
    """
    content = storage.read_bytes(path, most=MAX_TEXT_BYTES)
    return tuple(line.strip() for line in lines_of(content, path))


def read_class_names(path: str) -> tuple[str, ...]:
    """Returns the names of a text file with one class name per line, in canonical form, but empty lines at its end.

    Raises:
      ValueError: As read_names(); or there is no name, one occurs twice, or a line between names is empty.
    """
    names = list(map(canonical, read_names(path)))
    while names and not names[-1]:
        names.pop()
    if not names:
        raise ValueError(f"{path!r} has no name; it must have the name of a class in each line")
    return class_table(names, repr(path))


def read_numbered_names(path: str) -> tuple[str, ...] | dict[int, str]:
    """Returns the names of classes from a file with a name per line, in their order, or by number of NUMBER,NAME.

    Raises:
      ValueError: As read_names(); or a name or a number occurs twice, or only some lines have numbers.
    """
    lines = list(filter(None, read_names(path)))
    pairs = [pair for line in lines if (pair := NUMBERED.fullmatch(line))]
    if lines and not pairs and all(map(_NAME_BEFORE_NUMBER.fullmatch, lines)):
        raise ValueError(f"{path!r} has lines such as {lines[0]!r}, of NAME,NUMBER; write them as NUMBER,NAME")
    if not pairs or len(pairs) < len(lines):
        if 2 * len(pairs) > len(lines):
            other = next(line for line in lines if not NUMBERED.fullmatch(line))
            raise ValueError(f"{path!r} has lines of NUMBER,NAME, but also {other!r}; write all of them so, or none")
        return read_class_names(path)
    names = class_table((pair[2] for pair in pairs), repr(path))
    by_number = {int(pair[1]): name for pair, name in zip(pairs, names, strict=True)}
    for pair, name in zip(pairs, names, strict=True):
        if (last := by_number[int(pair[1])]) != name:
            raise ValueError(
                f"{path!r} names a number twice, {pair[1]} as {name!r} and as {last!r}; each line must be NUMBER,NAME "
                "of another class"
            )
    return by_number


# Kaggle's LOC_train_solution.csv and LOC_val_solution.csv of ImageNet: the synset, and a box, of each object.
_LOC_SOLUTION = ["ImageId", "PredictionString"]
_LOC_WORDS = 5
_SYNSET_IMAGE = re.compile(r"n\d{8}_\d+")  # an image of the training set, which lies in the folder of its synset
_OPEN_IMAGES = {"ImageID", "LabelName", "Confidence"}


class _Columns(NamedTuple):
    """Columns of a list.

    Attributes:
      header: Their names in the file; [] if it has no header.
      meaning: Their names in COLUMNS; "" for those that are not stored.
      is_solution: Whether they are the columns of _LOC_SOLUTION.
    """

    header: list[str]
    meaning: list[str]
    is_solution: bool = False


def _unstored(source: Source, options: ConvertOptions) -> list[str]:
    """Returns the columns of a list that are not stored."""
    if not source.path.endswith(".jsonl"):
        columns = _columns(source, options)
        # Not strict: a list without a header has no names of columns, and all of it is stored.
        return [name for name, meaning in zip(columns.header, columns.meaning, strict=False) if not meaning]
    if not (source.image_column or source.label_column):
        return []
    with _open_text(source.path) as text:
        first = next(_lines(source.path, text), "")
    try:
        fields = json.loads(first)
    except (ValueError, RecursionError):  # its lines are rejected
        return []
    return [name for name in fields if not _meaning(name, source, options)] if isinstance(fields, dict) else []


def _columns(source: Source, options: ConvertOptions) -> _Columns:
    """Returns the columns of a .csv or .tsv.

    They are image, label if it has no header, as in tensorflow/tpu. Without labels, the column label is not needed.

    Raises:
      ValueError: The header lacks a required column, or has a repeated or unknown one; or there is no header and the
        first line does not have two fields; or it is not a CSV file.
    """
    path, unlabelled = source.path, not options.label_kind.needs_classes
    with _open_text(path) as text:
        _, first = next(_csv_lines(path, text), (0, []))
    if not _is_text("".join(first)) or "\0" in "".join(first):
        raise ValueError(f"{path!r} is not UTF-8, already in its first line; save it as UTF-8")
    if set(first) >= _OPEN_IMAGES:
        raise ValueError(
            f"{path!r} has labels as Open Images publishes them, where an image has several lines, also of classes "
            "that it is known not to have; make a list with one line for each image: docs/conversion.md, “Open Images”"
        )
    if source.image_column or source.label_column:
        meaning = [_meaning(name, source, options) for name in first]
        for flag, name in (("image_column", "image"), ("label_column", "label")):
            if name not in meaning and not (unlabelled and name == "label"):
                column = getattr(source, flag) or name
                raise ValueError(
                    f"{path!r} has no column {column!r}, only {', '.join(map(repr, first))}; name one with --{flag}"
                )
        _check_header(path, first, options)
        return _Columns(first, meaning)
    if first == _LOC_SOLUTION:
        return _Columns(first, ["image", "label"], is_solution=True)
    if not _is_header(first) and len(first) == 2:
        return _Columns([], ["image", "label"])
    if not {"image", "label"} - ({"label"} if unlabelled else set()) <= set(first):
        raise ValueError(
            f"{path!r} begins with {','.join(first)!r}, but must have the header {_USAGE}; or name its columns with "
            "--image_column and --label_column"
        )
    _check_header(path, first, options)
    if unknown := [name for name in first if name not in COLUMNS and name not in dict(options.features)]:
        raise ValueError(
            f"{path!r} has the unknown column {unknown[0]!r}, which would not be stored"
            + (" (pandas writes its index this way, unless to_csv(index=False) is used)" if unknown[0] == "" else "")
            + f"; remove it, the columns of a list are {_USAGE}; store it with --feature=NAME:TYPE; or name those to "
            "use with --image_column and --label_column"
        )
    return _Columns(first, [name if name in COLUMNS else f"{_FEATURE}{name}" for name in first])


def _check_header(path: str, header: list[str], options: ConvertOptions) -> None:
    """Raises ValueError if a column occurs twice, or one that --feature names is missing."""
    for name, count in Counter(header).items():
        if count > 1:
            raise ValueError(f"{path!r} has the column {name!r} {count} times; keep only one of them")
    if missing := [name for name, _ in options.features if name not in header]:
        raise ValueError(
            f"{path!r} has no column {missing[0]!r}, only {', '.join(map(repr, header))}; correct --feature"
        )


def _meaning(column: str, source: Source, options: ConvertOptions) -> str:
    """Returns what a column of a list with other names is: a name in COLUMNS, or a feature; "" if it is not stored."""
    if column == (source.image_column or "image"):
        return "image"
    if column == (source.label_column or "label"):
        return "label"
    if (name := column.strip().lower()) in ("split", "group"):
        return name
    return f"{_FEATURE}{column}" if column in dict(options.features) else ""


def _is_header(first: list[str]) -> bool:
    """Returns whether the first line of a .csv is a header: it names a known column, or begins with no image's name."""
    names = [name.strip().casefold() for name in first]
    return any(name in COLUMNS for name in names) or bool(first and _NAME_OF_COLUMN.fullmatch(names[0]))


def rows_of_list(source: Source, options: ConvertOptions) -> Iterator[Row]:
    """Yields a Row for every line of a list.

    Args:
      source: The list.
      options: Options of the conversion, whose `labels` are accepted without further checks.

    Raises:
      ValueError: The file is not a list; or a label is neither a name nor a whole number, or several without
        --label_type=classes.
    """
    path = source.path
    with _open_text(path) as text:
        for number, fields in (
            _json_lines(source, text, options) if path.endswith(".jsonl") else _csv_fields(source, text, options)
        ):
            if isinstance(fields, str):
                yield Row(f"line {number}", path, number=number).reject("bad_line", f"line {number} {fields}")
            else:
                yield _row(number, fields, source, options)


def _row(number: int, fields: dict[str, str], source: Source, options: ConvertOptions) -> Row:
    path, image, label = source.path, fields.get("image", ""), fields.get("label", "")
    if not image or not _is_text("".join(fields.values())):
        problem = "is not UTF-8; save the list as UTF-8" if image else "does not name an image"
        return Row(f"line {number}", path, number=number).reject("bad_line", f"line {number} {problem}")
    kind = options.label_kind
    image += "" if image.endswith(source.image_suffix) else source.image_suffix
    uri, num_bytes = image, 0
    if is_url(image):
        _check_readable_once(f"{path!r}, line {number}", options)
        image, num_bytes = key_of(uri), options.urls.url_image_bytes
    elif not storage.is_uri(image):
        image = posixpath.normpath(image)  # so that all spellings of a path give the same key
        uri = posixpath.join(source.image_folder or posixpath.dirname(path), uri)
    values = {name: fields.get(f"{_FEATURE}{name}", fields.get(name)) for name, _ in options.features}  # maybe a split
    row = Row(image, uri, "", fields.get("split", ""), fields.get("group", ""), num_bytes, number=number)
    classes: str | list[str] = label
    if kind.takes_several and is_json_list(label) and label not in options.known_labels:
        classes = read_json_list(label, f"{path!r}, line {number}:")
    if label or kind is not ONE:
        row = label_row(row, classes, options, where=f"{path!r}, line {number}:")
    else:
        row = row.reject("no_label", f"line {number} has no label")
    return with_features(row, values, options)


def _check_readable_once(where: str, options: ConvertOptions) -> None:
    """Raises ValueError if URLs would be read while planning, which does not depend on what a server answers."""
    for flag, value in (("dedup", options.dedup), ("group_by", options.group_by)):
        if value in ("exact", "near", NEAR_DUPLICATES):
            raise ValueError(
                f"{where} has a URL, and --{flag}={value} would read all of them twice; leave it out, and use "
                f"jpeg2tpu {'merge --dedup' if flag == 'dedup' else 'split --near_duplicates'} on the dataset"
            )


def _is_text(value: str) -> bool:
    """Returns whether a text can be encoded as UTF-8: no lone surrogates, as of JSON's \\ud800 or of escaped bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _open_text(path: str) -> io.TextIOWrapper:
    file = storage.open_file(path)
    encoding = encoding_of(file.read(4))
    file.seek(0)
    # surrogateescape: a line that is not UTF-8 must neither stop the job nor give altered names; it is a bad line.
    errors = "surrogateescape" if encoding.startswith("utf-8") else "replace"
    return io.TextIOWrapper(file, encoding=encoding, errors=errors, newline="")


def _lines(path: str, text: io.TextIOWrapper) -> Iterator[str]:
    """Yields the lines of a list with their line ends.

    Raises:
      ValueError: A line has _LINE_CHARACTERS characters or more.
    """
    number = 0
    while line := text.readline(_LINE_CHARACTERS):
        number += 1
        if len(line) == _LINE_CHARACTERS:
            raise ValueError(
                f"{path!r}, line {number} has {_LINE_CHARACTERS:,} characters or more, so the file is not a list"
            )
        yield line


def _csv_fields(
    source: Source, text: io.TextIOWrapper, options: ConvertOptions
) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Yields (line number, fields or the problem) for every line except the header and empty lines."""
    columns = _columns(source, options)
    names = columns.header or columns.meaning
    for first, (number, fields) in enumerate(_csv_lines(source.path, text)):
        if not fields or (first == 0 and fields == names):
            continue
        if any(fields[len(names) :]):
            yield (
                number,
                f"has {len(fields)} fields for the columns {','.join(names)}; quote a field that contains a comma",
            )
            continue
        stored = {name: value for name, value in zip(columns.meaning, fields, strict=False) if name}
        yield number, _solution_fields(stored) if columns.is_solution else stored


def _solution_fields(fields: dict[str, str]) -> dict[str, str] | str:
    """Returns the image and its synset of a line of _LOC_SOLUTION, or the problem."""
    words = fields.get("label", "").split()
    synsets = sorted(set(words[::_LOC_WORDS]))
    if len(synsets) > 1:
        return f"names the synsets {', '.join(synsets)}, but an image must have one label"
    name = fields["image"]
    folder = f"{name.partition('_')[0]}/" if _SYNSET_IMAGE.fullmatch(name) else ""
    return {"image": f"{folder}{name}.JPEG" if name else "", "label": "".join(synsets)}


def _csv_lines(path: str, text: io.TextIOWrapper) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of the first line, fields) for every row, which may have several lines if a field is quoted.

    Raises:
      ValueError: Quotes do not match, so the bounds of the following rows are unknown.
    """
    lines = _lines(path, text)
    first = next(lines, "")
    # strict: otherwise an open quote would swallow all lines after it
    reader = csv.reader(itertools.chain([first], lines), strict=True, delimiter=delimiter_of(first))
    number = 1
    try:
        for fields in reader:
            yield number, fields
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path!r}, line {number}: {error}; close every quoted field, and double the quotes inside it"
        ) from error


def delimiter_of(first_line: str) -> str:
    """Returns what separates the fields of a table of text, by its first line."""
    if "\t" in first_line:
        return "\t"
    return ";" if ";" in first_line and "," not in first_line else ","


def _json_lines(
    source: Source, text: io.TextIOWrapper, options: ConvertOptions
) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Yields (line number, fields or the problem) for every line that is not empty.

    Raises:
      ValueError: A line has a field that is unknown, repeated, or neither text nor a whole number.
    """
    path = source.path
    for number, line in enumerate(_lines(path, text), start=1):
        if not line.strip():
            continue
        try:
            pairs = json.loads(line, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError):  # RecursionError: nested a thousand levels deep
            pairs = None
        if isinstance(pairs, _Pairs):
            yield number, _json_fields(f"{path!r}, line {number}:", pairs, source, options)
        else:
            yield number, _NO_OBJECT


_NO_OBJECT = 'is not a JSON object such as {"image": "1.jpg", "label": "cat"}'


class _Pairs(list[tuple[str, Any]]):
    """Fields of a JSON object in their order, including repeated ones."""


def _to_dicts(value: Any) -> Any:
    """Returns a value of JSON with its objects as such."""
    if isinstance(value, _Pairs):
        return {name: _to_dicts(inner) for name, inner in value}
    return [_to_dicts(inner) for inner in value] if isinstance(value, list) else value


def _json_fields(where: str, pairs: _Pairs, source: Source, options: ConvertOptions) -> dict[str, str]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        duplicate = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{where} the field {duplicate!r} occurs more than once; keep only one of them")
    if source.image_column or source.label_column:
        fields = {meaning: value for name, value in pairs if (meaning := _meaning(name, source, options))}
    else:
        feature_types = dict(options.features)
        fields = {
            f"{_FEATURE}{name}" if name in feature_types and name not in COLUMNS else name: value
            for name, value in fields.items()
        }
    features = {
        name: value if isinstance(value, str) else json.dumps(_to_dicts(value))
        for name, value in fields.items()
        if name.startswith(_FEATURE) and value is not None
    }
    fields = {name: value for name, value in fields.items() if not name.startswith(_FEATURE)}
    if unknown := [name for name in fields if name not in COLUMNS]:
        raise ValueError(
            f"{where} unknown field {unknown[0]!r}, which would not be stored; remove it, the fields of a line are "
            f"{_USAGE}"
        )
    label = fields.get("label")
    if options.label_kind.takes_several and isinstance(label, list):
        fields["label"] = json.dumps(_class_texts(where, label))
    for name, value in fields.items():
        optional = value is None and name != "label"  # _row() reports a missing image
        if not optional and (isinstance(value, bool) or not isinstance(value, str | int)):
            raise ValueError(
                f"{where} the {name} is {json.dumps(value)[:80]}; write it as text or a whole number"
                + ("" if value is not None else ", or remove the line")
            )
    return {name: str(value) for name, value in fields.items() if value is not None} | features


def is_json_list(label: str) -> bool:
    """Returns whether a label with several classes is a JSON list of them, rather than names with separators."""
    return label.startswith("[") and label.endswith("]")


def read_json_list(label: str, where: str) -> list[str]:
    """Returns the classes of a label that is a JSON list; `where` is its place, for messages.

    Raises:
      ValueError: It is not a JSON list of names and numbers.
    """
    try:
        return _class_texts(where, json.loads(label))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"{where} the label {label[:80]!r} is not a JSON list; write it as "
            '["cat", "dog"], or the names with separators between them'
        ) from error


def _class_texts(where: str, label: list[Any]) -> list[str]:
    """Returns the classes of a JSON list as texts."""
    if not all(isinstance(item, str | int) and not isinstance(item, bool) and item != "" for item in label):
        raise ValueError(f"{where} the label is {json.dumps(label)[:80]}; write it as a list of texts or whole numbers")
    return list(map(str, label))
