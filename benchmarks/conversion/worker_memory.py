"""Memory of a process that converts images, by the size of the images: what a core of a worker needs.

    python -m benchmarks.conversion.worker_memory        the table of docs/clusters.md, in a few minutes

photographs of 1 to 100 megapixels ──▶ a process for each size and format, with Beam, which plans and writes one shard
in one thread, as a process of Dataflow's does ──▶ its peak (VmHWM)
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from beam_pipelines.convert import convert
from beam_pipelines.options import ConvertOptions, ImageOptions, Source
from benchmarks.corpus import photograph
from benchmarks.measure import Table, check, keep, run
from benchmarks.own_cost import peak_mb

Image.MAX_IMAGE_PIXELS = None  # no warning about its own images
MEGAPIXELS = {1: (1155, 866), 12: (4000, 3000), 50: (8164, 6123), 100: (11547, 8660)}
COPIES = 4  # of each image, one after another
# What is made of them: format, name of the file, side to which it is made smaller.
KINDS = {"kept": ("JPEG", 0), "resized": ("JPEG", 256), "png": ("PNG", 0)}
COLUMNS = {
    "Megapixels": "megapixels",
    "JPEG, MB": "mb:.1f",
    "JPEG that is kept, MB": "kept:,.0f",
    "`--resize_shorter=256`, MB": "resized:,.0f",
    "PNG, MB": "png:,.0f",
}


def as_png(jpeg: bytes) -> bytes:
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(jpeg)) as image:
        image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def converted(folder: Path, resize_shorter: int) -> None:
    """Converts a folder in this process, whatever the number of pixels, and prints its peak in MB."""
    images = ImageOptions(max_pixels=max(width * height for width, height in MEGAPIXELS.values()))
    if resize_shorter:
        images = ImageOptions(max_pixels=images.max_pixels, resize_shorter=resize_shorter)
    sources = (Source(str(folder / "images")),)
    splits, num_shards = (("train", 1.0),), (("train", 1),)
    options = ConvertOptions(sources, str(folder / "out"), splits=splits, num_shards=num_shards, images=images)
    manifest = convert(options, num_processes=1).manifest
    if manifest.split("train").num_examples != COPIES:
        raise RuntimeError(f"images were rejected: {manifest.num_rejected}")
    print(peak_mb())


def measured(data: bytes, resize_shorter: int) -> float:
    """Returns the peak in MB of a process that converts copies of an image."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(COPIES):
            path = Path(folder) / "images" / f"class{number % 2}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.conversion.worker_memory", folder, resize_shorter]
        return float(check(run(command), command).last_line)


def main() -> None:
    if len(sys.argv) == 3:
        converted(Path(sys.argv[1]), int(sys.argv[2]))
        return
    rows = []
    for megapixels, size in MEGAPIXELS.items():
        jpeg = photograph(np.random.default_rng(0), size)
        files = {"JPEG": jpeg, "PNG": as_png(jpeg)}
        row: dict[str, float] = {"megapixels": megapixels, "mb": len(files["JPEG"]) / 1e6}
        rows.append(row | {name: measured(files[kind], side) for name, (kind, side) in KINDS.items()})
    keep("worker_memory", Table(rows, COLUMNS))


if __name__ == "__main__":
    main()
