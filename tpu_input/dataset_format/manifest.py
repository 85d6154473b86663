"""The manifest of a dataset, DATASET/manifest.json. It is written last, so its presence means a complete dataset.

TensorFlow-free; part of the record contract, see `tpu_input.dataset_format.records`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tpu_input.dataset_format import json_fields
from tpu_input.dataset_format.label_kinds import KINDS, ONE, LabelKind, label_kind
from tpu_input.dataset_format.record_spec import RecordSpec
from tpu_input.dataset_format.split_names import split_named
from tpu_input.dataset_format.tfrecord import FRAME_BYTES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Positions = npt.NDArray[np.int64]

_SPLIT_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")  # short enough for a file name, which has at most 255 bytes
_NUMBER = "([0-9]{5}|[1-9][0-9]{5,8})"  # as shard_name() writes it
_EDITION = "(?:-([0-9a-f]{8}))?"
# Format of the shards, as --format of export-dataset has it, with the ending of their names. Trainers read TFRecords;
# the others are for other libraries.
ENDINGS = {
    **{"tfrecord": "tfrecord", "webdataset": "tar", "parquet": "parquet"},
    **{"array_record": "array_record", "mds": "mds"},
}
_SHARD_NAME = re.compile(rf"([A-Za-z0-9_]{{1,64}})-{_NUMBER}-of-{_NUMBER}{_EDITION}\.({'|'.join(ENDINGS.values())})")


# Larger files are refused, as they would only exhaust memory. The manifest has 200 bytes per shard, for up to a million
# shards; the index of a shard has some 200 bytes per record.
MAX_MANIFEST_BYTES = 1 << 28
MAX_INDEX_BYTES = 1 << 30


def valid_split(name: str) -> bool:
    """Returns whether a name is valid for a split; it becomes part of file names."""
    return _SPLIT_NAME.fullmatch(name) is not None


_FORMATS = {ending: name for name, ending in ENDINGS.items()}


class ShardName(NamedTuple):
    """Parts of a shard's file name: see shard_name()."""

    split: str
    number: int
    num_shards: int
    edition: str
    format: str = "tfrecord"


def shard_name(split: str, index: int, num_shards: int, edition: str = "", shard_format: str = "tfrecord") -> str:
    """Returns the file name of shard `index` of `num_shards`, e.g. "train-00000-of-00042.tfrecord".

    Args:
      split: Name of the split.
      index: Number of the shard.
      num_shards: Number of shards of the split.
      edition: Eight hexadecimal digits by which the files of a dataset that replaced another one in its folder differ
        from the old files: "train-00000-of-00042-3f9a2b1c.tfrecord"; "" for a dataset that replaced none.
      shard_format: Format of the shard, one of ENDINGS.
    """
    return in_edition(f"{split}-{index:05d}-of-{num_shards:05d}.{ENDINGS[shard_format]}", edition)


def in_edition(name: str, edition: str) -> str:
    """Returns a file name with an edition, "" for none, before its ending."""
    stem, dot, ending = name.rpartition(".")
    return f"{stem}-{edition}{dot}{ending}" if edition else name


