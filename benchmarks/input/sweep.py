"""Whether the cost of training's input jumps where a user would expect it to be smooth.

Along each axis, one thing changes at a time: sizes of batches, images and shards, kinds of files, options. Two
neighbors should cost the same to a factor of 1.2, unless what they do differs by more, which the notes then say.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import io
import itertools
import json
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import tpu_input
from benchmarks import measure
from benchmarks.corpus import photograph
from benchmarks.measure import Table
from tpu_input.dataset_format.manifest import Manifest, shard_name
from tpu_input.dataset_format.records import Record, encode, frame
from tpu_input.pipeline import order

LARGEST_JUMP = 1.2
COLUMNS = {
    "what changes": "axis",
    "to": "setting",
    "CPU ms per image": "cpu_ms:.2f",
    "times the row above": "jump:.2f",
    "CPU s to the first batch": "first:.2f",
    "times it": "first_jump:.2f",
}
_SIDES = (223, 224, 225, 226, 320, 447, 449, 450)  # of square files; 224 px are made of them
_KINDS = ("JPEG", "JPEG and 40 bytes behind it", "progressive JPEG", "PNG")


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """A dataset, options and a batch size whose cost is measured."""

    axis: str
    name: str
    manifest: Manifest
    batch_size: int = 64
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def sweep(folder: Path, count: int | None, repeats: int | None) -> Table:
    """Returns a row for each setting: the median of three runs in turn, in one process."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.input.sweep", folder, count or 1024, repeats or 3]
    rows = measure.check(measure.run(command), command).result["rows"]
    notes = []
    for before, row in itertools.pairwise(rows):
        if before["axis"] != row["axis"]:
            continue
        row["jump"], row["first_jump"] = row["cpu_ms"] / before["cpu_ms"], row["first"] / before["first"]
        for quantity, jump in (("CPU time of an image", row["jump"]), ("time to the first batch", row["first_jump"])):
            if not 1 / LARGEST_JUMP <= jump <= LARGEST_JUMP:
                notes.append(f"{row['axis']}: {before['setting']} → {row['setting']}: {jump:.2f} times the {quantity}")
    return Table(rows, COLUMNS, notes)


def settings(folder: Path, count: int) -> Iterator[Setting]:
    """Yields all settings, neighbors after each other."""
    photographs = [photograph(np.random.default_rng([0, number]), (500, 375)) for number in range(count)]
    base = dataset(folder / "plain", photographs, 8)
    for batch_size in (1, 2, 3, 4, 8, 16, 31, 32, 33, 61, 64, 127, 128, 256):
        yield Setting("batch size", str(batch_size), base, batch_size)
    for shards in (1, 2, 4, 8, 16, 64, count // 3, count):
        yield Setting("shards", str(shards), dataset(folder / f"shards{shards}", photographs, shards))
    for part in (64, 128, count // 2, count):
        yield Setting("examples", str(part), dataset(folder / f"examples{part}", photographs[:part], 4))
    for image_size in (64, 65, 93, 94, 95, 187, 188, 189, 223, 224, 225):
        yield Setting("image_size", str(image_size), base, options={"image_size": image_size})
    for side in _SIDES:
        squares = [photograph(np.random.default_rng([1, number]), (side, side)) for number in range(count // 4)]
        yield Setting("side of square files", str(side), dataset(folder / f"side{side}", squares, 4))
    for kind in _KINDS:
        files = [as_kind(data, kind) for data in photographs[: count // 4]]
        yield Setting("kind of files", kind, dataset(folder / kind.replace(" ", "_"), files, 4))
    for block_records in (1, 3, 5, 7, 11, 13, 17):
        yield Setting("block_records", str(block_records), base, 4, {"block_records": block_records})
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"on_corrupt": "skip"},
        {"deterministic": False},
        {"dtype": "bfloat16"},
        {"dtype": "float32"},
        {"layout": "HWCN"},
        {"layout": "HWNC"},
        {"scaled_decode": False},
        {"cache": "records"},
    )
    for change in changes:
        name = ", ".join(f"{key}={value!r}" for key, value in change.items()) or "none"
        yield Setting("options", name, base, options=change)


def as_kind(data: bytes, kind: str) -> bytes:
    """Returns a baseline JPEG as a file of another kind."""
    if kind == "JPEG":
        return data
    if kind == "JPEG and 40 bytes behind it":
        return data + bytes(40)
    with Image.open(io.BytesIO(data)) as image, io.BytesIO() as file:
        options = {"format": "PNG"} if kind == "PNG" else {"format": "JPEG", "quality": 90, "progressive": True}
        image.save(file, **options)
        return file.getvalue()


def dataset(folder: Path, files: Sequence[bytes], num_shards: int) -> Manifest:
    """Returns the dataset of encoded images, written to `folder` as TFRecords if they are not there."""
    if not folder.exists():
        folder.mkdir(parents=True)
        for shard, numbers in enumerate(np.array_split(np.arange(len(files)), num_shards)):
            records = (Record(str(n), files[n], 0, 0, 3, int(n) % 10, "", "") for n in numbers)
            path = folder / shard_name("train", shard, num_shards)
            path.write_bytes(b"".join(frame(encode(record)) for record in records))
    return tpu_input.manifest_from_shards({"train": str(folder / "train-*")}, classes=[str(n) for n in range(10)])


def cost(setting: Setting) -> dict[str, float]:
    """Returns the CPU ms of an image in the steady state, and the CPU seconds to the first batch."""
    config = tpu_input.InputConfig(**({"image_size": 224} | setting.options))
    gc.collect()  # takes 0.4 s for graphs of earlier settings; Python would do it while some setting is measured
    before = cpu_seconds()
    batches = iter(tpu_input.make_train_input_fn(setting.manifest, config)({"batch_size": setting.batch_size}))
    next(batches)
    first = cpu_seconds() - before
    for _ in range(max(4, 256 // setting.batch_size)):  # threads start, lanes open
        next(batches)
    num_batches = max(4, 512 // setting.batch_size)
    before = cpu_seconds()
    for _ in range(num_batches):
        next(batches)
    return {"cpu_ms": (cpu_seconds() - before) / num_batches / setting.batch_size * 1000, "first": first}


def cpu_seconds() -> float:
    """Returns the CPU time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(folder: str, count: str, repeats: str) -> None:
    order._IN_MEMORY_BYTES = 0  # so that few images are read from files, as many are
    tried = {
        f"{setting.axis} {setting.name}": setting for setting in settings(Path(folder) / f"sweep{count}", int(count))
    }
    cost(next(iter(tried.values())))  # TensorFlow's own start
    ways = {name: functools.partial(cost, setting) for name, setting in tried.items()}
    rows = [
        {"axis": tried[name].axis, "setting": tried[name].name} | measure.medians(runs)
        for name, runs in measure.in_turn(ways, int(repeats)).items()
    ]
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main(*sys.argv[1:])
