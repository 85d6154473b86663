"""Private API of TensorFlow that building and reading graphs needs, in one place; tested with TensorFlow 2.15.1.

TPUEstimator has ended; the parts that concern tf.function were also tested with 2.21.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
