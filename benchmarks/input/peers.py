"""One peer's way of making the same images, in a process and an environment of its own; __main__.py starts it.

    python -m benchmarks.input.peers WAY FOLDER_OF_JPEGS DATASET COUNT     (for the ways, see main())
        ──▶  {"images/s": …, "cpu_ms": …, "peak_mb": …, "version": …}

Needs benchmarks/requirements-peers.txt, and of this repository what grain reads records with: tpu_input.RecordSource.
webdataset finds its tar files in DATASET.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.own_cost import cost_of

Pixels = npt.NDArray[np.uint8]

BATCH_SIZE = 64
IMAGE_SIZE = 224
THREADS = len(os.sched_getaffinity(0))


def simplejpeg(folder: Path, dataset: Path, count: int, **options: Any) -> tuple[Callable[[], int], str]:
    """libjpeg-turbo's decode of whole images, and nothing else, of files in memory; a thread a core, the fast DCT."""
    from simplejpeg import decode_jpeg

    encoded = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))[:count]]
    pool = ThreadPoolExecutor(THREADS)

    def decode(data: bytes) -> int:
        return len(decode_jpeg(data, "RGB", fastdct=True, **options)) > 0

    return lambda: sum(pool.map(decode, encoded)), f"simplejpeg {version('simplejpeg')}"


def dali(folder: Path, dataset: Path, count: int) -> tuple[Callable[[], int], str]:
    """DALI's CPU pipeline of the same work: fused decode of a random crop, bilinear resize, flip, uint8."""
    from nvidia.dali import fn, pipeline_def, tfrecord, types

    shards = sorted(map(str, dataset.glob("train-*.tfrecord")))
    indexes = [str(dataset / "index" / f"{Path(shard).stem}.idx") for shard in shards]
    features = {
        "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
        "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
    }

    @pipeline_def(batch_size=BATCH_SIZE, num_threads=THREADS, device_id=None, prefetch_queue_depth=2)
    def pipeline() -> tuple[Any, Any]:
        records = fn.readers.tfrecord(
            path=shards, index_path=indexes, features=features, random_shuffle=True, initial_fill=1024
        )
        images = fn.decoders.image_random_crop(
            records["image/encoded"],
            device="cpu",
            output_type=types.RGB,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
            use_fast_idct=True,
        )
        size = {"resize_x": IMAGE_SIZE, "resize_y": IMAGE_SIZE}
        images = fn.resize(images, **size, interp_type=types.INTERP_LINEAR, antialias=False)
        return fn.flip(images, horizontal=fn.random.coin_flip()), records["image/class/label"]

    built = pipeline()
    built.build()

    def run() -> int:
        return sum(len(built.run()[0]) for _ in range(count // BATCH_SIZE))

    name = next(f"nvidia-dali-cuda{cuda}" for cuda in (120, 130, 110) if _installed(f"nvidia-dali-cuda{cuda}"))
    return run, f"{name} {version(name)}"


def grain(folder: Path, dataset: Path, count: int) -> tuple[Callable[[], int], str]:
    """grain over tpu_input.RecordSource, which shuffles all numbers; OpenCV makes the images, in a thread a core."""
    from grain import MapDataset, ReadOptions

    from tpu_input.dataset_format.records import Manifest
    from tpu_input.record_source import RecordSource

    manifest = Manifest.from_json((dataset / "manifest.json").read_text(), str(dataset))
    records = MapDataset.source(RecordSource(manifest, "train")).seed(0).shuffle().repeat()
    examples = records.random_map(lambda record, random: (train_image(record.encoded, random), record.label))
    options = ReadOptions(num_threads=THREADS, prefetch_buffer_size=2 * BATCH_SIZE)
    batches = iter(examples.to_iter_dataset(options).batch(BATCH_SIZE, drop_remainder=True))
    return lambda: take(batches, count), f"grain {version('grain')}, OpenCV {version('opencv-python-headless')}"


def webdataset(folder: Path, dataset: Path, count: int) -> tuple[Callable[[], int], str]:
    """webdataset without PyTorch and its worker processes: OpenCV makes the images, in a thread a core."""
    from webdataset import WebDataset

    shards = sorted(map(str, dataset.glob("*.tar")))
    examples = WebDataset(shards, shardshuffle=len(shards), seed=0).shuffle(1024).repeat().to_tuple("jpg", "cls")
    pool, random = ThreadPoolExecutor(THREADS), np.random.default_rng(0)

    def batches() -> Iterator[tuple[Pixels, npt.NDArray[np.int64]]]:
        ahead: deque[tuple[Future[Pixels], int]] = deque()
        for encoded, label in examples:
            ahead.append((pool.submit(train_image, encoded, random.spawn(1)[0]), int(label)))
            if len(ahead) == 3 * BATCH_SIZE:  # one to give away, two at work
                batch = [ahead.popleft() for _ in range(BATCH_SIZE)]
                yield np.stack([image.result() for image, _ in batch]), np.array([label for _, label in batch])

    images = batches()
    return lambda: take(
        images, count
    ), f"webdataset {version('webdataset')}, OpenCV {version('opencv-python-headless')}"


def take(batches: Iterator[Any], count: int) -> int:
    return sum(len(labels) for _, labels in itertools.islice(batches, count // BATCH_SIZE))


def train_image(encoded: bytes, random: np.random.Generator) -> Pixels:
    """Returns what training sees of an image, uint8: a crop of 0.08 to 1 of it, bilinear, flipped half of the time.

    OpenCV decodes no part of a JPEG, so it decodes all of it. The crop is that of Szegedy et al. 2014, with ten tries.
    """
    import cv2

    cv2.setNumThreads(1)  # the threads are ours
    image: Pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)
    height, width, _ = image.shape
    for _ in range(10):
        area = random.uniform(0.08, 1.0) * height * width
        aspect = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        crop_width, crop_height = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
        if crop_width <= width and crop_height <= height:
            left, top = random.integers(width - crop_width + 1), random.integers(height - crop_height + 1)
            image = image[top : top + crop_height, left : left + crop_width]
            break
    image = cv2.resize(image, (IMAGE_SIZE, IMAGE_SIZE), interpolation=cv2.INTER_LINEAR)
    return image[:, ::-1] if random.integers(2) else image


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except ImportError:
        return False


def main(way: str, folder: str, dataset: str, count: str) -> None:
    ways = {"simplejpeg": simplejpeg, "dali": dali, "grain": grain, "webdataset": webdataset}
    ways["simplejpeg_fast"] = functools.partial(simplejpeg, fastupsample=True)
    # It takes the smallest size with at least this many pixels on a side: an eighth.
    ways["simplejpeg_eighth"] = functools.partial(simplejpeg, fastupsample=True, min_height=1, min_width=1)
    make_images, name = ways[way](Path(folder), Path(dataset), int(count))
    make_images()  # not counted: threads start, the shuffle buffer fills
    print(json.dumps(cost_of(make_images) | {"version": name}))


if __name__ == "__main__":
    main(*sys.argv[1:])
