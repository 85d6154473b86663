"""The ways of converting that __main__.py and promises.py compare, and how each is started."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.measure import PEERS, PEERS_TORCH

_OURS = (sys.executable, "-W", "ignore", "-m", "benchmarks.conversion.ours")


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of converting.

    Attributes:
      name: What tables call it.
      function: Of ours.py or peers.py.
      checks: What it looks at or writes down besides the bytes.
      files: Glob of the files that a reader of its output takes.
      cores: How many it may use; None: all.
      python: The peers' environment; None: ours.
      package: That the peers' environment has it from; its version is shown.
      flags: Of `convert`.
    """

    name: str
    function: str
    checks: str
    files: str
    cores: int | None = None
    python: Path | None = None
    package: str = ""
    flags: tuple[str, ...] = ()

    @property
    def is_installed(self) -> bool:
        return self.python is None or self.python.exists()

    @functools.cached_property
    def title(self) -> str:
        """The name with the package's version."""
        if not (self.package and self.is_installed):
            return self.name
        code = f"import importlib.metadata; print(importlib.metadata.version({self.package!r}))"
        version = subprocess.run([str(self.python), "-c", code], check=True, capture_output=True, text=True).stdout
        return f"{self.name} ({version.strip()})"

    def command(self, folder: Path, output: Path) -> list[Any]:
        starts = (self.python, "-W", "ignore", "benchmarks/conversion/peers.py") if self.python else _OURS
        return [*starts, self.function, folder, output, *self.flags]

    def run(
        self, folder: Path, output: Path, kill_when: Callable[[], bool] | None = None, **environment: str
    ) -> measure.Run:
        """Returns what a run took, whatever its exit code."""
        return measure.run(self.command(folder, output), self.cores, kill_when, **environment)


def cost(way: Way, folder: Path, count: int) -> dict[str, Any]:
    """Returns one run's row; what it wrote is removed."""
    output = folder.parent / "output"
    shutil.rmtree(output, ignore_errors=True)
    run = measure.check(way.run(folder, output), way.command(folder, output))
    num_bytes = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    shutil.rmtree(output, ignore_errors=True)
    figures = {"seconds": run.seconds, "cpu_seconds": run.cpu_seconds, "peak_mb": run.peak_mb}
    row = {"way": way.title, "images": count, "checks": way.checks, "written_mb": num_bytes / 1e6}
    return row | figures | {"images/s": count / run.seconds}


_HASHES = "decoded; SHA-256 of image and shard; sizes, colors"
PLAIN_LOOP = Way("plain loop: read, decode in full, encode, write", "plain", "decoded", "plain.tfrecord", cores=1)
CONVERT_1 = Way("convert, 1 core", "convert", _HASHES, "*.tfrecord", cores=1)
CONVERT = Way("convert", "convert", _HASHES, "*.tfrecord")
CONVERT_512 = Way("convert --resize_shorter=512", "convert", _HASHES, "*.tfrecord", flags=("--resize_shorter=512",))
_HEADERS = "headers, a sample decoded; SHA-256 of image and shard"
CONVERT_HEADER = Way("convert --check=header", "convert", _HEADERS, "*.tfrecord", flags=("--check=header",))
PROCESSES = Way("convert in two of Beam's worker processes", "beam_processes", _HASHES, "*.tfrecord")
WEBDATASET = Way("webdataset ShardWriter", "webdataset", "nothing", "*.tar", python=PEERS, package="webdataset")
OTHERS = (
    Way(
        "Beam's WriteToTFRecord, as tensorflow/tpu has it", "reference", "decoded for its size", "train-?????-of-?????"
    ),
    Way(
        "TFDS builder over class folders",
        "tfds",
        "nothing",
        "photographs/1.0.0/*.tfrecord*",
        python=PEERS,
        package="tensorflow-datasets",
    ),
    WEBDATASET,
    Way("MosaicML MDSWriter", "mds", "SHA-1 of shard", "index.json", python=PEERS_TORCH, package="mosaicml-streaming"),
    Way(
        "litData optimize, one process per core",
        "litdata",
        "nothing",
        "index.json",
        python=PEERS_TORCH,
        package="litdata",
    ),
)
ALL = (PLAIN_LOOP, CONVERT_1, CONVERT, *OTHERS)
SLOW = (
    Way("50 ms to open a file: one at a time, 1 core", "slow_plain", "decoded", "", cores=1),
    Way("50 ms to open a file: convert, 1 core", "slow_convert", _HASHES, "*.tfrecord", cores=1),
)
