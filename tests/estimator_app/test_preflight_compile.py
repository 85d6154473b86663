"""The compile part of preflight without the compiler: what is said of programs whose text is as libtpu writes it."""

from __future__ import annotations

import itertools
import re

import pytest

from estimator_app.preflight.compile import check_compile, check_jax_step
from estimator_app.preflight.compiler import JaxStep, Program, Source
from estimator_app.preflight.findings import COSTS, FAILS, GOOD, UNKNOWN
from estimator_app.runtime.topologies import find_topology
from tpu_input.config import LAYOUTS

MEMORY = {"argument": 10, "output": 0, "alias": 0, "temp": 0, "generated_code": 0}
SIZES = {"N": 16, "H": 32, "W": 32, "C": 3}


def part_of(text, layout="NHWC"):
    program = Program(1e12, 1e9, MEMORY, text)
    part, _ = check_compile(lambda hlo: program, b"", 16, find_topology("v5e:1x1"), layout, lambda batch: b"")
    return part


def images(layout, on_device):
    """Returns the text of a program that takes images as `layout` has them and keeps them as `on_device` has them."""
    sizes = ",".join(str(SIZES[axis]) for axis in layout)
    minor_to_major = ",".join(str(layout.index(axis)) for axis in reversed(on_device))
    line = f"%images = u8[{sizes}]{{{minor_to_major}:T(8,128)(4,1)}} parameter(0)"
    return f"HloModule step\n\nENTRY %main (images: u8[{sizes}]) -> f32[] {{\n  {line}\n}}\n"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_layout_is_advised_that_is_sent_or_ends_otherwise_than_the_device_wants(layout):
    for order in map("".join, itertools.permutations("NHWC")):
        (finding,) = [
            finding
            for finding in part_of(images(layout, order), layout).findings
            if "images are stored as" in finding.seen
        ]
        assert f"images are stored as {order} on the device and sent as {layout}" in finding.seen
        advised = re.findall("--layout=([A-Z]+)", finding.advice)
        assert all(one in LAYOUTS and one != layout and one[-1] == order[-1] for one in advised), finding
        could = any(one[-1] == order[-1] != layout[-1] for one in LAYOUTS)
        assert finding.verdict == (COSTS if could else GOOD), finding
        assert bool(advised) == could, finding


def test_work_that_loops_hide_is_not_told_as_known():
    straight = images("NHWC", "NHWC")
    looping = straight.replace("\n}", "\n  %w = (s32[]{:T(128)}) while(%images), condition=%c, body=%b\n}")
    (finding,) = [finding for finding in part_of(straight).findings if "GFLOP" in finding.seen]
    assert (finding.verdict, "so the step is" in finding.seen) == (GOOD, True)
    (finding,) = [finding for finding in part_of(looping).findings if "GFLOP" in finding.seen]
    assert finding.verdict == UNKNOWN
    assert "has loops, whose bodies the compiler counts once" in finding.seen


class OfJax:
    """Stands for a compiler whose program has the text."""

    topology = find_topology("v5e:2x2")

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, step: JaxStep) -> Program:
        return Program(1e12, 1e9, MEMORY, self.text)


@pytest.mark.parametrize(
    ("ops", "verdict", "message"),
    [
        (
            "%a = f32[8]{0} all-reduce(%x), to_apply=%sum\n  %b = f32[8]{0} all-reduce-start(%y), to_apply=%sum",
            GOOD,
            "the 4 cores exchange tensors: 2 all-reduce",
        ),
        ("%a = f32[8]{0} add(%x, %y)", FAILS, "the 4 cores exchange nothing"),
    ],
)
def test_whether_cores_exchange_anything_is_told_of_a_step_in_jax(ops, verdict, message):
    part = check_jax_step(OfJax(images("HWCN", "HWCN").replace("\n}", f"\n  {ops}\n}}")), "my:step")  # type: ignore[arg-type]
    (finding,) = [finding for finding in part.findings if "exchange" in finding.seen]
    assert finding.verdict == verdict
    assert finding.seen.startswith(message)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        # What libtpu 0.0.51 says of vit_s16 in bfloat16 with 128 images of 224 px on a v6e.
        (
            "INTERNAL: RET_CHECK failure (external/xla/xla/hlo/ir/hlo_instruction.cc:463) prev_op->IsAsynchronous() "
            "Async done requires its operand to be an asynchronous op",
            "this is an error of the compiler, and the step may be correct; "
            "try another batch size, precision or libtpu",
        ),
        ("UNIMPLEMENTED: no such op, not INTERNAL: one", ""),
    ],
)
def test_an_error_of_the_compiler_s_own_is_not_told_as_one_of_the_step(error, advice):
    def compiler(hlo: Source) -> Program:
        raise ValueError(f"the TPU compiler rejects the step: {error}")

    part, program = check_compile(compiler, b"", 16, find_topology("v6e:1x1"), "NHWC", lambda batch: b"")
    (finding,) = part.findings
    assert (finding.verdict, finding.advice, program) == (FAILS, advice, None)
    assert error in finding.seen


def test_an_error_of_the_compiler_at_another_batch_size_leaves_what_is_known():
    def compiler(hlo: Source) -> Program:
        if hlo:
            raise ValueError("the TPU compiler rejects the step: INTERNAL: RET_CHECK failure")
        return Program(1e12, 1e9, MEMORY, images("NHWC", "NHWC"))

    arguments = (compiler, b"", 16, find_topology("v6e:1x1"), "NHWC", lambda batch: b"another")
    part, program = check_compile(*arguments, search=True)
    assert program
    assert not part.fails
    (finding,) = [finding for finding in part.findings if "largest batch" in finding.seen]
    assert finding.verdict == UNKNOWN
    assert finding.seen.startswith("the largest batch that fits is not known: the TPU compiler rejects the step")
