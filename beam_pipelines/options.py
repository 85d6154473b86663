"""What a conversion is told."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

_SPLIT_NAME = re.compile(r"[A-Za-z0-9_]+")
_MIN_SHARD_BYTES = 10_000


def valid_split(name: str) -> bool:
    """Returns whether a split may be called so: its name becomes part of file names."""
    return _SPLIT_NAME.fullmatch(name) is not None


@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """One conversion.

    Attributes:
      input: A folder of class folders, or a .csv or .jsonl list; local or a URI.
      output: The dataset's folder or URI.
      splits: Share of each split, in (0, 1]; together 1. For inputs that do not name their split themselves.
      shard_bytes: Size of every shard but a split's last.
      labels: Class names in label order; empty: those found, sorted.
      first_label: Label on disk of class 0: 0 or 1.
      seed: Of the order of examples and of the choice of splits.
    """

    input: str
    output: str
    splits: tuple[tuple[str, float], ...] = (("train", 0.9), ("validation", 0.1))
    shard_bytes: int = 100_000_000
    labels: tuple[str, ...] = ()
    first_label: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.shard_bytes < _MIN_SHARD_BYTES:
            raise ValueError(f"shard_size must be at least {_MIN_SHARD_BYTES} bytes, got {self.shard_bytes}")
        for name, share in self.splits:
            if not valid_split(name):
                raise ValueError(f"a split's name is made of letters, digits and _, got {name!r}")
            if not 0 < share <= 1:
                raise ValueError(f"split {name!r} must have a share above 0 % and at most 100 %, got {share:.6g}")
        names = [name for name, _ in self.splits]
        if len(set(names)) < len(names) or abs(sum(share for _, share in self.splits) - 1) > 1e-9:
            raise ValueError(f"splits must name each split once and add up to 100 %, got {self.splits!r}")
        if len(set(self.labels)) < len(self.labels) or "" in self.labels:
            raise ValueError("labels must name each class once, without empty names")
        if len(self.labels) == 1:
            raise ValueError(f"labels names one class, {self.labels[0]!r}; a classifier needs at least 2")
        if self.first_label not in (0, 1):
            raise ValueError(f"first_label must be 0 or 1, got {self.first_label}")

    def shaping(self) -> dict[str, Any]:
        """Returns the options that decide what the shards hold, for manifest and fingerprint."""
        fields = dataclasses.asdict(self)
        del fields["input"], fields["output"]
        fields["splits"], fields["labels"] = dict(self.splits), list(self.labels)
        return fields
