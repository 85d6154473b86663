"""A keras.Model inside TPUEstimator's graph, trained as in Keras itself.

    keras.Model, made eagerly ──initial values──▶ KerasInGraph's variables, which TPUEstimator trains and saves
                      └──traced as a function of its variables──▶ called on the graph's tensors and those variables

Keras models do not work properly when made inside a graph: there, `load_weights()` and `set_weights()` write to a
separate session of Keras, and the updates of a nested model depend on a placeholder that is never fed. Therefore the
model is made eagerly, outside of the graph, and traced with tf.function. The graph calls the traced function, which
contains all updates and takes the variables as arguments. TPUs support such functions: tf.distribute uses them too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf

from estimator_app.runtime.tensorflow_private import eagerly
from estimator_app.trainers.checks import named_weights

v1 = tf.compat.v1

Averages = Literal["none", "both", "instead"]
AVERAGE = "ema_"  # prefix of the moving average of a weight
UNTRACKED = "untracked_"  # prefix of variables that Keras does not know, such as those made in a Lambda layer
# Largest size in bytes of the initial values fed in one session run. The message of a run must stay below 2 GB; but
# runs should be few, as each one prunes the whole graph again.
_FED_BYTES = 2**28


class KerasInGraph:
    """The variables of a keras.Model in the graph that is being built, and calls of the model on tensors of the graph.

    Attributes:
      trainable: The graph's variables for the model's trainable_weights, in their order.
    """

    def __init__(self, model: Any, averages: Averages = "none") -> None:
        """Creates the variables, with the same names as in --trainer=tf_distribute.

        Args:
          model: A keras.Model that was made eagerly; it is not changed.
          averages: "both" to make a moving average of each weight too, which average() updates; "instead" to compute
            with the averages of a checkpoint instead of the weights.
        """
        weights = named_weights(model)
        trainable = {id(weight) for weight in model.trainable_weights}
        self._originals: dict[str, tf.Variable] = {}  # by the name of the graph's variable
        self._variables: dict[str, tf.Variable] = {}
        self._averages: dict[str, tf.Variable] = {}
        self._prefix = AVERAGE if averages == "instead" else ""
        for name, weight in weights.items():
            self._add(name, weight, id(weight) in trainable)
            if averages == "both":
                self._averages[name] = _variable(f"{AVERAGE}{name}", weight, False)
        self.trainable = [self._variables[name] for name, weight in weights.items() if id(weight) in trainable]

    def call(self, function: Callable[..., Any], *tensors: tf.Tensor) -> Any:
        """Returns function(*tensors), with the model's variables replaced by the graph's.

        Args:
          function: Function that uses the model; its assignments to variables run whenever its results are computed.
          tensors: Tensors of the graph.
        """
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        with eagerly():
            traced = tf.function(function, autograph=False).get_concrete_function(*specs)
            constants = {id(tensor): tensor.numpy() for tensor in traced.captured_inputs if tensor.dtype != tf.resource}
        by_handle = {id(original.handle): name for name, original in self._originals.items()}
        # Adds variables that Keras does not track.
        for variable in traced.graph.variables:
            if id(variable.handle) not in by_handle:
                by_handle[id(variable.handle)] = self._add(f"{UNTRACKED}{len(self._variables)}", variable, False)

        def captured(tensor: tf.Tensor) -> tf.Tensor:
            if id(tensor) in constants:
                return tf.constant(constants[id(tensor)])
            if id(tensor) not in by_handle:
                raise ValueError(
                    f"the network uses {tensor!r}, a resource that is not a variable, which TPUEstimator does not "
                    "support; remove lookup tables and similar resources, or train with --trainer=tf_distribute"
                )
            return self._variables[by_handle[id(tensor)]].handle

        traced.set_external_captures([captured(tensor) for tensor in traced.captured_inputs])
        return traced(*tensors)

    def average(self, share: tf.Tensor) -> tf.Operation:
        """Returns the op that moves each average toward its weight, keeping `share` of the average."""
        updates = []
        for name, average in self._averages.items():
            value = self._variables[name].read_value()
            if value.dtype.is_floating:
                updates.append(average.assign_sub((1 - share) * (average - value), read_value=False))
            else:  # such as the count of a Normalization layer
                updates.append(average.assign(value, read_value=False))
        return tf.group(*updates)

    def scaffold(self) -> Any:
        """Returns the Scaffold that initializes the variables with the model's values if no checkpoint is restored.

        The values are fed by the host instead of being constants in the graph, which is sent as one message of limited
        size.
        """

        def start(scaffold: Any, session: Any) -> None:
            for group in self._groups():
                with eagerly():
                    values = {name: self._originals[name].numpy() for name in group}
                for variables in (self._variables, self._averages):
                    initializers = {name: variables[name].initializer for name in group if name in variables}
                    feeds = {initializer.inputs[1]: values[name] for name, initializer in initializers.items()}
                    session.run(list(initializers.values()), feeds)

        return v1.train.Scaffold(init_fn=start)

    def _groups(self) -> list[list[str]]:
        """Returns the names of all variables, in groups that are small enough to be fed in one session run."""
        groups: list[list[str]] = [[]]
        fed = 0
        for name, variable in self._variables.items():
            fed += variable.shape.num_elements() * variable.dtype.size
            if fed > _FED_BYTES and groups[-1]:
                groups.append([])
                fed = variable.shape.num_elements() * variable.dtype.size
            groups[-1].append(name)
        return groups

    def _add(self, name: str, original: tf.Variable, trainable: bool) -> str:
        self._originals[name] = original
        self._variables[name] = _variable(f"{self._prefix}{name}", original, trainable)
        return name


def _variable(name: str, original: tf.Variable, trainable: bool) -> Any:
    return v1.Variable(
        # A function, as on a TPU the variable is created inside a while loop.
        functools.partial(tf.zeros, original.shape, original.dtype),
        trainable=trainable,
        constraint=original.constraint,
        use_resource=True,
        name=name,
    )
