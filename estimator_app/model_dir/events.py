"""TensorBoard's event files without TensorFlow: scalars and images, written and read.

(name, value) of a step ──EventFile──▶ Event{wall_time, step, Summary{tag, simple_value or image}} ──▶ TFRecords
events.out.tfevents.… ──read_scalars()──▶ (name, step, value)

The fields are declared in tensorflow/core/util/event.proto, and in summary.proto and tensor.proto of
tensorflow/core/framework. tf.summary writes a number as a tensor, other writers as simple_value; both are read.
TensorBoard reads the files of a folder in the order of their names, which begin with the time.
"""

from __future__ import annotations

import io
import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping

from estimator_app.runtime import files
from tpu_input.dataset_format.tfrecord import frame, length_delimited, read_frames, varint

PREFIX = "events.out.tfevents."
_numbers = itertools.count()  # of the files of this process
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # https://protobuf.dev/programming-guides/encoding
_DT_FLOAT = 1


class EventFile:
    """An event file in a folder; it is made when something is written.

    A local file grows with each step that is written. In a bucket, where no file can grow, it is written by close().
    """

    def __init__(self, folder: str) -> None:
        """Takes the folder or URI."""
        self._folder, self._path, self._events = folder, "", bytearray()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes numbers of a step by name."""
        self._add(step, [_value(name, [b"\x15", struct.pack("<f", value)]) for name, value in values.items()])

    def images(self, step: int, pictures: Mapping[str, tuple[bytes, int, int]]) -> None:
        """Writes pictures of a step by name: (content of a PNG file of three channels, height, width)."""
        self._add(
            step,
            [
                _value(name, length_delimited(4, _numbers_of((1, height), (2, width), (3, 3)) + _field(4, png)))
                for name, (png, height, width) in pictures.items()
            ],
        )

    def _add(self, step: int, values: list[list[bytes]]) -> None:
        if not self._path:
            files.make_folder(self._folder)
            name = f"{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):06d}"
            self._path = f"{self._folder}/{PREFIX}{name}"
            self._append(frame(_event(0, _field(3, b"brain.Event:2"))))  # the version of the format
        summary = [part for value in values for part in length_delimited(1, value)]
        self._append(frame(_event(step, length_delimited(5, summary))))

    def _append(self, event: bytes) -> None:
        if "://" in self._folder:
            self._events += event
            return
        with open(self._path, "ab") as file:
            file.write(event)

    def close(self) -> None:
        """Writes the file of a bucket."""
        if self._events:
            files.write(self._path, bytes(self._events))
            self._events.clear()


def read_scalars(content: bytes) -> Iterator[tuple[str, int, float]]:
    """Yields (name, step, value) of the numbers in the content of an event file.

    Raises:
      ValueError: It is damaged; what comes before the damage has been yielded.
    """
    for _, event in read_frames(io.BytesIO(content)):
        fields = dict(_fields(event))
        step, summary = fields.get(2, 0), fields.get(5, b"")
        for number, value in _fields(summary) if isinstance(summary, bytes) else ():
            parts = dict(_fields(value)) if number == 1 and isinstance(value, bytes) else {}
            name, scalar = parts.get(1), parts.get(2, _number_in(parts.get(8, b"")))
            if isinstance(name, bytes) and isinstance(scalar, bytes) and len(scalar) == 4 and isinstance(step, int):
                yield name.decode(), step, struct.unpack("<f", scalar)[0]


def _number_in(tensor: int | bytes) -> int | bytes | None:
    """Returns the bytes of the float32 in a serialized TensorProto of one without dimensions; None of another."""
    parts = dict(_fields(tensor)) if isinstance(tensor, bytes) else {}
    is_number = parts.get(1) == _DT_FLOAT and not parts.get(2)  # a stranger's tensor may need all of the memory
    return parts.get(4, parts.get(5)) if is_number else None


def _event(step: int, content: list[bytes]) -> bytes:
    """Returns a serialized Event: field 1 is the time, field 2 the step."""
    return b"".join([b"\x09", struct.pack("<d", time.time()), *_numbers_of((2, step)), *content])


def _value(name: str, content: list[bytes]) -> list[bytes]:
    """Returns the parts of a Summary.Value, whose field 1 is the name."""
    return [*_field(1, name.encode()), *content]


def _field(number: int, content: bytes) -> list[bytes]:
    return length_delimited(number, [content])


def _numbers_of(*fields: tuple[int, int]) -> list[bytes]:
    """Returns fields that are integers, each given as (its number, its value)."""
    return [varint(number << 3 | _VARINT) + varint(value) for number, value in fields]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields (number, value) of the fields of a serialized message; numbers of fixed size as their bytes."""
    offset = 0

    def number() -> int:
        nonlocal offset
        value = shift = 0
        while offset < len(message) and shift < 70:
            byte = message[offset]
            offset, value, shift = offset + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value
        raise ValueError("a number in it does not end")

    while offset < len(message):
        key = number()
        kind = key & 7
        if kind == _VARINT:
            yield key >> 3, number()
            continue
        if kind not in (_EIGHT_BYTES, _BYTES, _FOUR_BYTES):
            raise ValueError(f"it has a field of the unknown kind {kind}")
        size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind) or number()
        if len(message) - offset < size:
            raise ValueError("it is cut off")
        yield key >> 3, message[offset : offset + size]
        offset += size
