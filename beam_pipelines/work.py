"""DATASET/.jpeg2tpu: what an unfinished conversion has so far; gone when it is complete.

.jpeg2tpu/lock                                held by the process that converts into this dataset (locks.py)
.jpeg2tpu/replaced.json                       the manifest of a dataset that --overwrite is about to remove
.jpeg2tpu/FINGERPRINT/plan.json               what a conversion of these inputs and options does
.jpeg2tpu/FINGERPRINT/SHARD.tfrecord.rows     its inputs, a file a shard
.jpeg2tpu/FINGERPRINT/SHARD.tfrecord.receipt  a shard that stands in its place
"""

from __future__ import annotations

import contextlib
import dataclasses
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

LOCK_NAME = "lock"
REPLACED_NAME = "replaced.json"


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

    def is_open(self) -> bool:
        """Returns whether the conversion is under way, or to be continued."""
        return storage.exists(f"{self.folder}/plan.json")

    def read_plan(self) -> Plan:
        return _read_plan(f"{self.folder}/plan.json")

    def write_rows(self, shard: str, rows: Iterable[Row]) -> None:
        with storage.create(f"{self.folder}/{shard}.rows") as file:
            # Without its number, which has told what counts.
            file.writelines(json.dumps(row[:-1]).encode() + b"\n" for row in rows)

    def read_rows(self, shard: str) -> Iterator[Row]:
        for line in io.BytesIO(storage.read_bytes(f"{self.folder}/{shard}.rows")):
            yield Row(*json.loads(line))

    def num_rows(self, shards: Iterable[str]) -> int:
        return sum(data.count(b"\n") for data in storage.read_each(f"{self.folder}/{shard}.rows" for shard in shards))

    def unwritten(self) -> list[str]:
        """Returns the plan's shards that have no receipt, or do not stand any more where and as the receipt says.

        Nor does a receipt count that lacks a file which could not be read: perhaps it can by now.
        """
        found = dict(storage.list_files(self.output))
        shards = [shard for names in self.read_plan().shards.values() for shard in names]
        begun = [shard for shard in shards if f"{WORK_NAME}/{self.name}/{shard}.receipt" in found]
        written = {receipt.name for receipt in self.read_receipts(begun) if _stands(receipt, found)}
        return [shard for shard in shards if shard not in written]

    def write_receipt(self, receipt: Receipt) -> None:
        with storage.create(f"{self.folder}/{receipt.name}.receipt") as file:
            file.write(receipt.to_json().encode())

    def read_receipts(self, shards: Iterable[str]) -> Iterator[Receipt]:
        for data in storage.read_each(f"{self.folder}/{shard}.receipt" for shard in shards):
            yield Receipt.from_json(data.decode())


def _stands(receipt: Receipt, found: dict[str, int]) -> bool:
    """Returns whether all that a receipt speaks of is among the files of the dataset, by their size."""
    if any(rejection.reason == "unreadable" for rejection in receipt.rejected):
        return False
    return not receipt.num_examples or (
        found.get(receipt.name) == receipt.num_bytes and index_path(receipt.name) in found
    )


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
        if Work(output, name) not in keep and not (keep and name == LOCK_NAME):
            storage.delete([f"{output}/{WORK_NAME}/{name}"])
    if not storage.is_uri(output):
        for folder in (f"{output}/{WORK_NAME}", output):
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # refuses one that holds anything
