"""RecordSpec, the format of TFRecords written by other programs: keys, encoding, first label. TensorFlow-free."""

from __future__ import annotations

import dataclasses
from typing import Literal

from tpu_input.command_line.dataclass_options import check_types

Encoding = Literal["jpeg", "png", "raw"]
IMAGE_KEY = "image/encoded"  # a complete JPEG file
LABELS_KEY = "image/class/labels"  # in datasets with several labels per image, instead of LABEL_KEY: any number
LABEL_KEY = "image/class/label"  # class index + the label on disk of class 0


@dataclasses.dataclass(frozen=True)
class RecordSpec:
    """The format of a tf.train.Example with an image and its label.

    Attributes:
      image_key: Feature that holds the image, one string.
      label_key: Feature that holds the label, one int64.
      encoding: "jpeg" (PNGs among them are decoded too), "png", or "raw" for uint8 pixels.
      raw_shape: Height, width and channels (1 or 3) of raw pixels; None for the other encodings.
      label_offset: Label on disk of class 0.
    """

    image_key: str = IMAGE_KEY
    label_key: str = LABEL_KEY
    encoding: Encoding = "jpeg"
    raw_shape: tuple[int, int, int] | None = None
    label_offset: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        if (self.encoding == "raw") != (self.raw_shape is not None):
            raise ValueError(
                f'raw_shape is only allowed with encoding "raw", got {self.raw_shape!r} with {self.encoding!r}'
            )
        if self.raw_shape and (min(self.raw_shape) < 1 or self.raw_shape[2] not in (1, 3)):
            raise ValueError(f"raw_shape must be (height, width, 1 or 3), got {self.raw_shape!r}")


# As written by tensorflow/tpu's imagenet_to_gcs.py: labels 1 to 1000.
IMAGENET = RecordSpec(label_offset=1)
# As written by TensorFlow's how_tos/reading_data/convert_to_records.py.
MNIST = RecordSpec("image_raw", "label", "raw", (28, 28, 1))
# By name; tfds: as TensorFlow Datasets writes image classification; flowers: as TF-Slim's download_and_convert_flowers.
RECORDS = {"imagenet": IMAGENET, "tfds": RecordSpec("image", "label"), "flowers": RecordSpec(), "mnist": MNIST}


def parse_record(text: str) -> RecordSpec:
    """Returns a format given as a name in RECORDS, or as "image=FEATURE,label=FEATURE,first_label=N".

    Raises:
      ValueError: It is neither.
    """
    if text in RECORDS:
        return RECORDS[text]
    pairs = [part.partition("=") for part in text.split(",")]
    values = {name.strip(): value.strip() for name, _, value in pairs}
    if not all(equals and value.strip() for _, equals, value in pairs) or values.keys() - {"image", "label", _FIRST}:
        raise ValueError(
            f"record must be {', '.join(RECORDS)}, or pairs such as image=FEATURE,label=FEATURE,first_label=1, "
            f"got {text!r}"
        )
    if not (first := values.get(_FIRST, "0")).isdecimal():
        raise ValueError(f"first_label of a record must be a number, got {first!r}")
    default = RecordSpec()
    image, label = values.get("image", default.image_key), values.get("label", default.label_key)
    return RecordSpec(image, label, label_offset=int(first))


_FIRST = "first_label"
