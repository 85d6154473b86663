"""TensorFlow's file format, implemented without TensorFlow: the tf.train.Example message and TFRecord framing.

{feature: value} ──serialize()──▶ a tf.train.Example ──frame()──▶ one TFRecord of a shard
one TFRecord of a shard ──read_frames()──▶ (offset, serialized Example) ──Example.FromString()──▶ features
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _example_class() -> Any:
    """Returns the message class of tf.train.Example, declared as in tensorflow/core/example/{example,feature}.proto.

    A separate descriptor pool avoids a conflict with TensorFlow's own Example if both are loaded in one process.
    """
    proto = descriptor_pb2.FileDescriptorProto(name="example.proto", package="jpeg2tpu", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, int, int, str]) -> descriptor_pb2.DescriptorProto:
        built = proto.message_type.add(name=name)
        for field_name, number, label, kind, type_name in fields:
            built.field.add(name=field_name, number=number, label=label, type=kind, type_name=type_name or None)
        return built

    one, many, sub = field.LABEL_OPTIONAL, field.LABEL_REPEATED, field.TYPE_MESSAGE
    message("BytesList", ("value", 1, many, field.TYPE_BYTES, ""))
    message("FloatList", ("value", 1, many, field.TYPE_FLOAT, ""))
    message("Int64List", ("value", 1, many, field.TYPE_INT64, ""))
    kinds = message(
        "Feature",
        ("bytes_list", 1, one, sub, ".jpeg2tpu.BytesList"),
        ("float_list", 2, one, sub, ".jpeg2tpu.FloatList"),
        ("int64_list", 3, one, sub, ".jpeg2tpu.Int64List"),
    )
    kinds.oneof_decl.add(name="kind")
    for kind in kinds.field:
        kind.oneof_index = 0
    features = message("Features", ("feature", 1, many, sub, ".jpeg2tpu.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=one, type=sub, type_name=".jpeg2tpu.Feature")
    message("Example", ("features", 1, one, sub, ".jpeg2tpu.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("jpeg2tpu.Example"))


Example = _example_class()


def serialize(features: Mapping[str, Any]) -> bytes:
    """Returns a serialized tf.train.Example with one value per feature, or several, in the given order of features.

    A value is bytes or int, or a sequence of bytes, int or float; an empty one becomes a list of integers.

    The encoding (https://protobuf.dev/programming-guides/encoding) is implemented here because protobuf takes more than
    twice as long for a photograph. What is equal in many records is cached: without that, it would take a sixth of the
    time of converting a small image.
    """
    parts: list[bytes] = []
    for name, value in features.items():
        if isinstance(value, bytes):
            parts += (_bytes_prefix(name, len(value)), value)
        elif isinstance(value, int):
            parts.append(_int_feature(name, value))
        else:
            parts.append(_list_feature(name, value))
    return b"".join(length_delimited(1, parts))


def _list_feature(name: str, values: Sequence[Any]) -> bytes:
    """Returns a feature with any number of values of one type."""
    number, content = 3, b""
    if values and isinstance(values[0], bytes):
        number, content = 1, b"".join(b"".join(length_delimited(1, [value])) for value in values)
    elif values and isinstance(values[0], float):
        number, content = 2, b"".join(length_delimited(1, [struct.pack(f"<{len(values)}f", *values)]))
    elif values:
        content = b"".join(length_delimited(1, [varint(value & (1 << 64) - 1) for value in values]))
    feature = b"".join(length_delimited(number, [content]))
    return _feature_prefix(name, len(feature)) + feature


@functools.lru_cache(maxsize=1 << 12)
def _bytes_prefix(name: str, num_bytes: int) -> bytes:
    """Returns all bytes of a feature before its value of `num_bytes` bytes."""
    value = _prefix(1, num_bytes)
    bytes_list = _prefix(1, len(value) + num_bytes) + value
    return _feature_prefix(name, len(bytes_list) + num_bytes) + bytes_list


@functools.lru_cache(maxsize=1 << 12)
def _int_feature(name: str, value: int) -> bytes:
    """Returns a feature with an integer, which may be negative."""
    number = varint(value & (1 << 64) - 1)
    values = _prefix(1, len(number)) + number
    int64_list = _prefix(3, len(values)) + values
    return _feature_prefix(name, len(int64_list)) + int64_list


def _feature_prefix(name: str, num_bytes: int) -> bytes:
    """Returns the bytes of a feature's entry in the map of features before its value of `num_bytes` bytes."""
    encoded = name.encode()
    entry = _prefix(1, len(encoded)) + encoded + _prefix(2, num_bytes)
    return _prefix(1, len(entry) + num_bytes) + entry


def length_delimited(number: int, parts: Sequence[bytes]) -> list[bytes]:
    """Returns the parts of a length-delimited field: a message, a string, or packed repeated integers."""
    return [_prefix(number, sum(map(len, parts))), *parts]


def _prefix(number: int, num_bytes: int) -> bytes:
    """Returns the tag and the length before the content of a length-delimited field."""
    return varint(number << 3 | 2) + varint(num_bytes)


def varint(value: int) -> bytes:
    """Returns a number as a varint: seven bits per byte, lowest first, the top bit set in all bytes but the last."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


# TFRecord framing: uint64 length, masked CRC-32C of the length, payload, masked CRC-32C of the payload; little-endian.
# https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
FRAME_BYTES = _HEADER.size + _FOOTER.size
# What TFRecordWriter and others compress with: https://www.rfc-editor.org/rfc/rfc1952, rfc1950 and rfc8878.
_COMPRESSIONS = {
    b"\x1f\x8b": "GZIP",
    **dict.fromkeys((b"x\x01", b"x\x5e", b"x\x9c", b"x\xda"), "ZLIB"),
    b"\x28\xb5\x2f\xfd": "zstd",
}
_MAX_RECORD_BYTES = 2**31  # the limit of protobuf; a larger length means that the header is damaged


def _masked_crc(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Returns `payload` framed as one TFRecord, which is FRAME_BYTES longer."""
    length = struct.pack("<Q", len(payload))
    return b"".join((length, _FOOTER.pack(_masked_crc(length)), payload, _FOOTER.pack(_masked_crc(payload))))


class Compressed(ValueError):
    """Error of a file of TFRecords that was written with compression; the message continues after the file's path."""


def check_uncompressed(header: bytes) -> None:
    """Checks the first bytes of a file that do not begin a TFRecord.

    Raises:
      Compressed: They begin a compressed file.
    """
    if name := next((name for magic, name in _COMPRESSIONS.items() if header.startswith(magic)), ""):
        raise Compressed(f"is compressed ({name}), and records are read without decompressing; decompress the file")


def read_frames(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields (offset of the record in bytes, payload) for every TFRecord of `file`.

    Raises:
      Compressed: The file is compressed.
      ValueError: A checksum differs or the file ends inside a record; the message gives the record's number and offset.
    """
    offset = 0
    for number in range(2**63):
        header = file.read(_HEADER.size)
        if not header:
            return
        where = f"record {number} at byte {offset}"
        if len(header) < _HEADER.size:
            raise ValueError(f"{where} is truncated")
        length, length_crc = _HEADER.unpack(header)
        if _masked_crc(header[:8]) != length_crc or length > _MAX_RECORD_BYTES:
            if not number:
                check_uncompressed(header)
            raise ValueError(f"{where} has a corrupt length")
        payload, footer = file.read(length), file.read(_FOOTER.size)
        if len(footer) < _FOOTER.size:
            raise ValueError(f"{where} is truncated")
        if _masked_crc(payload) != _FOOTER.unpack(footer)[0]:
            raise ValueError(f"{where} has a corrupt payload")
        yield offset, payload
        offset += length + FRAME_BYTES
