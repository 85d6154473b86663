"""What a writer leaves beside a finished shard: all that the manifest is made of, and what a rerun continues from."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import NamedTuple

from beam_pipelines.images import CheckedImage


class Rejection(NamedTuple):
    """One line of rejected.jsonl."""

    key: str
    uri: str
    reason: str
    detail: str


@dataclasses.dataclass
class Receipt:
    """What a writer leaves beside a finished shard; receipts are all that the manifest is made of.

    Attributes:
      name: The shard's file name.
      num_examples: Its records; with 0 no file is written.
      num_bytes: Its size.
      sha256: Hex digest of its bytes.
      class_counts: Examples by label.
      heights: [smallest, sum, largest] in pixels.
      widths: [smallest, sum, largest] in pixels.
      num_measured: Examples whose pixels are in sums and squares.
      sums: Red, green and blue, summed over SAMPLE_SIDE**2 pixels of each measured image.
      squares: Their squares, summed likewise.
      fixed: Images that were encoded again, by why.
      rejected: Inputs that are in no shard.
    """

    name: str
    num_examples: int = 0
    num_bytes: int = 0
    sha256: str = ""
    class_counts: Counter[int] = dataclasses.field(default_factory=Counter)
    heights: list[int] = dataclasses.field(default_factory=lambda: [1 << 62, 0, 0])
    widths: list[int] = dataclasses.field(default_factory=lambda: [1 << 62, 0, 0])
    num_measured: int = 0
    sums: list[int] = dataclasses.field(default_factory=lambda: [0, 0, 0])
    squares: list[int] = dataclasses.field(default_factory=lambda: [0, 0, 0])
    fixed: Counter[str] = dataclasses.field(default_factory=Counter)
    rejected: list[Rejection] = dataclasses.field(default_factory=list)

    def add(self, image: CheckedImage, label: int, num_bytes: int) -> None:
        """Counts one record of `num_bytes` in all."""
        self.num_examples += 1
        self.num_bytes += num_bytes
        self.class_counts[label] += 1
        for sizes, size in ((self.heights, image.height), (self.widths, image.width)):
            sizes[:] = min(sizes[0], size), sizes[1] + size, max(sizes[2], size)
        if image.sums and image.squares:
            self.num_measured += 1
            self.sums = [total + value for total, value in zip(self.sums, image.sums, strict=True)]
            self.squares = [total + value for total, value in zip(self.squares, image.squares, strict=True)]
        if image.fixed:
            self.fixed[image.fixed] += 1

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        fields = json.loads(text)
        fields["class_counts"] = Counter({int(label): count for label, count in fields["class_counts"].items()})
        fields["fixed"] = Counter(fields["fixed"])
        fields["rejected"] = [Rejection(*rejection) for rejection in fields["rejected"]]
        return cls(**fields)
