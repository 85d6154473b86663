"""Conversions on engines that are processes of their own: input, options, and the command as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from beam_pipelines.options import ConvertOptions, Source
from benchmarks.corpus import make_corpus

ROOT = Path(__file__).parents[2]
SHARD_BYTES = 100_000


def make_photographs(folder: Path) -> None:
    """Writes 2,000 small photographs into class folders, and a file that is no image."""
    make_corpus(folder, 2_000, size=(48, 36))
    (folder / "class3" / "page.jpg").write_text("<html>")


def options(source: Path, output: Path) -> ConvertOptions:
    return ConvertOptions((Source(str(source)),), str(output), shard_bytes=SHARD_BYTES)


def started(source: Path, output: Path, *flags: str, **environment: str) -> subprocess.Popen[str]:
    """Returns the process of a conversion with these options."""
    args = [sys.executable, "-m", "beam_pipelines", "convert", f"--input={source}", f"--output={output}"]
    args += ["--quiet", f"--shard_size={SHARD_BYTES}"]  # a slow machine would show progress, which comes every 30 s
    python = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [*args, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | python | environment,  # Beam starts a worker's process as `python`
    )


def command(source: Path, output: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Returns what a conversion with these options said, and its exit code."""
    with started(source, output, *flags, **environment) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
