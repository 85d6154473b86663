"""Photographs that need no download: crops of scikit-learn's and scikit-image's, with sensor noise, as JPEGs.

    python -m benchmarks.corpus        makes 200 of each kind and prints their sizes

    scikit-learn's china and flower, scikit-image's astronaut, chelsea, coffee, motorcycle and rocket ──crop, resize,
    noise──▶ FOLDER/class0/0000000.jpg …, in 10 classes

SMALL is about what ImageNet's are like: 500 x 375 pixels, 88 KB on average. LARGE is a camera's 12 megapixels. Seeded:
the same bytes on every machine with the same Pillow and NumPy.
"""

from __future__ import annotations

import functools
import io
import os
import tempfile
from pathlib import Path

import numpy as np
import skimage
from PIL import Image
from sklearn.datasets import load_sample_images

SMALL = (500, 375)
LARGE = (4000, 3000)
DISTINCT = {SMALL: 1000, LARGE: 40}  # more files than this are hard links to them
_NOISE = {SMALL: 11.4, LARGE: 6.0}  # gray levels of one standard deviation; chosen for the sizes above
# Color photographs that lie in scikit-image's wheel; those named by skimage.data beside them are downloaded.
_SCIKIT_IMAGE = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")


@functools.cache
def originals() -> tuple[Image.Image, ...]:
    """Returns the photographs that all others are made of."""
    bundled = Path(skimage.__file__).with_name("data")
    images = [Image.fromarray(image) for image in load_sample_images().images]
    return (*images, *(Image.open(bundled / name).convert("RGB") for name in _SCIKIT_IMAGE))


def photograph(random: np.random.Generator, size: tuple[int, int] = SMALL, number: int | None = None) -> bytes:
    """Returns one JPEG of a size in pixels: half to all of a photograph, with noise, in quality 90.

    Args:
      random: Chooses the photograph, the part of it and the noise.
      size: Width and height in pixels.
      number: Number of the photograph in originals(), if it is not to be chosen at random.
    """
    original = originals()[random.integers(len(originals())) if number is None else number]
    share, aspect = random.uniform(0.5, 1.0), size[0] / size[1]
    width = share * min(original.width, original.height * aspect)
    left, top = random.uniform(0, original.width - width), random.uniform(0, original.height - width / aspect)
    crop = original.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + width / aspect))
    noise = random.standard_normal((size[1], size[0], 1), np.float32) * np.float32(_NOISE.get(size, 8.0))
    buffer = io.BytesIO()
    noisy = (np.asarray(crop, np.float32) + noise).clip(0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def make_corpus(folder: Path, count: int, size: tuple[int, int] = SMALL) -> int:
    """Writes `count` JPEGs in 10 class folders, if they are not there; returns their bytes."""
    distinct: list[Path] = []
    num_distinct = DISTINCT.get(size, 1000)
    for number in range(count):
        path = folder / f"class{number % 10}" / f"{number:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < num_distinct:
            distinct.append(path)
        if path.exists():
            continue
        if number < num_distinct:
            path.write_bytes(photograph(np.random.default_rng([0, number]), size))
        else:
            os.link(distinct[number % num_distinct], path)
    return sum(distinct[number % num_distinct].stat().st_size for number in range(count))


def describe(count: int, num_bytes: int, size: tuple[int, int] = SMALL) -> str:
    """Returns the line that a benchmark prints above its table."""
    mean = (
        f"{num_bytes / count / 1e3:.0f} KB each"
        if num_bytes < 1e6 * count
        else f"{num_bytes / count / 1e6:.1f} MB each"
    )
    return f"{count:,} JPEGs of {size[0]} × {size[1]} pixels, {num_bytes / 1e6:,.0f} MB, {mean}"


def main() -> None:
    for size, count in ((SMALL, 200), (LARGE, 20)):
        with tempfile.TemporaryDirectory() as folder:
            print(describe(count, make_corpus(Path(folder), count, size), size))


if __name__ == "__main__":
    main()
