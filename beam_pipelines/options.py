"""Options of a conversion."""

from __future__ import annotations

import dataclasses
import functools
import posixpath
import re
import shlex
from typing import Any, Literal

from beam_pipelines import storage
from tpu_input.command_line.dataclass_options import check_types
from tpu_input.dataset_format.class_names import class_table
from tpu_input.dataset_format.label_kinds import KINDS, LabelKind
from tpu_input.dataset_format.manifest import FeatureType
from tpu_input.dataset_format.records import valid_split
from tpu_input.dataset_format.split_names import split_named
from tpu_input.stored_images.image_options import Check as Check, ImageOptions as ImageOptions

WORK_NAME = ".jpeg2tpu"  # folder, in the output, of the working files of an unfinished conversion
_MIN_SHARD_BYTES = 10_000
# Names of files: tars, also compressed, with the name before the ending; and records.
TAR = re.compile(r"(.*)\.(?:tar|tar\.(?:gz|bz2|xz|zst|zstd)|tgz|tbz2|txz)", re.DOTALL)
RECORDS = re.compile(r".*(?:\.parquet|\.tfrecords?(?:\.gz)?|(?:\.tfrecords?)?-\d+-of-\d+(?:\.tfrecords?)?)", re.DOTALL)
Dedup = Literal["none", "exact", "near"]
NEAR_DUPLICATES = "near_duplicates"  # a value of group_by
LabelType = Literal["class", "classes", "none"]  # names of label_kinds.KINDS


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """Parts of the records of other programs: features of TFRecords, columns of Parquet, endings in WebDataset's tars.

    Attributes:
      image: Part with the file of the image; "" for image/encoded, the column of images, the member that is an image.
      label: Part with the label: a number, or the name of the class; json.FIELD for a field of a .json. "" for
        image/class/label, the column that is declared as classes or named label, cls.
      first_label: Number of the first class; None to take it from the numbers of all records.
      name: Part with the name of the class; "" if the label is it, or is a number for which --labels has the name.
      key: Part with the name of the image's file, for the key; "" for what the record has: its number in the file, the
        path in the column of images, the name of the member.
      id: Part with the key itself, which is unique in all files; "" if `key` is to make one.
    """

    image: str = ""
    label: str = ""
    first_label: int | None = None
    name: str = ""
    key: str = ""
    id: str = ""

    @classmethod
    def parse(cls, text: str) -> RecordFormat:
        """Returns a format given as a name in FORMATS, as "image=PART,label=PART,first_label=1", or as both.

        Raises:
          ValueError: It is neither.
        """
        name, _, rest = text.partition(",")
        base = FORMATS.get(name)
        if base and not rest:
            return base
        pairs = [part.partition("=") for part in (rest if base else text).split(",")]
        fields: dict[str, Any] = {name.strip(): value.strip() for name, _, value in pairs}
        names = [field.name for field in dataclasses.fields(cls)]
        if not all(equals and value.strip() for _, equals, value in pairs) or fields.keys() - set(names):
            raise ValueError(
                f"record format {text!r} is unknown; it must be {', '.join(FORMATS)}, or pairs such as "
                f"image=NAME,label=NAME of {', '.join(names)}"
            )
        base = base or cls()
        first = fields.pop("first_label", None)
        if first is not None and not first.isdecimal():
            raise ValueError(f"first_label of a record format must be a number, got {first!r}")
        return dataclasses.replace(base, **fields, first_label=base.first_label if first is None else int(first))


# imagenet: as tensorflow/tpu's imagenet_to_gcs.py and TensorFlow's models write ImageNet; tfds: as TensorFlow Datasets
# writes image classification; flowers: as TF-Slim's download_and_convert_flowers.py; huggingface: Parquet as Hugging
# Face's datasets have it; webdataset: tars of 0.jpg, 0.cls, ….
FORMATS = {
    "imagenet": RecordFormat(first_label=1, name="image/class/synset", key="image/filename"),
    "tfds": RecordFormat("image", "label", first_label=0),
    "flowers": RecordFormat(first_label=0),
    "huggingface": RecordFormat(),
    "webdataset": RecordFormat(),
}


