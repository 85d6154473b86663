"""A dataset written with the record contract alone, without Beam: what tests of tpu_input read.

images in class folders ──write_dataset()──▶ manifest.json, lengths.parquet, SPLIT-….tfrecord, index/SPLIT-….parquet
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from tpu_input.dataset_format.index import IndexRow, index_path, read_positions, write_index
from tpu_input.dataset_format.lengths import LENGTHS_NAME, write_lengths
from tpu_input.dataset_format.manifest import MANIFEST_NAME, Manifest, Shard, Split, shard_name
from tpu_input.dataset_format.records import Record, encode, frame


def write_dataset(images: Path, folder: Path, splits: Mapping[str, tuple[int, int]], seed: int = 0) -> Manifest:
    """Writes the RGB or greyscale JPEGs below `images` as a dataset; returns its manifest.

    Args:
      images: Folder of class folders.
      folder: Folder of the dataset, which is made.
      splits: (number of images, number of shards) by split.
      seed: Of the order of the images.
    """
    paths = sorted(images.glob("*/*.jpg"))
    random.Random(seed).shuffle(paths)
    classes = tuple(sorted(path.name for path in images.iterdir()))
    (folder / "index").mkdir(parents=True)
    manifest_splits = {}
    for name, (count, num_shards) in splits.items():
        split_paths, paths = paths[:count], paths[count:]
        manifest_splits[name] = _write_split(split_paths, images, folder, name, num_shards, classes)
    fingerprint = hashlib.sha256(
        "".join(shard.sha256 for split in manifest_splits.values() for shard in split.shards).encode()
    )
    manifest = Manifest(
        path=str(folder),
        classes=classes,
        first_label=0,
        splits=manifest_splits,
        num_inputs=sum(split.num_examples for split in manifest_splits.values()),
        num_rejected={},
        options={},
        fingerprint=fingerprint.hexdigest(),
    )
    with (folder / LENGTHS_NAME).open("wb") as file:
        shards = [shard for split in manifest_splits.values() for shard in split.shards]
        positions = {
            shard.name: read_positions((folder / index_path(shard.name)).read_bytes(), shard) for shard in shards
        }
        write_lengths(file, {name: rows[:, 1] for name, rows in positions.items() if rows is not None})
    (folder / MANIFEST_NAME).write_text(manifest.to_json())
    return manifest


def _write_split(
    paths: list[Path], images: Path, folder: Path, split: str, num_shards: int, classes: tuple[str, ...]
) -> Split:
    shards, sizes, means, squares = [], [], [], []
    labels = [classes.index(path.parent.name) for path in paths]
    for number in range(num_shards):
        shard, rows, content = shard_name(split, number, num_shards), [], b""
        for path, label in list(zip(paths, labels, strict=True))[number::num_shards]:
            encoded, key = path.read_bytes(), str(path.relative_to(images))
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"), np.float64)
                height, width, channels = image.height, image.width, len(image.getbands())
            sizes.append((height, width))
            means.append(pixels.mean((0, 1)))
            squares.append((pixels**2).mean((0, 1)))
            sha256 = hashlib.sha256(encoded).hexdigest()
            framed = frame(encode(Record(key, encoded, height, width, channels, label, classes[label], sha256)))
            rows.append(IndexRow(key, str(path), label, len(content), len(framed), height, width, sha256, 0))
            content += framed
        (folder / shard).write_bytes(content)
        with (folder / index_path(shard)).open("wb") as file:
            write_index(file, rows)
        shards.append(Shard(shard, len(rows), len(content), hashlib.sha256(content).hexdigest()))
    mean = np.mean(means, axis=0)
    std = np.sqrt(np.mean(squares, axis=0) - mean**2)
    heights, widths = zip(*sizes, strict=True)
    return Split(
        shards=tuple(shards),
        class_counts=tuple(labels.count(label) for label in range(len(classes))),
        height=(min(heights), float(np.mean(heights)), max(heights)),
        width=(min(widths), float(np.mean(widths)), max(widths)),
        channel_mean=(float(mean[0]), float(mean[1]), float(mean[2])),
        channel_std=(float(std[0]), float(std[1]), float(std[2])),
    )