def parse_shard_name(name: str) -> ShardName | None:
    """Returns the parts of a name made by shard_name(); None for any other name."""
    match = _SHARD_NAME.fullmatch(name)
    if match is None:
        return None
    parts = ShardName(match[1], int(match[2]), int(match[3]), match[4] or "", _FORMATS[match[5]])
    return parts if parts.number < parts.num_shards else None


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of records.

    Attributes:
      name: File name within the dataset.
      num_examples: Number of records in it.
      num_bytes: Size of the file in bytes.
      sha256: Hex digest of its bytes.
    """

    name: str
    num_examples: int
    num_bytes: int
    sha256: str

    def is_filled_by(self, offsets: Positions, lengths: Positions) -> bool:
        """Returns whether records at these positions fill the file from beginning to end, without gaps or overlaps.

        Args:
          offsets: [records] NumPy array of int64, in bytes.
          lengths: [records] NumPy array of int64, with the framing, in bytes.
        """
        if not len(lengths):
            return not self.num_bytes
        ends = lengths.cumsum()  # exceeds num_bytes, which is at most 2**53, before it overflows
        fits = lengths.min() >= FRAME_BYTES and lengths.max() <= self.num_bytes and (ends <= self.num_bytes).all()
        return bool(fits and ends[-1] == self.num_bytes and (offsets == ends - lengths).all())


@dataclasses.dataclass(frozen=True)
class Split:
    """Content and statistics of one split.

    Attributes:
      shards: Shards in the order of their index.
      class_counts: Number of examples of each class, in label order; () without labels. With several labels per image,
        an example counts for each of its classes.
      height: (smallest, mean, largest) height in pixels.
      width: (smallest, mean, largest) width in pixels.
      channel_mean: Mean of red, green and blue, in [0, 255]; every image has the same weight regardless of its size. Of
        a split of more than 1,000 images, a sample is used: about 1,000 of them, and at least a sixteenth if
        all were decoded.
      channel_std: Standard deviation of the same pixels, in [0, 255].
    """

    shards: tuple[Shard, ...]
    class_counts: tuple[int, ...]
    height: tuple[int, float, int]
    width: tuple[int, float, int]
    channel_mean: tuple[float, float, float]
    channel_std: tuple[float, float, float]

    @property
    def num_examples(self) -> int:
        return sum(shard.num_examples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        return sum(shard.num_bytes for shard in self.shards)


def merged(splits: Sequence[Split]) -> Split:
    """Returns splits of one dataset as one, with the mean sizes and the statistics of the pixels of all examples."""
    nonempty = [split for split in splits if split.num_examples] or list(splits)

    def mean(values: Iterable[float]) -> float:
        counts = [max(1, split.num_examples) for split in nonempty]
        return sum(count * value for count, value in zip(counts, values, strict=True)) / sum(counts)

    def sides(extents: Sequence[tuple[int, float, int]]) -> tuple[int, float, int]:
        smallest, middle, largest = zip(*extents, strict=True)
        return min(smallest), mean(middle), max(largest)

    def deviation(channel: int) -> float:  # the mean of the squares, less the square of the mean
        squares = (split.channel_std[channel] ** 2 + split.channel_mean[channel] ** 2 for split in nonempty)
        return math.sqrt(max(0.0, mean(squares) - means[channel] ** 2))

    means = [mean(split.channel_mean[channel] for split in nonempty) for channel in range(3)]
    return Split(
        tuple(shard for split in splits for shard in split.shards),
        tuple(map(sum, zip(*(split.class_counts for split in splits), strict=True))),
        sides([split.height for split in nonempty]),
        sides([split.width for split in nonempty]),
        (means[0], means[1], means[2]),
        (deviation(0), deviation(1), deviation(2)),
    )


FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
# What TensorFlow Datasets needs in addition to the shards, written on request: see record_source.write_tfds_metadata().
TFDS_INFO_NAME, TFDS_FEATURES_NAME = "dataset_info.json", "features.json"
TFDS_NAMES = (
    TFDS_INFO_NAME,
    TFDS_FEATURES_NAME,
    "image.class.label.labels.txt",
    "image.class.labels.labels.txt",
)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Description of a complete dataset, the content of DATASET/manifest.json.

    Attributes:
      path: Folder or URI of the dataset, from which the manifest was read; not part of the file.
      classes: Class names in label order.
      first_label: Label on disk of class 0: 0 or 1.
      splits: Splits by name.
      num_inputs: Number of inputs listed; equals the records of all splits plus the rejected inputs.
      num_rejected: Number of inputs that are in no shard, by reason code.
      options: Options of the conversion that determine the shards, to repeat it: seed, splits, shard_bytes (the value
        of --shard_size), and others.
      fingerprint: Hex digest of the options, and of each input's name, label, split and size: datasets with equal
        fingerprints have equal shards, unless a file was changed without a change of its size.
      num_fixed: Number of re-encoded images, by reason.
      num_noted: Number of images by finding. They have a "GPS position" in the stored bytes, or had an "unusable color
        profile" or an "ignored color profile"; were "not decoded" when they were stored; or are "slightly larger than
        --resize_shorter". Or they are "wholly transparent", use "at most 14 of 16 bits", or had their "metadata
        stripped". A missing name means none, or that the version that wrote the file did not count it.
      sources: Locations of the inputs, as options of the conversion.
      earlier: Fingerprints of the earlier versions of a dataset that was extended, oldest first; their manifests are
        manifest-1.json, manifest-2.json, ….
      written_by: Program that wrote the dataset and its version, "jpeg2tpu 0.1.0"; "" if a version before 0.1.0 did.
      record: Format of the records; not part of the file, which always describes records written by this package.
    """

    path: str
    classes: tuple[str, ...]
    first_label: int
    splits: dict[str, Split]
    num_inputs: int
    num_rejected: dict[str, int]
    options: dict[str, Any]
    fingerprint: str
    num_fixed: dict[str, int] = dataclasses.field(default_factory=dict)
    num_noted: dict[str, int] = dataclasses.field(default_factory=dict)
    sources: list[dict[str, str]] = dataclasses.field(default_factory=list)
    earlier: tuple[str, ...] = ()
    written_by: str = ""
    record: RecordSpec = dataclasses.field(default_factory=RecordSpec)

    def __repr__(self) -> str:
        splits = ", ".join(f"{name}: {split.num_examples:,}" for name, split in self.splits.items())
        return f"Manifest({self.path!r}, {len(self.classes):,} classes, examples: {{{splits}}})"

    def split(self, name: str) -> Split:
        """Returns one split.

        Raises:
          ValueError: There is none of that name.
        """
        if name not in self.splits:
            canonical_name = split_named(name)
            hint = f"; the split is called {canonical_name!r}" if canonical_name in self.splits else ""
            raise ValueError(f"{self.path!r} has no split {name!r}; it has {', '.join(map(repr, self.splits))}{hint}")
        return self.splits[name]

    def held_out(self, name: str) -> Manifest:
        """Returns the dataset with two splits: `name`, and "train", which is all others together.

        Raises:
          ValueError: There is no split of that name, or no other one; or it is "train".
        """
        held_out, others = self.split(name), [split for other, split in self.splits.items() if other != name]
        if name == "train" or not others:
            raise ValueError(f"split {name!r} of {self.path!r} cannot be held out: nothing would be left to train on")
        return dataclasses.replace(self, splits={"train": merged(others), name: held_out})

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Shards of all splits, in the order of the splits."""
        return tuple(shard for split in self.splits.values() for shard in split.shards)

    @property
    def num_examples(self) -> int:
        """Number of examples of all splits."""
        return sum(split.num_examples for split in self.splits.values())

    @property
    def label_type(self) -> str:
        """Labels of an example: "class", which is one; "classes", any number, also none; "none", no labels at all."""
        return str(self.options.get("label_type", ONE.name))

    @property
    def label_kind(self) -> LabelKind:
        """Kind of the labels: what `label_type` names."""
        return label_kind(self.label_type)

    @property
    def features(self) -> dict[str, FeatureType]:
        """Features of the records besides image and label, by name."""
        types = self.options.get("features", {})
        return {name: FeatureType.parse(text) for name, text in types.items()} if isinstance(types, dict) else {}

    @property
    def format(self) -> str:
        """Format of the shards: "tfrecord" of a dataset, and another one of ENDINGS of an export of it."""
        return str(self.options.get("format", "tfrecord"))

    @property
    def num_labels(self) -> int | None:
        """Number of classes if an example may have several of them; None if it has one."""
        return self.label_kind.num_labels(len(self.classes))

    @property
    def edition(self) -> str:
        """Edition in the names of the dataset's files: see shard_name()."""
        return self.fingerprint[:8] if self.earlier else next(map(_edition, self.splits.values()), "")

    @property
    def version(self) -> int:
        """Number of the version: 1, and 1 more each time the dataset was extended."""
        return len(self.earlier) + 1

    def to_json(self) -> str:
        """Returns the content of manifest.json."""
        fields = {"format_version": FORMAT_VERSION} | dataclasses.asdict(self)
        del fields["path"], fields["record"]
        if not self.earlier:
            del fields["earlier"]
        if not self.written_by:
            del fields["written_by"]
        return json.dumps(fields, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, path: str, allow_export: bool = False) -> Manifest:
        """Returns the manifest in `text`, the content of manifest.json of the dataset at `path`.

        With `allow_export`, it may be of an export, whose shards have another format.

        A dataset may come from an untrusted source. It is checked that shards have names made by shard_name(), so that
        they are in the dataset's own folder, and that all numbers are in range and add up.

        Raises:
          ValueError: `text` is not a manifest, or has another format version; or it is of an export.
        """
        try:
            manifest = _manifest(json_fields.load(text), path)
        except ValueError as error:
            raise ValueError(
                f"{path}/{MANIFEST_NAME} is not a manifest: {error}; copy the dataset again, or convert its images "
                "again into another output"
            ) from error
        if manifest.format != "tfrecord" and not allow_export:
            raise ValueError(
                f"{path!r} is an export in the format {manifest.format}, not a dataset; compare it with its dataset: "
                f"jpeg2tpu diff DATASET {path}, or make a dataset of it: jpeg2tpu convert --input={path}"
            )
        return manifest


