"""Rows, which represent inputs, and the checks of a row before its image is read.

Every input becomes one Row. An input that cannot become a record is a Row with a reason. It passes through the pipeline
like all other rows, and the writer lists it as rejected, so no input is dropped.
"""

from __future__ import annotations

import functools
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions, Source
from beam_pipelines.runners.executors import map_in_threads
from beam_pipelines.sources.url_names import is_url
from tpu_input.dataset_format.class_names import canonical
from tpu_input.dataset_format.decode_limits import too_many_bytes
from tpu_input.dataset_format.label_kinds import NONE, ONE, LabelKind
from tpu_input.dataset_format.manifest import FeatureType
from tpu_input.dataset_format.records import valid_split

_REQUESTS_IN_FLIGHT = 64


class Row(NamedTuple):
    """One input.

    Attributes:
      key: Path within the input, or the image as named in the list.
      uri: Location of its bytes; "" for a file of a folder, for which locate() derives it from the key.
      label: Text of the label as label_row() makes it of what the input writes, later as LabelKind.text() does.
      split: Name of the split; "" to choose it by hash.
      group: Name of the group, whose inputs share a split; "" means that the key is the group.
      num_bytes: Size of the source; of a URL, an estimate until it is read.
      record_bytes: Planned size of its TFRecord; 0 for a rejected input.
      reason: Reason code if it is rejected before it is read; "" if it is not.
      detail: Description of the problem.
      version: Version of the file at `uri` when it was listed, as returned by storage.look(); 0 if unknown.
      features: Further features of the record, as JSON from features_of(); "" for none.
      number: Precedence among rows with the same key; the smallest counts. This is the first line of a list, and the
        last member of an archive, where appended members replace earlier ones. 0 in a folder, where names are unique.
    """

    key: str
    uri: str = ""
    label: str = ""
    split: str = ""
    group: str = ""
    num_bytes: int = 0
    record_bytes: int = 0
    reason: str = ""
    detail: str = ""
    version: int = 0
    features: str = ""
    number: int = 0

    def reject(self, reason: str, detail: str) -> Row:
        """Returns the row with a reason and without a record."""
        return self._replace(reason=reason, detail=detail, record_bytes=0)


