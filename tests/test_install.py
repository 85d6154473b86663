"""Installation: the lines of the docs, the constraints, the container, and how the Makefile finds a Python."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from estimator_app.runtime.tensorflow_startup import has_estimator
from support.pages import ROOT

PYTHONS = ("3.11", "3.12", "3.13")
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"
# As a newcomer types them; README, docs/install.md and the Dockerfile have them.
LINES = ["pip install --upgrade pip", "pip install --constraint constraints.txt '.[train,demo]'"]
# A Python outside any environment, from which environments are made.
BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)


def pins(name: str, python: str) -> dict[str, Version]:
    """Returns package → version that a file of constraints names for Linux and a version of Python."""
    where = {"python_version": python, "python_full_version": f"{python}.1", "sys_platform": "linux"}
    versions: dict[str, Version] = {}
    for line in (ROOT / name).read_text().splitlines():
        if not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(where):
                assert requirement.name not in versions, f"{requirement.name} has two versions for Python {python}"
                (specifier,) = requirement.specifier
                versions[requirement.name] = Version(specifier.version)
    return versions


@pytest.mark.parametrize("python", PYTHONS)
def test_constraints_name_one_version_of_everything_that_setup_py_asks_for(python):
    versions = pins("constraints.txt", python)
    where = {"python_version": python, "python_full_version": f"{python}.1", "sys_platform": "linux", "extra": "dev"}
    required = [Requirement(line) for line in metadata.requires("jpeg2tpu") or []]
    required = [requirement for requirement in required if not requirement.marker or requirement.marker.evaluate(where)]
    assert len(required) > 30
    for requirement in required:
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert requirement.specifier.contains(versions[name], prereleases=True), f"{requirement}: {versions[name]}"
    assert (versions["tensorflow"] < Version("2.16")) is (python == "3.11")


def test_constraints_are_the_versions_that_the_tests_run_with():
    differing = {}
    for name, version in pins("constraints.txt", THIS).items():
        # Not what setuptools brings along for itself; nothing, where it is of an extra that the tests do not install.
        for package in metadata.distributions(name=name, path=[sysconfig.get_path("purelib")]):
            if Version(package.version) != version:
                differing[name] = f"{package.version}, not {version}"
    assert differing == {}


@pytest.mark.parametrize("python", PYTHONS)
def test_a_tpu_vm_gets_tensorflow_tpu_and_no_other_tensorflow(python):
    versions = pins("constraints/tensorflow-tpu.txt", python)
    assert versions["tensorflow-tpu"].release[:2] == (2, 20)
    assert versions["libtpu"] < Version("0.0.32")  # beside which it aborts
    assert "tensorflow" not in versions
    base = [Requirement(line) for line in metadata.requires("jpeg2tpu") or [] if "extra ==" not in line]
    for requirement in base:
        assert requirement.specifier.contains(versions[re.sub(r"[-_.]+", "-", requirement.name).lower()]), requirement
    assert {"matplotlib", "pyyaml", "tensorboard"} <= versions.keys()


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu", "tensorflow-tpu"])
@pytest.mark.parametrize(("version", "has"), [("2.15.1", True), ("2.20.0", False)])
def test_every_build_of_tensorflow_tells_whether_it_has_an_estimator(name, version, has, monkeypatch):
    def find(package: str) -> str:
        if package != name:
            raise metadata.PackageNotFoundError
        return version

    monkeypatch.setattr("importlib.metadata.version", find)
    assert has_estimator() is has


def test_no_constraint_is_for_a_python_that_is_not_tested():
    assert pins("constraints.txt", "3.14") == {}


# The container.


def container() -> list[tuple[str, str]]:
    """Returns (instruction, arguments) of the Dockerfile."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def copy_as_the_container(folder: Path) -> None:
    """Copies what the Dockerfile copies, and nothing else, into a folder."""
    for name, rest in container():
        if name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                path = ROOT / source
                if path.is_dir():
                    shutil.copytree(path, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(path, folder / target)


def test_the_container_is_made_by_the_lines_of_the_docs():
    instructions = container()
    assert {name for name, _ in instructions} == {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "ENTRYPOINT"}
    assert instructions[:2] == [("ARG", "PYTHON=3.13"), ("FROM", "python:${PYTHON}-slim")]
    runs = [rest for name, rest in instructions if name == "RUN"]
    assert [line.replace("--no-cache-dir ", "") for line in runs] == LINES
    assert instructions[-1] == ("ENTRYPOINT", '["jpeg2tpu"]')
    page = (ROOT / "docs" / "install.md").read_text()
    for line in re.findall(r"^#     (docker .*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        assert f"\n    {line}\n" in page


MAKE = "python3 -m venv .venv && . .venv/bin/activate"


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_the_pages_have_the_lines_that_are_tried(page):
    blocks = re.findall(r"(?:^    .*\n)+", (ROOT / page).read_text(), re.MULTILINE)
    block = next(block for block in blocks if " -m venv " in block)
    # Where an environment cannot be made, nothing is installed elsewhere.
    assert [line.endswith(" &&") for line in block.splitlines()] == [True, True, False]
    assert [line.strip().removesuffix(" &&") for line in block.splitlines()] == [MAKE, *LINES]


def test_the_lines_of_the_pages_install_into_an_empty_environment(tmp_path):
    """Offline: what pip would download is there already, in the environment of the tests."""
    copy_as_the_container(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(BASE_PYTHON)
    # Build isolation would download setuptools. The variable is a flag of the opposite sense.
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    base_env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "VIRTUAL"))}
    env = base_env | offline | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}

    def run(*commands: str) -> str:
        result = subprocess.run(
            ["bash", "-ec", "\n".join(commands)], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    run(MAKE)
    (site,) = (tmp_path / ".venv" / "lib").glob("python*/site-packages")
    (site / "of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
    for path in site.glob("setuptools*"):  # Python 3.11 brings an older one
        shutil.rmtree(path)
    run(". .venv/bin/activate", *LINES)
    assert str(tmp_path) in run(". .venv/bin/activate", "cd /", "command -v jpeg2tpu")
    assert run(". .venv/bin/activate", "cd /", "jpeg2tpu --version").startswith("jpeg2tpu ")
    where = "import tpu_input; print(tpu_input.__file__)"
    assert str(tmp_path) in run(". .venv/bin/activate", "cd /", f"python -c {shlex.quote(where)}")


# The Makefile: stand-ins for Pythons answer what it asks: their version, their path and whether they have venv.

needs_make = pytest.mark.skipif(not shutil.which("make"), reason="needs make")


def write_python(path: Path, version: str, has_venv: bool = True) -> Path:
    """Writes a program that runs Python code as a Python of a version would, without running that version."""
    major, minor = version.split(".")
    code = (
        f"import sys; sys.version_info = ({major}, {minor}, 1); sys.executable = sys._base_executable = {str(path)!r}; "
    )
    code += "exec(sys.argv.pop(1))" if has_venv else "sys.modules['ensurepip'] = None; exec(sys.argv.pop(1))"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/bash\n[ "$1" = -c ] && exec {BASE_PYTHON} -c "{code}" "$2"\nexit 3\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def clone(tmp_path):
    """A folder with what make looks at, and a bin/ with all programs that it runs but Python."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("Makefile", "setup.py", "constraints.txt", "constraints", ".ci", "tests", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    (tmp_path / "bin").mkdir()
    for name in ("bash", "cat", "env", "grep", "mkdir", "mv", "rm", "sed", "sh", "touch"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    return folder


def run_make(clone: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Returns make's exit code and what it prints, with nothing on the PATH but bin/."""
    env = {"PATH": str(clone.parent / "bin"), "HOME": str(clone.parent / "home")} | variables
    command = [str(shutil.which("make")), *arguments]
    result = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def planned_pythons(printed: str) -> dict[str, str]:
    """Returns environment → Python of the environments that `make --dry-run` would make."""
    return dict(re.findall(r'^\.ci/environment (\S+) "(.+?)"', printed, re.MULTILINE))


@needs_make
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", ["bin/python{}", "bin/python3", "bin/python", "home/.pyenv/versions/{}.9/bin/python"])
def test_demo_and_test_find_the_only_python(clone, python, name):
    path = write_python(clone.parent / name.format(python), python)
    for target, environment in (("demo", ".venv-demo"), ("test", ".venv"), ("site", ".venv-docs")):
        code, printed = run_make(clone, "--dry-run", target)
        assert (code, planned_pythons(printed)) == (0, {environment: str(path)}), printed


@needs_make
def test_with_all_pythons_the_tests_take_311_and_the_demo_the_newest(clone):
    for python in PYTHONS:
        write_python(clone.parent / "bin" / f"python{python}", python)
    bin_folder = clone.parent / "bin"
    assert planned_pythons(run_make(clone, "--dry-run", "test")[1]) == {".venv": f"{bin_folder}/python3.11"}
    assert planned_pythons(run_make(clone, "--dry-run", "demo")[1]) == {".venv-demo": f"{bin_folder}/python3.13"}
    code, printed = run_make(clone, "--dry-run", "environments", "FAKE_GCS_SERVER=Makefile")
    others = {".venv-gcp", ".venv-beam-2.54", ".venv-preflight", ".venv-docs", ".venv"}
    expected = dict.fromkeys(others, f"{bin_folder}/python3.11") | {".venv-newest": f"{bin_folder}/python3.13"}
    assert (code, planned_pythons(printed)) == (0, expected)


@needs_make
def test_the_site_is_served_without_go_or_tensorflow(clone):
    write_python(clone.parent / "bin" / "python3.11", "3.11")
    _, printed = run_make(clone, "--dry-run", "site", "PORT=8001")
    assert list(planned_pythons(printed)) == [".venv-docs"]
    assert "go install" not in printed
    assert "tensorflow" not in (ROOT / "constraints" / "docs.txt").read_text()
    assert ".venv-docs/bin/python -m mkdocs serve --dev-addr=127.0.0.1:8001" in printed


@needs_make
@pytest.mark.parametrize("target", ["demo", "test"])
def test_a_named_python_is_taken(clone, target):
    for python in PYTHONS:
        path = write_python(clone.parent / "bin" / f"python{python}", python)
    python_path = path.with_name("python3.12")
    _, printed = run_make(clone, "--dry-run", target, f"PYTHON={python_path}")
    assert set(planned_pythons(printed).values()) == {str(python_path)}


@needs_make
def test_a_python_that_cannot_make_environments_is_passed_over(clone):
    write_python(clone.parent / "bin" / "python3.13", "3.13", has_venv=False)
    other = write_python(clone.parent / "bin" / "python3.12", "3.12")
    assert planned_pythons(run_make(clone, "--dry-run", "demo")[1]) == {".venv-demo": str(other)}


@needs_make
@pytest.mark.parametrize("python", ["", "3.10", "2.7"])
@pytest.mark.parametrize("target", ["demo", "test"])
def test_no_supported_python_is_one_line(clone, target, python):
    if python:
        write_python(clone.parent / "bin" / "python3", python)
    code, printed = run_make(clone, target)
    assert code == 2
    errors = [line for line in printed.splitlines() if not line.startswith("make")]
    assert len(errors) == 1, printed
    assert errors[0].startswith("error: no Python 3.11, 3.12 or 3.13 found")
    assert "make PYTHON=/path/to/python" in errors[0]


def write_environment(folder: Path, python: str) -> None:
    write_python(folder / "bin" / "python", python)
    (folder / "installed").touch()


@needs_make
@pytest.mark.parametrize(
    ("state", "version", "is_made"),
    [
        ("3.12", "3.12", False),
        ("3.12", "", False),
        ("3.13", "3.12", True),
        ("half", "3.12", True),
        ("gone", "3.12", True),
    ],
)
def test_an_environment_of_another_python_is_made_again(clone, state, version, is_made):
    if version:
        write_python(clone.parent / "bin" / "python3", version)
    environment = clone / ".venv-demo"
    write_environment(environment, version or "3.12") if state in ("half", "gone") else write_environment(
        environment, state
    )
    if state == "half":
        (environment / "installed").unlink()
    if state == "gone":  # as when the Python of an environment was uninstalled
        (environment / "bin" / "python").unlink()
        (environment / "bin" / "python").symlink_to("/nowhere/python3")
    _, printed = run_make(clone, "--dry-run", "demo")
    assert bool(planned_pythons(printed)) is is_made, printed


@needs_make
@pytest.mark.parametrize(("python", "extra"), [("3.11", "train"), ("3.12", "jax"), ("3.13", "jax")])
def test_the_demo_installs_jax_where_it_trains_with_it(clone, python, extra):
    write_python(clone.parent / "bin" / f"python{python}", python)
    assert f"'.[{extra},demo]'" in run_make(clone, "--dry-run", "demo")[1]
    write_environment(clone / ".venv-demo", python)
    trainer = "jax" if extra == "jax" else "tpu_estimator"
    assert f"--trainer={trainer}\n" in run_make(clone, "--dry-run", "demo")[1]
    printed = run_make(clone, "--dry-run", "demo", "TRAINER=tf_distribute", "VENV_DEMO=other")[1]
    assert "'.[train,demo]'" in printed
    assert "--trainer=tf_distribute\n" in printed


@needs_make
@pytest.mark.parametrize(
    ("before", "is_moved"),
    [("3.11 tpu_estimator", True), ("3.13 tf_distribute", True), ("", True), ("3.13 jax", False)],
)
def test_a_demo_of_another_python_or_trainer_is_moved_aside(clone, before, is_moved):
    write_python(clone.parent / "bin" / "python3.13", "3.13")
    write_environment(clone / ".venv-demo", "3.13")
    (clone / "demo" / "model").mkdir(parents=True)
    if before:
        (clone / "demo" / "made_by").write_text(f"{before}\n")
    _, printed = run_make(clone, "demo")  # it ends where the stand-in would have to convert
    assert (clone / "demo" / "model.previous").exists() is is_moved, printed
    assert (clone / "demo" / "model").exists() is not is_moved
    assert (clone / "demo" / "made_by").read_text() == "3.13 jax\n"


@needs_make
def test_help_has_a_line_for_every_target(clone):
    code, printed = run_make(clone, "help")
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    assert code == 0
    assert sorted(line.split()[0] for line in printed.splitlines()) == sorted(set(phony[1].split()) - {"FORCE"})
    assert all(len(line) <= 100 for line in printed.splitlines())


def environment(folder: Path, *arguments: str, python: str = BASE_PYTHON) -> tuple[int, str, str]:
    """Runs .ci/environment offline; returns its exit code, stdout and stderr."""
    command = [str(ROOT / ".ci" / "environment"), str(folder), python, "nothing", *arguments]
    env = os.environ | {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    return result.returncode, result.stdout, result.stderr


def test_an_environment_is_said_and_what_fails_is_shown_and_replaced(tmp_path):
    folder = tmp_path / "venv"
    code, printed, errors = environment(folder, "no-such-package-of-ours")
    assert (code, printed.count("\n")) == (2, 1)
    assert printed.startswith(f"making {folder} with Python {THIS} ({BASE_PYTHON}); pip downloads nothing")
    assert "No matching distribution found for no-such-package-of-ours" in errors
    assert errors.splitlines()[-1].startswith("error: pip cannot install")
    assert not (folder / "installed").exists()

    (folder / "left_over").touch()
    code, printed, errors = environment(folder, "--quiet", "pip", "--", "pip")
    assert (code, errors) == (0, "")
    assert printed.startswith("replacing ")
    assert (folder / "installed").exists()
    assert not (folder / "left_over").exists()

    (folder / "left_over").touch()
    # By its own Python, as where the environment is on the PATH.
    code, printed, errors = environment(folder, "pip", python=str(folder / "bin" / "python"))
    assert (code, errors) == (0, "")
    assert printed.startswith("updating ")
    assert (folder / "left_over").exists()

    (folder / "bin" / "python").unlink()
    write_python(folder / "bin" / "python", "3.9")
    code, printed, errors = environment(folder, "pip")
    assert (code, errors) == (0, "")
    assert printed.startswith("replacing ")
    assert not (folder / "left_over").exists()


def test_an_environment_of_the_user_s_own_is_added_to_or_left_alone(tmp_path):
    folder = tmp_path / "venv"
    subprocess.run([BASE_PYTHON, "-m", "venv", folder], check=True)
    (folder / "of_the_user").touch()
    write_python(tmp_path / "python3.9", "3.9")
    code, _, errors = environment(folder, "pip", python=str(tmp_path / "python3.9"))
    assert (code, errors.count("\n")) == (2, 1)
    assert f"{folder} is an environment of Python {THIS} that make has not made, and Python 3.9 is needed" in errors
    code, printed, errors = environment(folder, "pip")
    assert (code, errors) == (0, "")
    assert printed.startswith("adding to ")
    assert (folder / "of_the_user").exists()


def test_a_python_that_does_not_run_is_one_line(tmp_path):
    code, printed, errors = environment(tmp_path / "venv", "pip", python="/nowhere/python")
    assert (code, printed) == (2, "")
    assert errors.splitlines()[-1] == "error: /nowhere/python is not a Python that runs"
    assert not (tmp_path / "venv").exists()
