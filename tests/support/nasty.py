"""A nasty dataset: photographs of three classes in two splits, look-alikes, blank ones, broken ones, odd names."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

SCRIPT = "<script>alert(1)</script>.jpg"  # a folder "<script>alert(1)<" with a file "script>.jpg"
EVIL_CLASS = '"><img src=x onerror=alert(2)>'


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def crops(image: Image.Image, count: int, seed: int) -> list[Image.Image]:
    generator = np.random.default_rng(seed)
    boxes = [
        (generator.integers(0, 340), generator.integers(0, 200), *generator.integers(150, 300, 2)) for _ in range(count)
    ]
    return [image.crop((x, y, min(x + width, 640), min(y + height, 427))) for x, y, width, height in boxes]


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_nasty(folder: Path) -> None:
    """Writes 129 inputs, of which 8 are to be rejected."""
    china, flower = map(Image.fromarray, load_sample_images().images)
    train, validation = folder / "train", folder / "validation"
    exif = Image.Exif()
    exif[0x0112] = 6
    for number, image in enumerate(crops(china, 20, 0)):
        write(train / "china" / f"{number}.jpg", encoded(image, quality=90))
    for number, image in enumerate(crops(flower, 20, 1)):
        write(train / "flower" / f"{number}.jpg", encoded(image, quality=90))
    for number, image in enumerate(crops(flower, 8, 2)):
        write(train / EVIL_CLASS / f"{number}.png", encoded(image, "PNG"))
        write(validation / "flower" / f"other {number}.jpg", encoded(image.rotate(180), quality=90, exif=exif))
    write(validation / "china" / SCRIPT, encoded(crops(china, 1, 3)[0]))
    # The dangerous ones: the same picture, encoded again, in another split, under another label, under both.
    smaller = [image.resize((image.width * 3 // 4, image.height * 3 // 4)) for image in crops(flower, 3, 1)]
    write(validation / "flower" / "again.jpg", encoded(smaller[0], quality=70))
    write(train / "china" / "no china.jpg", encoded(smaller[1], quality=70))
    write(validation / "china" / "neither.jpg", encoded(smaller[2], quality=70))
    for number in range(60):
        write(train / "china" / f"blank {number}.jpg", encoded(Image.new("RGB", (200 + number, 160), "white")))
    ramp = np.tile(np.linspace(0, 255, 200).astype(np.uint8), (160, 1))
    write(train / "china" / "ramp.jpg", encoded(Image.fromarray(ramp)))
    content = encoded(china)
    write(train / "china" / "half.jpg", content[: len(content) // 2])
    write(train / "china" / f"cut {SCRIPT}", content[: len(content) // 3])
    write(train / "china" / "page.jpg", b"<!DOCTYPE html><script>alert(3)</script>")
    write(train / "china" / "empty.jpg", b"")
    write(train / "china" / "two.gif", encoded(china, "GIF", save_all=True, append_images=[flower]))
    write(train / "china" / "tiny.png", encoded(china.resize((20, 9)), "PNG"))
    write(train / "nowhere.jpg", encoded(china))
    (train / "china" / "gone.jpg").symlink_to(folder / "not there")
