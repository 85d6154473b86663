"""A network's variables outside TPUEstimator: as they begin, by name, and whether a checkpoint has them.

TrainConfig ──make_weighted_model()──▶ keras.Model ──named_weights()──▶ {"0_kernel": …, "36_kernel": …}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.model.networks import find_network, make_model
from estimator_app.model_dir.checkpoints import OF_OBJECT, check_fits


def make_weighted_model(config: TrainConfig) -> Any:
    """Returns the run's keras.Model with its first weights, the same as those of model.py's model_fn."""
    tf.keras.utils.set_random_seed(config.input.seed)
    return make_model(find_network(config.network), config.input.image_size, len(config.classes), config.precision)


def named_weights(model: Any) -> dict[str, tf.Variable]:
    """Returns TensorFlow's variables of a keras.Model, by number and kind, as in "36_kernel".

    Layers' own names count how many there were before in the process.
    """
    variables = [*model.trainable_weights, *model.non_trainable_weights]
    kinds = [variable.name.rpartition("/")[2].partition(":")[0] for variable in variables]
    return {
        f"{number}_{kind}": plain_variable(each)
        for number, (kind, each) in enumerate(zip(kinds, variables, strict=True))
    }


def check_weights(path: str, weights: Mapping[str, tf.Variable], config: TrainConfig) -> None:
    """Checks that a checkpoint has named_weights().

    Raises:
      ValueError: It is of another network.
    """
    needed = {f"weights/{name}{OF_OBJECT}": list(variable.shape) for name, variable in weights.items()}
    check_fits(path, needed, config.network, len(config.classes))


def plain_variable(variable: Any) -> tf.Variable:
    """Returns the tf.Variable inside one of Keras 3's; Keras 2 has no others."""
    return variable if isinstance(variable, tf.Variable) else variable.value
