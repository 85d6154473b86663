"""Parts of a Keras model and training that belong to the input: normalization, and a checkpoint to resume from.

Works with Keras 3 on each of its backends, and with TensorFlow 2.15's Keras 2.

    load() ──image [N, H, W, 3] uint8──▶ Normalize ──float32──▶ layers of yours
    fit(callbacks=[Checkpoint(FILE)]) ──▶ FILE: weights, optimizer, and the step from which load() continues
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import keras

from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.config import InputConfig

if TYPE_CHECKING:
    from tpu_input.datasets import DatasetLike

if hasattr(keras, "ops"):
    _ops = keras.ops
else:
    import tensorflow as _ops  # type: ignore[no-redef]  # of Keras 2


@keras.saving.register_keras_serializable(package="tpu_input")
class Normalize(keras.layers.Layer):  # type: ignore[misc]
    """Layer that returns (image - mean) / std, for images with the channels last; it has no weights.

    It computes in float32, and returns the dtype that the layer computes in, such as bfloat16 under the policy
    "mixed_bfloat16". A model that has it is fed the pixels as they leave the host, uint8, in training and in serving
    alike. Import this module before you load a saved model that has it.
    """

    def __init__(self, mean: Any = InputConfig.mean, std: Any = InputConfig.std, **options: Any) -> None:
        """Makes the layer.

        Args:
          mean: Red, green and blue that are subtracted, in [0, 255]: InputConfig.mean. Default: ImageNet's.
          std: Red, green and blue that are divided by, in [0, 255]: InputConfig.std. Default: ImageNet's.
          options: As of every keras.layers.Layer: name, dtype, ….
        """
        super().__init__(**options | {"trainable": False})
        self.mean, self.std = ([float(value) for value in channels] for channels in (mean, std))

    @classmethod
    def from_dataset(cls, dataset: DatasetLike, **options: Any) -> Normalize:
        """Returns the layer for the pixels of a dataset: of its split "train", as load() and `train` take them.

        Args:
          dataset: Folder or URI of the dataset, or its Manifest.
          options: As of every keras.layers.Layer: name, dtype, ….

        Raises:
          ValueError: There is no dataset.
        """
        from tpu_input.datasets import as_manifest

        config = InputConfig.of(as_manifest(dataset))
        return cls(config.mean, config.std, **options)

    def call(self, images: Any) -> Any:
        """Returns the images, [..., 3] of any dtype in [0, 255], normalized."""
        images = _ops.subtract(_ops.cast(images, "float32"), _ops.cast(self.mean, "float32"))
        return _ops.cast(_ops.divide(images, _ops.cast(self.std, "float32")), self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape of the images, which stays the same."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Returns what makes an equal layer."""
        return {**super().get_config(), "mean": self.mean, "std": self.std}


def trained_steps(model: Any) -> int:
    """Returns how many batches a compiled model was trained with: the `start_step` with which load() continues.

    Of an optimizer with gradient_accumulation_steps, `iterations` counts updates of the weights, and this each batch.
    """
    optimizer = model.optimizer
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of LossScaleOptimizer
    return int(getattr(optimizer, "_iterations", optimizer.iterations))


class Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that saves the whole model to one file, always complete: every so many steps, and where fit() ends.

    The file has the weights and the optimizer, which counts the batches that were trained. Their number is the step at
    which the input continues, so that weights and position cannot come from two different moments:

        model = keras.models.load_model(path) if os.path.exists(path) else make_model()
        dataset = tpu_input.load(DATASET, start_step=tpu_input.keras.trained_steps(model))

    With the optimizer's `gradient_accumulation_steps`, steps are batches as without it, and gradients that are
    accumulated, but not yet applied, are in the file, too.
    """

    @checks_arguments
    def __init__(self, path: str | os.PathLike[str], every_steps: int = 1000) -> None:
        """Makes the callback.

        Args:
          path: File to write, FILE.keras, or with Keras 3 also a URI. A local file is written under a temporary
            name first and then renamed; uploads of objects are atomic.
          every_steps: Steps from one checkpoint to the next.

        Raises:
          ValueError: The path does not end in .keras, or every_steps is below 1.
        """
        super().__init__()
        self._path = os.fspath(path)
        if not self._path.endswith(".keras"):
            raise ValueError(f"the path of a checkpoint must end in .keras, got {self._path!r}")
        if every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, got {every_steps!r}")
        self._every_steps, self._before, self._saved = every_steps, 0, 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Makes the folder of the file, and refuses a training that might never end, which Keras 3 would start.

        Raises:
          ValueError: fit() does not know the number of steps per epoch, as with an endless dataset.
          OSError: The folder cannot be made.
        """
        if self.params.get("steps") is None:
            raise ValueError(
                "fit() does not know the number of steps per epoch, and with an endless dataset it would never end; "
                "give fit() steps_per_epoch=, or load() epochs="
            )
        if "://" not in self._path:
            os.makedirs(os.path.dirname(os.path.abspath(self._path)), exist_ok=True)
        self._saved = trained_steps(self.model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes how many steps were trained before."""
        self._before = trained_steps(self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves the model where a multiple of every_steps is reached, or passed by steps that are run together."""
        step = self._before + batch + 1
        if step // self._every_steps > self._saved // self._every_steps:
            self._save()
            self._saved = step

    def on_train_end(self, logs: Any = None) -> None:
        """Saves the model."""
        self._save()

    def _save(self) -> None:
        if "://" in self._path:
            self.model.save(self._path)
            return
        partial = f"{self._path.removesuffix('.keras')}.partial.keras"
        self.model.save(partial)
        os.replace(partial, self._path)
