"""What is shipped: a Dataflow worker installs from the sdist, setup.py included, and gets no TensorFlow."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("beam_pipelines", "tpu_input", "estimator_app")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist and the wheel, made by the build backend from a copy of what is committed to be shipped."""
    source = tmp_path_factory.mktemp("build") / "jpeg2tpu"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "demo", "build", "dist")
    shutil.copytree(ROOT, source, ignore=ignored)
    code = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return source / "dist"


def test_the_sdist_holds_setup_py_and_every_module(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    modules = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).glob("**/*.py")}
    data = {"setup.py", "README.md", "pyproject.toml", "beam_pipelines/report/report.html.j2"}
    assert names >= modules | data | {f"{name}/py.typed" for name in PACKAGES}


def test_the_wheel_holds_the_three_packages_and_their_types(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == set(PACKAGES)
    assert all(f"{package}/py.typed" in names for package in PACKAGES)
    assert "beam_pipelines/report/report.html.j2" in names
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        scripts = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert "jpeg2tpu = tpu_input.command_line.jpeg2tpu:main" in scripts


def test_the_base_install_is_what_a_conversion_worker_needs(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert "apache-beam" in " ".join(required)
    assert "tensorflow" not in " ".join(required)
    assert "[gcp]" not in " ".join(required)
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "train",
        "tpu",
        "gcp",
        "heic",
        "opencv",
        "demo",
        "dev",
        "all",
    }
