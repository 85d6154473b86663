"""Labels of the records of a split, from its index: DATASET/index/SHARD.parquet ──▶ labels. TensorFlow-free."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from tpu_input.dataset_format.label_kinds import ONE
from tpu_input.dataset_format.records import MAX_INDEX_BYTES, Manifest, Shard
from tpu_input.storage.byte_ranges import check_file, read_bytes

Labels = npt.NDArray[np.int32]

_IN_FLIGHT = 32  # index files that are read at the same time, because an object store takes 30 ms for each


def split_labels(manifest: Manifest, split: str) -> Labels:
    """Returns the class of every record of a split, [records] int32, in the order of the shards.

    Raises:
      ValueError: The images have no labels or several, the dataset is not a conversion's, or its index cannot be read
        or does not match the manifest.
    """
    check_labels(manifest)
    split_info = manifest.split(split)
    read = functools.partial(_shard_labels, manifest.path)
    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        labels: Labels = np.concatenate([np.empty(0, np.int32), *pool.map(read, split_info.shards)])
    largest = max(len(split_info.class_counts), 1)
    counts = np.bincount(labels, minlength=largest) if labels.max(initial=0) < largest else ()
    if tuple(counts) != split_info.class_counts:
        raise ValueError(
            f"the labels in the index of {manifest.path!r} are not those that its manifest counts in split {split!r}; "
            f"repair it with: jpeg2tpu verify --repair {manifest.path}"
        )
    return labels


def check_labels(manifest: Manifest) -> None:
    """Checks that a dataset has one class for each image, and an index that says which; nothing is read.

    Raises:
      ValueError: It has not.
    """
    if manifest.label_kind is not ONE:
        raise ValueError(
            f"sampling='balanced' needs one class for each image, and the images of {manifest.path!r} have "
            f"{manifest.label_kind.phrase}; leave it out, or use class_weights='balanced' in the loss"
        )
    if not manifest.fingerprint:
        raise ValueError(
            f"sampling='balanced' needs the labels in a dataset's index, which the TFRecords in {manifest.path!r} do "
            "not have; convert them with: jpeg2tpu convert --input=TFRECORDS --output=DATASET"
        )


@functools.cache  # each evaluation within a run makes a new input
def _shard_labels(folder: str, shard: Shard) -> Labels:
    from tpu_input.dataset_format import index

    path = f"{folder}/{index.index_path(shard.name)}"
    try:
        check_file(path, MAX_INDEX_BYTES)
        column = index.read_columns(read_bytes(path), shard.num_examples, ["label"])["label"]
        if column.null_count:
            raise ValueError("a row has no label")
        labels = column.to_numpy()
        if labels.min(initial=0) < 0 or labels.max(initial=0) >= 2**31:
            raise ValueError("a label is outside of the classes")
        return np.asarray(labels, np.int32)
    except Exception as error:  # OSError, pyarrow's, or TensorFlow's for a URI
        raise ValueError(
            f"cannot read the index {path!r}: {error}; repair it with: jpeg2tpu verify --repair {folder}"
        ) from error