@dataclasses.dataclass(frozen=True)
class Source:
    """One input.

    Attributes:
      path: Folder of class folders (CLASS/IMAGE.jpg, optionally below train/, val/, test/), .tar, .tar.gz or .zip of
        it, .csv, .tsv or .jsonl list of `image,label[,split][,group]` with paths relative to the list, .parquet, or
        folder of a dataset of this package; a local path or a URI such as gs://bucket/images.
      split: Split of all its images; "" to take it from folders, from a column of the list, or by hash.
      label_list: File with one class name per line, in the order of the images' names, for images that are not in
        class folders; "" if there is none.
      label_names: File with the names of classes whose numbers a list or label_list has: one name per line, counted
        from 0 or from 1 as the numbers of all images are, or NUMBER,NAME; "" if labels are names.
      label_pattern: Regular expression with one group, searched in the path of each image within a folder or archive:
        what the group matches is the class. "" to take the class from folders.
      image_column: Column of a list with the image, instead of "image"; the columns that are not named are not
        stored then.
      label_column: Column of a list with the label, instead of "label".
      image_folder: Folder to which the paths of a list are relative; "" for the folder of the list.
      image_suffix: Text to append to the names of images in a list that do not end with it, such as ".jpg".
      name: Folder to put before the keys of a dataset's examples, where several datasets become one; "" for none.
      new_labels: .csv with the header key,label: classes of these examples of a dataset, instead of their own.
      only_keys: File with one key per line: all other examples of a dataset are left out.
      without_keys: File with one key per line: these examples of a dataset are left out.
      only_classes: File with one class name per line: examples of all other classes of a dataset are left out.
      without_classes: File with one class name per line: examples of these classes of a dataset are left out.
      near_duplicates: Parquet file of pairs of the dataset's images that look alike, as write_pairs() makes it: all of
        a group but the image to keep are left out; with splits="again", each group lies in one split.
      only_split: Split of a dataset whose examples are taken; "" for all.
      splits: Splits of a dataset's examples: "kept", or "again" to assign them by hash.
      record: Format of the records of other programs, as RecordFormat.parse() takes it: TFRecords, Parquet or
        WebDataset. The path is then one file, their folder, or a pattern such as gs://bucket/imagenet/train-*. "" for
        all other inputs.
    """

    path: str
    split: str = ""
    label_list: str = ""
    label_names: str = ""
    label_pattern: str = ""
    image_column: str = ""
    label_column: str = ""
    image_folder: str = ""
    image_suffix: str = ""
    name: str = ""
    new_labels: str = ""
    only_keys: str = ""
    without_keys: str = ""
    only_classes: str = ""
    without_classes: str = ""
    near_duplicates: str = ""
    only_split: str = ""
    splits: Literal["kept", "again"] = "kept"
    record: str = ""

    def __post_init__(self) -> None:
        check_types(self)
        if self.name and not valid_split(self.name):
            raise ValueError(f"the name of a dataset must be 1 to 64 letters, digits or _, got {self.name!r}")
        for name in ("path", "image_folder", *_FILES_WITH_LABELS, *_FILES_WITH_CHANGES):
            storage.check_has_no_secret(getattr(self, name))
            object.__setattr__(self, name, storage.absolute(getattr(self, name)) if getattr(self, name) else "")
        object.__setattr__(self, "split", split_named(self.split))
        if self.path.endswith(".parquet") and not self.record:
            object.__setattr__(self, "record", "huggingface")
        if self.record:
            RecordFormat.parse(self.record)
        list_options = (self.image_column, self.label_column, self.image_folder, self.image_suffix)
        if any(list_options) and not self.is_list:
            raise ValueError(
                "image_column, label_column, image_folder and image_suffix are for lists, .csv, .tsv or .jsonl, got "
                f"{self.path!r}"
            )
        if self.label_names and not (self.is_list or self.label_list):
            raise ValueError(f"label_names is for lists and label_list, got {self.path!r}")
        if self.label_pattern:
            self._check_pattern()
        if self.label_list and self.is_list:
            raise ValueError(
                f"the list {self.path!r} names a label in each line, so --label_list={self.label_list} must be left out"
            )

    def _check_pattern(self) -> None:
        if self.is_list or self.label_list or self.record:
            raise ValueError(
                f"label_pattern is for folders and archives of images without other labels, got {self.path!r}"
            )
        try:
            num_groups = re.compile(self.label_pattern).groups
        except re.error as error:
            raise ValueError(f"label_pattern {self.label_pattern!r} is not a regular expression: {error}") from error
        if num_groups != 1:
            raise ValueError(
                f"label_pattern {self.label_pattern!r} must have one group, in parentheses, for the class; it has "
                f"{num_groups}"
            )

    @property
    def flag(self) -> str:
        """The option of convert that names the input, as one word of a shell."""
        return shlex.quote(f"--input={self.split}={self.path}" if self.split else f"--input={self.path}")

    @property
    def is_list(self) -> bool:
        return self.path.endswith((".csv", ".tsv", ".jsonl"))

    @property
    def is_archive(self) -> bool:
        return bool(TAR.fullmatch(self.path)) or self.path.endswith(".zip")

    @property
    def is_file_of_records(self) -> bool:
        """Whether the path is one file of records."""
        return bool(self.record) and bool(RECORDS.fullmatch(self.path) or TAR.fullmatch(self.path))

    @property
    def is_pattern(self) -> bool:
        """Whether the path is a pattern of names of files of records."""
        return bool(self.record) and "*" in posixpath.basename(self.path)

    @property
    def folder(self) -> str:
        """Folder of the files of the input."""
        is_file = self.is_list or self.is_pattern or self.is_file_of_records
        return posixpath.dirname(self.path) if is_file else self.path

    @property
    def is_of_dataset(self) -> bool:
        """Whether options are given that only the examples of a dataset have, so that the path must be one."""
        changes = [getattr(self, name) for name in FILES_OF_CHANGES]
        return any((self.name, self.only_split, *changes)) or self.splits != "kept"

    @property
    def files(self) -> list[tuple[str, str, str]]:
        """Files that are read with the input, each as (name of the field, path, what it must be)."""
        needed = _FILES_WITH_LABELS | _FILES_WITH_CHANGES
        return [(name, path, description) for name, description in needed.items() if (path := getattr(self, name))]

    def fields(self) -> dict[str, str]:
        """Returns the fields for the manifest: the first three, and the others where they are not the defaults."""
        usual = Source(self.path)
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        always = ("path", "split", "label_list")
        return {name: value for name, value in values.items() if name in always or value != getattr(usual, name)}


