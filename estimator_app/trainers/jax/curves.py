"""TensorBoard's curves without TensorFlow: event files of scalars.

(name, value) of a step ──▶ Event{wall_time, step, Summary{tag, simple_value}} ──▶ TFRecords in events.out.tfevents.…

The fields are those of tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto. TensorBoard reads
the files of a folder in the order of their names, which begin with the time.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Mapping

from estimator_app.config import TrainConfig
from estimator_app.runtime import files
from estimator_app.trainers.progress import Progress
from tpu_input.dataset_format.tfrecord import frame, length_delimited, varint

_numbers = itertools.count()  # of the files of this process


class Curves:
    """An event file in a folder; it is made when the first scalar is written.

    A local file grows with each step that is written. In a bucket, where no file can grow, it is written at the end.
    """

    def __init__(self, folder: str, config: TrainConfig) -> None:
        """Takes the folder or URI of the event file, and the config of the run."""
        self._folder, self._config = folder, config
        self._path, self._events = "", bytearray()
        self._last: int | None = None

    def reached(self, progress: Progress) -> None:
        """Writes the curves of training if a multiple of summary_steps was reached since the last call."""
        config, step = self._config, progress.step
        if step // config.summary_steps == (step - 1) // config.summary_steps:
            return
        values = {
            "train/loss": progress.loss,
            "train/learning_rate": float(config.schedule.learning_rate(step - 1.0)),
            "train/epoch": step * config.train_batch_size / config.train_examples,
        }
        speed = progress.values().get("images_per_second")
        self.write(step, values if speed is None else values | {"examples/sec": speed})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes scalars of a step by name."""
        if not self._path:
            files.make_folder(self._folder)
            name = f"{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):06d}"
            self._path = f"{self._folder}/events.out.tfevents.{name}"
            self._add(frame(_event(0, length_delimited(3, [b"brain.Event:2"]))))  # the version of the format
        summary = [part for name, value in values.items() for part in length_delimited(1, _value(name, value))]
        self._add(frame(_event(step, length_delimited(5, summary))))

    def _add(self, event: bytes) -> None:
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


def _event(step: int, content: list[bytes]) -> bytes:
    """Returns a serialized Event: field 1 is the time, field 2 the step."""
    return b"".join([b"\x09", struct.pack("<d", time.time()), b"\x10", varint(step), *content])


def _value(name: str, value: float) -> list[bytes]:
    """Returns the parts of a Summary.Value: field 1 is the name, field 2 the value."""
    return [*length_delimited(1, [name.encode()]), b"\x15", struct.pack("<f", value)]
