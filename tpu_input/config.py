"""Options of an input pipeline; TensorFlow-free."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

from tpu_input.command_line.dataclass_options import Flag, check_choice, check_types, from_fields
from tpu_input.dataset_format.manifest import Manifest, Split

Dtype = Literal["uint8", "bfloat16", "float32"]
Layout = Literal["NHWC", "HWCN", "HWNC", "auto"]
Cache = Literal["records", "decoded"]
Sampling = Literal["equal", "balanced"]
ResizeMode = Literal["crop", "pad", "squash"]
OnCorrupt = Literal["error", "skip"]
LAYOUTS = tuple(layout for layout in get_args(Layout) if layout != "auto")


MOST_BLOCK_RECORDS = 17  # in a block of the order of training; pipeline/order.py says why


# Names of InputConfig.augment, each with the largest number of strengths.
AUGMENTATIONS = {"none": 0, "rand_augment": 2, "color_jitter": 3, "auto": 0}


def parse_augment(text: str) -> tuple[str, tuple[float, ...]]:
    """Returns the name and the strengths of an augmentation that is written as in InputConfig.augment.

    Raises:
      ValueError: There is no augmentation of that name, or the strengths are not numbers or too many.
    """
    name, colon, rest = text.partition(":")
    check_choice("augment", name, AUGMENTATIONS)
    try:
        strengths = tuple(float(number) for number in rest.split(",")) if colon else ()
    except ValueError:
        strengths = (math.nan,)
    if len(strengths) > AUGMENTATIONS[name] or not all(map(math.isfinite, strengths)):
        most = f"up to {AUGMENTATIONS[name]} numbers, such as {name}:1,2" if AUGMENTATIONS[name] else "no numbers"
        raise ValueError(f"augment {name} takes {most}, got {text!r}")
    return name, strengths


@dataclasses.dataclass(frozen=True)
class InputConfig:
    """Options of an input pipeline; one object is used for training, evaluation, the device and serving.

    Attributes:
      image_size: Height and width of the images in a batch, in pixels.
      dtype: dtype of the images sent to the device: "uint8", "bfloat16" or "float32", always in [0, 255]. uint8 needs a
        quarter of float32's transfer; normalization runs on the device (`from_infeed`).
      layout: Order of a batch's axes: "NHWC", or "HWCN" or "HWNC", which a TPU can take without transposing; or
        "auto": HWCN for more than 8 examples per core, else HWNC, as in Google's MLPerf submissions.
      mean: Red, green and blue that are subtracted on the device, in [0, 255]. Default: ImageNet's.
      std: Red, green and blue that are divided by on the device, in [0, 255]. Default: ImageNet's.
      resize: How an image, or the part that training takes of it, becomes a square. "crop" uses the centered square in
        evaluation and serving. "pad" keeps all of the image and its proportions, in the middle of a square whose rest
        has the color `mean`. "squash" keeps all of it and stretches it to a square. Training draws a part at random and
        stretches it, or pads it with "pad"; see crop_aspect.
      crop_area: Smallest and largest share of the image's area that a training crop covers; the share is uniformly
        distributed between them. Default: Szegedy et al. 2014, "Going deeper with convolutions", section 6.
      crop_aspect: Smallest and largest width / height of a training crop, at most 1000; its logarithm is uniformly
        distributed. With resize="pad" and "squash", it is relative to the image's own: 1 is a part with the image's
        proportions. Default: the same paper's.
      flip: Whether training mirrors half of the images, chosen at random; use False where left and right differ, as in
        digits.
      eval_crop: Side of the centered square that evaluation and serving use with resize="crop", as a share of the
        image's shorter side.
        Default: 224 / 256.
      seed: Seed of the order of examples, cropping, flipping and augmentation.
      on_corrupt: What to do with a record that cannot be read or decoded, or whose label is outside the classes:
        "error" stops and names shard and record; "skip" prints the problem to stderr and replaces the record with a
        black image of weight 0, so that every other example stays in its batch. "skip" takes an eighth more time.
      deterministic: Whether training yields the same batches in every run. With False, it yields images in the order
        in which they are decoded, and `start_step` is then approximate, not exact; each example still comes once an
        epoch.
      augment: Augmentation of training's crops after the flip: "rand_augment:LAYERS,MAGNITUDE" or
        "color_jitter:BRIGHTNESS,CONTRAST,SATURATION", or either name alone for the strengths of tpu_input.augment;
        "auto", AutoAugment's policy for ImageNet; "none", the same as None; or a function (image, seed) -> image. The
        image is [image_size, image_size, 3] of `dtype` in [0, 255]; the result must have the same shape and dtype. The
        seed is [2] int64, unique to the crop and to this use. Both are tensors, or NumPy arrays in a TrainSource.
      echo: Number of crops that training takes of each decoded image; they are in consecutive steps (data echoing,
        Choi et al. 2019, "Faster Neural Network Training with Data Echoing").
      cache: What training keeps in memory: None, "records", or "decoded" for complete images; crops are never cached.
      service: Address "grpc://address:port" of the dispatcher of a tf.data service that prepares training's batches.
        All hosts share it, and each example comes once per epoch over all of them. Needs deterministic=False and no
        cache.
      service_job: Job name that all hosts of a training run share, and that no other run at the same dispatcher uses.
      scaled_decode: Whether a JPEG is decoded at 1/2, 1/4 or 1/8 of its size where the crop is at least that many times
        as large as the image in the batch, in training, evaluation and serving. That takes less time, and the crop's
        sides move by at most half a pixel of the image in the batch. With False, every JPEG is decoded at its own size.
      max_corrupt: Largest number of records that "skip" replaces in one epoch of a host; with more, it stops.
      block_records: Largest number of consecutive records of a shard that training takes as a block, which comes at one
        place of the epoch's random order; 1 shuffles record by record. Large blocks are read faster, small ones mix
        TFRecords that lie sorted by class better. A split of at most 64 MiB is always shuffled record by record.
      sampling: How often training takes an example: "equal", each as often as any other; or "balanced", each class as
        often as any other, and within a class each example as often as any other. Examples of rare classes then come
        more often than once per epoch, every record is read from a place of its own, and a cache has all records on
        every host. "balanced" needs a dataset with one class for each image, and no service.
      features: Names of further features of the records, which come with the image: float32, int64 or string, a
        scalar or as many values as the dataset has of it. Texts cannot be sent to a TPU.
    """

    image_size: int
    dtype: Dtype = "uint8"
    layout: Layout = "NHWC"
    mean: tuple[float, float, float] = (123.675, 116.28, 103.53)
    std: tuple[float, float, float] = (58.395, 57.12, 57.375)
    crop_area: tuple[float, float] = (0.08, 1.0)
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    eval_crop: float = 0.875
    seed: int = 0
    on_corrupt: OnCorrupt = "error"
    max_corrupt: int = 100
    deterministic: bool = True
    augment: str | Callable[[Any, Any], Any] | None = None
    echo: int = 1
    cache: Cache | None = None
    service: str | None = None
    service_job: str = "train"
    scaled_decode: bool = True
    block_records: int = MOST_BLOCK_RECORDS
    sampling: Sampling = "equal"
    resize: ResizeMode = "crop"
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("image_size", "echo", "block_records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        if self.max_corrupt < 0:
            raise ValueError(f"max_corrupt must be non-negative, got {self.max_corrupt!r}")
        for name, largest in (("crop_area", 1.0), ("crop_aspect", 1000.0)):
            low, high = getattr(self, name)
            if not 0 < low <= high <= largest:
                raise ValueError(
                    f"{name} must satisfy 0 < smallest <= largest <= {largest}, got {getattr(self, name)!r}"
                )
        if not 0 < self.eval_crop <= 1:
            raise ValueError(f"eval_crop must be above 0 and at most 1, got {self.eval_crop!r}")
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, got {self.std!r}")
        if not all(0 <= value <= 255 for value in self.mean):
            raise ValueError(f"mean must be from 0 to 255, got {self.mean!r}")
        if isinstance(self.augment, str) and parse_augment(self.augment)[0] == "none":
            object.__setattr__(self, "augment", None)  # one value for it, as configs are compared
        if self.service:
            self._check_service()
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be in [0, 2**31), got {self.seed!r}")

    @classmethod
    def of(cls, manifest: Manifest, **options: Any) -> InputConfig:
        """Returns the config of a dataset's images.

        Args:
          manifest: The dataset. The mean and std are of the pixels of its split "train"; image_size and crop_area
            fit its images: see fitting_input(). Without a split "train", its first one is taken.
          options: Fields of InputConfig by name, which are taken instead.

        Raises:
          ValueError: An option is invalid, or there is none of that name.
        """
        train = manifest.split("train" if "train" in manifest.splits else next(iter(manifest.splits), "train"))
        defaults = {"mean": train.channel_mean, "std": train.channel_std} | fitting_input(train)
        return from_fields(cls, defaults | options)

    def _check_service(self) -> None:
        check_service(self.service or "")
        if self.sampling != "equal":
            raise ValueError(
                f"sampling must be 'equal' with a service, whose workers take each block of records once per epoch, "
                f"got {self.sampling!r}"
            )
        if self.deterministic:
            raise ValueError(
                "a service sends each batch to whichever host asks first, so no two runs get the same batches; "
                "set deterministic=False to accept this"
            )
        if self.cache:
            raise ValueError(
                f"cache must be None with a service, as its workers read other shards in each epoch, got {self.cache!r}"
            )


# What the command line says of fields whose description above is for Python.
INPUT_FLAGS = {
    "resize": Flag(
        help="how images become squares. crop: evaluation and serving take the square in the middle; pad: they take "
        "all of the image, with its proportions, on a square of the mean color; squash: they stretch all of it to a "
        "square. Training takes a random part and stretches it, or pads it with pad"
    ),
    "sampling": Flag(
        help="how often training takes an example: each as often as any other (equal), or each class (balanced). With "
        "balanced, examples of rare classes come more often than once per epoch, records are read one by one, and "
        "--cache keeps all records on every host. It needs one class per image, and does not work with an input service"
    ),
    "dtype": Flag(
        help="type of the images that are sent to the device, with values from 0 to 255. uint8 needs a quarter of "
        "float32's transfer; the device normalizes"
    ),
    "layout": Flag(
        help="order of the axes of a batch of images. A TPU can take HWCN and HWNC without transposing; auto is HWCN "
        "for more than 8 examples per core, else HWNC, as in Google's MLPerf submissions"
    ),
    "cache": Flag(
        help="what training keeps in memory: encoded records, decoded images, or none. Crops are never cached"
    ),
}


def check_config(config: object) -> None:
    """Checks the argument `config` of the factories of input_fns.

    Raises:
      ValueError: It is not an InputConfig.
    """
    if not isinstance(config, InputConfig):
        raise ValueError(f"config must be an InputConfig, e.g. InputConfig(image_size=224), got {config!r}")


LARGEST_DEFAULT_SIZE = 224  # pixels; size in ImageNet's recipes, whose smallest crop covers 0.08 of an image
_LEAST_CROP, _MOST_LEAST_CROP = 0.08, 0.6


def fitting_input(split: Split) -> dict[str, Any]:
    """Returns the image_size and crop_area that fit a split's images, as options of InputConfig.

    The side of the images is the smaller of their mean height and mean width. image_size is that side, rounded down to
    whole pixels, but at most 224, because enlarging adds work and no detail. The smallest crop covers 0.08 * (224 /
    side)^2 of the image, at most 0.6: as many pixels of the image as the smallest crop of ImageNet's recipes, which is
    0.08 of 224 x 224, or 63 x 63. Of an image of 32 x 32 pixels, 0.08 would be only 9 x 9 pixels. Measured on the
    sample digits, 32 x 32, with an image_size of 28 and a batch of 64: after 200 steps, the loss on held-out digits was
    0.078 with crops from 0.08 on and 0.026 with crops from 0.6 on.

    Args:
      split: Split of the manifest; if its image sizes are not known, the result is 224 and 0.08.
    """
    side = image_side(split) or LARGEST_DEFAULT_SIZE
    least = _LEAST_CROP * max(1.0, LARGEST_DEFAULT_SIZE / side) ** 2
    return {
        "image_size": max(1, math.floor(min(side, LARGEST_DEFAULT_SIZE))),
        "crop_area": (round(min(least, _MOST_LEAST_CROP), 2), 1.0),
    }


def image_side(split: Split) -> float:
    """Returns the smaller of the mean height and the mean width of a split's images, in pixels; 0 if not known."""
    return min(split.height[1], split.width[1])


def check_service(service: str) -> None:
    """Checks the address of a dispatcher.

    Raises:
      ValueError: It is not "grpc://address:port".
    """
    address, _, port = service.removeprefix("grpc://").rpartition(":")
    if not service.startswith("grpc://") or not address or not port.isdigit():
        raise ValueError(f'service must be the address of a dispatcher, "grpc://address:port", got {service!r}')