# Files that are read with an input, with what they must be, and which of them change the examples of a dataset.
_FILES_WITH_LABELS = {
    "label_list": "a text file with one class name per line",
    "label_names": "a text file with one class name per line, or with lines of NUMBER,NAME",
}
_FILES_WITH_CHANGES = {
    "new_labels": "a .csv with the header key,label",
    "only_keys": "a text file with one key per line",
    "without_keys": "a text file with one key per line",
    "only_classes": "a text file with one class name per line",
    "without_classes": "a text file with one class name per line",
    "near_duplicates": "a Parquet file of pairs; write it with: report --pairs=FILE",
}
FILES_OF_CHANGES = tuple(_FILES_WITH_CHANGES)


@dataclasses.dataclass(frozen=True)
class UrlOptions:
    """How the images are read that lists name by http:// and https:// URLs.

    Attributes:
      url_concurrency: URLs that are read at the same time, by all processes of this machine.
      url_host_concurrency: URLs of one host that are read at the same time. Each process reads at least one.
      url_timeout: Seconds that a URL may take, from the connection to the last byte.
      url_retries: Further tries of a URL after a timeout, a lost connection, or an answer such as 503.
      url_image_bytes: Estimated size of an image behind a URL, by which inputs are divided among shards.
      url_max_bytes: Maximum size of the file behind a URL.
      allow_private_addresses: Read URLs of this machine and of private networks, too.
      ignore_robots: Store images also where the site refuses it by X-Robots-Tag: noai, noimageai, noindex or
        noimageindex.
    """

    url_concurrency: int = 64
    url_host_concurrency: int = 16
    url_timeout: float = 10.0
    url_retries: int = 2
    url_image_bytes: int = 100_000
    url_max_bytes: int = 20_000_000
    allow_private_addresses: bool = False
    ignore_robots: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("url_concurrency", "url_host_concurrency", "url_image_bytes", "url_max_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.replace('bytes', 'size')} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.url_timeout <= 3600:
            raise ValueError(f"url_timeout must be above 0 and at most 3,600 seconds, got {self.url_timeout:g}")
        if not 0 <= self.url_retries <= 100:
            raise ValueError(f"url_retries must be 0 to 100, got {self.url_retries}")


@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """Options of one conversion.

    Attributes:
      sources: Inputs; if there are several, each needs a split or a name of its own. () for the images that a pipeline
        makes (transforms.WriteDataset).
      output: Folder or URI of the dataset to write. It may be one that this conversion has begun or completed.
      splits: Share of each split, to which images are assigned by a hash of their group or key; for inputs that do not
        name their split.
      shard_bytes: Bytes per shard, except the last of a split.
      num_shards: Number of shards of the named splits, which are cut into shards of equally many inputs instead of by
        size, e.g. (("train", 1024), ("validation", 128)).
      labels: Class names in label order. Default: the classes found, sorted.
      first_label: Label of the first class in the records; tensorflow/tpu's trainers expect 1.
      seed: Seed of the order of examples and of the assignment to splits.
      ignore: Patterns such as *.json or thumbs/ of files that are not inputs: of the name of a file or of a folder
        above it, or with a / of the whole path within the input. They are listed as rejected, and do not count as such.
      dedup: Duplicates to leave out: images with the same bytes (exact), or that look alike (near). One of them is
        stored, or none if they occur under two labels. Both read every image twice.
      max_rejected: Share of the inputs that may be rejected before the conversion fails. Duplicates and files that were
        not meant as inputs, such as hidden ones, do not count.
      overwrite: Replace another dataset or unfinished conversion in the output. Only files that its manifest or plan
        names are removed.
      label_type: Labels of an image: one (class), any number (classes), or none. With classes, a list has labels such
        as "cat;dog" or a JSON list of names; none is for a dataset of images to predict.
      label_separator: Text between the names of the classes in a label of a list, with label_type="classes".
      features: Further features of the records, as (name, type): the columns of a list or of Parquet, or fields of
        WebDataset's JSON, of these names. Types: float, int, string, or float[4] for 4 values.
      stratify: Give each split its exact share of every class, not only the share that a hash gives it on average.
        Images that are added later may then move others to another split.
      group_by: Regular expression that is searched in the key of each image without a group. The text that it matches,
        or that its one group in parentheses matches, names the group; images of a group share a split, and images
        without a match are in no group. Or near_duplicates: images that look alike are a group, and every image is
        read twice. "" for none.
      validation: Share of the split train that becomes the split validation, where inputs name their splits and have
        no such split; 0 for none.
      extend: Add the inputs that the dataset at the output does not have. They are stored in new shards, and its other
        files stay as they are. Inputs and options must be those that it was made with.
      prune: With extend, leave out images that are not among the inputs any more, and store those whose files have
        another size than before in their new form. Earlier versions keep them as they were.
      parent: Fingerprint of the dataset that is extended; set by convert().
      format: Format of the shards, one of ENDINGS: tfrecord for a dataset; the others are exports of one.
      splits_required: Whether it is an error if all inputs name their split, so that `splits` has no effect.
      images: Checks and changes of images.
      urls: How images are read by HTTP.
    """

    sources: tuple[Source, ...]
    output: str
    splits: tuple[tuple[str, float], ...] = (("train", 0.9), ("validation", 0.1))
    shard_bytes: int = 100_000_000
    num_shards: tuple[tuple[str, int], ...] = ()
    labels: tuple[str, ...] = ()
    first_label: Literal[0, 1] = 0
    seed: int = 0
    dedup: Dedup = "none"
    ignore: tuple[str, ...] = ()
    max_rejected: float = 0.01
    overwrite: bool = False
    splits_required: bool = False
    label_type: LabelType = "class"
    label_separator: str = ";"
    features: tuple[tuple[str, str], ...] = ()
    stratify: bool = False
    group_by: str = ""
    validation: float = 0.0
    extend: bool = False
    prune: bool = False
    parent: str = ""
    format: str = "tfrecord"
    images: ImageOptions = dataclasses.field(default_factory=ImageOptions)
    urls: UrlOptions = dataclasses.field(default_factory=UrlOptions)

    def __post_init__(self) -> None:
        check_types(self)
        object.__setattr__(self, "output", storage.absolute(self.output))
        self._check_sources()
        self._check_splits()
        if self.shard_bytes < _MIN_SHARD_BYTES:
            raise ValueError(f"shard_size must be at least {_MIN_SHARD_BYTES} bytes, got {self.shard_bytes}")
        for name, count in self.num_shards:
            if count < 1:
                raise ValueError(f"num_shards must be at least 1, got {count} for split {name!r}")
        object.__setattr__(self, "labels", class_table(self.labels, "labels"))
        if len(self.labels) == 1:
            raise ValueError(f"labels has only one class, {self.labels[0]!r}; a classifier needs at least 2")
        if not self.label_kind.needs_classes and (self.labels or self.stratify):
            conflict = "labels names classes" if self.labels else "stratify divides the images of each class"
            raise ValueError(f"{conflict}, but the images are stored without labels; leave it out, or store the labels")
        if self.extend and self.overwrite:
            raise ValueError(
                "extend adds to the dataset at the output, and overwrite replaces it; leave out one of them"
            )
        if self.prune and not self.extend:
            raise ValueError("prune leaves images out of a dataset that is extended; use it together with extend")
        self._check_features()
        if not self.label_separator:
            raise ValueError("label_separator must be the text between names of classes, such as ;")
        if not 0 <= self.max_rejected <= 1:
            raise ValueError(f"max_rejected must be 0 % to 100 %, got {100 * self.max_rejected:.6g} %")

    def _check_sources(self) -> None:
        names = [source.split for source in self.sources]
        if len({source.name for source in self.sources} - {""}) == len(self.sources):
            return
        if len(names) > 1 and ("" in names or len(set(names)) < len(names)):
            wrong = [source.path for source in self.sources if not source.split or names.count(source.split) > 1]
            raise ValueError(
                "each of several inputs must have its own split, --input=SPLIT=PATH; without one of its own: "
                f"{', '.join(map(repr, wrong))}. To put images of the same splits together, convert each input, and "
                "give the datasets to: jpeg2tpu merge"
            )
        for name in filter(None, names):
            if not valid_split(name):
                raise ValueError(f"a split name must be 1 to 64 letters, digits or _, got {name!r}")

    def _check_splits(self) -> None:
        for field in ("splits", "num_shards"):
            object.__setattr__(self, field, tuple((split_named(name), value) for name, value in getattr(self, field)))
        for name, share in self.splits:
            if not valid_split(name):
                raise ValueError(f"a split name must be 1 to 64 letters, digits or _, got {name!r}")
            if not 0 < share <= 1:
                raise ValueError(f"split {name!r} must have a share above 0 % and at most 100 %, got {share:.6g}")
        names = [name for name, _ in self.splits]
        shares = ", ".join(f"{name}={100 * share:g}%" for name, share in self.splits)
        if len(set(names)) < len(names) or abs(sum(share for _, share in self.splits) - 1) > 1e-9:
            raise ValueError(f"splits must name each split once and add up to 100 %, got {shares}")
        names = [name for name, _ in self.num_shards]
        if len(set(names)) < len(names):
            raise ValueError(f"num_shards must name each split once, got {', '.join(names)}")

        if not 0 <= self.validation < 1:
            raise ValueError(f"validation must be 0 % to less than 100 % of train, got {100 * self.validation:g} %")
        if self.stratify and self.group_by:
            raise ValueError(
                "stratify takes the images of a class one by one, but images of a group stay together: leave out "
                "stratify or group_by"
            )
        try:
            num_groups = re.compile(self.group_by).groups
        except re.error as error:
            raise ValueError(f"group_by {self.group_by!r} is not a regular expression: {error}") from error
        if num_groups > 1:
            raise ValueError(
                f"group_by {self.group_by!r} must have at most one group in parentheses, it has {num_groups}"
            )

    def _check_features(self) -> None:
        for name, text in self.features:
            FeatureType.parse(text)
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}", name) or name.startswith("image/"):
                raise ValueError(
                    "the name of a feature must have letters, digits, _, ., / or -, and must not begin with image/, "
                    f"got {name!r}"
                )
            if name in ("image", "weight", "label", "problem", "epoch"):
                raise ValueError(f"{name!r} is the name of a part of every batch; name the feature otherwise")
        if len(dict(self.features)) < len(self.features):
            raise ValueError(f"features must name each feature once, got {self.features!r}")

    @functools.cached_property
    def known_labels(self) -> frozenset[str]:
        """The names in `labels` as a set, as a label is looked up for every input, and there may be 20,000 names."""
        return frozenset(self.labels)

    def shards_of(self, split: str) -> int:
        """Returns the number in num_shards for a split, which may be an earlier dataset's own: val; 0 for none."""
        return dict(self.num_shards).get(split_named(split), 0) if self.num_shards else 0

    @property
    def label_kind(self) -> LabelKind:
        """Kind of the labels."""
        return KINDS[self.label_type]

    @property
    def groups_by_key(self) -> bool:
        """Whether `group_by` is a regular expression."""
        return self.group_by not in ("", NEAR_DUPLICATES)

    def shaping(self) -> dict[str, Any]:
        """Returns the options that determine the content of the shards, for manifest and fingerprint."""
        fields = dataclasses.asdict(self)
        for name in _UNSTORED:
            del fields[name]
        fields["splits"], fields["num_shards"] = dict(self.splits), dict(sorted(self.num_shards))
        fields["labels"], fields["ignore"] = list(self.labels), list(self.ignore)
        fields["features"] = dict(sorted(self.features))
        fields |= {name: value for name, value in fields.pop("urls").items() if name in URL_CONTENT_OPTIONS}
        # So that fingerprints are the same as in versions without these options:
        for name in _LATER:
            if fields[name] in (getattr(ConvertOptions, name), {}, []):
                del fields[name]
        for name in URL_CONTENT_OPTIONS:
            if fields[name] == getattr(UrlOptions, name):
                del fields[name]
        for name in _LATER_IMAGES:
            if fields["images"][name] == getattr(ImageOptions, name):
                del fields["images"][name]
        return fields


