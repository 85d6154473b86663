"""SavedModel → what it says about image files.

[N] files' bytes ──Classifier──▶ N arrays of probabilities, [num_classes] float32; or why there is none
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from estimator_app.lookup import find_export

Array = npt.NDArray[Any]

CLASSES_NAME = "classes.txt"  # among the assets: the names, a line each, in label order

# Their first bytes. TensorFlow's decoder knows others, but the models have seen none.
_FORMATS = {"JPEG": b"\xff\xd8", "PNG": b"\x89PNG\r\n\x1a\n"}


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A loaded SavedModel.

    Attributes:
      path: Where it is.
      classes: Their names, in label order.
      signature: serving_default.
    """

    path: str
    classes: tuple[str, ...]
    signature: Any

    def __call__(self, files: Sequence[bytes]) -> list[Array | ValueError]:
        """Returns the probabilities of each file's classes, in label order; or, for one that is no image, why not."""
        reasons = [_reason(encoded) for encoded in files]
        good = [encoded for encoded, reason in zip(files, reasons, strict=True) if not reason]
        found = iter(self._run(good) if good else [])
        return [ValueError(reason) if reason else next(found) for reason in reasons]

    def _run(self, files: Sequence[bytes]) -> list[Array | ValueError]:
        try:
            return list(self.signature(image_bytes=tf.constant(files))["probabilities"].numpy())
        except tf.errors.InvalidArgumentError:
            if len(files) == 1:
                return [ValueError(f"a damaged {_format(files[0])} file")]
        return [result for encoded in files for result in self._run([encoded])]  # one of them: find out which


def load_classifier(path: str) -> Classifier:
    """Returns the classifier of a SavedModel.

    Args:
      path: It, a folder of them named after numbers, of which the largest is taken, or a model_dir.

    Raises:
      ValueError: There is none, or it is another program's.
    """
    path = find_export(path)
    try:
        with tf.io.gfile.GFile(f"{path}/assets/{CLASSES_NAME}") as file:
            classes = tuple(file.read().split("\n")[:-1])
        # An export for TPUs has a second graph, which has one more tag.
        signature = tf.saved_model.load(path, tags=["serve"]).signatures["serving_default"]
    except (OSError, KeyError, RuntimeError, tf.errors.OpError) as error:
        raise ValueError(f"{path!r} is no complete export of this program: {str(error).splitlines()[0]}") from error
    return Classifier(path, classes, signature)


def names_table(classes_file: str) -> tf.lookup.StaticHashTable:
    """Returns the table from labels to names; its file goes into the SavedModel, which fills the table from there."""
    lines = tf.lookup.TextFileInitializer(
        classes_file,
        key_dtype=tf.int64,
        key_index=tf.lookup.TextFileIndex.LINE_NUMBER,
        value_dtype=tf.string,
        value_index=tf.lookup.TextFileIndex.WHOLE_LINE,
    )
    return tf.lookup.StaticHashTable(lines, default_value="")


def _reason(encoded: bytes) -> str:
    """Returns what is wrong with a file as far as its first bytes tell; "" when nothing is."""
    if _format(encoded):
        return ""
    return "not a JPEG or PNG file" if encoded else "the file is empty"


def _format(encoded: bytes) -> str:
    return next((name for name, begin in _FORMATS.items() if encoded.startswith(begin)), "")
