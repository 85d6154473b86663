"""Checks of the HLO of a step, which XLA would compile for a TPU; here it is not compiled for a device.

    (features, label) of a core ──step, traced──▶ HLO ──▶ dynamic sizes, 64-bit numbers, ops that XLA does not support

The HLO comes from XLA for CPUs; a step that it cannot compile cannot be compiled for a TPU either.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from estimator_app.preflight.findings import COSTS, FAILS, GOOD, Finding
from estimator_app.preflight.graph import op_advice
from estimator_app.preflight.specs import parts_of
from estimator_app.preflight.step import Step
from estimator_app.runtime.origin import is_ours, raised_at, users_line
from estimator_app.runtime.tensorflow_private import function_graph
from estimator_app.runtime.tensorflow_startup import one_line

# name = type[sizes]{layout} opcode(…), metadata={… op_name="…" …}
_INSTRUCTION = re.compile(r"= \(?(\w+)\[([^\]]*)\]\S* ([\w-]+)\(")
_OP_NAME = re.compile(r'op_name="([^"]+)"')
_LISTED = 3  # maximum number of findings of each kind
_TINY = 8  # largest number of elements of a tensor whose width does not matter


@dataclasses.dataclass(frozen=True)
class Hlo:
    """HLO of a step.

    Attributes:
      text: Human-readable form.
      serialized: The same as a serialized HloModuleProto.
    """

    text: str
    serialized: bytes


def lower(step: Step) -> Hlo:
    """Returns the HLO of a step, whose parameters are the parts of the input followed by the variables."""
    compiled = _function(step).experimental_get_compiler_ir(*tf.nest.flatten(step.spec))
    return Hlo(compiled(stage="hlo"), compiled(stage="hlo_serialized"))


def check_hlo(make_step: Callable[[], Step], mode: str = "training") -> tuple[list[Finding], Hlo | None]:
    """Returns the findings about the HLO of a step of training, evaluation or prediction.

    And the HLO; None when XLA rejects the step.
    """
    graph = None
    try:
        step = make_step()
        graph = step.graph or _function(step).get_concrete_function(*tf.nest.flatten(step.spec)).graph
        hlo = lower(step)
    except Exception as error:  # a user's network may raise any exception
        return [Finding(FAILS, *_refused(error, graph))], None
    findings = [*_wide_inputs(step.spec), *(list(_dynamic(hlo.text, graph)) or _wide(hlo.text, graph))]
    count = sum(1 for _ in _instructions(hlo.text))
    good = f"{mode}: XLA compiles the step: {count:,} instructions, all shapes static, no 64-bit tensors"
    return findings or [Finding(GOOD, good)], hlo


def _function(step: Step) -> Any:
    @tf.function(jit_compile=True, autograph=False)  # type: ignore[untyped-decorator]
    def run(*parts: tf.Tensor) -> Any:
        return step.run(*tf.nest.pack_sequence_as(step.spec, parts))

    return run


def _wide_inputs(spec: Any) -> Iterator[Finding]:
    for name, part in parts_of(spec):
        if part.dtype == tf.int64:
            problem = f"the input's {name} is int64, which a TPU emulates with two 32-bit numbers"
            yield Finding(COSTS, problem, "cast it to int32 in the input")


def _dynamic(text: str, graph: tf.Graph) -> Iterator[Finding]:
    for tensor, origin in _by_line(text, graph, lambda _, sizes: "<=" in sizes):
        yield Finding(
            COSTS,
            f"{tensor} has a data-dependent size, so a TPU always computes it at its upper bound ({origin})",
            "keep every row and give unused rows a weight of 0, instead of using boolean_mask, where or unique",
        )


def _wide(text: str, graph: tf.Graph) -> Iterator[Finding]:
    """Yields findings about 64-bit tensors; tiny ones, such as the global step and seeds, are ignored."""
    for kind, name in (("f64", "float64"), ("s64", "int64")):
        for tensor, origin in _by_line(
            text, graph, lambda dtype, sizes, kind=kind: dtype == kind and "<=" not in sizes and not _is_tiny(sizes)
        ):
            yield Finding(
                COSTS,
                f"{tensor} is {name}, which a TPU emulates with 32-bit operations ({origin})",
                f"use {name[:-2]}32",
            )


def _is_tiny(sizes: str) -> bool:
    return math.prod(int(size) for size in sizes.split(",") if size) <= _TINY


def _by_line(text: str, graph: tf.Graph, predicate: Callable[..., Any]) -> list[tuple[str, str]]:
    """Returns (tensor, origin) of the first instruction of each line for which predicate(type, sizes) is true."""
    tensors: dict[str, str] = {}
    for kind, sizes, opcode, name in _instructions(text):
        if opcode != "parameter" and predicate(kind, sizes):
            tensors.setdefault(_made_at(graph, name) or name or opcode, f"{kind}[{sizes}]")
    # Ops of gradients are created in this package, where the gradients are computed; lines of the user's code take
    # precedence.
    user_tensors = {origin: tensor for origin, tensor in tensors.items() if not is_ours(origin)}
    return [(tensor, origin) for origin, tensor in (user_tensors or tensors).items()][:_LISTED]


def _made_at(graph: tf.Graph, name: str) -> str:
    """Returns "file:line" of the code that created the op `name`, "" if it is not known."""
    op = _find(graph, name)
    return users_line(op.traceback or ()) if op is not None else ""


def _find(graph: tf.Graph, name: str) -> tf.Operation | None:
    """Returns the op `name` of a graph or of a function that it calls, where "CALL/" may precede the name."""
    with contextlib.suppress(KeyError, ValueError):
        return graph.get_operation_by_name(name)
    for op in graph.get_operations():
        if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            called = function_graph(graph, op.get_attr("f").name)
            inner_op = _find(called, name.removeprefix(f"{op.name}/")) if called is not None else None
            if inner_op is not None:
                return inner_op
    return None


def _instructions(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields (type, sizes, opcode, name of the original TensorFlow op) of every instruction."""
    for line in text.splitlines():
        if match := _INSTRUCTION.search(line):
            name = _OP_NAME.search(line)
            yield match[1], match[2], match[3], name[1] if name else ""


_NODE = re.compile(r"\{\{node (\S+)\}\}|Input \d+ to node `([^`]+)`")
_UNSUPPORTED = re.compile(r"Detected unsupported operations .*?: (\w+)", re.DOTALL)


def _refused(error: Exception, graph: tf.Graph | None) -> tuple[str, str]:
    """Returns XLA's error in one line, and advice."""
    node = _NODE.search(str(error))
    line = _made_at(graph, node[1] or node[2]) if node and graph is not None else raised_at(error)
    place = f" ({line})" if line else ""
    if unsupported := _UNSUPPORTED.search(str(error)):
        return f"XLA does not support {unsupported[1]}{place}", op_advice(unsupported[1])
    if "must be a compile-time constant" in str(error):
        return f"a size depends on the data{place}", "compute it from static shapes, or make it a constant"
    return f"XLA cannot compile the step{place}: {one_line(error)}", ""
