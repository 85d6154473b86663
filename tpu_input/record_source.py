"""Random access to a dataset's records by their positions in the shards, for grain and PyTorch; and what DALI and
TensorFlow Datasets need to read the shards.

It needs no TensorFlow for local files and, where google-cloud-storage is installed, for gs://.

DATASET/lengths.parquet, else the index ──▶ offsets and lengths ──▶ source[n] ──▶ Record (still encoded)
"""

from __future__ import annotations

import io
import json
import operator
import os
from typing import Any, SupportsIndex, get_args

import numpy as np

from tpu_input.command_line.dataclass_options import check_choice, checks_arguments
from tpu_input.config import MOST_BLOCK_RECORDS, Sampling
from tpu_input.dataset_format.manifest import (
    TFDS_FEATURES_NAME,
    TFDS_INFO_NAME,
    FeatureType,
    in_edition,
    parse_shard_name,
)
from tpu_input.dataset_format.records import Manifest, Record, decode, read_frames
from tpu_input.datasets import DatasetLike, as_manifest
from tpu_input.pipeline.order import Order
from tpu_input.storage.byte_ranges import read_bytes, write_bytes
from tpu_input.storage.positions import check_stands, read_positions, split_positions


def write_dali_index(manifest: Manifest) -> list[str]:
    """Writes DATASET/index/SHARD.idx, one line "offset length" per record, for DALI's tfrecord reader.

    https://docs.nvidia.com/deeplearning/dali/user-guide/docs/examples/general/data_loading/dataloading_tfrecord.html

    Returns:
      The paths of the files.

    Raises:
      ValueError: The dataset has no index, or its index folder is a symbolic link.
    """
    if os.path.islink(f"{manifest.path}/index"):
        raise ValueError(
            f"'{manifest.path}/index' is a symlink, so files would be written elsewhere; replace it with a folder"
        )
    paths = []
    for split in manifest.splits.values():
        for shard in split.shards:
            lines = [f"{offset} {length}\n" for offset, length in read_positions(manifest.path, shard)]
            paths.append(f"{manifest.path}/index/{shard.name.removesuffix('.tfrecord')}.idx")
            write_bytes(paths[-1], "".join(lines).encode())
    return paths


def write_tfds_metadata(manifest: Manifest) -> list[str]:
    """Writes what tfds.builder_from_directory(DATASET) needs: dataset_info.json, features.json and the class names.

    An example of TensorFlow Datasets then has "image/encoded", the decoded [height, width, 3] uint8 image; "image/key";
    "image/class/label", or "image/class/labels" of several labels per image; and the dataset's further features. With
    as_supervised=True it is (image, label). Labels are those on disk: where the first is 1, class 0 of TensorFlow
    Datasets is "(none)". https://www.tensorflow.org/datasets/external_tfrecord

    Returns:
      The paths of the files.

    Raises:
      ValueError: Its files have names that no template of TensorFlow Datasets has, as in an extended dataset, or
        a class has a name with a line break.
    """
    features: dict[str, Any] = {"image/encoded": _IMAGE, "image/key": _tfds("text_feature.Text", text={})}
    names = [*["(none)"] * manifest.first_label, *manifest.classes]
    kind = manifest.label_kind
    info: dict[str, Any] = {
        "fileFormat": "tfrecord",
        "splits": [_tfds_split(manifest, name) for name in manifest.splits],
        "version": f"{manifest.version}.0.0",
    }
    class_names = {}
    if kind.needs_classes:
        label = _tfds("class_label_feature.ClassLabel", classLabel={"numClasses": str(len(names))})
        as_many = _tfds("sequence_feature.Sequence", sequence={"feature": label, "length": "-1"})
        features[kind.key] = as_many if kind.is_list else label
        info["supervisedKeys"] = {"tuple": {"items": [{"featureKey": key} for key in ("image/encoded", kind.key)]}}
        if broken := next((name for name in names if name.splitlines() != [name.strip()]), None):
            raise ValueError(
                f"class {broken!r} has a line break or spaces around it, and TensorFlow Datasets reads a name a line; "
                "rename it with: jpeg2tpu relabel"
            )
        class_names = {f"{kind.key.replace('/', '.')}.labels.txt": "".join(f"{name}\n" for name in names)}
    features |= {name: _tfds_feature(feature) for name, feature in manifest.features.items()}
    schema = _tfds("features_dict.FeaturesDict", featuresDict={"features": features})
    texts = {TFDS_FEATURES_NAME: json.dumps(schema, indent=1) + "\n"} | class_names
    texts[TFDS_INFO_NAME] = json.dumps(info, indent=1) + "\n"  # last: without it, there is no dataset for its readers
    for name, text in texts.items():
        write_bytes(f"{manifest.path}/{name}", text.encode())
    return [f"{manifest.path}/{name}" for name in texts]


