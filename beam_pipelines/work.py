"""DATASET/.jpeg2tpu: what an unfinished conversion has so far; gone when it is complete.

.jpeg2tpu/lock                                held by the process that converts into this dataset
.jpeg2tpu/FINGERPRINT/plan.json               what a conversion of these inputs and options does
.jpeg2tpu/FINGERPRINT/SHARD.tfrecord.rows     its inputs, a file a shard
.jpeg2tpu/FINGERPRINT/SHARD.tfrecord.receipt  a shard that stands in its place
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import io
import json
import os
from collections.abc import Iterable, Iterator

from beam_pipelines import storage
from beam_pipelines.dataset import WORK_NAME
from beam_pipelines.index import index_path
from beam_pipelines.plan import Plan
from beam_pipelines.receipts import Receipt
from beam_pipelines.rows import Row

_LOCK_NAME = "lock"


@dataclasses.dataclass(frozen=True)
class Work:
    """The working folder of one plan.

    Attributes:
      output: The dataset's folder.
      name: Of the folder in OUTPUT/.jpeg2tpu.
    """

    output: str
    name: str

    @classmethod
    def of(cls, output: str, plan: Plan) -> Work:
        """Returns the working folder of a plan."""
        return cls(output, plan.fingerprint[:16])

    @property
    def folder(self) -> str:
        return f"{self.output}/{WORK_NAME}/{self.name}"

    def write_plan(self, plan: Plan) -> None:
        with storage.create(f"{self.folder}/plan.json") as file:
            file.write(plan.to_json().encode())

    def read_plan(self) -> Plan:
        return _read_plan(f"{self.folder}/plan.json")

    def write_rows(self, shard: str, rows: Iterable[Row]) -> None:
        with storage.create(f"{self.folder}/{shard}.rows") as file:
            file.writelines(json.dumps(row).encode() + b"\n" for row in rows)

    def read_rows(self, shard: str) -> Iterator[Row]:
        for line in io.BytesIO(storage.read_bytes(f"{self.folder}/{shard}.rows")):
            yield Row(*json.loads(line))

    def num_rows(self, shard: str) -> int:
        return storage.read_bytes(f"{self.folder}/{shard}.rows").count(b"\n")

    def is_written(self, shard: str) -> bool:
        """Returns whether a shard has its receipt, and still stands where and as the receipt says."""
        if not storage.exists(f"{self.folder}/{shard}.receipt"):
            return False
        receipt = self.read_receipt(shard)
        if not receipt.num_examples:
            return True
        index = storage.exists(f"{self.output}/{index_path(shard)}")
        return index and storage.file_bytes(f"{self.output}/{shard}") == receipt.num_bytes

    def write_receipt(self, receipt: Receipt) -> None:
        with storage.create(f"{self.folder}/{receipt.name}.receipt") as file:
            file.write(receipt.to_json().encode())

    def read_receipt(self, shard: str) -> Receipt:
        return Receipt.from_json(storage.read_bytes(f"{self.folder}/{shard}.receipt").decode())


@functools.lru_cache(maxsize=1)
def _read_plan(path: str) -> Plan:
    return Plan.from_json(storage.read_bytes(path).decode())


def unfinished(output: str) -> set[Work]:
    """Returns the working folders that hold a plan."""
    files = storage.list_files(f"{output}/{WORK_NAME}")
    return {Work(output, path.split("/")[0]) for path, _ in files if path.endswith("/plan.json")}


def remove(output: str) -> None:
    """Removes all working files."""
    storage.delete([f"{output}/{WORK_NAME}"])


def tidy(output: str, keep: set[Work]) -> None:
    """Removes what a refused conversion leaves: its working files, and folders that are empty without them."""
    for name in {path.split("/")[0] for path, _ in storage.list_files(f"{output}/{WORK_NAME}")}:
        if Work(output, name) not in keep and not (keep and name == _LOCK_NAME):
            storage.delete([f"{output}/{WORK_NAME}/{name}"])
    if not storage.is_uri(output):
        for folder in (f"{output}/{WORK_NAME}", output):
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # refuses one that holds anything


@contextlib.contextmanager
def locked(output: str) -> Iterator[None]:
    """Keeps other conversions out of `output`; the kernel gives the lock up when the process ends, however it ends.

    Raises:
      ValueError: Another process holds it.
    """
    if storage.is_uri(output):
        yield
        return
    path = f"{output}/{WORK_NAME}/{_LOCK_NAME}"
    with contextlib.ExitStack() as stack:
        while True:
            os.makedirs(f"{output}/{WORK_NAME}", exist_ok=True)
            file = stack.enter_context(open(path, "a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"another conversion is writing {output!r}; wait for it, or choose another output"
                ) from None
            # One that has just ended may have removed the file between the two calls.
            if os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
        yield
