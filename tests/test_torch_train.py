"""examples/torch_train.py and docs/pytorch.md in an environment that has PyTorch and no TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.dataset_writer import write_dataset
from support.guides import run_blocks
from tpu_input.dataset_format.records import Manifest

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[1]
STEPS = ("--steps=400", "--eval_steps=100", "--no_flip", "--workers=1")


@pytest.fixture(scope="module")
def dataset(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("written") / "digits"
    return write_dataset(digits, folder, {"train": (1464, 9), "validation": (333, 2)})


def start(dataset: Manifest, model_dir: Path) -> subprocess.Popen[str]:
    example = str(ROOT / "examples" / "torch_train.py")
    command = [sys.executable, "-W", "ignore", example, dataset.path, str(model_dir), *STEPS]
    # Of one thread, so that sums have the same order in every run.
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_there_is_no_tensorflow():
    assert importlib.util.find_spec("tensorflow") is None


def test_a_run_that_is_killed_ends_as_one_that_is_not(dataset: Manifest, tmp_path: Path):
    stdout, _ = start(dataset, tmp_path / "whole").communicate()
    lines = [json.loads(line) for line in stdout.splitlines()]
    assert [line["step"] for line in lines] == [100, 200, 300, 400]  # an epoch has 22.9 steps
    assert {line["examples"] for line in lines} == {333}  # each validation example once, in six batches of 64
    assert lines[-1]["accuracy"] >= 0.98
    with start(dataset, tmp_path / "killed") as killed:
        assert killed.stdout
        assert json.loads(killed.stdout.readline()) == lines[0]
        killed.kill()
    rest, _ = start(dataset, tmp_path / "killed").communicate()
    assert [json.loads(line) for line in rest.splitlines()][-1] == lines[-1]


def test_the_guide_s_blocks_for_pytorch_run(dataset: Manifest):
    names: dict[str, Any] = {"DATASET": dataset.path}
    assert run_blocks(ROOT / "docs" / "pytorch.md", names, lambda block: "import grain" not in block) == 6
