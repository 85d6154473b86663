"""The step as a TPU would run it: whether it fits, what it computes and moves, how its tensors lie in memory.

HLO ──compiler.py──▶ Program ──▶ memory, FLOPs, padding, layout; HLO of other batches ──▶ the largest that fits
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from estimator_app.preflight.compiler import Program, TooLarge
from estimator_app.preflight.device_memory import Tensor, tensors
from estimator_app.preflight.findings import COSTS, FAILS, GOOD, UNKNOWN, Finding, Part
from estimator_app.preflight.largest_batch import largest_batch
from estimator_app.runtime.topologies import Topology

_GB = 2**30
_WASTE = 1.25  # times what tensors take without padding
_LISTED = 3


def check_compile(
    compiler: Callable[[bytes], Program | TooLarge],
    hlo: bytes,
    batch: int,
    topology: Topology,
    layout: str,
    lowered: Callable[[int], bytes],
    search: bool = False,
) -> tuple[Part, Program | None]:
    """Returns what is to be said of the compiled step, and the step; None when there is none.

    Args:
      compiler: For the topology.
      hlo: Of the step.
      batch: Images of a core.
      topology: The TPU.
      layout: Of images as they are sent, "NHWC", "HWCN" or "HWNC".
      lowered: Returns the HLO of the step for another batch.
      search: Look for the largest batch that fits even if this one does, which takes as long again, or twice.
    """
    try:
        first = compiler(hlo)
        largest = None
        if search or isinstance(first, TooLarge):
            largest = largest_batch(lambda other: compiler(lowered(other)), batch, first)
    except ValueError as error:
        return Part("compile", (Finding(FAILS, str(error)),)), None
    numbers: dict[str, Any] = {"largest_batch_a_core": largest}
    if isinstance(first, TooLarge):
        return Part("compile", (_too_large(first, batch, largest or 0, topology),), numbers), None
    found = [_fits(first, batch, largest, topology), _work(first, topology)]
    kept = list(tensors(first.text))
    numbers |= {"flops": first.flops, "bytes_accessed": first.bytes_accessed, "memory": first.memory}
    numbers["padding"] = sum(each.padded_bytes for each in kept) / max(1, sum(each.bytes for each in kept))
    return Part("compile", (*found, _padding(kept), *_layout(kept, batch, layout)), numbers), first


def _fits(program: Program, batch: int, largest: int | None, topology: Topology) -> Finding:
    most = f"; up to about {largest:,} fit, --train_batch_size={largest * topology.num_cores}" if largest else ""
    return Finding(GOOD, f"a core's {batch:,} images take {program.bytes / _GB:.2f} GiB of its memory{most}")


def _too_large(found: TooLarge, batch: int, largest: int, topology: Topology) -> Finding:
    advice = (
        f"give --train_batch_size={largest * topology.num_cores}" if largest else "give a smaller network or images"
    )
    return Finding(
        FAILS,
        f"a core's {batch} images take {found.needs / _GB:.2f} GiB, {(found.needs - found.has) / _GB:.2f} GiB more "
        f"than it has; {largest} fit",
        f"{advice}, or --precision=bfloat16",
    )


def _work(program: Program, topology: Topology) -> Finding:
    if program.has_loops:
        return Finding(
            UNKNOWN,
            f"a step is more than {program.flops / 1e9:,.1f} GFLOP and moves more than "
            f"{program.bytes_accessed / 1e9:,.2f} GB a core: it has loops, whose body the compiler counts once",
        )
    intensity, balance = program.flops / program.bytes_accessed, topology.flops / topology.bytes_per_second
    bound = "arithmetic" if intensity >= balance else "memory"
    return Finding(
        GOOD,
        f"a step is {program.flops / 1e9:,.1f} GFLOP and moves {program.bytes_accessed / 1e9:,.2f} GB a core: "
        f"{intensity:,.0f} FLOP a byte, and {balance:,.0f} keep {topology.name.partition(':')[0]} busy, so that "
        f"{bound} bounds it",
    )


def _padding(kept: list[Tensor]) -> Finding:
    takes, need = sum(each.padded_bytes for each in kept), max(1, sum(each.bytes for each in kept))
    if takes <= _WASTE * need:
        return Finding(GOOD, f"tensors fill their tiles: padding adds {takes / need - 1:.0%}")
    worst = sorted(kept, key=lambda each: each.bytes - each.padded_bytes)[:_LISTED]
    told = "; ".join(
        f"{each} × {each.padded_bytes / each.bytes:.1f}{f' ({each.made_by})' * bool(each.made_by)}" for each in worst
    )
    return Finding(
        COSTS,
        f"padding to whole tiles makes tensors {takes / need:.1f} times as large, most of it {told}",
        "a core's batch, or the channels, in multiples of 128 fill them",
    )


def _layout(kept: list[Tensor], batch: int, layout: str) -> Iterator[Finding]:
    """Yields what is said of the images, the one parameter with an axis for each letter and their sizes."""
    images = [each for each in kept if each.opcode == "parameter" and _is_images(each, batch, layout)]
    for each in images[:1]:
        wants = each.order(layout)
        lie = f"images lie as {wants} on the device, and {layout} is sent"
        better = _ENDING.get(wants[-1])
        if wants[-1] == layout[-1]:
            yield Finding(GOOD, f"{lie}: the last axis stays the last")
        elif better:
            advice = f"give --layout={better}, which the hosts' input does in parallel"
            yield Finding(COSTS, f"{lie}, which has to be transposed on the way", advice)
        else:
            yield Finding(GOOD, f"{lie}; no --layout ends with {wants[-1]}, so that each is transposed on the way")


def _is_images(tensor: Tensor, batch: int, layout: str) -> bool:
    sizes = dict(zip(layout, tensor.sizes, strict=False))
    return len(tensor.sizes) == len(layout) and sizes["N"] == batch and sizes["C"] == 3 and sizes["H"] == sizes["W"]


# By the axis that the device wants last: what can be sent that ends with it.
_ENDING = {"N": "HWCN", "C": "NHWC"}
