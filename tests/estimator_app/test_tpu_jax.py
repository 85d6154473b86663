"""preflight --trainer=jax: the trainer's own functions compiled for TPUs by libtpu; make test-preflight."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from estimator_app.preflight.compile import check_compile
from estimator_app.preflight.compiler import Compiler, JaxStep, Program, Source, TooLarge
from estimator_app.preflight.findings import COSTS, FAILS, GOOD
from estimator_app.runtime.topologies import find_topology
from support import small_network
from support.app_commands import refused
from support.app_fixtures import RECIPE, configured
from support.jax_runs import command
from support.pages import ROOT
from support.trainers import needs_jax
from tpu_input import Manifest

pytestmark = needs_jax
with_libtpu = pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="no libtpu; make test-preflight")
SMALL = ("--trainer=jax", "--image_size=16", "--train_batch_size=32", "--eval_batch_size=32", "--wrong_images=0")


def preflight_command(manifest: Manifest, *flags: str, topology: str = "v5e:2x2") -> tuple[str, ...]:
    return ("preflight", f"--dataset={manifest.path}", f"--topology={topology}", *SMALL, *flags)


def make_checks(manifest: Manifest, topology: str, **options: Any) -> Any:
    from estimator_app.trainers.registry import find_trainer

    small = {"network": small_network.NAME, "train_batch_size": 32, "eval_batch_size": 32, "trainer": "jax"}
    return find_trainer("jax").checks(manifest, configured(manifest, **small | options), find_topology(topology), "")


def compiled(checks: Any, mode: str, batch: int | None = None) -> Program | TooLarge:
    maker = checks.steps()[mode]
    return Compiler(sys.executable, checks.topology)(maker.make_step(batch or maker.batch))


@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"])
@with_libtpu
@pytest.mark.preflight
def test_every_generation_compiles_the_step_over_its_devices(digits_dataset, topology):
    checks = make_checks(digits_dataset, topology, **RECIPE | {"augment": "none"})
    program = compiled(checks, "training")
    assert isinstance(program, Program)
    cores = {"tpu7x": 8}.get(checks.topology.generation, 4)
    assert f"num_partitions={cores}" in program.text
    assert f"u8[{32 // cores},16,16,3]" in program.text
    assert " all-reduce" in program.text
    assert program.memory["alias"] > 0  # the state is updated in place


@with_libtpu
@pytest.mark.preflight
def test_the_whole_page_of_a_good_run_without_tensorflow_or_beam(digits_dataset):
    process = command(*preflight_command(digits_dataset, "--network=cnn", topology="v5e:2x2"))
    assert (process.returncode, process.stderr) == (0, "")
    lines = process.stdout.splitlines()
    assert lines[0] == "cnn by jax on v5e:2x2, 1 TPU VM × 4 cores on 1/2 host, batches of 32"
    assert [line for line in lines if line and line[0] != " "][2:-1] == ["runtime", "input", "compile", "feeding"]
    assert "✗" not in process.stdout
    assert len(re.findall(r"^ +– ", process.stdout, re.MULTILINE)) == 1
    assert "✓ input per core: image [8, 16, 16, 3] uint8, label [8] int32, weight [8] float32" in process.stdout
    examples = digits_dataset.split("validation").num_examples
    assert f"each of {examples} examples exactly once" in process.stdout
    for mode in ("training", "evaluation"):
        assert f"✓ {mode}: a step with 8 images per core takes " in process.stdout
    assert re.search(r"✓ the 4 cores exchange tensors: \d+ all-reduce", process.stdout)
    # Whether a VM's vCPUs are enough depends on how fast this machine is now; test_preflight_feeding.py has each case.
    assert re.search(
        r"the TPU needs [\d,]+ images/s from .+ per core(, (and|but) a VM has 112 vCPUs| can decode that, but)",
        process.stdout,
    )
    # 3 times forward, which `python -m benchmarks.training.networks` counts as 0.0193 GFLOP an image of 32 pixels.
    (flops,) = re.findall(r"takes ([\d.]+) GFLOP", process.stdout)
    assert float(flops) == pytest.approx(8 * 3 * 0.0193 / 4, rel=0.35)
    assert lines[-1] == "nothing found that would fail on a TPU; lines marked – were not checked"


@with_libtpu
@pytest.mark.preflight
def test_too_little_memory_is_told_by_how_much(digits_dataset):
    checks = make_checks(digits_dataset, "v5e:1x1", image_size=64)
    result = compiled(checks, "training", 2**22)
    assert isinstance(result, TooLarge)
    assert result.needs > result.has
    # The compiler keeps some of the memory that Google's page names.
    assert 0.9 < result.has / checks.topology.memory_bytes <= 1


def program_of(instructions: str) -> Program:
    memory = {"argument": 10, "output": 0, "alias": 0, "temp": 0, "generated_code": 0}
    return Program(1e12, 1e9, memory, f"HloModule step\n\nENTRY %main () -> f32[] {{\n  {instructions}\n}}\n")


@pytest.mark.parametrize(
    ("text", "verdict"), [("%a = f32[8]{0} all-reduce(%x)", GOOD), ("%a = f32[8]{0} add(%x)", FAILS)]
)
def test_the_page_says_what_cores_exchange_and_asks_for_no_layout(digits_dataset, text, verdict):
    checks = make_checks(digits_dataset, "v5e:2x2")
    maker = checks.steps()["training"]
    program = program_of(f"%images = u8[8,16,16,3]{{0,3,2,1:T(8,128)(4,1)}} parameter(0)\n  {text}")
    source = maker.make_step(8)
    part, _ = check_compile(lambda step: program, source, 8, checks.topology, checks.layout, maker.make_step)
    (finding,) = [finding for finding in part.findings if "exchange" in finding.seen]
    assert finding.verdict == verdict
    assert not [finding for finding in part.findings if "--layout" in finding.advice]
    assert part.numbers["memory_of_a_core"] == 16 * 2**30


def test_too_little_memory_is_a_finding_with_the_batch_that_fits(digits_dataset):
    checks = make_checks(digits_dataset, "v5e:2x2", train_batch_size=4096)
    maker = checks.steps()["training"]

    def compiler(step: Source) -> Program | TooLarge:
        assert isinstance(step, JaxStep)
        _, _, batch, _ = step.arguments
        return TooLarge(batch * 2**30, 100 * 2**30) if batch > 100 else program_of("%a = f32[8]{0} all-reduce(%x)")

    part, program = check_compile(
        compiler, maker.make_step(1024), 1024, checks.topology, checks.layout, maker.make_step
    )
    (finding,) = part.findings
    assert (finding.verdict, program) == (FAILS, None)
    assert finding.seen.startswith("training: a step with 1024 images per core takes 1024.00 GiB, 924.00 GiB more than")
    assert re.fullmatch("use --train_batch_size=(384|352|320), or --precision=bfloat16", finding.advice)


def test_the_step_is_the_function_that_train_calls(digits_dataset, monkeypatch):
    import jax

    from estimator_app.trainers.jax import tpu_checks
    from estimator_app.trainers.jax.state import make_run

    runs: list[Any] = []

    def make_and_keep(*args: Any, **more: Any) -> Any:
        runs.append(make_run(*args, **more))
        return runs[-1]

    monkeypatch.setattr(tpu_checks, "make_run", make_and_keep)
    checks = make_checks(digits_dataset, "v5e:2x2", **RECIPE | {"augment": "none"})
    for mode, name in (("training", "train_step"), ("evaluation", "eval_step")):
        source = checks.steps()[mode].make_step(8)
        assert source.name == "estimator_app.trainers.jax.tpu_checks:make_step"
        arguments = json.loads(json.dumps(source.arguments))  # as the other process gets them
        step, shapes = tpu_checks.make_step(jax.devices()[:1], *arguments)
        assert step is getattr(runs[-1], name)
        jax.eval_shape(step, *shapes)
        assert shapes[1]["image"].shape == (8, 16, 16, 3)


def test_every_vm_s_input_is_read(digits_dataset):
    checks = make_checks(digits_dataset, "v5e:4x4", train_batch_size=64, eval_batch_size=64)
    (part,) = checks.parts()
    assert [finding.verdict for finding in part.findings] == [GOOD] * 4, part
    assert "training: 3 steps of 4 TPU VMs read 192 different images, each only once" in str(part)
    large = make_checks(digits_dataset, "v5e:2x2", train_batch_size=2048)
    (part,) = large.parts()
    assert [finding.seen for finding in part.findings if finding.verdict == COSTS]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--topology=v9:2x2",), "the topology's generation must be one of v2, v3, v4, v5e, v5p, v6e, tpu7x, got 'v9'"),
        (("--train_batch_size=30",), "--train_batch_size must be a multiple of the 4 devices, got 30; use 32"),
        (("--eval_batch_size=30",), "--eval_batch_size must be a multiple of the 4 devices, got 30; use 32"),
        (("--network=support.broken_networks:text",), "network 'text' cannot be built by Keras on JAX"),
        (("--use_tpu",), "--trainer=jax takes no --use_tpu"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(capsys, digits_dataset, monkeypatch, flags, message):
    compiler = f"--compiler={sys.executable}"  # is not asked
    monkeypatch.setattr(subprocess, "run", None)
    assert message in refused(capsys, *preflight_command(digits_dataset, compiler, *flags))


def test_libtpu_that_is_not_installed_is_one_line_and_exit_2(capsys, digits_dataset, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "libtpu" else find(name, *more)
    )
    message = refused(capsys, *preflight_command(digits_dataset))
    assert "libtpu is not installed; use pip install 'jpeg2tpu[preflight]'" in message


def test_the_guide_s_table_has_the_chips_of_the_program():
    from estimator_app.runtime.topologies import CHIPS

    page = (Path(ROOT) / "docs/preflight.md").read_text().partition("## The trainer on JAX")[2]
    rows = re.findall(r"^\| `(\w+)` \| (\d) \| (\d+) \| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    table = {name: [float(number.replace(",", "")) for number in numbers] for name, *numbers in rows}
    assert {*table} == {"v5e", "v5p", "v6e", "tpu7x"}
    for name, numbers in table.items():
        chip = CHIPS[name]
        assert numbers == [chip.cores, chip.hbm_gib, chip.flops / 1e12, chip.bytes_per_second / 1e9]
