"""What a dataset holds: DATASET/manifest.json, written last, so that its presence means a complete dataset.

TensorFlow-free, and part of the contract that `tpu_input.schema` names.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_input.record_spec import RecordSpec


def shard_name(split: str, index: int, num_shards: int) -> str:
    """Returns the file name of shard `index` of `num_shards`, e.g. "train-00000-of-00042.tfrecord"."""
    return f"{split}-{index:05d}-of-{num_shards:05d}.tfrecord"


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file.

    Attributes:
      name: File name within the dataset.
      num_examples: Records in it.
      num_bytes: Its size.
      sha256: Hex digest of its bytes.
    """

    name: str
    num_examples: int
    num_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Split:
    """What one split holds.

    Attributes:
      shards: In order of their index.
      class_counts: Examples of each class, in label order.
      height: (smallest, mean, largest) in pixels.
      width: (smallest, mean, largest) in pixels.
      channel_mean: Red, green and blue, in [0, 255]; every image counts the same whatever its size, and of shards of
        more than 1,000 inputs every sixteenth counts.
      channel_std: The same pixels' standard deviation, in [0, 255].
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


FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a complete dataset holds, as in DATASET/manifest.json.

    Attributes:
      path: The dataset's folder or URI; where the manifest was read, not part of the file.
      classes: Names in label order.
      first_label: Label on disk of class 0: 0 or 1.
      splits: By name.
      num_inputs: Inputs listed; equals the records of all splits plus the rejected.
      num_rejected: Inputs that are in no shard, by reason code.
      options: What shaped the shards (seed, shard_bytes, splits, …), to repeat the conversion.
      fingerprint: Hex digest of the options, and of each input's name, label, split and size: equal fingerprints
        promise equal shards, unless a file was changed without a change of its size.
      num_fixed: Images that were encoded again, by why.
      sources: Where the inputs were, as options of the conversion.
      record: What a record looks like; not part of the file, which always describes records of ours.
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
    sources: list[dict[str, str]] = dataclasses.field(default_factory=list)
    record: RecordSpec = dataclasses.field(default_factory=RecordSpec)

    def split(self, name: str) -> Split:
        """Returns one split.

        Raises:
          ValueError: There is none of that name.
        """
        if name not in self.splits:
            raise ValueError(f"{self.path!r} has no split {name!r}; it has {', '.join(map(repr, self.splits))}")
        return self.splits[name]

    def to_json(self) -> str:
        """Returns the manifest's file."""
        fields = {"format_version": FORMAT_VERSION} | dataclasses.asdict(self)
        del fields["path"], fields["record"]
        return json.dumps(fields, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_shards(
        cls, pattern: str | Mapping[str, str], record: RecordSpec | None = None, classes: int | Sequence[str] = 1000
    ) -> Manifest:
        """Returns the manifest of TFRecords that others wrote; it counts them once and keeps the counts beside them.

        Args:
          pattern: Glob of the shards, e.g. "gs://bucket/imagenet/train-*", which become split "train"; or a glob for
            each split by name. All in one folder.
          record: What a record looks like, e.g. schema.IMAGENET; None means as this package writes them.
          classes: Names in label order, or how many there are.

        Raises:
          ValueError: No file matches, one is cut off, or its first record is not as `record` says.
        """
        from tpu_input.shards import manifest_of_shards

        patterns = {"train": pattern} if isinstance(pattern, str) else pattern
        names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
        return manifest_of_shards(patterns, record or RecordSpec(), names)

    @classmethod
    def from_json(cls, text: str, path: str) -> Manifest:
        """Returns the manifest of the dataset at `path`, whose manifest.json reads `text`.

        Raises:
          ValueError: `text` is no manifest, or one of another format version.
        """
        try:
            fields = json.loads(text)
            version = fields.pop("format_version")
            if version != FORMAT_VERSION:
                raise ValueError(f"format_version is {version!r}, this package reads {FORMAT_VERSION}")
            fields["classes"] = tuple(fields["classes"])
            fields["splits"] = {name: _split_from_json(split) for name, split in fields["splits"].items()}
            return cls(path=path, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}/{MANIFEST_NAME} is not a manifest: {error}") from error


def _split_from_json(fields: dict[str, Any]) -> Split:
    shards = tuple(Shard(**shard) for shard in fields.pop("shards"))
    return Split(shards=shards, **{name: tuple(value) for name, value in fields.items()})
