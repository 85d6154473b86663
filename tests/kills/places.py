"""Where conversions run and write: local files, a bucket, Prism. Each makes outputs, and reads what they hold."""

from __future__ import annotations

import abc
import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from beam_pipelines import ConvertOptions, Source, convert, storage
from beam_pipelines.conversion_flags import num_bytes
from beam_pipelines.diff import diff
from beam_pipelines.shard_formats.all_formats import EXPORTS
from beam_pipelines.verify import verify
from benchmarks.corpus import make_corpus
from support.cloud import Cloud, running_cloud

NUM_IMAGES = 120
SHARD_SIZE = "15KB"  # about 12 shards

# The command with a lock in the bucket that is taken over 1 s after its holder was killed, in place of 30 s.
_COMMAND = """
import sys
from beam_pipelines.storage import gcs_lock
from beam_pipelines.__main__ import main
gcs_lock.LEASE = 1.0
sys.exit(main(sys.argv[1:]))
"""
Files = dict[str, bytes]


class Place(abc.ABC):
    """Where the datasets are, and how they are made there.

    Attributes:
      folder: Local folder for everything.
      command: Arguments of Python up to `convert`.
      flags: Who writes the shards.
      environment: Of the processes, beside this one's.
      may_hang: Whether an engine may work on endlessly after a worker was killed.
    """

    command: tuple[str, ...] = ("-m", "beam_pipelines", "convert")
    may_hang = False
    flags: tuple[str, ...] = ("--num_processes=2",)  # else so few images are written without worker processes

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        self._numbers = itertools.count()
        make_corpus(folder / "images", NUM_IMAGES, size=(48, 36))
        (folder / "images" / "class3" / "page.jpg").write_text("<html>")

    @property
    def images(self) -> str:
        return str(self.folder / "images")

    def new_output(self) -> str:
        """Returns a path or URI where nothing is."""
        return str(self.folder / f"out{next(self._numbers)}")

    def files(self, output: str) -> Files:
        """Returns what every file below an output holds, by its path there.

        Workers of a command that was killed alone may still remove their files: those are left out.
        """
        contents = {}
        for path, _ in storage.list_files(output):
            with contextlib.suppress(FileNotFoundError):
                contents[path] = storage.read_bytes(f"{output}/{path}")
        return contents

    def arguments(self, output: str, overwrite: bool) -> list[str]:
        """Returns what follows `command`; with `overwrite`, for a dataset that differs from the one without."""
        changed = ["--overwrite", "--seed=5"] if overwrite else []
        return [f"--input={self.images}", f"--output={output}", f"--shard_size={SHARD_SIZE}", *changed, *self.flags]

    def findings(self, output: str) -> list[str]:
        """Returns what is wrong with a dataset that stands; raises ValueError if none does."""
        return verify(output).problems

    @abc.abstractmethod
    def put(self, output: str, files: Files) -> None:
        """Writes files of a dataset to a new output."""

    @abc.abstractmethod
    def remove(self, output: str) -> None:
        """Removes an output."""


class Local(Place):
    def put(self, output: str, files: Files) -> None:
        for path, data in files.items():
            (Path(output) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(output) / path).write_bytes(data)

    def remove(self, output: str) -> None:
        shutil.rmtree(output, ignore_errors=True)


class Exports(Local):
    """Exports of a local dataset, into local files."""

    command = ("-m", "beam_pipelines", "export-dataset")

    def __init__(self, folder: Path, shard_format: str) -> None:
        super().__init__(folder)
        self._dataset, self._format = str(folder / "dataset"), shard_format
        convert(ConvertOptions((Source(str(folder / "images")),), self._dataset, shard_bytes=num_bytes(SHARD_SIZE)))

    @property
    def images(self) -> str:
        return self._dataset

    def arguments(self, output: str, overwrite: bool) -> list[str]:
        changed = ["--overwrite", "--shard_size=20KB"] if overwrite else []
        return [self._dataset, f"--format={self._format}", f"--output={output}", *changed, *self.flags]

    def findings(self, output: str) -> list[str]:
        return list(diff(self._dataset, output).lines())[1:]


class Prism(Local):
    """Local files, converted on Prism, whose worker is a process of its own.

    Prism 2.77 keeps a core busy endlessly after some of the kills of its worker: 3 of some 50.
    """

    may_hang = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        program = os.environ["PRISM"]
        worker = "--experiments=use_loopback_process_worker=True"
        self.flags = ("--runner=PrismRunner", f"--prism_location={program}", worker)


class Bucket(Place):
    command = ("-c", _COMMAND, "convert")

    def __init__(self, folder: Path, cloud: Cloud) -> None:
        super().__init__(folder)
        self._cloud, self._bucket, self.environment = cloud, cloud.make_bucket(), cloud.environment
        cloud.upload(folder / "images", f"{self._bucket}/images")

    @property
    def images(self) -> str:
        return f"{self._bucket}/images"

    def new_output(self) -> str:
        return f"{self._bucket}/out{next(self._numbers)}"

    def put(self, output: str, files: Files) -> None:
        for path, data in files.items():
            self._cloud.put(f"{output}/{path}", data)

    def remove(self, output: str) -> None:
        storage.delete([f"{output}/{path}" for path, _ in storage.list_files(output)])


# The variable that names the program.
NEEDS = {"local": "", "webdataset": "", "mds": "", "gs": "FAKE_GCS_SERVER", "prism": "PRISM"}


@contextlib.contextmanager
def place(name: str, folder: Path) -> Iterator[Place]:
    """Context manager: yields one of NEEDS; this process's environment points to the bucket's server meanwhile."""
    if name == "gs":
        with running_cloud(os.environ["FAKE_GCS_SERVER"], folder) as cloud:
            os.environ.update(cloud.environment)
            yield Bucket(folder, cloud)
    elif name in EXPORTS:
        yield Exports(folder, name)
    else:
        yield {"local": Local, "prism": Prism}[name](folder)
