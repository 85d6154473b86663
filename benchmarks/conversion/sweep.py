"""Whether the cost of a conversion, or of its report, jumps where a user would expect it to be smooth.

    python -m benchmarks.conversion --part=sweep

Along each axis, one thing changes at a time: sizes of shards and of images, targets of --resize_shorter, kinds of
files, near twins. Two neighbors should cost the same CPU time to a factor of 1.2; the notes list those that do not.
The CPU time of the same command for two images is subtracted from each run, as few images are converted.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import measure
from benchmarks.corpus import LARGE, SMALL, photograph
from benchmarks.measure import Table

LARGEST_JUMP = 1.2
COLUMNS = {
    "what changes": "axis",
    "to": "setting",
    "images": "images:,",
    "CPU ms per image": "cpu_ms:.2f",
    "times the row above": "jump:.2f",
    "": "mark",
}
_IMAGE_BYTES = (30_000, 88_000, 110_000, 300_000)
_TARGETS = {  # of --resize_shorter, by size: around the size itself, and around the scales at which libjpeg decodes
    SMALL: (166, 167, 250, 251, 340, 341, 374, 375),
    LARGE: (250, 251, 375, 376, 500, 501, 750, 751),
}
_LARGE_SHARE = 20  # images of 500 x 375 pixels for each of 4000 x 3000, which take as long
_START = "start"


@dataclasses.dataclass(frozen=True)
class Setting:
    """A command whose cost is measured."""

    axis: str
    name: str
    corpus: Path
    flags: tuple[str, ...] = ()
    is_report: bool = False


def sweep(folder: Path, count: int | None, repeats: int | None) -> Table:
    """Returns a row for each setting: the median of runs in turn."""
    folder = folder / f"sweep{count or 1000}"
    two = corpus(folder / "two", 2, small)
    starts = (Setting(_START, "convert", two), Setting(_START, "report", two, is_report=True))
    tried = [*starts, *settings(folder, count or 1000)]
    ways = {f"{setting.axis} {setting.name}": functools.partial(cost, setting, folder / "output") for setting in tried}
    results = measure.in_turn(ways, repeats or 3).values()
    measured = [measure.medians(runs) for runs in results]
    start = {setting.is_report: row["cpu_seconds"] for setting, row in zip(starts, measured, strict=False)}
    rows = []
    for setting, row in list(zip(tried, measured, strict=True))[len(starts) :]:
        cpu_ms = (row["cpu_seconds"] - start[setting.is_report]) / row["images"] * 1000
        rows.append({"axis": setting.axis, "setting": setting.name, "cpu_ms": cpu_ms} | row)
    return Table(rows, COLUMNS, marked(rows))


def marked(rows: list[dict[str, Any]]) -> list[str]:
    """Adds to rows how their cost stands to that of the row above on the same axis; returns a line for each jump."""
    notes = []
    for before, row in itertools.pairwise(rows):
        if before["axis"] != row["axis"]:
            continue
        row["jump"] = row["cpu_ms"] / before["cpu_ms"]
        if not 1 / LARGEST_JUMP <= row["jump"] <= LARGEST_JUMP:
            row["mark"] = "jump"
            notes.append(f"{row['axis']}: {before['setting']} → {row['setting']}: {row['jump']:.2f} times")
    return notes


def settings(folder: Path, count: int) -> Iterator[Setting]:
    """Yields all settings, neighbors after each other."""
    base = corpus(folder / "plain", count, small)
    for num_bytes in _IMAGE_BYTES:
        make_image = functools.partial(small, num_bytes=num_bytes)
        images = corpus(folder / f"bytes{num_bytes}", count // 2, make_image)
        yield Setting("image bytes", f"{num_bytes // 1000} KB", images)
    for shard_size in ("400KB", "900KB", "2MB", "10MB", "20MB", "100MB"):
        yield Setting("--shard_size", shard_size, base, (f"--shard_size={shard_size}",))
    for per_shard in (2, 5, 10, 100):
        flags = (f"--num_shards=train={count // per_shard}", "--splits=train=100%")
        yield Setting("images per shard", str(per_shard), base, flags)
    for size, photographs in ((SMALL, base), (LARGE, corpus(folder / "large", count // _LARGE_SHARE, large))):
        for target in _TARGETS[size]:
            axis = f"--resize_shorter of {size[0]} × {size[1]}"
            yield Setting(axis, str(target), photographs, (f"--resize_shorter={target}",))
    progressive = corpus(folder / "progressive", count, functools.partial(small, progressive=True))
    yield Setting("kind of files", "baseline JPEG", base)
    yield Setting("kind of files", "progressive JPEG", progressive)
    for name, images in (("none", base), ("every image", corpus(folder / "twins", count, twin))):
        yield Setting(f"near twins: {name}", "convert", images)
        yield Setting(f"near twins: {name}", "report", images, is_report=True)


def small(number: int, num_bytes: int | None = None, progressive: bool = False) -> bytes:
    """Returns a photograph of 500 x 375 pixels, perhaps at the quality and size at which it has so many bytes."""
    data = photograph(np.random.default_rng([0, number]))
    if num_bytes is None and not progressive:
        return data
    with Image.open(io.BytesIO(data)) as image:
        if num_bytes is None:
            return encoded(image, 90, progressive)
        side = (num_bytes / len(data)) ** 0.5  # at equal quality, bytes are proportional to pixels
        return encoded(image.resize((round(image.width * side), round(image.height * side))), 92)


def large(number: int) -> bytes:
    """Returns a photograph of 12 megapixels."""
    return photograph(np.random.default_rng([0, number]), LARGE)


def twin(number: int) -> bytes:
    """Returns a photograph, or for odd numbers the one before it, encoded anew."""
    data = small(number // 2)
    with Image.open(io.BytesIO(data)) as image:
        return encoded(image, 87) if number % 2 else data


def encoded(image: Image.Image, quality: int, progressive: bool = False) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, progressive=progressive)
    return buffer.getvalue()


def corpus(folder: Path, count: int, make: Callable[[int], bytes]) -> Path:
    """Returns a folder of 10 classes with `count` images, written if they are not there."""
    for number in range(count):
        path = folder / f"class{number % 10}" / f"{number:07d}.jpg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(make(number))
    return folder


def cost(setting: Setting, output: Path) -> dict[str, Any]:
    """Returns the CPU seconds of one run, and the number of images; what it wrote is removed."""
    shutil.rmtree(output, ignore_errors=True)
    program = (sys.executable, "-W", "ignore", "-m", "jpeg2tpu")
    command = (*program, "convert", f"--input={setting.corpus}", f"--output={output}", *setting.flags)
    run = measure.check(measure.run(command), command)
    if setting.is_report:
        command = (*program, "report", str(output))
        run = measure.check(measure.run(command), command)
    shutil.rmtree(output)
    return {"cpu_seconds": run.cpu_seconds, "images": sum(1 for _ in setting.corpus.glob("*/*.jpg"))}
