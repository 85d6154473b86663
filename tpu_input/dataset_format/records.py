"""The record contract: the format that a converter writes and an input pipeline reads.

    Record ──encode()──▶ serialized tf.train.Example ──frame()──▶ TFRecord file
    TFRecord file ──read_frames()──▶ serialized ──decode()──▶ Record        (NumPy-free, TensorFlow-free)
                                                └─parse()───▶ tf tensors   (inside a tf.data pipeline)

Importing this module never imports TensorFlow: a Beam worker needs only the contract, and importing TensorFlow would
take 1.5 s and 300 MB per worker.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NamedTuple

from tpu_input.dataset_format.label_kinds import ONE, SEVERAL, stored_kind
from tpu_input.dataset_format.manifest import (
    MANIFEST_NAME as MANIFEST_NAME,
    MAX_INDEX_BYTES as MAX_INDEX_BYTES,
    MAX_MANIFEST_BYTES as MAX_MANIFEST_BYTES,
    Manifest as Manifest,
    Shard as Shard,
    Split as Split,
    in_edition as in_edition,
    manifest_name as manifest_name,
    parse_shard_name as parse_shard_name,
    shard_name as shard_name,
    valid_split as valid_split,
)
from tpu_input.dataset_format.record_spec import (
    IMAGE_KEY as IMAGE_KEY,
    IMAGENET as IMAGENET,
    LABEL_KEY,
    LABELS_KEY,
    MNIST as MNIST,
    RecordSpec as RecordSpec,
)
from tpu_input.dataset_format.tfrecord import (
    FRAME_BYTES as FRAME_BYTES,
    Example,
    frame as frame,
    read_frames as read_frames,
    serialize,
)

NO_LABEL = -(2**31)  # label that parse() returns for a record without a label
PNG_BEGIN = b"\x89PNG\r\n\x1a\n"
COLORSPACES = {1: b"Grayscale", 3: b"RGB"}


class Record(NamedTuple):
    """One example.

    Attributes:
      key: Unique within the dataset; the source's path relative to the input.
      encoded: A complete JPEG file, baseline or progressive, grayscale or RGB; or, if the dataset was converted with
        --lossless, a PNG file of 8 bits, grayscale or RGB.
      height: Height in pixels.
      width: Width in pixels.
      channels: 1 (grayscale) or 3 (RGB).
      label: Class index, always 0-based, also if first_label on disk is 1; in a dataset with several labels per image,
        all of them, ascending.
      class_name: Name of the class; with several labels, the names of all.
      sha256: Hex digest of `encoded`.
      features: Further features by name, each a tuple of float, int or str: see Manifest.features.
    """

    key: str
    encoded: bytes
    height: int
    width: int
    channels: int
    label: Any  # int; tuple[int, ...] with several labels
    class_name: Any  # str; tuple[str, ...]
    sha256: str
    features: dict[str, tuple[Any, ...]] = {}  # noqa: RUF012


class Feature(NamedTuple):
    """One feature of a serialized record.

    Attributes:
      kind: bytes or int: a bytes_list or an int64_list with one value; list[bytes] or list[int] with any number.
      value: Function (record, label on disk of class 0) -> the value, or the values.
    """

    kind: Any
    value: Callable[[Any, int], Any]


# The features of a record: of ImageNet-style records as tensorflow/tpu's converters write them, plus `image/key`
# and `image/key/sha256`. encode(), decode() and parse() follow this table. It is in the order of protobuf's
# deterministic serializer, so that encode() writes the same bytes.
FEATURES = {
    "image/channels": Feature(int, lambda record, _: record.channels),
    LABEL_KEY: Feature(int, lambda record, first_label: record.label + first_label),
    "image/class/text": Feature(bytes, lambda record, _: record.class_name.encode()),
    "image/colorspace": Feature(bytes, lambda record, _: COLORSPACES[record.channels]),
    IMAGE_KEY: Feature(bytes, lambda record, _: record.encoded),
    "image/filename": Feature(bytes, lambda record, _: record.key.rsplit("/", 1)[-1].encode()),
    "image/format": Feature(bytes, lambda record, _: b"PNG" if record.encoded.startswith(PNG_BEGIN) else b"JPEG"),
    "image/height": Feature(int, lambda record, _: record.height),
    "image/key/sha256": Feature(bytes, lambda record, _: record.sha256.encode()),
    "image/key": Feature(bytes, lambda record, _: record.key.encode()),
    "image/width": Feature(int, lambda record, _: record.width),
}


# The features of a record with several labels.
FEATURES_OF_SETS = {
    {LABEL_KEY: LABELS_KEY}.get(name, name): {
        LABEL_KEY: Feature(list[int], lambda record, first_label: [label + first_label for label in record.label]),
        "image/class/text": Feature(list[bytes], lambda record, _: [name.encode() for name in record.class_name]),
    }.get(name, feature)
    for name, feature in FEATURES.items()
}

_BYTES_KINDS = frozenset({bytes, list[bytes]})  # kinds
_MANY = frozenset({list[bytes], list[int]})


def encode(record: Record, first_label: int = 0) -> bytes:
    """Returns `record` as a serialized tf.train.Example; deterministic: equal records give equal bytes.

    Args:
      record: Record to encode; `record.label` is 0-based.
      first_label: Label written for class 0: 0, or 1 for the convention of tensorflow/tpu's trainers.
    """
    table = FEATURES_OF_SETS if stored_kind(record.label).is_list else FEATURES
    features = {name: feature.value(record, first_label) for name, feature in table.items()}
    if record.features:
        more = {
            name: [value.encode() if isinstance(value, str) else value for value in values]
            for name, values in record.features.items()
        }
        features = dict(sorted((features | more).items()))
    return serialize(features)


def decode(serialized: bytes, first_label: int = 0) -> Record:
    """Returns the Record that encode() wrote.

    Raises:
      ValueError: `serialized` is not a tf.train.Example, or a feature is missing or has another type.
    """
    try:
        features = Example.FromString(serialized).features.feature
    except Exception as error:  # the public location of protobuf's DecodeError differs between its versions
        raise ValueError(f"not a tf.train.Example: {error}") from error
    values: dict[str, Any] = {}
    labels = SEVERAL if LABELS_KEY in features else ONE
    for name, (kind, _) in (FEATURES_OF_SETS if labels.is_list else FEATURES).items():
        value = features[name].bytes_list.value if kind in _BYTES_KINDS else features[name].int64_list.value
        if kind in _MANY:
            values[name] = tuple(value)
        elif len(value) != 1:
            raise ValueError(f"feature {name!r} has {len(value)} values of {kind.__name__}, but must have 1")
        else:
            values[name] = value[0]
    text = values["image/class/text"]
    return Record(
        key=values["image/key"].decode(),
        encoded=values[IMAGE_KEY],
        height=values["image/height"],
        width=values["image/width"],
        channels=values["image/channels"],
        label=labels.label([index - first_label for index in labels.indices(values[labels.key])]),
        class_name=tuple(part.decode() for part in text) if labels.is_list else text.decode(),
        sha256=values["image/key/sha256"].decode(),
        features={name: _values_of(features[name]) for name in features if name not in FEATURES and name != LABELS_KEY},
    )


def _values_of(feature: Any) -> tuple[Any, ...]:
    """Returns the values of a feature: texts, floats or integers; bytes other than UTF-8 as replacement characters."""
    if feature.HasField("bytes_list"):
        return tuple(value.decode(errors="replace") for value in feature.bytes_list.value)
    return tuple(feature.float_list.value if feature.HasField("float_list") else feature.int64_list.value)


def image_of(framed: bytes, feature: str = IMAGE_KEY) -> bytes:
    """Returns the image in one TFRecord.

    Args:
      framed: The record as it lies in the file, with its frame.
      feature: Feature with the image.

    Raises:
      ValueError: It is not a complete, undamaged record, or has no image.
    """
    frames = list(read_frames(io.BytesIO(framed)))
    if len(frames) != 1:
        raise ValueError(f"{len(frames)} records in the bytes of one")
    try:
        value = Example.FromString(frames[0][1]).features.feature[feature].bytes_list.value
    except Exception as error:  # the public location of protobuf's DecodeError differs between its versions
        raise ValueError(f"not a tf.train.Example: {error}") from error
    if len(value) != 1:
        raise ValueError(f"feature {feature!r} has {len(value)} values, but must have 1")
    image: bytes = value[0]
    return image


def parse(
    serialized: Any, first_label: int = 0, spec: RecordSpec | None = None, num_labels: int | None = None
) -> dict[str, Any]:
    """Returns the tensors of one record that an input pipeline needs; for use inside `tf.data`.

    Args:
      serialized: Scalar string tensor, a tf.train.Example.
      first_label: Manifest.first_label.
      spec: Keys of image and label; None for those that encode() writes.
      num_labels: Manifest.num_labels.

    Returns:
      {"encoded": scalar string, a JPEG file or the encoding of `spec`, "" if missing; "label": scalar int32, 0-based,
      NO_LABEL if missing, saturated to the smallest or largest int32 if the one on disk is out of range; with
      `num_labels`, [num_labels] int32: 1 for each class of the example and 0 for the others, or all NO_LABEL if one of
      its labels is out of range}.
    """
    import tensorflow as tf

    example = parse_int64(serialized, first_label, spec, num_labels)
    return example | {"label": tf.saturate_cast(example["label"], tf.int32)}


def parse_int64(
    serialized: Any, first_label: int = 0, spec: RecordSpec | None = None, num_labels: int | None = None
) -> dict[str, Any]:
    """Returns the same as parse(), but with an int64 label, not saturated: checking it before a cast saves an op."""
    import tensorflow as tf

    spec = spec or RecordSpec()
    key, label_spec = spec.label_key, tf.io.FixedLenFeature([], tf.int64, NO_LABEL + first_label)
    if num_labels is not None:
        key, label_spec = LABELS_KEY, tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)
    feature_specs = {spec.image_key: tf.io.FixedLenFeature([], tf.string, ""), key: label_spec}
    features = tf.io.parse_single_example(serialized, feature_specs)
    label = features[key] - first_label
    if num_labels is not None:
        valid = tf.logical_and(label >= 0, label < num_labels)
        indices = tf.boolean_mask(label, valid)
        counts = tf.scatter_nd(indices[:, None], tf.ones_like(indices), tf.constant([num_labels], tf.int64))
        label = tf.where(tf.reduce_all(valid), tf.minimum(counts, 1), tf.constant(NO_LABEL, tf.int64))
        label = tf.ensure_shape(label, [num_labels])
    return {"encoded": features[spec.image_key], "label": label}