class FeatureType(NamedTuple):
    """Type of a feature of the records.

    Attributes:
      kind: float (float32), int (int64) or string.
      length: Number of values; None for one value, which is a scalar.
    """

    kind: str
    length: int | None

    @classmethod
    def parse(cls, text: object) -> FeatureType:
        """Returns the type that "float", "int", "string" or "float[4]" means; raises ValueError for others."""
        match = _FEATURE_TYPE.fullmatch(text) if isinstance(text, str) else None
        if not match:
            raise ValueError(
                f"the type of a feature must be float, int, string, or float[4] for 4 values, got {text!r}"
            )
        return cls(match[1], int(match[2]) if match[2] else None)


_FEATURE_TYPE = re.compile(r"(float|int|string)(?:\[([1-9]\d{0,4})\])?")


def manifest_name(version: int) -> str:
    """Returns the name of the manifest of an earlier version of a dataset."""
    return f"manifest-{version}.json"


# Missing in datasets written by the first versions of this package, or in datasets that were not extended.
_OPTIONAL = ("num_fixed", "num_noted", "sources", "earlier", "written_by")


def _manifest(value: object, path: str) -> Manifest:
    version = json_fields.mapping(value, "it").pop("format_version", None)
    if version != FORMAT_VERSION:
        raise ValueError(f"format_version is {json_fields.short_repr(version)}, this package reads {FORMAT_VERSION}")
    names = {field.name for field in dataclasses.fields(Manifest)} - {"path", "record"}
    fields = json_fields.fields(value, "it", sorted(names - set(_OPTIONAL)), _OPTIONAL)
    classes = tuple(json_fields.text(name, "a class", 1) for name in json_fields.array(fields["classes"], "classes"))
    options = _options(fields["options"])
    kind = label_kind(options.get("label_type", ONE.name))
    if (kind.needs_classes and not classes) or len(set(classes)) < len(classes):
        raise ValueError(f"classes must name each class once, got {json_fields.short_repr(fields['classes'])}")
    splits = json_fields.mapping(fields["splits"], "splits")
    earlier = tuple(
        json_fields.sha256(fingerprint, "an earlier fingerprint")
        for fingerprint in json_fields.array(fields.get("earlier", []), "earlier")
    )
    num_editions = len(earlier) + 1
    manifest = Manifest(
        path=path,
        classes=classes,
        first_label=json_fields.count(fields["first_label"], "first_label", 0, 1),
        splits={name: _split(name, split, len(classes), options, num_editions) for name, split in splits.items()},
        num_inputs=json_fields.count(fields["num_inputs"], "num_inputs"),
        num_rejected=json_fields.counts(fields["num_rejected"], "num_rejected", 1),
        options=options,
        fingerprint=json_fields.sha256(fields["fingerprint"], "fingerprint"),
        num_fixed=json_fields.counts(fields.get("num_fixed", {}), "num_fixed", 1),
        num_noted=json_fields.counts(fields.get("num_noted", {}), "num_noted", 1),
        earlier=earlier,
        written_by=json_fields.text(fields.get("written_by", ""), "written_by"),
        sources=[_source(source) for source in json_fields.array(fields.get("sources", []), "sources")],
    )
    editions = set(map(_edition, manifest.splits.values()))
    if len(editions) > num_editions:
        raise ValueError(f"its splits have shards of several editions: {', '.join(map(repr, sorted(editions)))}")
    num_records = manifest.num_examples
    num_rejected = sum(manifest.num_rejected.values())
    if num_records + num_rejected != manifest.num_inputs:
        raise ValueError(
            f"{num_records} records and {num_rejected} rejected inputs do not add up to num_inputs = "
            f"{manifest.num_inputs}"
        )
    return manifest


