"""What an input pipeline is told; TensorFlow-free."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from tpu_input.dataset_format.manifest import Split

DTYPES = ("uint8", "bfloat16", "float32")
LAYOUTS = ("NHWC", "HWCN", "HWNC")
CACHES = (None, "records", "decoded")
ON_CORRUPT = ("error", "skip")


@dataclasses.dataclass(frozen=True)
class InputConfig:
    """How records become batches; one object serves training, evaluation, the device and serving.

    Attributes:
      image_size: Height and width of the images in a batch, in pixels.
      dtype: What leaves the host: "uint8", "bfloat16" or "float32", always in [0, 255]. uint8 costs a quarter of
        float32's transfer; normalisation runs on the device (`from_infeed`).
      layout: Order of a batch's axes: "NHWC", or "HWCN" or "HWNC", which a TPU can take without transposing; or
        "auto": HWCN for more than 8 examples a core, else HWNC, as in Google's MLPerf submissions.
      mean: Red, green and blue subtracted on the device, in [0, 255]. Default: ImageNet's.
      std: Red, green and blue divided by on the device, in [0, 255]. Default: ImageNet's.
      crop_area: Smallest and largest share of the image that a training crop covers; every share between is equally
        likely. Default: Szegedy et al. 2014, "Going deeper with convolutions", section 6.
      crop_aspect: Smallest and largest width / height of a training crop, at most 1000; its logarithm is distributed
        evenly. Default: the same paper's.
      flip: Whether training mirrors every other image; False where left and right differ, as in digits.
      eval_crop: Side of the centred square that evaluation and serving see, as a share of the image's shorter side.
        Default: 224 / 256.
      shuffle_records: Serialized records that training's shuffle buffer holds; memory is this times a record's bytes.
      parallel_shards: Shards that a host reads from at the same time.
      seed: Of shuffling, cropping and flipping.
      on_corrupt: What happens to a record that cannot be read, decoded, or whose label is outside the classes: "error"
        stops and names shard and record; "skip" says so on stderr and puts a black image of weight 0 in its place,
        so that every other example stays in its batch. "skip" takes an eighth more time.
      shuffle_bytes: What the shuffle buffer's records may take, in bytes by the split's mean; it holds fewer where they
        are large.
      deterministic: Whether training gives the same batches every time; False takes records as they come, and
        `start_step` is then near, not exact.
      augment: Function (image, seed) -> image of training's crops, after the flip: [image_size, image_size, 3] of
        `dtype` in [0, 255] to the same; [2] int64, another seed for every crop, from which nothing else is drawn. See
        tpu_input.augment.
      echo: Crops that training takes of one decoded image; they come in consecutive batches (data echoing, Choi et al.
        2019, "Faster Neural Network Training with Data Echoing").
      cache: Keeps what training reads in memory: None, "records", or "decoded" for whole images; never a crop.
      service: Dispatcher of a tf.data service that does training's work, "grpc://address:port"; all hosts share it, and
        each example comes once an epoch over all of them. Needs deterministic=False and no cache.
      service_job: Name that the hosts of one training run share, and no other run at the same dispatcher has.
      max_corrupt: Records that "skip" passes over in one epoch of a host before it stops all the same.
    """

    image_size: int
    dtype: str = "uint8"
    layout: str = "NHWC"
    mean: tuple[float, float, float] = (123.675, 116.28, 103.53)
    std: tuple[float, float, float] = (58.395, 57.12, 57.375)
    crop_area: tuple[float, float] = (0.08, 1.0)
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    eval_crop: float = 0.875
    shuffle_records: int = 16384
    parallel_shards: int = 16
    seed: int = 0
    on_corrupt: str = "error"
    max_corrupt: int = 100
    shuffle_bytes: int = 2_000_000_000
    deterministic: bool = True
    augment: Callable[[Any, Any], Any] | None = None
    echo: int = 1
    cache: str | None = None
    service: str | None = None
    service_job: str = "train"

    def __post_init__(self) -> None:
        for name in ("image_size", "shuffle_records", "parallel_shards", "shuffle_bytes", "echo"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        for name, known in (
            ("dtype", DTYPES),
            ("layout", (*LAYOUTS, "auto")),
            ("on_corrupt", ON_CORRUPT),
            ("cache", CACHES),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(map(str, known))}, got {getattr(self, name)!r}")
        if self.max_corrupt < 0:
            raise ValueError(f"max_corrupt must be non-negative, got {self.max_corrupt!r}")
        for name, largest in (("crop_area", 1.0), ("crop_aspect", 1000.0)):
            low, high = getattr(self, name)
            if not 0 < low <= high <= largest:
                raise ValueError(f"{name} must be 0 < smallest <= largest <= {largest}, got {getattr(self, name)!r}")
        if not 0 < self.eval_crop <= 1:
            raise ValueError(f"eval_crop must be above 0 and at most 1, got {self.eval_crop!r}")
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, got {self.std!r}")
        if self.service:
            self._check_service()
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be in [0, 2**31), got {self.seed!r}")

    def _check_service(self) -> None:
        check_service(self.service or "")
        if self.deterministic:
            raise ValueError(
                "service gives batches to whichever host asks first, so that no two runs see the same; "
                "set deterministic=False to accept that"
            )
        if self.cache:
            raise ValueError(f"service has no cache, as its workers take other shards each epoch; got {self.cache!r}")


LARGEST_DEFAULT_SIZE = 224  # pixels; of ImageNet's recipes, whose smallest crops are of 0.08 of an image
_LEAST_CROP, _MOST_LEAST_CROP = 0.08, 0.6


def fitting_input(split: Split) -> dict[str, Any]:
    """Returns the image_size and crop_area that fit a split's images, as options of InputConfig.

    The side of the images is the smaller of their mean height and mean width. image_size is that side, in whole pixels,
    but at most 224: enlarging adds work and no detail. The smallest crop covers as many of an image's own pixels as
    ImageNet's smallest crop of 0.08 of a side of 224 does, 63 x 63: 0.08 * (224 / side)^2 of the image, at most 0.6.
    Of images of 32 x 32 pixels 0.08 would be 9 x 9. Measured on the sample digits, 32 x 32, fed at 28 with a batch of
    64: after 200 steps, the loss on the held-out ones was 0.078 with crops from 0.08 on and 0.026 from 0.6 on.

    Args:
      split: Of the manifest; of one that does not know the sizes, 224 and 0.08 are taken.
    """
    side = image_side(split) or LARGEST_DEFAULT_SIZE
    least = _LEAST_CROP * max(1.0, LARGEST_DEFAULT_SIZE / side) ** 2
    return {
        "image_size": max(1, math.floor(min(side, LARGEST_DEFAULT_SIZE))),
        "crop_area": (round(min(least, _MOST_LEAST_CROP), 2), 1.0),
    }


def image_side(split: Split) -> float:
    """Returns the smaller of the mean height and the mean width of a split's images, in pixels; 0 where not known."""
    return min(split.height[1], split.width[1])


def check_service(service: str) -> None:
    """Checks what names a dispatcher.

    Raises:
      ValueError: It is not "grpc://address:port".
    """
    address, _, port = service.removeprefix("grpc://").rpartition(":")
    if not service.startswith("grpc://") or not address or not port.isdigit():
        raise ValueError(f'service must be "grpc://address:port" of a dispatcher, got {service!r}')
