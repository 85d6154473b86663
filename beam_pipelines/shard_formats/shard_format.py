"""What a format of shards is; shard_formats/all_formats.py has all of them.

    Record ──encode(), in a worker──▶ bytes ──Writer.add(), in order──▶ file of a shard ──▶ side_files() of all shards

A conversion does the rest, whatever the format: plan, units, order, fencing, receipts, progress, commit.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple, Protocol

from tpu_input.dataset_format.label_kinds import LabelKind
from tpu_input.dataset_format.manifest import FeatureType, Manifest
from tpu_input.dataset_format.records import Record

Columns = Sequence[Sequence[Any]]  # of an index, in the order of the fields of IndexRow
# Names in exported records that no feature of an example may have.
NAMES = ("key", "image", "label", "labels", "class", "classes", "sha256", "height", "width", "split")


class Schema(NamedTuple):
    """What the records of a dataset have in common.

    Attributes:
      classes: Class names in label order.
      first_label: Label of the first class in TFRecords; 0 in all other formats.
      label_kind: Kind of the labels.
      features: Types of the further features by name.
    """

    classes: tuple[str, ...]
    first_label: int
    label_kind: LabelKind
    features: dict[str, FeatureType]

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> Schema:
        """Returns the schema of a dataset or an export."""
        return cls(manifest.classes, manifest.first_label, manifest.label_kind, manifest.features)

    def values_of(self, record: Record) -> dict[str, Any]:
        """Returns the features that a record has: a value of each, or a list where the type has a length."""
        return {
            name: list(values) if kind.length else values[0]
            for name, kind in self.features.items()
            if (values := record.features.get(name))
        }


class Sample(NamedTuple):
    """An example of an exported shard, whose image lies in the shard as it is.

    Attributes:
      begin: Where its image begins in the file.
      num_bytes: Size of the image.
      values: All other values by name.
    """

    begin: int
    num_bytes: int
    values: dict[str, Any]


class ShardFile(Protocol):
    """File of a shard, which is written from its beginning to its end."""

    def write(self, data: Any, crc32c: int | None = None) -> int:
        """Appends bytes, whose CRC-32C the caller may know."""


class Writer:
    """Writes the records of one shard one after another; what comes before and after them is the format's own."""

    def __init__(self, file: ShardFile, schema: Schema) -> None:
        """Begins a shard in an empty file."""
        self.file, self.schema = file, schema

    def add(self, data: memoryview, columns: Columns, crc32c: int) -> None:
        """Adds records.

        Args:
          data: What encode() returned for each, one behind the other.
          columns: Their rows of an index, whose offsets begin at 0.
          crc32c: CRC-32C of the data.
        """
        self.file.write(data, crc32c)

    def close(self) -> None:
        """Writes what is left."""


class ShardFormat:
    """A format of shards.

    Attributes:
      name: Its name for --format, one of ENDINGS.
      purpose: What its shards are for, as the help of --format says it.
      library: Module that writes it, where this package does not itself; it is installed with the extra of this name.
      writer: Class of the writer of a shard.
    """

    name = ""
    purpose = ""
    library = ""
    writer = Writer

    def check(self) -> None:
        """Raises ValueError if the library is missing."""
        if self.library and importlib.util.find_spec(self.library) is None:
            raise ValueError(
                f"--format={self.name} needs {self.library}; install it with: pip install 'jpeg2tpu[{self.library}]'"
            )

    def encode(self, record: Record, schema: Schema) -> bytes:
        """Returns the bytes that a record has in a shard; equal records have equal bytes."""
        raise NotImplementedError

    def path(self, shard: str) -> str:
        """Returns the path of a shard within the output."""
        return shard

    def side_names(self, splits: set[str]) -> set[str]:
        """Returns the paths of the files besides shards and manifest.json that an export with these splits has."""
        return set()

    def side_files(self, manifest: Manifest) -> Iterator[tuple[str, str]]:
        """Yields (path, content) of these files."""
        yield from ()

    def samples(self, file: IO[bytes], num_bytes: int) -> Iterator[Sample]:
        """Yields the examples of a shard, if the format has no reader in sources/exported_shards.py.

        Args:
          file: The shard.
          num_bytes: Its size.

        Raises:
          ValueError: It is damaged, or was not made by an export.
        """
        raise NotImplementedError
