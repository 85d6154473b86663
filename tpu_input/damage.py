"""Which record TensorFlow's parser or decoder refused: looked for afterwards, so that good records cost nothing.

"Invalid JPEG data, size 205" ──▶ records of about that length ──▶ decoded one by one ──▶ "record 5 of 'DATASET/…'"
"Could not parse example input …" ──▶ all records, parsed one by one ──▶ "record 5 of 'DATASET/…'"
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import tensorflow as tf

from tpu_input.dataset_format.records import Manifest, parse
from tpu_input.datasets import walk_lengths
from tpu_input.pipeline.images import decode_whole

# "Invalid JPEG data or crop window, data size 318", "jpeg::Uncompress failed. Invalid …", "Invalid PNG data, size 90".
_UNDECODED = re.compile(r"Invalid (?:JPEG|PNG)|Uncompress failed|Unknown image file format")
# What tensorflow/core/util/example_proto_fast_parsing.cc and example_proto_helper.cc say.
_UNPARSED = re.compile(
    r"Could not parse example input|Can't parse serialized Example|values != expected|Data types don't match"
)
_SIZE = re.compile(r"size (\d+)")
_MOST_OTHER_FEATURES = 1 << 16  # bytes of a record beside its image; ours take some 500


def find_undecodable(manifest: Manifest, split: str, message: str) -> str | None:
    """Returns "record N of 'SHARD'", which TensorFlow's parser or decoder refused; None if it finds none.

    For a decoder, it reads the lengths of all records up to the one, and decodes the few whose length agrees with the
    message. For the parser, which tells no length, it reads and parses all records up to the one.

    Args:
      manifest: The dataset.
      split: Where to look.
      message: Of the tf.errors.InvalidArgumentError that stopped a run.

    Raises:
      ValueError: There is no such split, or a shard is cut off.
    """
    parsing = bool(_UNPARSED.search(message))
    if not parsing and not _UNDECODED.search(message):
        return None
    size = None if parsing else _SIZE.search(message)
    lengths = range(int(size[1]), int(size[1]) + _MOST_OTHER_FEATURES) if size else range(2**63 - 1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        serialized = tf.compat.v1.placeholder(tf.string, [])
        example = parse(serialized, manifest.first_label, manifest.record)
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
