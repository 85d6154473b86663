"""All that is used of TensorFlow and is not public, in one place; seen with TensorFlow 2.15.1.

A newer TPUEstimator there will not be; what concerns tf.function was also seen with 2.21.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from estimator_app.runtime.topologies import Topology

# What runs on a TPU besides XLA's ops: feeds, sums over cores, TPUReplicate's own marks. The list of the TPU's ops is
# in no wheel, that of XLA on a processor is.
_TPU_OPS = frozenset(
    {"AllToAll", "CollectivePermute", "CrossReplicaSum", "InfeedDequeue", "InfeedDequeueTuple", "OutfeedEnqueue"}
    | {"OutfeedEnqueueTuple", "TPUCompilationResult", "TPUReplicateMetadata", "TPUReplicatedInput"}
    | {"TPUReplicatedOutput", "Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"}
)


class _Device(NamedTuple):
    name: str
    device_type: str


def give_topology(estimator: Any, topology: Topology) -> None:
    """Tells a TPUEstimator which TPU there is, which it would otherwise ask the TPU."""
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
    """Returns the kinds of ops that a TPU runs, as far as can be known without one."""
    from tensorflow.python.util import pywrap_xla_ops

    return frozenset(pywrap_xla_ops.get_cpu_kernel_names()) | _TPU_OPS


@contextlib.contextmanager
def built_for_xla() -> Iterator[None]:
    """Inside, a graph is built as TPUEstimator builds it for a TPU: ops and layers see that XLA will compile it.

    Keras' LSTM, GRU and SimpleRNN, for example, then give their loops a largest number of iterations, without which XLA
    cannot size what the gradient needs of each of them (keras/src/backend.py: rnn()).
    """
    from tensorflow.python.ops.control_flow_ops import XLAControlFlowContext

    context = XLAControlFlowContext()
    context.Enter()
    try:
        yield
    finally:
        context.Exit()


def eagerly() -> Any:
    """Returns a context in which nothing belongs to the graph that is being built; tf.init_scope() stays in that."""
    from tensorflow.python.eager import context

    return context.eager_mode()


def function_graph(graph: tf.Graph, name: str) -> tf.Graph | None:
    """Returns the graph of a function that `graph` knows by name; None of one that TensorFlow made by itself."""
    function = graph._get_function(name)
    return getattr(function, "graph", None)
