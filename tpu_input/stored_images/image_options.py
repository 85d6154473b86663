"""Options of what is stored of an image file; part of a dataset's manifest and of an export's config."""

from __future__ import annotations

import dataclasses
from typing import Literal

from tpu_input.command_line.dataclass_options import check_types
from tpu_input.dataset_format.decode_limits import MAX_PIXELS, PILLOW_MAX_PIXELS
from tpu_input.dataset_format.orientation import ColorProfiles

Reencode = Literal["needed", "all"]
Check = Literal["decode", "header"]
Metadata = Literal["keep", "strip"]

# Encoding an image again takes more than twice the CPU time of storing its bytes, and loses some detail.
MOST_LARGER = 1.1  # times --resize_shorter; a JPEG up to this size saves trainers less than a fifth of its pixels


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """Checks and changes of images.

    Attributes:
      reencode: Images to re-encode. all: every image, so that only the pixels of untrusted files are stored; needed:
        only images that trainers cannot read unchanged, and the bytes of the other JPEGs are stored.
      resize_shorter: Scale larger images down to a shorter side of this many pixels. 0 keeps their size. JPEGs that
        are at most 1.1 times as large are stored unchanged, and counted, as encoding them again gains little. Smaller
        images make training decode faster.
      quality: JPEG quality of re-encoded images, 1 to 100.
      min_side: Reject images with a shorter side below this many pixels.
      max_pixels: Reject images with more pixels than this. The limit is half of it for WebP, AVIF, HEIC and CMYK, a
        third for JPEG 2000, and 40 times as much for all scans of a JPEG together. Default: 50,000,000, which need up
        to 600 MB of memory.
      color_profiles: Handling of ICC profiles. convert: store images with a profile other than sRGB as sRGB, which
        trainers assume; ignore: profiles have no effect, and the bytes of a JPEG are stored with its profile.
      check: Check of JPEGs that are stored as they are. decode: decode each, and reject it if it is damaged; header:
        read only their headers, for files that were checked before. Then damage in their pixels is not found, nor
        images that look alike; about 1,000 images of each split are decoded for the statistics.
      lossless: Store images of lossless formats (PNG, BMP, GIF, TIFF, PNM, lossless WebP) as PNG, without loss, instead
        of JPEG. They take several times the space, and longer to decode in training.
      metadata: Metadata of JPEGs and PNGs that are not re-encoded. keep: as they are, with EXIF and perhaps a GPS
        position; strip: without EXIF, XMP, comments, color profiles and previews, the coded pixels unchanged. Images
        that are re-encoded have none.
    """

    # The fields have the order of the options in manifest.json and in the fingerprint.
    reencode: Reencode = "needed"
    resize_shorter: int = 0
    quality: int = 90
    min_side: int = 1
    max_pixels: int = MAX_PIXELS
    color_profiles: ColorProfiles = "convert"
    check: Check = "decode"
    lossless: bool = False
    metadata: Metadata = "keep"

    def __post_init__(self) -> None:
        check_types(self)
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
        if self.check == "header" and self.reencode == "all":
            raise ValueError(
                "check='header' decodes no JPEG, but reencode='all' has to decode each; leave out one of them"
            )
