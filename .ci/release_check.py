"""Whether a release can be made of this tree: builds it, checks the files, installs and tries them as a user would.

    tree ──build──▶ sdist, wheel ──twine check──▶ metadata, README as the package index shows it
    sdist ──unpack──▶ its own tests, with the environment of this Python
    wheel ──pip install──▶ an empty environment of each Python ──▶ what is missing is one line; the demo

A Python that is not found fails the check, as do all other failures; the table at the end has a line for each. The
files are left in FOLDER/dist.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
# What a plain install lacks, and the line with which its commands end.
MISSING = {
    "sample digits": "error: scikit-learn is not installed; install it with: pip install 'jpeg2tpu[demo]'",
    "train --dataset=dataset --model_dir=model": (
        "error: TensorFlow is not installed; install it with: pip install 'jpeg2tpu[train]'"
    ),
}
DEMO = (  # as `make demo`, with fewer steps
    "sample digits",
    "convert --input=digits --output=dataset --splits=train=80%,validation=20% --shard_size=100KB",
    "verify dataset",
    "report dataset",
    "train --dataset=dataset --model_dir=model --image_size=32 --train_batch_size=64 --train_steps=200 "
    "--steps_per_eval=100 --learning_rate=0.1 --crop_area=0.6,1 --no_flip --eval_crop=1",
    "predict --export_dir=model/export digits/0/0072.jpg digits/4/0064.jpg",
)


class Failed(Exception):
    """One step of the check has failed; the message says which and why."""


@dataclasses.dataclass
class Results:
    """The table at the end: (what was checked, "" or why it failed)."""

    rows: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def add(self, title: str, failure: str = "") -> None:
        print(f"release-check: {title}: {failure or 'passed'}", flush=True)
        self.rows.append((title, failure))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "release", help="folder for files and environments")
    parser.add_argument("--pythons", default=",".join(PYTHONS), help="versions to try (default: %(default)s)")
    parser.add_argument("--tests", default="tests", help="tests to run from the sdist, or '' (default: %(default)s)")
    flags = parser.parse_args(argv)
    folder, results = flags.folder.absolute(), Results()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        sdist, wheel = build(folder)
    except Failed as failed:
        results.add("build and twine check", str(failed))
        return end(results)
    results.add("build and twine check")
    if flags.tests:
        attempt(results, f"tests of the sdist ({flags.tests})", lambda: run_own_tests(sdist, folder, flags.tests))
    for version in filter(None, flags.pythons.split(",")):
        attempt(results, f"Python {version}", lambda version=version: run_demo(wheel, folder, version))
    return end(results)


def attempt(results: Results, title: str, step: Callable[[], None]) -> None:
    started = time.monotonic()
    try:
        step()
    except Failed as failed:
        results.add(title, str(failed))
    else:
        results.add(f"{title}, {time.monotonic() - started:.0f} s")


def end(results: Results) -> int:
    print(
        "\n" + "\n".join(f"{'FAILED' if failure else 'passed'}  {title}  {failure}" for title, failure in results.rows)
    )
    return any(failure for _, failure in results.rows)


def build(folder: Path) -> tuple[Path, Path]:
    """Returns the paths of the sdist and of the wheel, which is built from the sdist as pip would do it."""
    tools = environment(folder / "tools", Path(sys.executable))
    run([tools, "-m", "pip", "install", "--quiet", "build", "twine"], folder)
    shutil.rmtree(folder / "dist", ignore_errors=True)
    run([tools, "-m", "build", "--outdir", folder / "dist", ROOT], folder)
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    run([tools, "-m", "twine", "check", "--strict", sdist, wheel], folder)
    return sdist, wheel


def run_own_tests(sdist: Path, folder: Path, tests: str) -> None:
    """Runs tests of an unpacked sdist, whose packages are imported in place of the checkout's."""
    source = folder / "sdist"
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter="data")
    (tree,) = source.iterdir()
    # A folder of its own for temporary files, as pytest removes those of earlier runs in the usual one.
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", f"--basetemp={folder}/tests", *tests.split()]
    run(command, tree, PYTHONPATH=str(tree))


def run_demo(wheel: Path, folder: Path, version: str) -> None:
    """Installs the wheel into an empty environment, first alone, then with extras train and demo, and tries both."""
    python = environment(folder / f"python{version}", find_python(version))
    place = folder / f"demo{version}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    command = str(python.with_name("jpeg2tpu"))
    run([python, "-m", "pip", "install", "--quiet", wheel], place)
    output = run([command, "--version"], place).strip()
    if output != (expected := "jpeg2tpu " + wheel.name.split("-")[1]):
        raise Failed(f"jpeg2tpu --version prints {output!r}, not {expected!r}")
    for words, line in MISSING.items():
        ended = subprocess.run([command, *words.split()], cwd=place, capture_output=True, text=True)
        if (ended.returncode, ended.stderr) != (2, f"{line}\n"):
            raise Failed(f"without its extra, `jpeg2tpu {words}` ends with {ended.returncode}, {ended.stderr!r}")
    run([python, "-m", "pip", "install", "--quiet", f"{wheel}[train,demo]"], place)
    for words in DEMO:
        print(run([command, *shlex.split(words)], place), end="", flush=True)
    shutil.rmtree(folder / f"python{version}")


def find_python(version: str) -> Path:
    """Returns a Python of a version: one on the PATH, or of pyenv."""
    names = [f"python{version}", "python3", *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for name in names:
        code = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
        try:
            if subprocess.run([name, "-c", code], capture_output=True).returncode == 0:
                return Path(shutil.which(name) or name)
        except OSError:
            continue
    raise Failed(f"not found; install it: pyenv install {version}")


def environment(folder: Path, python: Path) -> Path:
    """Returns the Python of a new environment."""
    shutil.rmtree(folder, ignore_errors=True)
    run([python, "-m", "venv", folder], folder.parent)
    return folder / "bin" / "python"


def run(command: Sequence[object], place: Path, **variables: str) -> str:
    """Runs a command and returns what it prints on stdout.

    Raises:
      Failed: It does not end with 0.
    """
    # Neither this tree nor what its user has installed may be imported.
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = [str(word) for word in command]
    process = subprocess.run(words, cwd=place, env=inherited | variables, capture_output=True, text=True)
    if process.returncode:
        last = "\n".join((process.stdout + process.stderr).strip().splitlines()[-30:])
        raise Failed(f"`{shlex.join(words)}` ends with {process.returncode}:\n{last}")
    return process.stdout


if __name__ == "__main__":
    sys.exit(main())
