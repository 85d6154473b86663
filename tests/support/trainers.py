"""The trainers that a process of the tests can run: Keras has one backend in a process.

KERAS_BACKEND=jax pytest …   tests of "jax", and contracts over trainers with it
pytest …                     all other trainers that the installed TensorFlow has
"""

from __future__ import annotations

import pytest

from estimator_app.config import TRAINERS, TrainerName
from estimator_app.model.keras_library import on_jax
from estimator_app.runtime.tensorflow_startup import has_estimator

IS_RUNNABLE: dict[TrainerName, bool] = {
    "tpu_estimator": not on_jax() and has_estimator(),
    "tf_distribute": not on_jax(),
    "jax": on_jax(),
}
RUNNABLE = [trainer for trainer in TRAINERS if IS_RUNNABLE[trainer]]
needs_jax = pytest.mark.skipif(not IS_RUNNABLE["jax"], reason="needs KERAS_BACKEND=jax; make test-core runs these")
needs_tensorflow = pytest.mark.skipif(IS_RUNNABLE["jax"], reason="Keras is on JAX in this process")
