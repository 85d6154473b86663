"""The wheel that workers install, made of what is installed here."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from beam_pipelines.runners import wheel as wheel_building

ROOT = Path(__file__).parents[2]
PACKAGES = ("beam_pipelines", "tpu_input", "estimator_app")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder into which pip has installed the wheel, without what it needs."""
    folder = tmp_path_factory.mktemp("packing")
    wheel = wheel_building.write_wheel(str(folder))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", f"--target={folder}/site"]
    subprocess.run([*pip, wheel], check=True, capture_output=True)
    return folder / "site"


def test_pip_installs_every_file_of_the_packages_from_the_wheel(installed):
    for package in PACKAGES:
        files = [path for path in (ROOT / package).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        assert files
        for path in files:
            assert (installed / path.relative_to(ROOT)).read_bytes() == path.read_bytes()


def test_workers_install_the_versions_that_bytes_depend_on(installed):
    (wheel,) = importlib.metadata.distributions(name="jpeg2tpu", path=[str(installed)])
    required = [line for line in wheel.requires or [] if "extra ==" not in line]
    extras = [dist for dist in importlib.metadata.distributions() if dist.name == "pillow-heif"]  # where it is there
    for package in ("numpy", "pillow", "pyarrow", "simplejpeg", *("pillow-heif" for _ in extras[:1])):
        versions = [line for line in required if line.partition("=")[0] == package]
        assert versions == [f"{package}=={importlib.metadata.version(package)}"]
    assert not any(line.startswith("apache-beam") for line in required)  # it is the workers' image's


def test_the_wheel_of_an_installed_wheel_is_the_same(installed, tmp_path):
    """Without setup.py or source tree, as after pip install jpeg2tpu."""
    code = "import sys; from beam_pipelines.runners.wheel import write_wheel; print(write_wheel(sys.argv[1]))"
    # Isolated from the tree: site-packages hold the requirements, the folder before them the installed wheel.
    paths = f"import sys; sys.path[:] = [{str(installed)!r}, *(p for p in sys.path if 'finder' not in p)]; {code}"
    result = subprocess.run([sys.executable, "-P", "-c", paths, str(tmp_path)], capture_output=True, text=True, cwd="/")
    assert result.returncode == 0, result.stderr
    with (
        zipfile.ZipFile(result.stdout.strip()) as again,
        zipfile.ZipFile(wheel_building.write_wheel(str(installed))) as first,
    ):
        modules = {name for name in again.namelist() if "dist-info" not in name}
        assert modules == {name for name in first.namelist() if "dist-info" not in name}
        assert all(again.read(name) == first.read(name) for name in modules)


def test_the_same_package_gives_the_same_bytes_so_that_engines_stage_it_once(tmp_path):
    wheels = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        wheels.append(Path(wheel_building.write_wheel(str(tmp_path / name))).read_bytes())
    assert wheels[0] == wheels[1]


def test_a_source_tree_that_is_not_installed_is_told_to_be(tmp_path, monkeypatch):
    def missing(name: str):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ValueError, match=r"jpeg2tpu is not installed, so workers cannot install it; run: pip install"):
        wheel_building.write_wheel(str(tmp_path))
