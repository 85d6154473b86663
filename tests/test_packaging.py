"""What is shipped: a Dataflow worker installs from the sdist, setup.py included, and gets no TensorFlow."""

from __future__ import annotations

import email.message
import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tpu_input.command_line.jpeg2tpu import main as jpeg2tpu_main

ROOT = Path(__file__).parent.parent
TEMPLATE = ("report.html.j2", "report.css", "report.js")
PACKAGES = ("beam_pipelines", "tpu_input", "estimator_app")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist and the wheel, made by the build backend from a copy of what is committed to be shipped."""
    source = tmp_path_factory.mktemp("build") / "jpeg2tpu"
    not_shipped = (".git", ".venv*", ".servers", ".*_cache", "demo", "build", "dist", "release", "results")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".coverage", *not_shipped)
    shutil.copytree(ROOT, source, ignore=ignored)
    code = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=source, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return source / "dist"


def test_the_sdist_holds_setup_py_and_every_module(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    modules = {"jpeg2tpu.py"} | {
        str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).glob("**/*.py")
    }
    data = {"setup.py", "README.md", "pyproject.toml", *(f"beam_pipelines/report/template/{name}" for name in TEMPLATE)}
    assert names >= modules | data | {f"{name}/py.typed" for name in PACKAGES}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs git's list of the files: an sdist has none")
def test_the_sdist_holds_what_is_committed_and_nothing_else(built):
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {info.name.partition("/")[2] for info in archive.getmembers() if info.isfile()}
    generated = {name for name in names if name.startswith("jpeg2tpu.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert {name for name in listed.stdout.splitlines() if (ROOT / name).exists()} <= names - generated


def test_the_wheel_holds_the_three_packages_and_their_types(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {*PACKAGES, "jpeg2tpu.py"}
    assert all(f"{package}/py.typed" in names for package in PACKAGES)
    assert {f"beam_pipelines/report/template/{name}" for name in TEMPLATE} <= set(names)
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        scripts = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert "jpeg2tpu = tpu_input.command_line.jpeg2tpu:main" in scripts


def metadata_of(built: Path) -> email.message.Message:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_version_has_one_source(built, capsys):
    version = metadata_of(built)["Version"]
    assert {importlib.import_module(package).__version__ for package in PACKAGES} == {version}
    assert jpeg2tpu_main(["--version"]) == 0
    assert capsys.readouterr().out == f"jpeg2tpu {version}\n"
    heading = re.search(r"^## \[?(\S+?)\]? ", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert heading
    assert heading[1] == version


def test_the_metadata_names_the_pythons_that_are_tried(built):
    metadata = metadata_of(built)
    versions = {
        classifier.rpartition(" ")[2]
        for classifier in metadata.get_all("Classifier", [])
        if "Python :: 3." in classifier
    }
    script = (ROOT / ".ci" / "release_check.py").read_text()
    assert versions == set(re.findall(r'"(3\.\d+)"', script.partition("PYTHONS = ")[2].partition("\n")[0]))
    assert metadata["Requires-Python"] == ">=3.11"
    assert len((metadata["Keywords"] or "").split(",")) > 5


@pytest.mark.parametrize(
    ("module", "package", "words", "line"),
    [
        (
            "estimator_app",
            "tensorflow",
            "train --trainer=tf_distribute --dataset=d --model_dir=m",
            "TensorFlow is not installed",
        ),
        ("estimator_app", "yaml", "train --dataset=d --model_dir=m --config=digits", "PyYAML is not installed"),
        ("tpu_input", "tensorflow", "benchmark DATASET", "TensorFlow is not installed"),
        ("beam_pipelines", "sklearn", "sample digits", "scikit-learn is not installed"),
        (
            "beam_pipelines",
            "apache_beam",
            "convert --input=DATASET --output=o --runner=DirectRunner",
            "Apache Beam is not installed",
        ),
    ],
)
def test_a_missing_extra_is_one_line(module, package, words, line, digits_dataset, tmp_path):
    code = (
        f"import sys; sys.modules[{package!r}] = None; from {module}.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    argv = [word.replace("DATASET", digits_dataset.path) for word in words.split()]
    command = [sys.executable, "-W", "ignore", "-c", code, *argv]
    ended = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True)
    stderr = ended.stderr.decode()
    assert (ended.returncode, stderr.count("\n")) == (2, 1), stderr
    extra = {"sklearn": "demo", "apache_beam": "beam"}.get(package, "train")
    assert stderr == f"error: {line}; install it with: pip install 'jpeg2tpu[{extra}]'\n"


def requirements(metadata: email.message.Message, *extras: str) -> str:
    """Returns the requirements of a plain install and of some extras."""
    lines = [line.partition(";") for line in metadata.get_all("Requires-Dist", [])]
    markers = [f'extra == "{extra}"' for extra in extras]
    return " ".join(
        name for name, _, marker in lines if "extra ==" not in marker or any(extra in marker for extra in markers)
    )


def test_neither_a_plain_install_nor_one_for_jax_asks_for_tensorflow_or_beam(built):
    """A conversion on this machine, and --trainer=jax, need neither; pip cannot leave out what a plain install has."""
    metadata = metadata_of(built)
    for extras in ((), ("jax",), ("preflight",), ("opencv", "heic", "jax")):
        required = requirements(metadata, *extras)
        assert "pyarrow" in required
        assert "tensorflow" not in required
        assert "apache-beam" not in required
        assert ("keras" in required) is bool({"jax", "preflight"} & {*extras})
    for extra in ("beam", "gcp"):
        assert "apache-beam" in requirements(metadata, extra)
    assert "tensorflow" in requirements(metadata, "train")
    assert "apache-beam" not in requirements(metadata, "train")


def test_every_extra_is_known(built):
    metadata = metadata_of(built)
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "train",
        "array-record",
        "tpu",
        "beam",
        "gcp",
        "heic",
        "jax",
        "preflight",
        "opencv",
        "stores",
        "demo",
        "dev",
        "all",
    }
