"""Options of a conversion."""

from __future__ import annotations

import dataclasses
from typing import Any

from tpu_input.dataset_format.decode_limits import MAX_PIXELS, PILLOW_MAX_PIXELS
from tpu_input.dataset_format.orientation import COLOR_PROFILES
from tpu_input.dataset_format.records import valid_split

_MIN_SHARD_BYTES = 10_000
DEDUP = ("none", "exact")
REENCODE = ("needed", "all")


@dataclasses.dataclass(frozen=True)
class Source:
    """One input.

    Attributes:
      path: Folder of class folders, .tar of such a folder, or .csv or .jsonl list; local path or URI.
      split: Split of all its images; "" to take it from folders, from a column of the list, or by hash.
      label_list: File with one class name per line, in the order of the images' names, for images that are not in
        class folders; "" if there is none.
    """

    path: str
    split: str = ""
    label_list: str = ""

    def __post_init__(self) -> None:
        if self.label_list and self.is_list:
            raise ValueError(
                f"the list {self.path!r} names a label in each line, so --label_list={self.label_list} must be left out"
            )

    @property
    def is_list(self) -> bool:
        return self.path.endswith((".csv", ".jsonl"))


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """Checks and changes of images.

    Attributes:
      reencode: "needed": a JPEG that needs no change is stored byte for byte; "all": every image is re-encoded, so
        that only the pixels of an untrusted file are stored.
      resize_shorter: Shorter side, in pixels, to which larger images are scaled down; 0 keeps their size.
      quality: JPEG quality of re-encoded images, 1 to 100.
      min_side: Images with a shorter side below this many pixels are rejected.
      max_pixels: Images with more pixels are rejected, as are WebP and CMYK images with more than half as many, and
        JPEGs whose scans together cover more than 40 times as many pixels.
      color_profiles: "convert": images with an ICC profile other than sRGB are stored as sRGB; "ignore": profiles have
        no effect, and the bytes of a JPEG that needs no other change are stored with its profile.
    """

    reencode: str = "needed"
    resize_shorter: int = 0
    quality: int = 90
    min_side: int = 1
    max_pixels: int = MAX_PIXELS
    color_profiles: str = "convert"

    def __post_init__(self) -> None:
        if self.reencode not in REENCODE:
            raise ValueError(f"reencode must be one of {', '.join(REENCODE)}, got {self.reencode!r}")
        if self.resize_shorter < 0:
            raise ValueError(f"resize_shorter must be 0 or a number of pixels, got {self.resize_shorter}")
        if not 1 <= self.quality <= 100:
            raise ValueError(f"quality must be 1 to 100, got {self.quality}")
        if self.min_side < 1:
            raise ValueError(f"min_side must be at least 1 pixel, got {self.min_side}")
        if not 1 <= self.max_pixels <= PILLOW_MAX_PIXELS:
            raise ValueError(
                f"max_pixels must be 1 to {PILLOW_MAX_PIXELS}, the most that Pillow decodes, got {self.max_pixels}"
            )
        if self.color_profiles not in COLOR_PROFILES:
            raise ValueError(f"color_profiles must be one of {', '.join(COLOR_PROFILES)}, got {self.color_profiles!r}")


@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """Options of one conversion.

    Attributes:
      sources: Inputs.
      output: Folder or URI of the dataset.
      splits: Share of each split, in (0, 1], with a sum of 1; for inputs that do not name their split.
      splits_required: Whether it is an error if all inputs name their split, so that `splits` has no effect.
      shard_bytes: Size of every shard except the last of a split.
      num_shards: (split, number of shards), for splits that are cut into shards of equally many inputs instead.
      labels: Class names in label order; if empty, the class names found, sorted.
      first_label: Label of class 0 in the records: 0 or 1.
      seed: Seed of the order of examples and of the assignment to splits.
      dedup: "exact" rejects images with the bytes of an earlier one, and all whose bytes occur under two labels.
      max_rejected: Share of the inputs, in [0, 1], that may be rejected; duplicates and files that were not meant as
        inputs, such as hidden ones, do not count.
      overwrite: Whether another dataset, or another unfinished conversion, in the output is replaced.
      images: Checks and changes of images.
    """

    sources: tuple[Source, ...]
    output: str
    splits: tuple[tuple[str, float], ...] = (("train", 0.9), ("validation", 0.1))
    shard_bytes: int = 100_000_000
    num_shards: tuple[tuple[str, int], ...] = ()
    labels: tuple[str, ...] = ()
    first_label: int = 0
    seed: int = 0
    dedup: str = "none"
    max_rejected: float = 0.01
    overwrite: bool = False
    splits_required: bool = False
    images: ImageOptions = ImageOptions()

    def __post_init__(self) -> None:
        self._check_sources()
        self._check_splits()
        if self.shard_bytes < _MIN_SHARD_BYTES:
            raise ValueError(f"shard_size must be at least {_MIN_SHARD_BYTES} bytes, got {self.shard_bytes}")
        for name, count in self.num_shards:
            if count < 1:
                raise ValueError(f"num_shards must be at least 1, got {count} for split {name!r}")
        if len(set(self.labels)) < len(self.labels) or "" in self.labels:
            raise ValueError("labels must name each class once, without empty names")
        if len(self.labels) == 1:
            raise ValueError(f"labels names one class, {self.labels[0]!r}; a classifier needs at least 2")
        if self.first_label not in (0, 1):
            raise ValueError(f"first_label must be 0 or 1, got {self.first_label}")
        if self.dedup not in DEDUP:
            raise ValueError(f"dedup must be one of {', '.join(DEDUP)}, got {self.dedup!r}")
        if not 0 <= self.max_rejected <= 1:
            raise ValueError(f"max_rejected must be 0 % to 100 %, got {100 * self.max_rejected:.6g} %")

    def _check_sources(self) -> None:
        names = [source.split for source in self.sources]
        if not names:
            raise ValueError("there must be an input")
        if len(names) > 1 and ("" in names or len(set(names)) < len(names)):
            raise ValueError(f"several inputs need a split each, --input=SPLIT=PATH; got {names!r}")
        for name in filter(None, names):
            if not valid_split(name):
                raise ValueError(f"a split's name is 1 to 64 letters, digits and _, got {name!r}")

    def _check_splits(self) -> None:
        for name, share in self.splits:
            if not valid_split(name):
                raise ValueError(f"a split's name is 1 to 64 letters, digits and _, got {name!r}")
            if not 0 < share <= 1:
                raise ValueError(f"split {name!r} must have a share above 0 % and at most 100 %, got {share:.6g}")
        names = [name for name, _ in self.splits]
        given = ", ".join(f"{name}={100 * share:g}%" for name, share in self.splits)
        if len(set(names)) < len(names) or abs(sum(share for _, share in self.splits) - 1) > 1e-9:
            raise ValueError(f"splits must name each split once and add up to 100 %, got {given}")

    def shaping(self) -> dict[str, Any]:
        """Returns the options that determine the content of the shards, for manifest and fingerprint."""
        fields = dataclasses.asdict(self)
        for name in ("sources", "output", "max_rejected", "overwrite", "splits_required"):
            del fields[name]
        fields["splits"], fields["num_shards"] = dict(self.splits), dict(sorted(self.num_shards))
        fields["labels"] = list(self.labels)
        return fields