# Options that say where from, where to and how, but not what is stored.
_UNSTORED = ("sources", "output", "max_rejected", "overwrite", "splits_required", "extend", "prune", "parent")
# Options of UrlOptions that decide what is stored.
URL_CONTENT_OPTIONS = ("url_image_bytes", "url_max_bytes", "allow_private_addresses", "ignore_robots")
# Options of the first version. shaping() leaves out all others where they have their defaults.
_FIRST = ("splits", "shard_bytes", "num_shards", "labels", "first_label", "seed", "dedup", "images")
_FIRST_IMAGES = ("reencode", "resize_shorter", "quality", "min_side", "max_pixels", "color_profiles")
_LATER = [field.name for field in dataclasses.fields(ConvertOptions) if field.name not in (*_UNSTORED, *_FIRST, "urls")]
_LATER_IMAGES = [field.name for field in dataclasses.fields(ImageOptions) if field.name not in _FIRST_IMAGES]


def complete(shaping: dict[str, Any]) -> dict[str, Any]:
    """Returns the options from shaping() with the defaults of those that it leaves out; the images may be missing."""
    images = shaping.get("images", {})
    if isinstance(images, dict):
        images = {name: getattr(ImageOptions, name) for name in _LATER_IMAGES} | images
    later = {name: getattr(ConvertOptions, name) for name in _LATER} | {"features": {}, "ignore": []}
    later |= {name: getattr(UrlOptions, name) for name in URL_CONTENT_OPTIONS}
    return later | shaping | {"images": images}
