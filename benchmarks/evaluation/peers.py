"""What one host sees of one evaluation with a peer's loader, in a process and an environment of its own.

    RANK=0 WORLD_SIZE=3 python -m benchmarks.evaluation.peers WAY FOLDER_OF_JPEGS DATASET TAR BATCH_SIZE
        ──▶  {"batches": [[label, …], …]}; __main__.py starts it

Needs benchmarks/requirements-peers.txt, and of this repository tpu_input.RecordSource, which grain reads records with.
Each decodes the images whole: what counts here is which they are.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

HOST, NUM_HOSTS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def image_of(encoded: bytes) -> npt.NDArray[np.uint8]:
    image: npt.NDArray[np.uint8] = cv2.resize(
        cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB), (32, 32)
    )
    return image


def dali(dataset: Path, tar: Path, batch_size: int) -> Iterator[list[int]]:
    """The reader's own shards of the records, the last batch of each filled up with its last record.

    Its iterators for PyTorch and JAX can leave that out again, of which a pipeline run by itself knows nothing.
    """
    from nvidia.dali import fn, pipeline_def, tfrecord, types

    shards = sorted(map(str, dataset.glob("validation-*.tfrecord")))
    features = {
        "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
        "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
    }

    @pipeline_def(batch_size=batch_size, num_threads=1, device_id=None)
    def pipeline() -> tuple[Any, Any]:
        records = fn.readers.tfrecord(
            name="reader",
            path=shards,
            index_path=[str(dataset / "index" / f"{Path(shard).stem}.idx") for shard in shards],
            features=features,
            shard_id=HOST,
            num_shards=NUM_HOSTS,
            pad_last_batch=True,
        )
        images = fn.decoders.image(records["image/encoded"], device="cpu", output_type=types.RGB)
        return fn.resize(images, resize_x=32, resize_y=32), records["image/class/label"]

    built = pipeline()
    built.build()
    meta = built.reader_meta("reader")
    for _ in range(-(-meta["epoch_size_padded"] // NUM_HOSTS // batch_size)):
        yield [int(label[0]) for label in built.run()[1].as_array()]


def grain(dataset: Path, tar: Path, batch_size: int) -> Iterator[list[int]]:
    """An epoch of IndexSampler with this host's ShardOptions; nothing dropped."""
    from grain import python as loaders

    from tpu_input.dataset_format.records import Manifest, Record
    from tpu_input.record_source import RecordSource

    class Decode(loaders.MapTransform):
        def map(self, element: Record) -> tuple[npt.NDArray[np.uint8], int]:
            return image_of(element.encoded), element.label

    manifest = Manifest.from_json((dataset / "manifest.json").read_text(), str(dataset))
    source = RecordSource(manifest, "validation")
    sharded = loaders.ShardOptions(shard_index=HOST, shard_count=NUM_HOSTS, drop_remainder=False)
    sampler = loaders.IndexSampler(len(source), shard_options=sharded, shuffle=False, num_epochs=1)
    operations = [Decode(), loaders.Batch(batch_size, drop_remainder=False)]
    for _, labels in loaders.DataLoader(data_source=source, sampler=sampler, operations=operations):
        yield labels.tolist()


def webdataset(dataset: Path, tar: Path, batch_size: int) -> Iterator[list[int]]:
    """The tar files of this host, as RANK and WORLD_SIZE say."""
    from webdataset import WebDataset, split_by_node

    shards = sorted(map(str, tar.glob("*.tar")))
    examples = WebDataset(shards, nodesplitter=split_by_node, shardshuffle=False).to_tuple("jpg", "cls")
    for batch in examples.map_tuple(image_of, int).batched(batch_size, partial=True):
        yield [int(label) for label in batch[1]]


if __name__ == "__main__":
    way, _, dataset_path, tar_path, size = sys.argv[1:]
    batches = {"dali": dali, "grain": grain, "webdataset": webdataset}[way](
        Path(dataset_path), Path(tar_path), int(size)
    )
    print(json.dumps({"batches": list(batches)}))
