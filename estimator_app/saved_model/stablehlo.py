"""Classification of image files by an export of --trainer=jax, with JAX alone.

[N] files' bytes ──decode, crop──▶ pixels ──model.stablehlo──▶ N results: probabilities, [K] float32, or a ValueError
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from estimator_app.config import TrainConfig
from estimator_app.model_dir.array_files import ArrayReader
from estimator_app.model_dir.exports import STABLEHLO_NAME, WEIGHTS
from estimator_app.runtime import files
from estimator_app.saved_model.find import read_origin
from tpu_input import InputConfig
from tpu_input.command_line.distribution import needing_extras
from tpu_input.command_line.wording import first_line
from tpu_input.without_tensorflow.decode_window import decode_file

Array = npt.NDArray[Any]
_CLASSES = "assets/classes.txt"
_FORMATS = {"JPEG": b"\xff\xd8", "PNG": b"\x89PNG\r\n\x1a\n"}


@dataclasses.dataclass(frozen=True)
class StableHloClassifier:
    """A loaded export of --trainer=jax; a callable, as Classifier is.

    Attributes:
      path: Path or URI of the export.
      classes: Names of the classes, in label order.
      config: Config of the run.
      run: Function of pixels [N, H, W, 3] float32 in [0, 255] -> {"logits", "probabilities"}, [N, K] float32 each.
    """

    path: str
    classes: tuple[str, ...]
    config: TrainConfig
    run: Callable[[Array], dict[str, Any]]

    @property
    def has_several(self) -> bool:
        """Whether an image may have several of the classes."""
        return not self.config.task.has_one_answer

    def __call__(self, files: Sequence[bytes]) -> list[Array | ValueError]:
        """Returns the class probabilities of each file, in label order; a ValueError if it is not an image."""
        return self._rows(files, "probabilities")

    def logits(self, files: Sequence[bytes]) -> list[Array | ValueError]:
        """Returns the class logits of each file, in label order; a ValueError for a file that is not an image."""
        return self._rows(files, "logits")

    def _rows(self, files: Sequence[bytes], name: str) -> list[Array | ValueError]:
        images = [_pixels(encoded, self.config.input) for encoded in files]
        good = [image for image in images if not isinstance(image, ValueError)]
        rows = iter(self._run_on_pixels(np.stack(good), name) if good else ())
        return [image if isinstance(image, ValueError) else next(rows) for image in images]

    def _run_on_pixels(self, pixels: Array, name: str) -> Array:
        # The program is compiled for each size of a batch: only powers of two are used.
        count = len(pixels)
        padding = (1 << (count - 1).bit_length()) - count
        padded = np.concatenate([pixels, np.zeros((padding, *pixels.shape[1:]), pixels.dtype)])
        rows: Array = np.asarray(self.run(padded.astype(np.float32))[name])
        return rows[:count]


def _pixels(encoded: bytes, config: InputConfig) -> Array | ValueError:
    """Returns the pixels of an image file as in evaluation, [H, W, 3]; a ValueError if it is none."""
    kind = next((name for name, begin in _FORMATS.items() if encoded.startswith(begin)), "")
    if not kind:
        return ValueError("not a JPEG or PNG file" if encoded else "the file is empty")
    try:
        return decode_file(encoded, config)
    except ValueError:
        return ValueError(f"the {kind} file is damaged")


def load_stablehlo(path: str) -> StableHloClassifier:
    """Returns the classifier of an export of --trainer=jax.

    Raises:
      ValueError: A file of it is missing or damaged.
      ImportError: JAX is missing.
    """
    with needing_extras(f"reading {path!r}"):
        import jax
        from jax import export as jax_export
    files.check_plain(path, recursive=True)
    config, _ = read_origin(path)
    try:
        classes = tuple(files.read_text(f"{path}/{_CLASSES}").split("\n")[:-1])
        reader = ArrayReader(f"{path}/{WEIGHTS}")
        weights = jax.device_put({name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()})
        program = jax_export.deserialize(bytearray(files.read_bytes(f"{path}/{STABLEHLO_NAME}")))
        outputs = program.out_avals[-1].shape[-1]
        if outputs != len(classes):
            raise ValueError(f"classes.txt lists {len(classes)} classes, but the network has {outputs} outputs")
    except Exception as error:  # of damaged files, JAX raises almost any type of exception
        raise ValueError(f"{path!r} is not a complete export of this program: {first_line(error)}") from error
    run = jax.jit(program.call)
    return StableHloClassifier(path, classes, config, lambda pixels: run(weights, pixels))
