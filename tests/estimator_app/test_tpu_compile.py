"""Steps compiled for TPUs by libtpu; make test-preflight."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from estimator_app.config import default_trainer
from estimator_app.preflight.compile import check_compile, check_fits, check_jax_step
from estimator_app.preflight.compiler import Compiler, Program
from estimator_app.preflight.findings import COSTS, FAILS, GOOD
from estimator_app.preflight.step import MODES
from estimator_app.preflight.xla import lower
from estimator_app.runtime.topologies import find_topology
from support.app_commands import run
from support.app_fixtures import RECIPE, configured, keras_warns
from support.tensorflow_steps import lowered, make_checks
from tpu_input import make_train_input_fn

pytestmark = [pytest.mark.preflight, keras_warns]
PYTHON = Path(__file__).parents[2] / ".venv-preflight/bin/python"
ONE = find_topology("v5e:1x1")
TRAINERS = ["tf_distribute", *(["tpu_estimator"] if default_trainer() == "tpu_estimator" else [])]


@pytest.fixture(autouse=True)
def _is_there():
    if not PYTHON.exists():
        pytest.skip("no compiler; make preflight")


def compiled(manifest, batch, search=False, **options):
    """Returns the part for a step of so many images a core, and the program."""
    config = configured(manifest, trainer=default_trainer(), **options)

    def hlo(size):
        spec = make_train_input_fn(manifest, config.input)({"batch_size": size}).element_spec
        return lowered(config, spec)

    return check_compile(Compiler(str(PYTHON), ONE), hlo(batch), batch, ONE, config.input.layout, hlo, search)


def test_a_network_that_fits_is_counted(digits_dataset):
    part, program = compiled(digits_dataset, 64, image_size=32)
    assert not part.fails, part
    # 3 times forward, which `python -m benchmarks.training.networks` counts as 0.0193 GFLOP an image.
    assert program.flops == pytest.approx(64 * 3 * 0.0193e9, rel=0.25)
    assert program.memory["argument"] > 2 * 4 * 288_746  # weights and momentum
    assert "FLOP per byte" in str(part)


def test_a_network_that_is_too_large_is_told_by_how_much_and_what_fits(digits_dataset):
    options = {"network": "support.broken_networks:large", "image_size": 224}
    part, program = compiled(digits_dataset, 4096, **options)
    assert program is None
    (finding,) = part.findings
    assert finding.verdict == FAILS
    assert "GiB more than a core has" in finding.seen
    largest = part.numbers["largest_batch_a_core"]
    assert 0 < largest < 4096
    assert f"{largest} images fit" in finding.seen
    assert f"use --train_batch_size={largest}, or --precision=bfloat16" in finding.advice


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("network", ["vit_s16", "keras:EfficientNetV2B0"])
def test_networks_by_name_compile_in_both_trainers_for_training_evaluation_and_prediction(
    digits_dataset, trainer, network
):
    options = {"network": network, "image_size": 32, "precision": "bfloat16", "eval_batch_size": 8}
    config = configured(digits_dataset, trainer=trainer, train_batch_size=8, **options)
    memory = []
    for mode in MODES:
        step = make_checks(digits_dataset, config, ONE).step_of(mode)
        program = Compiler(str(PYTHON), ONE)(lower(step).serialized)
        assert isinstance(program, Program), mode
        memory.append(program.bytes)
    assert memory[0] > 2 * memory[1]  # momentum and what the gradients need
    assert memory[1] >= memory[2]


def test_an_evaluation_that_is_too_large_is_told(digits_dataset):
    options = {"network": "support.broken_networks:large", "image_size": 224, "eval_batch_size": 65536}
    config = configured(digits_dataset, trainer=default_trainer(), train_batch_size=8, **options)
    checks = make_checks(digits_dataset, config, ONE)

    def lower_evaluation(batch: int) -> bytes:
        return lower(checks.step_of("evaluation", batch)).serialized

    batch = config.eval_batch_size
    finding = check_fits(
        Compiler(str(PYTHON), ONE), lower_evaluation(batch), "evaluation", batch, ONE, lower_evaluation
    )
    assert finding.verdict == FAILS
    assert finding.seen.startswith("evaluation: a step with 65536 images per core takes ")
    assert finding.advice.startswith("use --eval_batch_size=")


@pytest.mark.parametrize(("layout", "verdict"), [("NHWC", COSTS), ("HWCN", GOOD)])
def test_the_order_of_the_axes_is_held_against_the_device_s(digits_dataset, layout, verdict):
    part, _ = compiled(digits_dataset, 128, network="support.broken_networks:fine", image_size=32, layout=layout)
    (finding,) = [finding for finding in part.findings if "images are stored as" in finding.seen]
    assert finding.verdict == verdict, finding
    assert verdict == GOOD or finding.advice.startswith("use --layout=HWCN")


@pytest.mark.parametrize("topology", ["v2:2x2", "v3:2x2", "v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_every_generation_compiles(digits_dataset, topology):
    config = configured(digits_dataset, trainer=default_trainer(), network="support.broken_networks:fine")
    spec = make_train_input_fn(digits_dataset, config.input)({"batch_size": 8}).element_spec
    program = Compiler(str(PYTHON), find_topology(topology))(lowered(config, spec))
    assert isinstance(program, Program)
    assert program.flops > 0


def test_every_part_of_a_recipe_compiles(digits_dataset):
    part, program = compiled(digits_dataset, 64, image_size=32, freeze="stage1_.*", **RECIPE)
    assert not part.fails, part
    assert program.flops > 0


def test_what_is_no_step_is_refused_with_the_compiler_s_words(tmp_path):
    with pytest.raises(ValueError, match="the TPU compiler"):
        Compiler(str(PYTHON), ONE)(b"no HLO")


def test_the_whole_page_of_a_good_run(capsys, digits_dataset):
    code, out, err = run(
        capsys,
        "preflight",
        f"--dataset={digits_dataset.path}",
        "--topology=v5e:2x2",
        f"--compiler={PYTHON}",
        "--image_size=32",
        "--train_batch_size=512",
        "--layout=HWCN",
        "--network=support.broken_networks:fine",
        "--largest_batch",
    )
    assert (code, err) == (0, "")
    assert "✗" not in out
    # Of TPUEstimator, only whether it runs with v5e's software is not known.
    assert len(re.findall(r"^ +– ", out, re.MULTILINE)) == 1 or default_trainer() == "tf_distribute"
    for mode in MODES:
        assert f"✓ {mode}: a step with 128 images per core takes " in out or mode != "training"
        assert f"✓ {mode}: a step with " in out
    assert "images/s per core" in out
    assert "--train_batch_size=262144" in out  # the search ends somewhere


@pytest.fixture
def in_tests(monkeypatch):
    """The working directory of a user whose steps in JAX are in support/jax_steps.py."""
    monkeypatch.chdir(Path(__file__).parents[1])


def test_the_step_of_the_example_in_jax_compiles_for_all_cores(capsys, in_tests):
    code, out, err = run(
        capsys, "preflight", "--topology=v5e:2x2", "--jax_step=support.jax_steps:example", f"--compiler={PYTHON}"
    )
    assert (code, err) == (0, "")
    assert out.startswith("support.jax_steps:example on v5e:2x2, 1 TPU VM × 4 cores")
    assert "✗" not in out
    assert "GiB of memory per core" in out
    assert re.search(r"✓ the 4 cores exchange tensors: \d+ all-reduce", out)
    # 3 times forward, which `python -m benchmarks.training.networks` counts as 0.0193 GFLOP an image of this size.
    (flops,) = re.findall(r"([\d.]+) GFLOP", out)[:1]
    assert float(flops) == pytest.approx(32 * 3 * 0.0193, rel=0.25)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("alone", "the 4 cores exchange nothing, so each computes all of the step or trains for itself"),
        ("large", r"the step takes \d+\.\d\d GiB per core, \d+\.\d\d GiB more than a core has"),
        ("unplaced", "unplaced: ValueError: an argument of the step has no sharding over the devices"),
        ("failing", r"failing: TypeError: cannot reshape array .* \(support/jax_steps.py:\d+\)"),
        ("nothing", "nothing: AttributeError: module 'support.jax_steps' has no attribute 'nothing'"),
    ],
)
def test_a_step_in_jax_that_cannot_run_is_told_in_one_line(in_tests, name, pattern):
    part = check_jax_step(Compiler(str(PYTHON), find_topology("v5e:2x2")), f"support.jax_steps:{name}")
    assert part.fails
    (failure,) = [str(finding) for finding in part.findings if finding.verdict == FAILS]
    assert re.match(f"✗ (support.jax_steps:)?{pattern}", failure)
    assert "\n" not in failure


def test_the_step_of_the_guide_compiles(capsys, monkeypatch, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "preflight.md").read_text().partition("## A step in JAX")[2]
    (tmp_path / "mystep.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    command = re.search(r"^    jpeg2tpu (preflight .*)$", page, re.MULTILINE)
    assert command
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    code, out, err = run(capsys, *command[1].split(), f"--compiler={PYTHON}")
    assert (code, err) == (0, "")
    expected = page.partition(command[0])[2].partition("\nThe module")[0].splitlines()
    assert [line for line in out.splitlines() if line] == [line.removeprefix("    ") for line in expected if line]
