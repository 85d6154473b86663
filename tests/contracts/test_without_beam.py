"""Commands on this machine do without Beam, of which the import takes longer than a small conversion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import ROOT
from tpu_input.command_line.jpeg2tpu import COMMANDS

# Runs commands where Beam cannot be imported, also not by the processes that write shards.
_PROGRAM = """
import json, sys
sys.modules["apache_beam"] = None
from beam_pipelines.__main__ import main
if __name__ == "__main__":
    for command in json.loads(sys.argv[1]):
        assert main(command) == 0, command
"""
_MINE = [name for name, command in COMMANDS.items() if command.package == "beam_pipelines"]


def commands(work: Path, folder: Path) -> dict[str, list[str]]:
    """The arguments of every command of beam_pipelines that runs on this machine."""
    dataset = f"{work}/dataset"
    (work / "keys.txt").write_text("0/0000.jpg\n")
    (work / "labels.csv").write_text("key,label\n0/0010.jpg,1\n")
    return {
        "sample": [f"{work}/sample"],
        "convert": [f"--input={folder}", f"--output={dataset}", "--shard_size=10KB", "--num_processes=2"],
        "verify": [dataset],
        "repair": [dataset],
        "relabel": [dataset, f"--labels={work}/labels.csv", f"--output={work}/relabelled"],
        "merge": [f"a={dataset}", f"b={work}/relabelled", f"--output={work}/merged", "--dedup=none"],
        "filter": [dataset, f"--without_keys={work}/keys.txt", f"--output={work}/filtered"],
        "split": [dataset, "--splits=a=50%,b=50%", f"--output={work}/split"],
        "reshard": [dataset, "--shard_size=20KB", f"--output={work}/resharded"],
        "export-dataset": [dataset, "--format=webdataset", f"--output={work}/exported"],
        "diff": [dataset, dataset],
        "report": [dataset],
    }


def succeed_without_beam(work: Path, *argv: list[str]) -> None:
    program = work / "program.py"  # a file, as writers import the main module
    program.write_text(_PROGRAM)
    command = [sys.executable, "-W", "ignore", str(program), json.dumps(argv)]
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    )
    assert result.returncode == 0, result.stderr


def test_every_command_that_runs_on_this_machine_does_without_beam(few_digits, tmp_path):
    command_lines = commands(tmp_path, few_digits)
    assert list(command_lines) == _MINE
    succeed_without_beam(tmp_path, *([name, *arguments] for name, arguments in command_lines.items()))


@pytest.mark.parametrize(
    "flags",
    [
        ["--dry_run"],
        ["--dedup=exact", "--stratify"],
        ["--dedup=near"],
        ["--group_by=near_duplicates"],
        ["--group_by=/(.)"],
        ["--extend"],
        ["--extend", "--prune"],
    ],
    ids=lambda flags: " ".join(flags),
)
def test_planning_does_without_beam_whatever_the_options(few_digits, tmp_path, flags):
    convert = ["convert", f"--input={few_digits}", f"--output={tmp_path}/out"]
    before = [convert] if "--extend" in flags else []
    succeed_without_beam(tmp_path, *before, [*convert, *flags])


def test_a_repair_from_the_sources_does_without_beam(dataset_copy, tmp_path):
    shard = sorted(dataset_copy.glob("train-*.tfrecord"))[0]
    content = shard.read_bytes()
    shard.write_bytes(b"noise")
    (dataset_copy / "index" / f"{shard.stem}.parquet").unlink()  # so that the inputs are listed and planned again
    succeed_without_beam(tmp_path, ["repair", str(dataset_copy)])
    assert shard.read_bytes() == content


# Modules for Beam's runners and for pipelines of a user's own.
_WITH_BEAM = {
    "beam_pipelines.conversion.combining",
    "beam_pipelines.conversion.planning.beam_steps",
    "beam_pipelines.pipeline_options",
    *(f"beam_pipelines.runners.{name}" for name in ("execution", "launch_checks", "worker_output", "workers")),
    "beam_pipelines.transforms",
}
_STORE_MODULES = {f"beam_pipelines.storage.{name}" for name in ("hub", "hub_api", "object_stores")}  # of another extra
_IMPORT = """
import importlib, json, pkgutil, sys
sys.modules["apache_beam"] = sys.modules["obstore"] = None
import beam_pipelines
failed = []
for module in pkgutil.walk_packages(beam_pipelines.__path__, "beam_pipelines."):
    try:
        importlib.import_module(module.name)
    except ImportError:
        failed.append(module.name)
print(json.dumps(failed))
"""


def test_all_modules_but_those_for_beam_can_be_imported_without_it():
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _IMPORT], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert set(json.loads(result.stdout)) == _WITH_BEAM | _STORE_MODULES
