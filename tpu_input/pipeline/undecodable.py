"""Search for the record that TensorFlow's parser or decoder rejected.

It comes after the error, so that good records have no overhead: an error that contains a size leads to the records of
about that length, which are decoded one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import tensorflow as tf

from tpu_input.dataset_format.records import Manifest, parse
from tpu_input.pipeline.images import decode_whole
from tpu_input.storage.positions import walk_lengths

# Messages of the decoders:
# "Invalid JPEG data or crop window, data size 318", "jpeg::Uncompress failed. Invalid …", "Invalid PNG data, size 90".
_UNDECODED = re.compile(r"Invalid (?:JPEG|PNG)|Uncompress failed|Unknown image file format")
# Messages of the parser: tensorflow/core/util/example_proto_fast_parsing.cc and example_proto_helper.cc.
_UNPARSED = re.compile(
    r"Could not parse example input|Can't parse serialized Example|values != expected|Data types don't match"
)
_SIZE = re.compile(r"size (\d+)")
_MOST_OTHER_FEATURES = 1 << 16  # largest size of a record without its image, in bytes; this package's have some 500


def search_undecodable(manifest: Manifest, split: str, message: str) -> str | None:
    """Returns "record N of 'SHARD'" for the record that a message is about; None if none is found.

    The arguments, and what is read, are those of datasets.find_undecodable().

    Raises:
      ValueError: There is no such split, or a shard is truncated.
    """
    parsing = bool(_UNPARSED.search(message))
    if not parsing and not _UNDECODED.search(message):
        return None
    size = None if parsing else _SIZE.search(message)
    lengths = range(int(size[1]), int(size[1]) + _MOST_OTHER_FEATURES) if size else range(2**63 - 1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        serialized = tf.compat.v1.placeholder(tf.string, [])
        example = parse(serialized, manifest.first_label, manifest.record, manifest.num_labels)
        tried = example if parsing else tf.shape(decode_whole(example["encoded"], manifest.record))
        for place, payload in _records(manifest, split, lengths):
            try:
                session.run(tried, {serialized: payload})
            except tf.errors.InvalidArgumentError:
                return place
    return None


def _records(manifest: Manifest, split: str, lengths: range) -> Iterator[tuple[str, bytes]]:
    for shard in manifest.split(split).shards:
        path = f"{manifest.path}/{shard.name}"
        with tf.io.gfile.GFile(path, "rb") as file:
            for number, (offset, length) in enumerate(walk_lengths(path, shard.num_bytes)):
                if length in lengths:
                    file.seek(offset)
                    yield f"record {number} of {path!r}", file.read(length)
