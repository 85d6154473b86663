"""A corpus of photographs that needs no download: crops of scikit-learn's two, with sensor noise, as JPEGs.

500 x 375 pixels and 88 KB on average, which is about what ImageNet's are. Seeded; the same bytes on every machine with
the same Pillow.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

SIZE = (500, 375)
DISTINCT = 1000  # more files than this are hard links to them


def photograph(random: np.random.Generator, size: tuple[int, int] = SIZE) -> bytes:
    """Returns one JPEG: a crop of a photograph, resized, with noise of 8 grey levels."""
    whole = Image.fromarray(load_sample_images().images[random.integers(2)])
    share = random.uniform(0.5, 1.0)
    width, height = int(whole.width * share), int(whole.height * share)
    left, top = random.integers(whole.width - width + 1), random.integers(whole.height - height + 1)
    crop = whole.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    noisy = np.asarray(crop, np.float32) + random.normal(0, 8, (size[1], size[0], 1))
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def make_corpus(folder: Path, count: int, size: tuple[int, int] = SIZE) -> int:
    """Writes `count` JPEGs in 10 class folders, if they are not there; returns their bytes."""
    distinct = []
    random = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class{number % 10}" / f"{number:07d}.jpg"
        if number >= DISTINCT:
            if not path.exists():
                os.link(distinct[number % DISTINCT], path)
            continue
        distinct.append(path)
        data = photograph(random, size)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(data)
    return sum(distinct[number % DISTINCT].stat().st_size for number in range(count))
