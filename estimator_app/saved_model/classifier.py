"""Loading of an exported SavedModel and classification of image files with it.

[N] files' bytes ──Classifier──▶ N results: probabilities, [num_classes] float32, or a ValueError
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from estimator_app.model.tasks import Task
from estimator_app.model_dir.exports import STABLEHLO_NAME, program_name
from estimator_app.runtime import files
from estimator_app.runtime.tensorflow_startup import no_stderr
from estimator_app.saved_model.find import find_export
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.command_line.wording import first_line

if TYPE_CHECKING:
    import tensorflow as tf

Array = npt.NDArray[Any]

# Name of a signature for evaluation, and of its output: probabilities underflow to 0, so that classes would be tied.
LOGITS = "logits"
# Name of a signature for other runtimes, and of its input: images that are decoded already, [N, H, W, 3] float32 in
# [0, 255]. It has no operation on texts or files, which TFLite and ONNX cannot convert.
PIXELS = "pixels"
THRESHOLD = 0.5  # least probability of a class of an image that may have several
CLASSES_NAME = "classes.txt"  # in the assets: class names, one per line, in label order

# Magic bytes by format. TensorFlow's decoder supports other formats, but the models were not trained on them.
_FORMATS = {"JPEG": b"\xff\xd8", "PNG": b"\x89PNG\r\n\x1a\n"}


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A loaded SavedModel; a callable.

    Attributes:
      path: Path or URI of the SavedModel.
      classes: Names of the classes, in label order.
      signature: The signature serving_default.
      logits_signature: The signature LOGITS; None for exports of earlier versions, which do not have it.
    """

    path: str
    classes: tuple[str, ...]
    signature: Any
    logits_signature: Any = None

    @property
    def has_several(self) -> bool:
        """Whether an image may have several of the classes."""
        return "labels" in self.signature.structured_outputs

    def __call__(self, files: Sequence[bytes]) -> list[Array | ValueError]:
        """Returns the class probabilities of each file, in label order; a ValueError if it is not an image."""
        return run_on_files(files, self._probabilities)

    def logits(self, files: Sequence[bytes]) -> list[Array | ValueError]:
        """Returns the class logits of each file, in label order; a ValueError for a file that is not an image.

        For an export without the signature LOGITS, these are the logarithms of its probabilities, which have the same
        softmax. Classes whose probability has underflowed to 0 are then tied.
        """
        return run_on_files(files, self._logits)

    def _probabilities(self, files: tf.Tensor) -> Array:
        return self.signature(image_bytes=files)["probabilities"].numpy()  # type: ignore[no-any-return]

    def _logits(self, files: tf.Tensor) -> Array:
        if self.logits_signature is None:
            return np.log(np.maximum(self._probabilities(files), np.finfo(np.float32).tiny))  # type: ignore[no-any-return]
        return self.logits_signature(image_bytes=files)[LOGITS].numpy()  # type: ignore[no-any-return]


def run_on_files(files: Sequence[bytes], run: Callable[[tf.Tensor], Array]) -> list[Array | ValueError]:
    """Returns a row of run(files) for each file; a ValueError for a file that is not an image.

    Args:
      files: Contents of files.
      run: Function of [N] strings -> [N, …], which raises InvalidArgumentError if a file cannot be decoded.
    """
    reasons = [_reason(encoded) for encoded in files]
    good = [encoded for encoded, reason in zip(files, reasons, strict=True) if not reason]
    rows = iter(_run_images(good, run) if good else [])
    return [ValueError(reason) if reason else next(rows) for reason in reasons]


def _run_images(files: Sequence[bytes], run: Callable[[tf.Tensor], Array]) -> list[Array | ValueError]:
    import tensorflow as tf

    try:
        with no_stderr():  # the JPEG decoder prints what it also raises
            return list(run(tf.constant(files)))
    except tf.errors.InvalidArgumentError:
        if len(files) == 1:
            return [ValueError(f"the {_format(files[0])} file is damaged")]
    # One of the files is damaged: each is run alone to find out which.
    return [result for encoded in files for result in _run_images([encoded], run)]


@checks_arguments
def load_classifier(path: str) -> Any:
    """Returns the classifier of a SavedModel.

    Args:
      path: A SavedModel, a folder of SavedModels named by numbers, where the largest is taken, or a model_dir.

    Raises:
      ValueError: There is no SavedModel, it was exported by another program, or it holds something that is neither a
        file nor a folder.
    """
    path = find_export(path)
    if program_name(path) == STABLEHLO_NAME:
        from estimator_app.saved_model.stablehlo import load_stablehlo

        return load_stablehlo(path)
    import tensorflow as tf

    files.check_plain(path, recursive=True)
    try:
        classes = tuple(files.read_text(f"{path}/assets/{CLASSES_NAME}").split("\n")[:-1])
        # An export for TPUs has a second graph, with an additional tag.
        signatures = tf.saved_model.load(path, tags=["serve"]).signatures
        signature = signatures["serving_default"]
        outputs = signature.structured_outputs["probabilities"].shape[-1]
        if outputs not in (None, len(classes)):
            raise ValueError(f"{CLASSES_NAME} lists {len(classes)} classes, but the network has {outputs} outputs")
    except Exception as error:  # for damaged files, TensorFlow and protobuf raise almost any type of exception
        raise ValueError(f"{path!r} is not a complete export of this program: {first_line(error)}") from error
    return Classifier(path, classes, signature, signatures.get(LOGITS))


def names_table(classes_file: str) -> tf.lookup.StaticHashTable:
    """Returns a lookup table from labels to names; a SavedModel stores its file and initializes the table from it."""
    import tensorflow as tf

    lines = tf.lookup.TextFileInitializer(
        classes_file,
        key_dtype=tf.int64,
        key_index=tf.lookup.TextFileIndex.LINE_NUMBER,
        value_dtype=tf.string,
        value_index=tf.lookup.TextFileIndex.WHOLE_LINE,
    )
    return tf.lookup.StaticHashTable(lines, default_value="")


def classified(probabilities: tf.Tensor, task: Task, names: tf.lookup.StaticHashTable) -> dict[str, tf.Tensor]:
    """Returns what the signature for clients returns, by name.

    Args:
      probabilities: [N, K] float32.
      task: TrainConfig.task.
      names: Table from names_table().

    Returns:
      "probabilities" as given; "label" [N] int64 and "class" [N] string, of the largest probability; with several
      labels per image also "labels" [N, K] int64, 1 for each class with a probability of at least 0.5.
    """
    import tensorflow as tf

    label = tf.argmax(probabilities, axis=1)
    outputs = {"probabilities": probabilities, "label": label, "class": names.lookup(label)}
    if not task.has_one_answer:
        outputs["labels"] = tf.cast(probabilities >= THRESHOLD, tf.int64)
    return outputs


def _reason(encoded: bytes) -> str:
    """Returns the problem with an image file, judged by its magic bytes only; "" if there is none."""
    if _format(encoded):
        return ""
    return "not a JPEG or PNG file" if encoded else "the file is empty"


def _format(encoded: bytes) -> str:
    return next((name for name, begin in _FORMATS.items() if encoded.startswith(begin)), "")
