"""The Keras that the trainer of this process computes with, looked up when a network is first made.

    tpu_estimator, tf_distribute ──choose_backend()──▶ tf.keras: Keras 2 in TensorFlow 2.15, else Keras 3 on TensorFlow
    jax                          ──choose_backend()──▶ Keras 3 on JAX, without TensorFlow

Keras 3 reads its backend once, when it is imported: a process has one of them for its lifetime.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from typing import Any

_VARIABLE = "KERAS_BACKEND"
_BACKENDS = {"jax": "jax"}  # of trainers that do not compute with TensorFlow
_unused: tuple[str, ...] = ()  # packages that Keras on JAX is imported without


def backend_of(trainer: str) -> str:
    """Returns the name of Keras' backend for a trainer, by the trainer's name."""
    return _BACKENDS.get(trainer, "tensorflow")


def uses_tensorflow(trainer: str) -> bool:
    """Returns whether a trainer computes with TensorFlow; others do not import it."""
    return backend_of(trainer) == "tensorflow"


def choose_backend(trainer: str) -> None:
    """Chooses the backend of a trainer for this process, unless Keras has been imported already."""
    if "keras" not in sys.modules:
        os.environ[_VARIABLE] = backend_of(trainer)


def leave_out_unused_parts() -> None:
    """Lets the Keras on JAX of this process be imported without what a command never uses of it.

    These are its plots and its wrappers for scikit-learn, whose imports take more than half of Keras' own. A program
    that calls train() itself may use them.
    """
    global _unused
    _unused = ("matplotlib", "sklearn")


def require_backend(trainer: str) -> None:
    """Chooses the backend of a trainer for this process, and checks that it has it.

    Raises:
      ImportError: Keras 3 or JAX is missing, or Keras was imported with another backend.
    """
    if not uses_tensorflow(trainer):
        _require_keras_3()
    choose_backend(trainer)
    needed, loaded = backend_of(trainer), _loaded_backend()
    if loaded not in (None, needed):
        raise ImportError(
            f"--trainer={trainer} needs Keras on {needed}, but this process has imported it on {loaded}; set "
            f"{_VARIABLE}={needed} before Keras is imported, or use another process"
        )


def load_keras(trainer: str) -> None:
    """Imports the Keras of a trainer, so that no later import in this process takes another.

    Raises:
      ImportError: As require_backend().
    """
    require_backend(trainer)
    keras()


def _require_keras_3() -> None:
    for name, least in (("keras", 3), ("jax", 0), ("optax", 0)):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if not version or int(version.partition(".")[0]) < least:
            state = f"{name} {version} is installed" if version else f"{name} is not installed"
            raise ImportError(
                f"--trainer=jax needs Keras 3, JAX and optax, but {state}; use Python 3.12 or newer and: "
                "pip install 'jpeg2tpu[jax]'"
            )


def _loaded_backend() -> str | None:
    """Returns the backend of the Keras that this process has imported; None before that."""
    loaded: Any = sys.modules.get("keras")
    config: Any = getattr(loaded, "config", None)  # Keras 2 has no choice of backends
    return None if loaded is None else str(config.backend()) if hasattr(config, "backend") else "tensorflow"


def chosen_backend() -> str | None:
    """Returns the backend of the Keras of this process, by its name, or the one of KERAS_BACKEND; None for neither."""
    return _loaded_backend() or os.environ.get(_VARIABLE)


def on_jax() -> bool:
    """Returns whether this process computes with Keras on JAX."""
    return chosen_backend() == "jax"


@functools.cache
def keras() -> Any:
    """Returns the module of Keras: `keras` on JAX, else the one that TensorFlow has."""
    if on_jax():
        with _without(*_unused):
            import keras

        return keras
    import tensorflow as tf

    return tf.keras


def set_random_seed(seed: int) -> None:
    """Sets the seed of Python, NumPy and Keras, and of TensorFlow unless Keras is on JAX.

    Keras would import TensorFlow for that wherever it is installed.
    """
    with _without("tensorflow") if on_jax() else contextlib.nullcontext():
        keras().utils.set_random_seed(seed)


@contextlib.contextmanager
def _without(*packages: str) -> Iterator[None]:
    """Lets imports of packages fail, but for those that this process has imported."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in packages if name not in modules]
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


def is_keras_3() -> bool:
    """Returns whether Keras is of version 3 or newer."""
    return hasattr(keras(), "ops")


class _Layers:
    """Keras' layers by name, such as layers.Dense; Keras is imported when the first is taken."""

    def __getattr__(self, name: str) -> Any:
        return getattr(keras().layers, name)


layers: Any = _Layers()


class _TensorFlowOps:
    """Those functions of keras.ops that the networks use, for Keras 2, which has none."""

    def __init__(self) -> None:
        import tensorflow as tf

        self.cast, self.concatenate, self.matmul = tf.cast, tf.concat, tf.matmul
        self.reshape, self.shape, self.softmax = tf.reshape, tf.shape, tf.nn.softmax
        self.transpose, self.broadcast_to = tf.transpose, tf.broadcast_to


@functools.cache
def ops() -> Any:
    """Returns keras.ops, or for Keras 2 an object with the functions of it that the networks use."""
    return keras().ops if is_keras_3() else _TensorFlowOps()


def plain_variable(variable: Any) -> Any:
    """Returns what a trainer updates: the tf.Variable inside a variable of Keras 3 on TensorFlow, else the variable."""
    return variable.value if is_keras_3() and not on_jax() and isinstance(variable, keras().Variable) else variable
