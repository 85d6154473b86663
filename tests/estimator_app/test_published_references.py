"""Published weights give the logits of timm's, torchvision's and transformers' own networks, by PyTorch.

They run in the environment of `make test-torch`, with random weights and statistics; it has no TensorFlow, so that what
they save and compute goes through files.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from estimator_app.model.layer_names import variables_of
from estimator_app.model.networks import find_network, make_model
from estimator_app.model.published_weights import read_published
from support.app_fixtures import keras_warns

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.torch, keras_warns]
PYTHON = ROOT / os.environ.get("VENV_TORCH", ".venv-torch") / "bin" / "python"
NETWORKS = ("resnet18", "resnet34", "resnet50", "resnet101", "vit_s16", "vit_b16")
IMAGE_SIZE = 96
CASES = [f"timm:{network}" for network in NETWORKS]
CASES += ["torchvision:resnet18", "torchvision:resnet50", "torchvision:vit_b16"]
CASES += ["transformers:resnet18", "transformers:resnet50", "transformers:vit_s16"]


def compute(folder: Path, size: str, *cases: str) -> Path:
    """Runs PyTorch's networks; returns the folder of their files and logits."""
    command = [str(PYTHON), "-W", "ignore", str(ROOT / "tests" / "support" / "torch_networks.py"), str(folder), size]
    process = subprocess.run([*command, *cases], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return folder


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compute(tmp_path_factory.mktemp("torch"), str(IMAGE_SIZE), *CASES)


def our_logits(folder: Path, case: str) -> tuple[npt.NDArray[Any], str]:
    """Returns the logits of our network with the weights of a file, and what was changed of them."""
    network, path = case.partition(":")[2], folder / f"{case}.safetensors"
    images = np.load(folder / "images.npy")
    model = make_model(find_network(network), images.shape[1], 10)
    variables = {name: variable for name, (variable, _) in variables_of(model).items()}
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    with open(path, "rb") as file:
        weights = read_published(file, path.stat().st_size, network, shapes)
    assert weights.values.keys() == variables.keys()
    for name, variable in variables.items():
        variable.assign(weights.values[name])
    return np.asarray(model(images, training=False)), weights.remark


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_other_library(references, case):
    expected = np.load(references / f"{case}.npy")
    logits, remark = our_logits(references, case)
    assert np.ptp(expected) > 1  # or anything would agree
    # torchvision and transformers begin with logits of hundreds, of which float32 has fewer digits after the point.
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * max(10, np.abs(expected).max()))
    assert remark == ""


@pytest.mark.parametrize("size", ["224>160", "96>224"])
def test_positions_are_resized_as_timm_resizes_them(tmp_path, size):
    folder = compute(tmp_path, size, "timm:vit_s16")
    logits, remark = our_logits(folder, "timm:vit_s16")
    assert remark.startswith("positions resized from ")
    np.testing.assert_allclose(logits, np.load(folder / "timm:vit_s16.npy"), rtol=0, atol=1e-4)
