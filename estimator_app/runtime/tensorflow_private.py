"""All private API of TensorFlow and of TPUEstimator that is used: no other module imports any.

Tested with TensorFlow 2.15.1, after which TPUEstimator ended; what concerns tf.function and messages, also with 2.21.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import tensorflow as tf

from estimator_app.runtime.topologies import Topology

# Ops that run on a TPU besides XLA's: infeed and outfeed, sums over cores, TPUReplicate's own markers. No wheel
# contains the list of the TPU's ops, but TensorFlow's contains the list of XLA for CPUs.
_TPU_OPS = frozenset(
    {"AllToAll", "CollectivePermute", "CrossReplicaSum", "InfeedDequeue", "InfeedDequeueTuple", "OutfeedEnqueue"}
    | {"OutfeedEnqueueTuple", "TPUCompilationResult", "TPUReplicateMetadata", "TPUReplicatedInput"}
    | {"TPUReplicatedOutput", "Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"}
)


class _Device(NamedTuple):
    name: str
    device_type: str


def give_topology(estimator: Any, topology: Topology) -> None:
    """Sets the topology that a TPUEstimator would otherwise query from the TPU."""
    kinds = ["CPU:0", *(f"TPU:{core}" for core in range(topology.cores_per_host))]
    devices = [
        _Device(f"/job:worker/task:{host}/device:{kind}", kind[:3])
        for host in range(topology.num_hosts)
        for kind in kinds
    ]
    metadata = tf.tpu.experimental.TPUSystemMetadata(
        topology.num_cores, topology.num_hosts, topology.cores_per_host, None, tuple(devices)
    )
    for master in (estimator.config.master, estimator.config.evaluation_master):
        estimator._ctx._lazy_tpu_system_metadata_dict[master] = metadata


def tpu_ops() -> frozenset[str]:
    """Returns the types of the ops that a TPU supports, as far as can be known without a TPU."""
    from tensorflow.python.util import pywrap_xla_ops

    return frozenset(pywrap_xla_ops.get_cpu_kernel_names()) | _TPU_OPS


@contextlib.contextmanager
def built_for_xla() -> Iterator[None]:
    """Context manager in which graphs are built as TPUEstimator builds them for a TPU: for compilation by XLA.

    Ops and layers can detect this. Keras' LSTM, GRU and SimpleRNN, for example, then set a maximum number of iterations
    of their loops, without which XLA cannot size the values that the gradient needs of each iteration
    (keras/src/backend.py: rnn()).
    """
    from tensorflow.python.ops.control_flow_ops import XLAControlFlowContext

    context = XLAControlFlowContext()
    context.Enter()
    try:
        yield
    finally:
        context.Exit()


def eagerly() -> AbstractContextManager[None]:
    """Returns a context of eager execution, outside the graph that is being built; tf.init_scope() stays in it."""
    from tensorflow.python.eager import context

    mode: AbstractContextManager[None] = context.eager_mode()
    return mode


def function_graph(graph: tf.Graph, name: str) -> tf.Graph | None:
    """Returns the graph of the function `name` of `graph`; None for a function that TensorFlow created by itself."""
    function = graph._get_function(name)
    return getattr(function, "graph", None)


def infer_on_tpu(
    model_fn: Callable[..., Any], features: Mapping[str, tf.Tensor], params: Mapping[str, Any], config: Any
) -> Any:
    """Returns the spec whose predictions are computed on one of the TPU's cores, which may differ from call to call.

    TPUEstimator's documentation of export_saved_model_api_version refers to this function.
    """
    from tensorflow_estimator.python.estimator.tpu.tpu_estimator import model_fn_inference_on_tpu

    return model_fn_inference_on_tpu(model_fn, features, config=config, params=params)


@contextlib.contextmanager
def no_recovery_in_place() -> Iterator[None]:
    """Makes TPUEstimator.train() raise an error when a TPU is lost or a bucket fails, instead of retrying by itself.

    TensorFlow would retry forever with a new session of the same graph. That loads the last checkpoint, but its input
    would start at the first session's step again, and the TPU's address may have changed.
    """
    # There is no public option.
    from tensorflow.python.training import monitored_session
    from tensorflow_estimator.python.estimator.tpu import error_handling

    before = monitored_session._PREEMPTION_ERRORS, error_handling._IGNORED_ERRORS
    monitored_session._PREEMPTION_ERRORS = error_handling._IGNORED_ERRORS = ()
    try:
        yield
    finally:
        monitored_session._PREEMPTION_ERRORS, error_handling._IGNORED_ERRORS = before


def print_no_deprecations() -> None:
    """Keeps TensorFlow from printing what of it is deprecated, for which there is no public switch."""
    from tensorflow.python.util import deprecation

    deprecation._PRINT_DEPRECATION_WARNINGS = False
