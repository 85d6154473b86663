"""Decoding of serialized records into images and labels, and the handling of corrupt records.

    (number, serialized) ──▶ parse ──▶ crop ──▶ ({"image", "weight"}, label)

With on_corrupt="error", an image with the right magic bytes goes straight to the decoder. Any other image, and with
"skip" every image, is decoded in a nested dataset, because in TensorFlow only a dataset can ignore the
failure of an op (ignore_errors()). The error can then name shard and record.

search_undecodable() finds the record of another error of the parser or decoder. It comes after the error, so that good
records have no overhead: an error that contains a size leads to the records of about that length, which are decoded one
by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_input.command_line.cores import num_cores
from tpu_input.config import InputConfig
from tpu_input.dataset_format.records import Manifest, parse, parse_int64
from tpu_input.pipeline.images import decode_whole, has_magic_bytes
from tpu_input.pipeline.order import turns
from tpu_input.pipeline.reading import locate, no_autograph
from tpu_input.storage.positions import unread, walk_lengths

# (encoded, number of the example over all epochs, whether has_magic_bytes() returned True)
# -> [image_size, image_size, 3], or a tuple of them
Crop = Callable[[tf.Tensor, tf.Tensor, bool], Any]
Augmented = Callable[[Any, tf.Tensor], Any]  # (what Crop returned, number of the example) -> the same, augmented
_DECODES_PER_CORE = 2  # records of very different sizes come in order: while a large one is decoded, others wait
_SERVICE_DECODES = 64
_MAX_PRINTED = 3  # problems of a batch that are printed: a damaged shard has as many as records

Fetch = Callable[[tf.Tensor], tf.Tensor]  # (place of a record in memory) -> serialized

_Image = tuple[Any, tf.Tensor, tf.Tensor]  # (image, int64 label, whether it could be decoded)


def parallel_decodes(service: str | None = None) -> int:
    """Returns the number of records that are being decoded or wait for those before them.

    It follows the cores that this process may use, and the CPU quota of its container. With a tf.data service,
    InputConfig.service, the dataset must be identical on all hosts, and other machines decode.
    """
    return _SERVICE_DECODES if service else _DECODES_PER_CORE * num_cores()


def decode_records(
    dataset: tf.data.Dataset,
    manifest: Manifest,
    split: str,
    config: InputConfig,
    crop: Crop,
    black: Any,
    fetch: Fetch | None = None,
    augment: Augmented = lambda image, _: image,
) -> tf.data.Dataset:
    """Returns a dataset of ({"image", "weight"}, label), one element per record, corrupt records included.

    The order of the records is kept if config.deterministic. With on_corrupt="skip", the features also have "problem"
    and "epoch", for within_budget().

    Args:
      dataset: (epoch * records of the split + number of the record in the split, serialized). With config.sampling,
        turns take the place of epochs: see BalancedOrder.
      manifest: For its classes and the format of a record.
      split: Name of the split.
      config: For on_corrupt, service and deterministic.
      crop: Function that decodes and crops an image.
      black: Replacement for an image that cannot be decoded.
      fetch: Returns the serialized record for the second part of an element; None if that is the record.
      augment: Function of what `crop` returned; it sees no image that could not be decoded. An error in it is not one
        of the record. It is not part of `crop`, which is in the graph once for each way to decode.
    """
    attempt, find_place = _attempt(manifest, config, crop, black), locate(manifest, split)
    num_examples = manifest.split(split).num_examples
    epoch_numbers = num_examples * turns(manifest, split, config.sampling)

    padding = no_features(manifest, config)
    empty = {tf.string: "", tf.float32: 0.0, tf.int64: 0}
    feature_specs = {
        name: tf.io.FixedLenFeature(zero.shape, zero.dtype, np.full(zero.shape, empty[zero.dtype]).tolist())
        for name, zero in padding.items()
    }

    def further(serialized: tf.Tensor, fine: tf.Tensor) -> dict[str, tf.Tensor]:
        if not feature_specs:
            return {}
        parsed: dict[str, tf.Tensor] = tf.cond(
            fine, lambda: tf.io.parse_single_example(serialized, feature_specs), lambda: no_features(manifest, config)
        )
        return parsed

    @no_autograph
    def decode(number: tf.Tensor, record: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        serialized = fetch(record) if fetch else record

        def problem_of() -> tf.Tensor:
            path, place = find_place(number % num_examples)
            return _problem(manifest, path, place, serialized, label, decoded)

        image, label, decoded = attempt(number, serialized)
        valid = tf.reduce_all(tf.logical_and(label >= 0, label < len(manifest.classes)))
        fine = tf.logical_and(decoded, valid)
        problem = tf.cond(fine, lambda: "", problem_of)
        if config.on_corrupt == "error":
            with tf.control_dependencies([tf.raw_ops.Assert(condition=fine, data=[problem])]):
                image = tf.nest.map_structure(tf.identity, image)
                features = {"weight": tf.constant(1.0)} | further(serialized, fine)
                label = tf.cast(label, label_dtype(manifest))
            return {"image": augment(image, number)} | features, label
        # tf.where with a scalar condition takes 0.4 ms for an image of 224 px, tf.cond takes no time.
        image = tf.cond(fine, lambda: augment(image, number), lambda: tf.nest.map_structure(tf.zeros_like, image))
        features = {"image": image, "weight": tf.cast(fine, tf.float32)} | further(serialized, fine)
        features |= {"problem": problem, "epoch": number // epoch_numbers}
        return features, tf.cast(tf.where(fine, label, 0), label_dtype(manifest))

    return dataset.map(decode, num_parallel_calls=parallel_decodes(config.service), deterministic=config.deterministic)


def label_dtype(manifest: Manifest) -> tf.DType:
    """Returns the dtype of labels: int32 for the class of an example; float32 for [classes] zeros and ones."""
    return tf.int32 if manifest.num_labels is None else tf.float32


def no_features(manifest: Manifest, config: InputConfig) -> dict[str, tf.Tensor]:
    """Returns the further features of padding: zeros, or empty texts, of their shapes and dtypes.

    Raises:
      ValueError: The dataset has no feature of a name in config.features.
    """
    if unknown := [name for name in config.features if name not in manifest.features]:
        names = ", ".join(map(repr, manifest.features)) or "none"
        raise ValueError(f"{manifest.path!r} has no feature {unknown[0]!r}; its features are: {names}")
    dtypes = {"float": tf.float32, "int": tf.int64, "string": tf.string}
    types = {name: manifest.features[name] for name in config.features}
    return {
        name: tf.zeros([feature.length] if feature.length else [], dtypes[feature.kind])
        for name, feature in types.items()
    }


def no_label(manifest: Manifest) -> tf.Tensor:
    """Returns the label of padding: zeros of the shape and dtype of labels."""
    return tf.zeros([] if manifest.num_labels is None else [manifest.num_labels], label_dtype(manifest))


def _attempt(
    manifest: Manifest, config: InputConfig, crop: Crop, black: Any
) -> Callable[[tf.Tensor, tf.Tensor], _Image]:
    """Returns a function (example number, serialized) -> (image, label, whether it could be decoded)."""

    @no_autograph
    def straight(number: tf.Tensor, serialized: tf.Tensor) -> _Image:
        example = parse_int64(serialized, manifest.first_label, manifest.record, manifest.num_labels)
        return crop(example["encoded"], number, False), example["label"], tf.constant(True)

    def carefully(number: tf.Tensor, serialized: tf.Tensor) -> _Image:
        failed = (black, tf.cast(no_label(manifest), tf.int64), tf.constant(False))
        tried = tf.data.Dataset.from_tensors((number, serialized)).map(straight).ignore_errors()
        tried = tried.concatenate(tf.data.Dataset.from_tensors(failed)).take(1)
        image: _Image = tf.cond(tf.equal(serialized, ""), lambda: failed, tried.get_single_element)
        return image

    def by_looks(number: tf.Tensor, serialized: tf.Tensor) -> _Image:
        example = parse_int64(serialized, manifest.first_label, manifest.record, manifest.num_labels)
        image: _Image = tf.cond(
            has_magic_bytes(example["encoded"], manifest.record),
            lambda: (crop(example["encoded"], number, True), example["label"], tf.constant(True)),
            lambda: carefully(number, serialized),
        )
        return image

    return carefully if config.on_corrupt == "skip" else by_looks


def _problem(
    manifest: Manifest, path: tf.Tensor, place: tf.Tensor, serialized: tf.Tensor, label: tf.Tensor, decoded: tf.Tensor
) -> tf.Tensor:
    """Returns an error message about a record that names the record, the shard and the problem."""
    kind = manifest.record.encoding
    undecoded = f"has no {kind} image that can be decoded in feature {manifest.record.image_key}"
    first, num_classes = manifest.first_label, len(manifest.classes)
    if manifest.num_labels is None:
        rule = f" on disk; labels of {num_classes} classes must be from {first} to {first + num_classes - 1}"
        mislabelled = tf.strings.join(["has label ", tf.strings.as_string(label + first), rule])
    else:
        mislabelled = tf.constant(f"has a label on disk that is none of the {num_classes} classes")
    reason = tf.where(tf.equal(serialized, ""), unread(manifest), tf.where(decoded, mislabelled, undecoded))
    return tf.strings.join(["record ", tf.strings.as_string(place), " of ", path, " ", reason])


def within_budget(batches: tf.data.Dataset, max_corrupt: int) -> tf.data.Dataset:
    """Returns batches without "problem" and "epoch"; prints problems; fails if an epoch has more than max_corrupt."""

    @no_autograph
    def count(state: tuple[tf.Tensor, tf.Tensor], element: tuple[dict[str, tf.Tensor], tf.Tensor]) -> tuple[Any, Any]:
        features, label = element
        corrupt = tf.not_equal(features["problem"], "")
        problems, epochs = (tf.boolean_mask(features[name], corrupt) for name in ("problem", "epoch"))
        last = tf.reduce_max(tf.concat([epochs, state[0][None]], 0))
        before = tf.where(tf.equal(last, state[0]), state[1], 0)
        num_corrupt = before + tf.math.count_nonzero(tf.equal(epochs, last))
        printed = tf.cond(tf.reduce_any(corrupt), lambda: _say(problems, num_corrupt), lambda: tf.constant(False))
        stop = f"more than max_corrupt={max_corrupt} corrupt records in an epoch, the last: "
        stop = tf.strings.join([stop, tf.strings.reduce_join(problems[-1:])])
        with tf.control_dependencies([printed, tf.raw_ops.Assert(condition=num_corrupt <= max_corrupt, data=[stop])]):
            remaining = {name: value for name, value in features.items() if name not in ("problem", "epoch")}
            return (last, tf.identity(num_corrupt)), (remaining, label)

    zero = tf.constant(0, tf.int64)
    return batches.scan((zero, zero), count)


def _say(problems: tf.Tensor, num_corrupt: tf.Tensor) -> tf.Tensor:
    line = tf.strings.join(["skipped corrupt records, ", tf.strings.as_string(num_corrupt), " in this epoch: "])
    printed, num_others = problems[:_MAX_PRINTED], tf.size(problems) - _MAX_PRINTED
    more = tf.where(num_others > 0, tf.strings.join(["; and ", tf.strings.as_string(num_others), " more"]), "")
    message = tf.strings.join([line, tf.strings.reduce_join(printed, separator="; "), more])
    with tf.control_dependencies([tf.print(message)]):
        return tf.constant(True)


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

    The arguments, and what is read, are as in datasets.find_undecodable().

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
        for place, payload in _records_of(manifest, split, lengths):
            try:
                session.run(tried, {serialized: payload})
            except tf.errors.InvalidArgumentError:
                return place
    return None


def _records_of(manifest: Manifest, split: str, lengths: range) -> Iterator[tuple[str, bytes]]:
    for shard in manifest.split(split).shards:
        path = f"{manifest.path}/{shard.name}"
        with tf.io.gfile.GFile(path, "rb") as file:
            for number, (offset, length) in enumerate(walk_lengths(path, shard.num_bytes)):
                if length in lengths:
                    file.seek(offset)
                    yield f"record {number} of {path!r}", file.read(length)