def _tfds(name: str, **content: Any) -> dict[str, Any]:
    """Returns a feature of TensorFlow Datasets as JSON: its class and, as in feature.proto, what it consists of."""
    return {"pythonClassName": f"tensorflow_datasets.core.features.{name}", **content}


_IMAGE = _tfds(
    "image_feature.Image",
    image={"dtype": "uint8", "encodingFormat": "jpeg", "shape": {"dimensions": ["-1", "-1", "3"]}},
)


def _tfds_feature(feature: FeatureType) -> dict[str, Any]:
    dtype = {"float": "float32", "int": "int64", "string": "string"}[feature.kind]
    if feature.length is None:
        return _tfds("scalar.Scalar", tensor={"dtype": dtype, "encoding": "none", "shape": {}})
    shape = {"dimensions": [str(feature.length)]}
    return _tfds("tensor_feature.Tensor", tensor={"dtype": dtype, "encoding": "none", "shape": shape})


def _tfds_split(manifest: Manifest, split: str) -> dict[str, Any]:
    split_info = manifest.splits[split]
    parts = [parse_shard_name(shard.name) for shard in split_info.shards]
    editions, totals = ({getattr(part, name, None) for part in parts} for name in ("edition", "num_shards"))
    if len(editions) > 1 or None in editions or totals != {len(parts)}:
        raise ValueError(
            f"the shards of split {split!r} are of several versions of {manifest.path!r}, which TensorFlow Datasets "
            "cannot read as one; write them as one with: jpeg2tpu reshard"
        )
    (edition,) = editions
    return {
        "filepathTemplate": in_edition("{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}", edition or ""),
        "name": split,
        "numBytes": str(split_info.num_bytes),
        "shardLengths": [str(shard.num_examples) for shard in split_info.shards],
    }


class RecordSource:
    """Sequence of the records of a split: len(source), source[n]; thread-safe, and picklable for other processes.

    Each access reads one record, from a bucket with one request. The only shared state is the positions in memory (16
    bytes per record) and, within a process, the connections to the bucket.
    """

    @checks_arguments
    def __init__(self, dataset: DatasetLike, split: str) -> None:
        """Reads the lengths of all records.

        Args:
          dataset: Manifest of the dataset, or its folder or URI.
          split: Name of the split.

        Raises:
          ValueError: There is no such split, or neither lengths.parquet nor an index, or they do not match the shards.
        """
        manifest = as_manifest(dataset)
        shards = manifest.split(split).shards
        self._offsets, self._lengths = split_positions(manifest, split)
        self._path, self._shards = manifest.path, shards
        self._first_label = manifest.first_label
        self._ends = np.cumsum([shard.num_examples for shard in shards])

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, number: SupportsIndex) -> Record:
        """Returns one record.

        Raises:
          IndexError: There is no such record.
          ValueError: It is damaged, or the dataset was replaced; the message names the shard, and the byte.
          OSError: The shard cannot be read.
        """
        number = operator.index(number)
        if not -len(self) <= number < len(self):
            raise IndexError(f"record {number} is out of range: there are {len(self)} records")
        number %= len(self)
        shard = self._shards[int(np.searchsorted(self._ends, number, side="right"))]
        path = f"{self._path}/{shard.name}"
        offset, length = int(self._offsets[number]), int(self._lengths[number])
        try:
            framed = read_bytes(path, offset, length)
        except FileNotFoundError:
            check_stands(self._path, shard)
            raise
        try:
            if len(framed) < length:
                raise ValueError(f"the shard ends before the end of the record of {length} bytes")
            ((_, payload),) = read_frames(io.BytesIO(framed))
            return decode(payload, self._first_label)
        except ValueError as error:
            raise ValueError(f"{path!r}, byte {offset}: {error}") from error


@checks_arguments
def training_order(
    dataset: DatasetLike,
    batch_size: int,
    split: str = "train",
    seed: int = 0,
    block_records: int = MOST_BLOCK_RECORDS,
    sampling: Sampling = "equal",
) -> Order:
    """Returns the order in which make_train_input_fn takes the records of a split, to follow it with RecordSource.

    With InputConfig.echo, step s takes the records of the order's step s // echo. With a cache (unless sampling is
    "balanced") or a service, and with deterministic=False, training does not follow it.

    Args:
      dataset: Manifest of the dataset, or its folder or URI.
      batch_size: Number of examples that all hosts together take in a step.
      split: Name of the split.
      seed: InputConfig.seed.
      block_records: InputConfig.block_records.
      sampling: InputConfig.sampling.

    Raises:
      ValueError: There is no such split, or sampling is "balanced" and the dataset has no labels in an index.
    """
    check_choice("sampling", sampling, get_args(Sampling))
    return Order.of(as_manifest(dataset), split, batch_size, seed, block_records, sampling)
