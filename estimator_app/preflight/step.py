"""Training step of one core as a function, for either trainer.

TrainConfig ──estimator_step() or strategy_step()──▶ Step: (features, label) -> loss, after the update of the variables
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from estimator_app.runtime.tensorflow_private import built_for_xla

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step of one core.

    Attributes:
      run: (features, label) -> loss; its variables have been created.
      spec: Spec of (features, label) for one core.
      graph: Graph in which its ops were created, for finding the code that created an op by the op's name; None if the
        ops are created by calling `run`.
    """

    run: Callable[..., tf.Tensor]
    spec: Any
    graph: tf.Graph | None = None


def estimator_step(model_fn: Callable[..., Any], run_config: Any, spec: Any) -> Step:
    """Returns the step of a model_fn(features, labels, mode, params, config) of TPUEstimator.

    The step is built in a graph as TPUEstimator builds it, and converted to a function whose variables are tf.Variables
    of zeros. `use_tpu` is False: the sum over cores, which CrossShardOptimizer adds, has no meaning for a single core.

    Args:
      model_fn: The model_fn.
      run_config: The tpu.RunConfig.
      spec: Spec of (features, label) for one core.
    """
    with tf.Graph().as_default() as graph:
        v1.train.create_global_step()
        fed = tf.nest.map_structure(lambda part: v1.placeholder(part.dtype, part.shape), spec)
        with built_for_xla():
            made = model_fn(*fed, v1.estimator.ModeKeys.TRAIN, {"use_tpu": False}, run_config)
            with tf.control_dependencies([made.train_op]):
                loss = tf.identity(made.loss)
    inputs = [part.name for part in tf.nest.flatten(fed)]
    variables = _variables(graph)
    nodes = _without(v1.graph_util.extract_sub_graph(graph.as_graph_def(), [loss.op.name]), [*inputs, *variables])
    used = {name for node in nodes.node for name in (*node.input, *(f"{name}:0" for name in node.input))}

    def run(*element: Any) -> tf.Tensor:
        values = dict(zip(inputs, tf.nest.flatten(element), strict=True))
        values |= {name: v1.get_default_graph().capture(variable.handle) for name, variable in variables.items()}
        values = {name: value for name, value in values.items() if name in used}
        (found,) = tf.graph_util.import_graph_def(nodes, values, [loss.name], name="")
        return found

    return Step(run, spec, graph)


def _without(nodes: Any, tensors: list[str]) -> Any:
    """Returns a GraphDef without the ops that produce `tensors`, which are passed in, and without colocations."""
    names = {name.partition(":")[0] for name in tensors}
    kept = [node for node in nodes.node if node.name not in names]
    for node in kept:
        node.attr.pop("_class", None)
        ahead = [name for name in node.input if name.removeprefix("^") not in names or not name.startswith("^")]
        del node.input[:]
        node.input.extend(ahead)
    del nodes.node[:]
    nodes.node.extend(kept)
    return nodes


def strategy_step(config: Any, model_dir: str, spec: Any) -> Step:
    """Returns the step of a run whose trainer uses tf.distribute."""
    from estimator_app.trainers.tf_distribute.state import make_state

    return Step(make_state(config, model_dir).step, spec)


def _variables(graph: tf.Graph) -> dict[str, tf.Variable]:
    """Returns a new variable of zeros for every variable of a graph, by the name of its handle."""
    found = {}
    for op in graph.get_operations():
        if op.type == "VarHandleOp":
            zeros = tf.zeros([size.size for size in op.get_attr("shape").dim], op.get_attr("dtype"))
            found[op.outputs[0].name] = tf.Variable(zeros)
    return found