def _edition(split: Split) -> str:
    first = parse_shard_name(split.shards[0].name) if split.shards else None
    return first.edition if first else ""


def _options(value: object) -> dict[str, Any]:
    """Returns the options after a check of those that are used outside of the converter, which checks the others."""
    options = json_fields.mapping(value, "options")
    json_fields.count(options.get("shard_bytes", 1), "shard_bytes", 1)
    json_fields.counts(options.get("num_shards", {}), "num_shards", 1)
    for text in json_fields.mapping(options.get("features", {}), "features").values():
        FeatureType.parse(text)
    if (name := options.get("label_type", ONE.name)) not in list(KINDS):
        raise ValueError(f"label_type must be {', '.join(KINDS)}, got {json_fields.short_repr(name)}")
    if (shard_format := options.get("format", "tfrecord")) not in list(ENDINGS):
        raise ValueError(f"format must be {', '.join(ENDINGS)}, got {json_fields.short_repr(shard_format)}")
    return options


def _split(name: str, value: object, num_classes: int, options: dict[str, Any], num_editions: int) -> Split:
    """Returns the Split that manifest.json describes."""
    if not valid_split(name):
        raise ValueError(f"a split name must be 1 to 64 letters, digits or _, got {json_fields.short_repr(name)}")
    called = f"split {name!r}"
    fields = json_fields.fields(value, called, [field.name for field in dataclasses.fields(Split)])
    shard_format = options.get("format", "tfrecord")
    values = json_fields.array(fields["shards"], f"shards of {called}")
    entries = [_shard(name, shard, shard_format) for shard in values]
    shards, places = tuple(shard for shard, _ in entries), [place for _, place in entries]
    groups = [list(group) for _, group in itertools.groupby(places, lambda place: place.edition)]
    if (
        not shards
        or len(groups) > num_editions
        or len({group[0].edition for group in groups}) < len(groups)
        or any(
            first.number >= second.number or first._replace(number=second.number) != second
            for group in groups
            for first, second in itertools.pairwise(group)
        )
    ):
        raise ValueError(
            f"{called} must list its shards in the order of their names, all with the same total number of shards and "
            "the same edition"
        )
    class_counts = [
        json_fields.count(number, f"class_counts of {called}")
        for number in json_fields.array(fields["class_counts"], f"class_counts of {called}", num_classes)
    ]
    split = Split(
        shards=shards,
        class_counts=tuple(class_counts),
        height=_extent(fields["height"], f"height of {called}"),
        width=_extent(fields["width"], f"width of {called}"),
        channel_mean=_channels(fields["channel_mean"], f"channel_mean of {called}"),
        channel_std=_channels(fields["channel_std"], f"channel_std of {called}"),
    )
    if fault := label_kind(options.get("label_type", ONE.name)).count_fault(class_counts, split.num_examples):
        raise ValueError(f"{called} has {fault}")
    return split


