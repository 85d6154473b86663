"""Checks of compiled steps: memory use; of training also FLOPs and memory traffic, padding, layout of its tensors.

    step ──compiler.py──▶ Program ──▶ memory, FLOPs, padding, layout
    steps of other batch sizes ──▶ the largest that fits
    batch sizes that fit, that do not ──linear extrapolation──▶ the next batch size to try ──▶ … until they are close
    "%x = bf16[128,56,56,64]{3,0,2,1:T(8,128)(2,1)} fusion(…)" ──tensors()──▶ sizes, order of the axes, padding

The memory use of a step grows almost linearly with its batch size. When the compiler refuses a step as too large, it
does so within a second and reports the memory that the step needs. Only batch sizes that fit take a full compilation.

The memory of a TPU is divided into tiles: T(8,128) is a tile of 8 × 128 elements of the two minor-most axes, and the
unused part of a tile is padding: https://openxla.org/xla/tiled_layout
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator

from estimator_app.preflight.compiler import Compiler, JaxStep, Program, Source, TooLarge
from estimator_app.preflight.findings import COSTS, FAILS, GOOD, UNKNOWN, Finding, Part
from estimator_app.runtime.topologies import Topology

_GB = 2**30
_WASTE = 1.25  # accepted ratio of padded to unpadded size of all tensors
_LISTED = 3


def check_compile(
    compiler: Callable[[Source], Program | TooLarge],
    step: Source,
    batch: int,
    topology: Topology,
    layout: str | None,
    make_step: Callable[[int], Source],
    search: bool = False,
) -> tuple[Part, Program | None]:
    """Returns the findings about the compiled step, and the compiled step; None when it does not compile.

    Args:
      compiler: Compiler for the topology.
      step: The step for the batch size.
      batch: Batch size per core.
      topology: The TPU.
      layout: Layout of the images as they are sent, "NHWC", "HWCN" or "HWNC"; None if JAX chooses it by itself.
      make_step: Returns the step for another batch size per core.
      search: Whether to search for the largest batch size that fits even if `batch` fits; takes two to three times as
        long.
    """
    largest, unknown = None, list[Finding]()
    try:
        first = compiler(step)
    except ValueError as error:
        return Part("compile", (_rejected(str(error)),)), None
    try:
        if search or isinstance(first, TooLarge):
            largest = largest_batch(lambda other: compiler(make_step(other)), batch, first)
    except ValueError as error:
        unknown = [Finding(UNKNOWN, f"the largest batch that fits is not known: {error}")]
    numbers: dict[str, object] = {"largest_batch_a_core": largest}
    if isinstance(first, TooLarge):
        return Part("compile", (_too_large(first, "training", batch, largest, topology), *unknown), numbers), None
    findings = [_fits(first, "training", batch, largest, topology), _work(first, topology)]
    findings += _exchange(first, topology) if isinstance(step, JaxStep) else []  # else it is the step of one core
    buffers = list(tensors(first.text))
    numbers |= {"flops": first.flops, "bytes_accessed": first.bytes_accessed, "memory": first.memory}
    numbers["memory_of_a_core"] = topology.memory_bytes
    numbers["padding"] = _padded_share(buffers)
    order = _layout(buffers, batch, layout) if layout else ()
    return Part("compile", (*findings, *unknown, _padding(buffers), *order), numbers), first


def check_fits(
    compiler: Callable[[Source], Program | TooLarge],
    step: Source,
    mode: str,
    batch: int,
    topology: Topology,
    make_step: Callable[[int], Source],
) -> Finding:
    """Returns the finding about the memory of a step of "evaluation" or "prediction"; arguments as check_compile()."""
    try:
        result = compiler(step)
        if isinstance(result, TooLarge):
            largest = largest_batch(lambda other: compiler(make_step(other)), batch, result)
            return _too_large(result, mode, batch, largest, topology)
    except ValueError as error:
        return _rejected(f"{mode}: {error}")
    return _fits(result, mode, batch, None, topology)


def _rejected(message: str) -> Finding:
    """Returns the finding about a step that is not compiled, whether the step or the compiler is at fault."""
    is_compiler_error = re.search(
        "the TPU compiler(?: rejects the step: INTERNAL: |, run by .* failed: exit code -)", message
    )
    advice = (
        "this is an error of the compiler, and the step may be correct; try another batch size, precision or libtpu"
    )
    return Finding(FAILS, message, advice if is_compiler_error else "")


_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def check_jax_step(compiler: Compiler, name: str) -> Part:
    """Returns the findings about a step in JAX on all cores of the compiler's topology.

    Args:
      compiler: Compiler for the topology.
      name: "package.module:function", see JaxStep.
    """
    topology = compiler.topology
    try:
        program = compiler(JaxStep(name))
    except ValueError as error:
        return Part("compile", (_rejected(str(error)),))
    if isinstance(program, TooLarge):
        message = (
            f"the step takes {program.needs / _GB:.2f} GiB per core, "
            f"{(program.needs - program.has) / _GB:.2f} GiB more than a core has"
        )
        return Part("compile", (Finding(FAILS, message, "use a smaller batch, or compute in bfloat16"),))
    fits = Finding(GOOD, f"the step takes {program.bytes / _GB:.2f} GiB of memory per core")
    numbers = {"flops": program.flops, "bytes_accessed": program.bytes_accessed, "memory": program.memory}
    padding = _padding(list(tensors(program.text)))
    return Part("compile", (fits, _work(program, topology), *_exchange(program, topology), padding), numbers)


def _exchange(program: Program, topology: Topology) -> list[Finding]:
    """Returns the finding about the sums over the cores; none for a single core."""
    if topology.num_cores == 1:
        return []
    counts = {name: len(re.findall(rf" {name}(?:-start)?\(", program.text)) for name in _COLLECTIVES}
    if any(counts.values()):
        listing = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        return [Finding(GOOD, f"the {topology.num_cores} cores exchange tensors: {listing}")]
    return [
        Finding(
            FAILS,
            f"the {topology.num_cores} cores exchange nothing, so each computes all of the step or trains for itself",
            "divide the batch over all devices by the sharding of its arguments",
        )
    ]


_FLAGS = {"training": "--train_batch_size", "evaluation": "--eval_batch_size", "prediction": "--eval_batch_size"}


def _fits(program: Program, mode: str, batch: int, largest: int | None, topology: Topology) -> Finding:
    most = f"; about {largest:,} images fit, with {_FLAGS[mode]}={largest * topology.num_cores}" if largest else ""
    return Finding(
        GOOD, f"{mode}: a step with {batch:,} images per core takes {program.bytes / _GB:.2f} GiB of memory{most}"
    )


def _too_large(result: TooLarge, mode: str, batch: int, largest: int | None, topology: Topology) -> Finding:
    flag = _FLAGS[mode]
    smaller = f"a smaller {flag}" if largest is None else "a smaller network or images"
    advice = f"use {flag}={largest * topology.num_cores}" if largest else f"use {smaller}"
    return Finding(
        FAILS,
        f"{mode}: a step with {batch} images per core takes {result.needs / _GB:.2f} GiB, "
        f"{(result.needs - result.has) / _GB:.2f} GiB more than a core has"
        + ("" if largest is None else f"; {largest} images fit"),
        f"{advice}, or --precision=bfloat16",
    )


def _work(program: Program, topology: Topology) -> Finding:
    if program.has_loops:
        return Finding(
            UNKNOWN,
            f"a step takes more than {program.flops / 1e9:,.1f} GFLOP and moves more than "
            f"{program.bytes_accessed / 1e9:,.2f} GB per core: it has loops, whose bodies the compiler counts once",
        )
    intensity, balance = program.flops / program.bytes_accessed, topology.flops / topology.bytes_per_second
    bound = "compute" if intensity >= balance else "memory"
    return Finding(
        GOOD,
        f"a step takes {program.flops / 1e9:,.1f} GFLOP and moves {program.bytes_accessed / 1e9:,.2f} GB per core: "
        f"{intensity:,.0f} FLOP per byte; {topology.generation} needs {balance:,.0f} to be compute-bound, "
        f"so the step is {bound}-bound",
    )


def _padded_share(buffers: list[Tensor]) -> float:
    """Returns the size of all tensors with padding, as a multiple of their size without."""
    return sum(tensor.padded_bytes for tensor in buffers) / max(1, sum(tensor.bytes for tensor in buffers))


def _padding(buffers: list[Tensor]) -> Finding:
    share = _padded_share(buffers)
    if share <= _WASTE:
        return Finding(GOOD, f"tensors fill their tiles: padding adds {share - 1:.0%}")
    worst = sorted(buffers, key=lambda tensor: tensor.bytes - tensor.padded_bytes)[:_LISTED]
    examples = "; ".join(
        f"{tensor} × {tensor.padded_bytes / tensor.bytes:.1f}{f' ({tensor.made_by})' * bool(tensor.made_by)}"
        for tensor in worst
    )
    return Finding(
        COSTS,
        f"padding to whole tiles makes tensors {share:.1f} times as large, mostly {examples}",
        "use a multiple of 128 for the batch per core or for the channels",
    )


def _layout(buffers: list[Tensor], batch: int, layout: str) -> Iterator[Finding]:
    """Yields a finding about the images: the parameter whose axes match the letters and sizes of `layout`."""
    images = [image for image in buffers if image.opcode == "parameter" and _is_images(image, batch, layout)]
    for image in images[:1]:
        order = image.order(layout)
        storage = f"images are stored as {order} on the device and sent as {layout}"
        better = _ENDING.get(order[-1])
        if order[-1] == layout[-1]:
            yield Finding(GOOD, f"{storage}: the last axis is the same")
        elif better:
            advice = f"use --layout={better}, with which the hosts transpose in parallel"
            yield Finding(COSTS, f"{storage}, so they have to be transposed on the way", advice)
        else:
            yield Finding(GOOD, f"{storage}; no --layout ends with {order[-1]}, so they are transposed on the way")


def _is_images(tensor: Tensor, batch: int, layout: str) -> bool:
    sizes = dict(zip(layout, tensor.sizes, strict=False))
    return len(tensor.sizes) == len(layout) and sizes["N"] == batch and sizes["C"] == 3 and sizes["H"] == sizes["W"]


# The layout to send, by the axis that the device wants last.
_ENDING = {"N": "HWCN", "C": "NHWC"}


_MULTIPLE = 8  # rows of a tile
_CLOSE = 0.03  # precision of the search, as a fraction of the batch size
_GROWTH = 8  # factor between batch sizes tried as long as none is too large
_ENOUGH = 65536  # upper limit of the search, in images per core
_TRIES = 12  # maximum number of batch sizes compared


def largest_batch(compile_at: Callable[[int], Program | TooLarge], batch: int, first: Program | TooLarge) -> int:
    """Returns the largest batch size per core that was found to fit: `batch` or a multiple of 8; 0 if none.

    The largest that fits is at most 3%, or 8 images, larger, unless _TRIES compilations were not enough to find it.

    Args:
      compile_at: Compiles the step for a batch size per core.
      batch: Configured batch size per core.
      first: Result of compiling the step for `batch`.
    """
    fits: dict[int, float] = {0: 0.0}
    refused: dict[int, float] = {}
    has, result, candidate = 0.0, first, batch
    for _ in range(_TRIES):
        if isinstance(result, TooLarge):
            refused[candidate], has = result.needs, result.has
        else:
            fits[candidate] = result.bytes
        low, high = max(fits), min(refused, default=_ENOUGH)
        if high - low <= max(_MULTIPLE, _CLOSE * high):
            break
        candidate = _next(fits, refused, has)
        result = compile_at(candidate)
    return max(fits)


def _next(fits: dict[int, float], refused: dict[int, float], has: float) -> int:
    """Returns the next batch size to try, between the largest that fits and the smallest that does not."""
    low = max(fits)
    if not refused:
        return _multiple(min(low * _GROWTH, _ENOUGH), low, _ENOUGH + _MULTIPLE)
    high = min(refused)
    others = {batch: needs for batch, needs in refused.items() if batch != high} or {low: fits[low]}
    other = min(others)
    slope = (refused[high] - others[other]) / (high - other)
    guess = high - (refused[high] - has) / slope if slope > 0 else (low + high) / 2
    # If the extrapolation yields a batch size that is already known to fit, try a slightly larger one.
    return _multiple(max(guess, low * (1 + _CLOSE)), low, high)


def _multiple(guess: float, low: int, high: int) -> int:
    """Returns `guess` rounded down to a multiple of 8 and clipped to those between `low` and `high`, if any."""
    least, most = (low // _MULTIPLE + 1) * _MULTIPLE, (high - 1) // _MULTIPLE * _MULTIPLE
    return max(least, min(int(guess) // _MULTIPLE * _MULTIPLE, most))


_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}
_BYTES |= {"f64": 8, "s64": 8, "u64": 8}
_RESULT = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\(")
_TENSOR = re.compile(r"(\w+)\[([\d,]*)\]\{([\d,]*)(?::T\(([\d,]+)\))?([^}]*)\}")
_NAME = re.compile(r'op_name="([^"]*)"')
# Opcodes whose results use no memory of their own.
_NO_MEMORY = frozenset({"tuple", "get-tuple-element", "bitcast", "constant", "copy-start", "copy-done"})
_ELSEWHERE = "S("  # marks a tensor in another memory space than HBM


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor on the device, with its memory layout.

    Attributes:
      kind: Element type as in HLO, e.g. "bf16".
      sizes: Sizes of its axes, in logical order.
      minor_to_major: The axes, starting with the minor-most, which changes fastest.
      tile: Tile sizes of the minor-most axes, the minor-most last.
      opcode: Opcode of the HLO instruction whose result it is.
      made_by: Name of the TensorFlow op that the instruction was lowered from.
    """

    kind: str
    sizes: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    tile: tuple[int, ...]
    opcode: str
    made_by: str

    @property
    def bytes(self) -> int:
        """Size in bytes without padding."""
        return _BYTES.get(self.kind, 4) * math.prod(self.sizes)

    @property
    def padded_bytes(self) -> int:
        """Size in bytes with padding to complete tiles."""
        sizes = [self.sizes[axis] for axis in self.minor_to_major]
        sizes += [1] * (len(self.tile) - len(sizes))
        for place, tile in enumerate(reversed(self.tile)):
            sizes[place] = -(-sizes[place] // tile) * tile
        return _BYTES.get(self.kind, 4) * math.prod(sizes)

    def order(self, axes: str) -> str:
        """Returns the letters of `axes`, one per axis, in memory order: the axis that changes fastest last."""
        return "".join(axes[axis] for axis in reversed(self.minor_to_major))

    def __str__(self) -> str:
        return f"{self.kind}[{','.join(map(str, self.sizes))}]"


def tensors(text: str) -> Iterator[Tensor]:
    """Yields the tensors that the entry computation of a compiled HLO module keeps in a core's main memory (HBM)."""
    entry = text[text.index("\nENTRY ") :]
    for line in entry[: entry.index("\n}")].splitlines():
        result = _RESULT.match(line)
        if result and result[3] not in _NO_MEMORY:
            name = _NAME.search(line)
            made_by = name[1].replace("\\'", "'") if name else ""
            for kind, sizes, order, tile, rest in _TENSOR.findall(result[2]):
                if _ELSEWHERE not in rest:
                    yield Tensor(kind, _ints(sizes), _ints(order), _ints(tile), result[3], made_by)


def _ints(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()
