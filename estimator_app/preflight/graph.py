"""Checks of the graph that TPUEstimator would send to a TPU; the graph is built but not run.

    estimator + topology ──build()──▶ Built graph ──▶ feeds of each core, sums over cores, ops that no TPU supports
                                └──▶ calls of input_fn, one per host ──▶ input.py

TPUEstimator itself builds the graph, as it would for the TPU, and is stopped before it connects to one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from estimator_app.model.losses import OVER_CORES
from estimator_app.preflight.findings import FAILS, GOOD, Finding
from estimator_app.preflight.specs import described, misfits
from estimator_app.runtime.origin import is_ours, raised_at, users_line
from estimator_app.runtime.tensorflow_private import function_graph, give_topology, tpu_ops
from estimator_app.runtime.tensorflow_startup import one_line
from estimator_app.runtime.topologies import Topology
from estimator_app.runtime.tpu import Tpu

v1 = tf.compat.v1
SessionRunHook: Any = v1.train.SessionRunHook

# Address that is never connected to; without an address, all hosts would be the local machine.
_NOWHERE = "grpc://10.0.0.2:8470"


@dataclasses.dataclass(frozen=True)
class Built:
    """Result of build().

    Attributes:
      graph: The graph that TPUEstimator built.
      calls: Arguments (params, config) of each call of input_fn, in the order of the hosts.
      spec: Element spec of the input_fn's dataset.
    """

    graph: tf.Graph
    calls: tuple[tuple[Any, Any], ...]
    spec: Any


class _GraphBuilt(Exception):
    pass


class _Stop(SessionRunHook):  # type: ignore[misc]
    """Hook that stops TPUEstimator after it has built the graph and before it creates a session."""

    def begin(self) -> None:
        self.graph = v1.get_default_graph()
        raise _GraphBuilt


def cluster() -> Any:
    """Returns a TPUClusterResolver for a TPUEstimator that never connects to a TPU."""
    return Tpu(_NOWHERE).resolver()


def build(estimator: Any, topology: Topology, mode: str, input_fn: Callable[..., tf.data.Dataset]) -> Built:
    """Returns the graph that a TPUEstimator builds for a TPU of a topology, and its calls of the input_fn.

    Args:
      estimator: TPUEstimator made with cluster().
      topology: The TPU.
      mode: "training" or "evaluation".
      input_fn: (params, config) -> Dataset.

    Raises:
      ValueError: The input's elements cannot be sent to a TPU.
      Exception: Any error that the network, the input or TPUEstimator raises.
    """
    stop, calls, specs = _Stop(), [], []

    def recorded(params: Any, config: Any) -> tf.data.Dataset:
        dataset = input_fn(params, config)
        for misfit in misfits(dataset.element_spec):
            raise ValueError(misfit)
        calls.append((dict(params), config))
        specs.append(dataset.element_spec)
        return dataset

    give_topology(estimator, topology)
    try:
        if mode == "training":
            estimator.train(recorded, [stop], steps=estimator.config.tpu_config.iterations_per_loop)
        else:
            estimator.evaluate(recorded, 1, [stop], checkpoint_path="/nonexistent/checkpoint")
    except _GraphBuilt:
        return Built(stop.graph, tuple(calls), specs[0])
    raise RuntimeError("TPUEstimator continued without a session, which it never does in TensorFlow 2.15")


def check_build(
    estimator: Any, topology: Topology, mode: str, input_fn: Callable[..., tf.data.Dataset]
) -> tuple[list[Finding], Built | None]:
    """Returns the findings about the graph of a mode, and the graph; None when it cannot be built."""
    try:
        built = build(estimator, topology, mode, input_fn)
    except Exception as error:  # a user's network may raise any exception
        return [Finding(FAILS, f"{mode}: {_sentence(error)}")], None
    findings = [_feeds(built, topology, mode)]
    if mode == "training" and topology.num_cores > 1:
        findings.append(_sums(built.graph))
    return [*findings, *check_ops(tpu_graph_ops(built.graph), mode)], built


def fed(graph: tf.Graph) -> list[tuple[str, int]]:
    """Returns (device of the host, ordinal of the core) of each infeed op."""
    return [(op.device, op.get_attr("device_ordinal")) for op in all_ops(graph) if op.type == "InfeedEnqueueTuple"]


def all_ops(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Yields all ops of a graph and of the functions that it calls."""
    visited: set[str] = set()
    ahead = [graph]
    while ahead:
        for op in _own_ops(ahead.pop()):
            yield op
            ahead += _called(op, visited)


