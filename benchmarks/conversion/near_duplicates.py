"""What near_duplicates.py finds among real pictures, and how fast: the numbers that its constants come from.

    python -m benchmarks.conversion.near_duplicates FOLDER_OF_DIFFERENT_PICTURES
    python -m benchmarks.conversion.near_duplicates FOLDER_OF_DIFFERENT_PICTURES --hashes=10000000

The folders that the module speaks of, on Debian 12: photographs, the WebP and JPEG files of at least 150 pixels inside
the explore_*, categorization and instruments .rcc files of gcompris-qt-data (it has some twice, which are the pairs
found), with mate-backgrounds' nature; nebulae, those of stellarium-data; drawings on white, tuxpaint-stamps-default.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance

from beam_pipelines.images import near_duplicates
from beam_pipelines.images.near_duplicates import grey_sample
from beam_pipelines.options import ImageOptions
from tpu_input.stored_images.check import check_image

LEVELS = range(3, 8)


def jpeg(image: Image.Image, quality: int = 90) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def scaled(image: Image.Image, scale: float) -> Image.Image:
    return image.resize((max(round(image.width * scale), 1), max(round(image.height * scale), 1)))


def cropped(image: Image.Image) -> Image.Image:
    x, y = image.width // 50, image.height // 50
    return image.crop((x, y, image.width - x, image.height - y))


CHANGES: dict[str, Callable[[Image.Image], bytes]] = {
    "as it was": lambda image: jpeg(image),
    "JPEG quality 60": lambda image: jpeg(image, 60),
    "2/3 size, quality 60": lambda image: jpeg(scaled(image, 2 / 3), 60),
    "half size, quality 75": lambda image: jpeg(scaled(image, 1 / 2), 75),
    "contrast x 1.3": lambda image: jpeg(ImageEnhance.Contrast(image).enhance(1.3)),
    "brightness x 0.8": lambda image: jpeg(ImageEnhance.Brightness(image).enhance(0.8)),
    "grey": lambda image: jpeg(image.convert("L")),
    "2 % cropped": lambda image: jpeg(cropped(image)),
}


def measure(data: bytes) -> tuple[int, npt.NDArray[np.float32]]:
    sample = grey_sample(data)
    assert sample is not None
    dhash = check_image(data, ImageOptions()).dhash
    assert dhash is not None
    return dhash & (1 << 64) - 1, sample


def read(path: Path) -> Image.Image:
    image: Image.Image = Image.open(path)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    image.thumbnail((500, 500))
    return Image.open(io.BytesIO(jpeg(image)))


def compare_pictures(folder: Path) -> near_duplicates.Hashes:
    """Prints what is found of changed and of different pictures; returns the hashes of the unchanged."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in (".jpg", ".png", ".webp"))
    measured: dict[str, list[tuple[int, npt.NDArray[np.float32]]]] = {name: [] for name in CHANGES}
    for path in paths:
        image = read(path)
        for name, change in CHANGES.items():
            measured[name].append(measure(change(image)))
    columns = {
        name: (np.array([h for h, _ in rows], np.uint64), [s for _, s in rows]) for name, rows in measured.items()
    }
    hashes, samples = columns["as it was"]
    print(f"{len(paths)} pictures, {near_duplicates.is_plain(hashes).sum()} too plain\nbits at most{'':24}", *LEVELS)
    for name, (others, other_samples) in columns.items():
        bits = near_duplicates.count_bits(hashes ^ others)
        pairs = np.stack([np.arange(len(paths)), np.arange(len(paths)) + len(paths)], axis=1)
        alike = near_duplicates.alike(np.array([*samples, *other_samples]), pairs)[bits <= near_duplicates.DISTANCE]
        shares = " ".join(f"{(bits <= level).mean():.2f}" for level in LEVELS)
        print(f"{name:24} {shares}; of those within {near_duplicates.DISTANCE}, alike: {alike.mean():.3f}")
    first, second = np.triu_indices(len(paths), 1)
    bits = near_duplicates.count_bits(hashes[first] ^ hashes[second])
    print(
        f"{len(bits)} different pairs, bits {bits.mean():.1f} ± {bits.std():.1f};", *((bits <= n).sum() for n in LEVELS)
    )
    near = np.stack([first, second], axis=1)[bits <= near_duplicates.DISTANCE]
    for one, other in near[near_duplicates.alike(np.array(samples), near)]:
        print("  alike:", paths[one], paths[other])
    return hashes[~near_duplicates.is_plain(hashes)]


def timed(hashes: near_duplicates.Hashes, count: int) -> None:
    """Prints how long near_pairs takes for `count` hashes, each of the halves of two pictures' with 8 bits changed."""
    generator = np.random.default_rng(0)
    upper = np.uint64(0xFFFFFFFF00000000)
    many = (generator.choice(hashes, count) & upper) | (generator.choice(hashes, count) & ~upper)
    for _ in range(8):
        many ^= np.uint64(1) << generator.integers(0, 64, count).astype(np.uint64)
    start = time.perf_counter()
    pairs = near_duplicates.near_pairs(many)
    print(
        f"{count} hashes: {time.perf_counter() - start:.1f} s, {sum(pairs.counts)} pairs, {pairs.num_crowded} crowded"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hashes", type=int, default=100_000, help="how many to time (default: %(default)s)")
    flags = parser.parse_args()
    timed(compare_pictures(flags.folder), flags.hashes)
