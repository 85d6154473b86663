"""Step of training, evaluation or prediction of one core as a TensorFlow function.

model_fn ──estimator_step()──▶ Step: (features, label) -> the tensors that go to the host
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from estimator_app.runtime.tensorflow_private import built_for_xla

v1 = tf.compat.v1

MODES = ("training", "evaluation", "prediction")


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of one core.

    Attributes:
      run: (features, label), or (features) of a prediction -> the tensors that go to the host: the loss of training,
        after the update of the variables; what evaluation counts; probabilities. Its variables have been created.
      spec: Spec of the arguments for one core.
      graph: Graph in which its ops were created, for finding the code that created an op by the op's name; None if the
        ops are created by calling `run`.
    """

    run: Callable[..., Any]
    spec: Any
    graph: tf.Graph | None = None


def estimator_step(model_fn: Callable[..., Any], run_config: Any, spec: Any, mode: str = "training") -> Step:
    """Returns a step of a model_fn(features, labels, mode, params, config) of TPUEstimator.

    The step is built in a graph as TPUEstimator builds it, and converted to a function whose variables are tf.Variables
    of zeros. `use_tpu` is False: the sum over cores, which CrossShardOptimizer adds, has no meaning for a single core.

    Args:
      model_fn: The model_fn.
      run_config: The tpu.RunConfig.
      spec: Spec of (features, label) for one core; of (features,) for a prediction.
      mode: One of MODES.
    """
    with tf.Graph().as_default() as graph:
        v1.train.create_global_step()
        fed = tf.nest.map_structure(lambda part: v1.placeholder(part.dtype, part.shape), spec)
        with built_for_xla():
            outputs = [tf.identity(output) for output in _outputs(model_fn, fed, run_config, mode)]
    inputs = [part.name for part in tf.nest.flatten(fed)]
    variables = _variables(graph)
    needed = v1.graph_util.extract_sub_graph(graph.as_graph_def(), [output.op.name for output in outputs])
    nodes = _without(needed, [*inputs, *variables])
    used = {name for node in nodes.node for name in (*node.input, *(f"{name}:0" for name in node.input))}

    def run(*element: Any) -> Any:
        values = dict(zip(inputs, tf.nest.flatten(element), strict=True))
        values |= {name: v1.get_default_graph().capture(variable.handle) for name, variable in variables.items()}
        values = {name: value for name, value in values.items() if name in used}
        return tf.graph_util.import_graph_def(nodes, values, [output.name for output in outputs], name="")

    return Step(run, spec, graph)


def _outputs(model_fn: Callable[..., Any], fed: Any, run_config: Any, mode: str) -> list[tf.Tensor]:
    """Returns the tensors that a core sends to the host."""
    keys = v1.estimator.ModeKeys
    modes = dict(zip(MODES, (keys.TRAIN, keys.EVAL, keys.PREDICT), strict=True))
    features, *label = fed
    estimator_spec = model_fn(features, *(label or [None]), modes[mode], {"use_tpu": False}, run_config)
    if mode == "training":
        with tf.control_dependencies([estimator_spec.train_op]):
            return [tf.identity(estimator_spec.loss)]
    return list(estimator_spec.eval_metrics[1] if mode == "evaluation" else estimator_spec.predictions.values())


def _without(nodes: Any, tensors: list[str]) -> Any:
    """Returns a GraphDef without the ops that produce `tensors`, which are passed in, and without colocations."""
    names = {name.partition(":")[0] for name in tensors}
    remaining = [node for node in nodes.node if node.name not in names]
    for node in remaining:
        node.attr.pop("_class", None)
        ahead = [name for name in node.input if name.removeprefix("^") not in names or not name.startswith("^")]
        del node.input[:]
        node.input.extend(ahead)
    del nodes.node[:]
    nodes.node.extend(remaining)
    return nodes


def _variables(graph: tf.Graph) -> dict[str, tf.Variable]:
    """Returns a new variable of zeros for every variable of a graph, by the name of its handle."""
    variables = {}
    for op in graph.get_operations():
        if op.type == "VarHandleOp":
            zeros = tf.zeros([size.size for size in op.get_attr("shape").dim], op.get_attr("dtype"))
            variables[op.outputs[0].name] = tf.Variable(zeros)
    return variables