_SHARD_FIELDS = [field.name for field in dataclasses.fields(Shard)]


def _shard(split: str, value: object, shard_format: str) -> tuple[Shard, ShardName]:
    """Returns (shard, what parse_shard_name() returns for it); fast, as a manifest may have a million."""
    fields = json_fields.fields(value, "a shard", _SHARD_FIELDS)
    name, num_examples, num_bytes = fields["name"], fields["num_examples"], fields["num_bytes"]
    place = parse_shard_name(name) if isinstance(name, str) else None
    if place is None or place.split != split or place.format != shard_format:
        usual = shard_name(split, 0, 1, shard_format=shard_format)
        raise ValueError(
            f"shards of split {split!r} must have names like {usual!r}, got {json_fields.short_repr(name)}"
        )
    try:
        json_fields.count(num_examples, "num_examples", 1)
        json_fields.count(num_bytes, "num_bytes", num_examples * FRAME_BYTES)
        return Shard(name, num_examples, num_bytes, json_fields.sha256(fields["sha256"], "sha256")), place
    except ValueError as error:
        raise ValueError(f"shard {name!r}: {error}") from error


def _extent(value: object, name: str) -> tuple[int, float, int]:
    smallest, mean, largest = json_fields.array(value, name, 3)
    json_fields.count(smallest, f"the smallest {name}", 1)
    json_fields.count(largest, f"the largest {name}", smallest)
    return smallest, json_fields.number(mean, f"the mean {name}", smallest - 0.1, largest + 0.1), largest


def _channels(value: object, name: str) -> tuple[float, float, float]:
    red, green, blue = (json_fields.number(channel, name, 0, 255) for channel in json_fields.array(value, name, 3))
    return red, green, blue


def _source(value: object) -> dict[str, str]:
    members = json_fields.mapping(value, "a source")
    fields = {"split": "", "label_list": ""} | json_fields.fields(members, "a source", ("path",), tuple(members))
    return {key: json_fields.text(text, f"{key} of a source") for key, text in fields.items()}