def tpu_graph_ops(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Yields all ops that would run on the TPU, including the ops of functions."""
    visited: set[str] = set()
    ahead: list[Any] = [op for op in graph.get_operations() if "_tpu_replicate" in op.node_def.attr]
    while ahead:
        op = ahead.pop()
        if "_xla_outside_compilation" not in op.node_def.attr:
            yield op
            for called in _called(op, visited):
                ahead += _own_ops(called)


def _own_ops(graph: tf.Graph) -> list[tf.Operation]:
    """Returns the ops of a graph, without the placeholders of a function's arguments."""
    arguments = {tensor.op.name for tensor in getattr(graph, "inputs", ())}
    return [op for op in graph.get_operations() if op.name not in arguments]


def _called(op: tf.Operation, visited: set[str]) -> list[tf.Graph]:
    """Returns the graphs of the functions that an op calls, except those in `visited`, to which it adds their names."""
    names = {
        function.name
        for attr in op.node_def.attr.values()
        for function in [attr.func, *attr.list.func]
        if function.name
    }
    graphs = [function_graph(op.graph, name) for name in sorted(names - visited)]
    visited |= names
    return [graph for graph in graphs if graph is not None]


def _feeds(built: Built, topology: Topology, mode: str) -> Finding:
    feeds = fed(built.graph)
    expected = {
        (f"/job:worker/task:{host}/device:CPU:0", core)
        for host in range(topology.num_hosts)
        for core in range(topology.cores_per_host)
    }
    if len(feeds) == len(set(feeds)) and set(feeds) == expected:
        return Finding(GOOD, f"{mode}: {topology}, all cores fed; input per core: {described(built.spec)}")
    return Finding(
        FAILS,
        f"{mode}: {len(set(feeds) & expected)} of {len(expected)} cores are fed",
        "set per_host_input_for_training=PER_HOST_V2 in the TPUConfig",
    )


def _sums(graph: tf.Graph) -> Finding:
    sums = sum(op.type == "CrossReplicaSum" and OVER_CORES not in op.name for op in tpu_graph_ops(graph))
    if sums:
        return Finding(GOOD, f"training: {sums} gradients are summed over the cores")
    return Finding(
        FAILS,
        "training: no gradient is summed over the cores, so each core would train its own network",
        "wrap the optimizer in tf.compat.v1.tpu.CrossShardOptimizer",
    )


def check_ops(ops: Iterable[tf.Operation], mode: str) -> Iterator[Finding]:
    """Yields the findings about ops that would run on a TPU: a line for each that no TPU supports, or a single one."""
    supported, count = tpu_ops(), 0
    wrong: dict[tuple[str, str], int] = {}
    for op in ops:
        count += 1
        if op.type not in supported:
            line = users_line(op.traceback)
            # Keras' layers are called by this package: such a line is not the user's and is left out.
            key = op.type, "" if is_ours(line) else line
            wrong[key] = wrong.get(key, 0) + 1
    for (kind, line), times in sorted(wrong.items()):
        origin = f", created at {line}" if line else ""
        yield Finding(
            FAILS, f"{mode}: TPUs do not support {kind}{f' ({times} times)' * (times > 1)}{origin}", op_advice(kind)
        )
    if not wrong:
        yield Finding(GOOD, f"{mode}: TPUs support all {count:,} ops of a step")


_ADVICE = (
    ("Summary", "write summaries in the host_call of the TPUEstimatorSpec, as estimator_app does"),
    ("PyFunc", "Python code runs only on hosts; use TensorFlow ops instead, or move it into the input"),
    ("String|Decode|AsString|Print", "strings are supported only on hosts; remove the op, or move it into the input"),
    ("Placeholder", "a TPU gets data only from the input; make it part of the batch"),
    ("Variable", "create it with use_resource=True"),
)


def op_advice(kind: str) -> str:
    """Returns advice on how to replace an op that no TPU supports."""
    for pattern, advice in _ADVICE:
        if re.search(pattern, kind):
            return advice
    return "use other ops, or move it into the input"


def _sentence(error: Exception) -> str:
    line = raised_at(error)
    return one_line(error) + (f" (from {line})" if line and not is_ours(line) else "")