def escaped(name: str) -> str:
    """Returns a name in which bytes that are not UTF-8 are written as \\x escapes."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def locate(row: Row, sources: Sequence[Source]) -> Row:
    """Returns the row with its URI. Rows of folders have none in the shuffle, which halves their size there."""
    if row.uri:
        return row
    if len(sources) == 1:
        uri = f"{sources[0].path}/{row.key}"
    else:
        split, _, path = row.key.partition("/")
        source = next(source for source in sources if source.split == split)
        uri = f"{source.path}/{path}"
    return Row(row.key, uri, *row[2:])


def find(row: Row) -> Row:
    """Returns `row` with its size, and with a reason if the file does not exist or is too large for an image."""
    if row.reason or is_url(row.uri):  # what is behind a URL is known when it is read
        return row
    if not storage.is_supported(row.uri) or not (row.num_bytes or storage.lists_files(row.uri)):
        readable = f"{storage.readable(listing=True)}, or URLs with http:// or https://"
        return row._replace(num_bytes=0).reject("missing", f"images of a list can be {readable}")
    if row.uri and not row.num_bytes:
        num_bytes, version = storage.look(row.uri)
        row = row._replace(num_bytes=num_bytes, version=version)
    if why := too_many_bytes(row.num_bytes):
        return row.reject("too_large", why)
    if row.num_bytes >= 0:
        return row
    detail = "no such file, or it does not have these bytes" if storage.byte_range(row.uri) else "no such file"
    return row._replace(num_bytes=0).reject("missing", f"{detail}{_advice_on_path(row.key)}")


def _advice_on_path(path: str) -> str:
    """Returns what to change in the path of a file that is not there, if it is not written as paths are here."""
    if path[:1] == path[-1:] == "'":
        return "; its path is in single quotes: remove them, only double quotes belong around a field"
    return "; its path has backslashes: write / between folders" if "\\" in path else ""


def find_all(rows: list[Row]) -> Iterator[Row]:
    """Yields find(row) for every row; for rows with URIs, which take one request each, many requests run in parallel.

    One row of each bucket goes first, so that an unreachable bucket is reported after one timeout, not one per row.
    """
    first_by_bucket: dict[str, int] = {}
    for position, row in enumerate(rows):
        if storage.is_uri(row.uri) and not is_url(row.uri):
            first_by_bucket.setdefault("/".join(row.uri.split("/", 3)[:3]), position)
    if not first_by_bucket:
        yield from map(find, rows)
        return
    first = set(first_by_bucket.values())
    yield from (find(rows[position]) for position in sorted(first))
    others = (row for position, row in enumerate(rows) if position not in first)
    yield from map_in_threads(find, others, _REQUESTS_IN_FLIGHT)


# Before the text of a label whose names are numbers; naming.name_classes() turns them into names when all are known.
_NUMBER_MARK = "\x1d"


_FRACTION = re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_SEVERAL = re.compile(r".*[;|].*|\[.*\]|\{.*\}", re.DOTALL)
_COMMA = re.compile(r".*\S,\S.*", re.DOTALL)  # not so "tench, Tinca tinca", a name with a comma


NO_CLASS = "-1"  # what Hugging Face's test splits and many lists have for images without a label


def stands_for_none(label: str | int) -> bool:
    """Returns whether what an input writes as a label says that there is none; "-1" may be a class in --labels."""
    return label == -1 if isinstance(label, int) else label.strip() == NO_CLASS


@functools.lru_cache(maxsize=1 << 16)  # a name occurs for each of its images
def fault_of_name(name: str, kind: LabelKind) -> str:
    """Returns why what an input writes is not the name of one class; "" if it may be one."""
    if _FRACTION.fullmatch(name):
        return "is not a whole number; a label must be a class, written as a name or a whole number"
    if kind is ONE and _SEVERAL.fullmatch(name):
        return "looks like several classes, which --label_type=classes stores; else an image must have one label"
    if kind.takes_several and (_SEVERAL.fullmatch(name) or _COMMA.fullmatch(name)):
        return "looks like several classes in one name; separate them by --label_separator"
    return ""


def label_row(
    row: Row,
    label: str | int | Sequence[str | int],
    options: ConvertOptions,
    classes: tuple[str, ...] = (),
    where: str = "",
    are_names: bool = False,
) -> Row:
    """Returns a row with its label as the input writes it, or with the reason why it has none.

    What the input writes becomes names of classes in naming.name_classes(), after all inputs are listed.

    Args:
      row: One input.
      label: Name of its class, or its number; with several labels per image, a sequence of such, or a text with
        --label_separator between names.
      options: Options of the conversion.
      classes: Names of the classes by number, from 0, if the input itself has them.
      where: Where the label stands, for messages, if that is not the row.
      are_names: Whether labels are certainly the names of classes, such as the names of folders.

    Raises:
      ValueError: It looks like a measured value or like several classes, and is not in --labels; or the input's own
        names have none for it.
    """
    kind = options.label_kind
    if kind.takes_several and isinstance(label, str):
        label = [name for name in label.split(options.label_separator) if canonical(name)]
    labels = [label] if isinstance(label, str | int) else list(label)
    if kind is NONE:
        return row._replace(label=kind.text(()))
    if fault := kind.fault(len(labels)):
        return row.reject("no_label", fault)
    if not are_names and any(map(stands_for_none, labels)) and NO_CLASS not in options.known_labels:
        return row.reject("no_label", f"its label is {NO_CLASS}, which stands for none")
    if classes:
        if invalid := [number for number in labels if isinstance(number, int) and not 0 <= number < len(classes)]:
            raise ValueError(
                f"the label of {row.key!r} is {invalid[0]}, but its file declares {len(classes)} names of classes, for "
                f"0 to {len(classes) - 1}; correct the file"
            )
        labels = [classes[item] if isinstance(item, int) else item for item in labels]
    for name in () if are_names or classes else labels:
        if isinstance(name, str) and (fault := fault_of_name(name, kind)) and name not in options.known_labels:
            raise ValueError(
                f"{where or repr(row.key) + ':'} the label {name!r} {fault}. If it is the name of a class, list it in "
                "--labels"
            )
    if kind is ONE and isinstance(labels[0], str) and not canonical(labels[0]):
        return row.reject("no_label", "its label is empty")
    text = kind.text(map(str, labels)).lstrip(_NUMBER_MARK)
    return row._replace(label=f"{_NUMBER_MARK}{text}" if any(isinstance(item, int) for item in labels) else text)


def written_names(row: Row, kind: LabelKind) -> tuple[tuple[str, ...], bool]:
    """Returns the names in the label of a row from label_row(), and whether the input has numbers among them."""
    is_numbered = row.label.startswith(_NUMBER_MARK)
    return kind.names(row.label.removeprefix(_NUMBER_MARK)), is_numbered


def with_features(row: Row, values: Mapping[str, Any], options: ConvertOptions) -> Row:
    """Returns a row with the features that --feature names, or with the reason why it has not all of them.

    Args:
      row: One input.
      values: Values by name, each a number, a text, or a list of them; a text may hold a number, or several with spaces
        or commas between them, or as a JSON list. A missing float is NaN, a missing string is "".
      options: Options of the conversion.
    """
    if row.reason or not options.features:
        return row
    features = {}
    for name, text in sorted(options.features):
        try:
            features[name] = _typed(values.get(name), FeatureType.parse(text))
        except (ValueError, TypeError, OverflowError, struct.error) as error:
            return row.reject("bad_feature", f"its {name} is {str(values.get(name))[:80]!r}, not {text}: {error}")
    return row._replace(features=json.dumps(features))


def _typed(value: Any, feature_type: FeatureType) -> list[Any]:
    if feature_type.kind == "string" and feature_type.length is None:
        value = ["" if value is None else str(value)]
    elif isinstance(value, str) and feature_type.kind != "string":
        text = value.strip()
        value = json.loads(text) if text.startswith("[") else text.replace(",", " ").split()
    elif isinstance(value, str):
        value = json.loads(value)
    if value is None or value == []:
        value = [math.nan] * (feature_type.length or 1) if feature_type.kind == "float" else []
    values = list(value) if isinstance(value, list | tuple) else [value]
    if len(values) != (feature_type.length or 1):
        raise ValueError(f"{len(values)} values, {feature_type.length or 1} are needed")
    return [_converted(item, feature_type.kind) for item in values]


def _converted(value: Any, kind: str) -> Any:
    if kind == "string":
        return str(value)
    if isinstance(value, bool):
        raise TypeError("neither true nor false is a number")
    if isinstance(value, str) and "_" in value:  # Python reads 1_000 as a number, other programs do not
        raise ValueError("a number must not have _")
    if kind == "float":
        try:
            stored = struct.unpack("<f", struct.pack("<f", float(value)))[0]
        except OverflowError:
            stored = math.inf
        if math.isinf(stored):
            raise OverflowError("a float32 is needed, which is at most 3.4e38")
        return stored
    try:
        number = int(value)
    except ValueError:
        number = None
    if number is None or (isinstance(value, float) and number != value):
        raise ValueError("a whole number is needed")
    struct.pack("<q", number)
    return number


def features_of(row: Row) -> dict[str, tuple[Any, ...]]:
    """Returns the features of a row as Record has them."""
    features: dict[str, list[Any]] = json.loads(row.features) if row.features else {}
    return {name: tuple(values) for name, values in features.items()}


def check_names(row: Row, options: ConvertOptions) -> Row:
    """Returns `row`, with a reason if its label is not in --labels, its split's name is invalid, or features miss."""
    if options.features and not row.features and not row.reason:
        names = ", ".join(name for name, _ in options.features)
        return row.reject(
            "bad_feature", f"it has no {names}: only lists, Parquet, WebDataset's JSON and datasets have features"
        )
    if row.split and not valid_split(row.split):
        # Removed from a rejected input too, because its shard is named after the split.
        detail = f"the split name {row.split!r} is not 1 to 64 letters, digits or _"
        row = row._replace(split="")
        row = row if row.reason else row.reject("bad_split", detail)
    if row.reason:
        return row
    labels = options.label_kind.names(row.label) if options.labels else ()
    unknown = [name for name in labels if name not in options.known_labels]
    return row.reject("unknown_label", f"{unknown[0]!r} is not in --labels") if unknown else row


IMAGE_ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".jp2"}
