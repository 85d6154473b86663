"""The arrows of the design: beam_pipelines → what of tpu_input has no TensorFlow; estimator_app → tpu_input."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tpu_input

ROOT = Path(__file__).parent.parent
SHARED = ("tpu_input.dataset_format", "tpu_input.command_line")


def imported(package: str) -> set[tuple[str, str]]:
    """Returns (file, module) for every import of a package's files, wherever in the file it stands."""
    found = set()
    for path in (ROOT / package).glob("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {(path.name, alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path.name} imports relatively"
                found |= {(path.name, f"{node.module}.{alias.name}") for alias in node.names}
    return found


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("beam_pipelines", ("tensorflow", "estimator_app", "tpu_input")),
        ("tpu_input", ("apache_beam", "beam_pipelines", "estimator_app")),
        ("estimator_app", ("apache_beam", "beam_pipelines")),
    ],
)
def test_a_package_imports_only_what_the_design_allows(package, forbidden):
    wrong = {
        (file, module)
        for file, module in imported(package)
        if module.split(".")[0] in forbidden and not module.startswith(SHARED)
    }
    assert not wrong


def test_the_tpu_s_compiler_is_reached_through_files_alone():
    found = imported("estimator_app")
    assert {file for file, module in found if module.split(".")[0] == "jax"} == {"libtpu_program.py"}
    assert not {module for _, module in found if module.startswith("estimator_app.preflight.libtpu_program")}
    roots = {module.split(".")[0] for file, module in found if file == "libtpu_program.py"}
    assert not roots & {"estimator_app", "tpu_input", "tensorflow"}


@pytest.mark.parametrize(
    "module",
    [
        "tpu_input.dataset_format.records",
        "tpu_input.command_line",
        "tpu_input.command_line.google_client",
        "tpu_input.dataset_format.orientation",
        "tpu_input",
        "beam_pipelines.convert",
        "beam_pipelines.verify",
        "beam_pipelines.__main__",
    ],
)
def test_importing_for_a_conversion_never_loads_tensorflow(module):
    code = f"import sys; import {module}; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "False", done.stderr


def test_every_public_name_of_tpu_input_is_there_and_pinned():
    assert tpu_input.__all__ == [
        "InputConfig",
        "Manifest",
        "RecordSource",
        "RecordSpec",
        "as_numpy",
        "eval_steps",
        "find_undecodable",
        "from_infeed",
        "make_eval_input_fn",
        "make_predict_input_fn",
        "make_serving_input_receiver_fn",
        "make_train_input_fn",
        "manifest_from_shards",
        "params_from_context",
        "read_manifest",
    ]
    assert all(getattr(tpu_input, name) for name in tpu_input.__all__)
    with pytest.raises(AttributeError, match="no attribute 'make_magic'"):
        _ = tpu_input.make_magic
