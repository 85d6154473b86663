"""Batches for a step, made by threads of this process from the examples of a source of tpu_input, without TensorFlow.

    TrainSource, EvalSource ──threads──▶ {"image" [N, H, W, 3], "label", "weight"} ──to_devices()──▶ arrays over a mesh

A thread reads and decodes one part of a batch; the decoders release Python's global lock. Some batches are made ahead.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpu_input.command_line.cores import num_cores
from tpu_input.command_line.wording import first_line

AHEAD = 2  # batches that are made while a step runs
_PART = 16  # least examples of a part, so that handing it to a thread costs little
_AXIS = "data"
NAMES = ("image", "label", "weight")


class HostBatch(NamedTuple):
    """A batch in the memory of this process.

    Attributes:
      arrays: Arrays by name: NAMES.
      ready: Time at which its last example was ready, in seconds since 1970.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    ready: float


class BatchReader:
    """Iterator over batches of consecutive examples, in order; threads make AHEAD of them in advance."""

    def __init__(self, source: Any, batch_size: int, num_batches: int, path: str) -> None:
        """Begins to read.

        Args:
          source: A TrainSource or EvalSource.
          batch_size: Examples of a batch.
          num_batches: Number of batches; nothing is read for later ones.
          path: Path or URI of the dataset, for the advice of an error.
        """
        self._source, self._batch_size, self._path = source, batch_size, path
        self._numbers = iter(range(num_batches))
        self._threads = num_cores()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="jpeg2tpu-examples")
        self._pending: collections.deque[tuple[dict[str, Any], list[Future[float]]]] = collections.deque()
        for _ in range(1 + AHEAD):
            self._begin()

    def _begin(self) -> None:
        """Lets the threads fill the arrays of the next batch, if there is one."""
        for number in itertools.islice(self._numbers, 1):
            arrays: dict[str, Any] = {}
            first, total = number * self._batch_size, self._batch_size
            size = max(_PART, -(-total // self._threads))
            parts = [range(start, min(start + size, total)) for start in range(0, total, size)]
            futures = [self._pool.submit(_fill, self._source, arrays, first, part, total) for part in parts]
            self._pending.append((arrays, futures))

    def is_ready(self) -> bool:
        """Returns whether there is a next batch that has been made."""
        return bool(self._pending) and all(part.done() for part in self._pending[0][1])

    def __iter__(self) -> BatchReader:
        return self

    def __next__(self) -> HostBatch:
        """Returns the next batch, and waits until it has been made.

        Raises:
          ValueError: A record is damaged, cannot be decoded or has a label outside the classes; the message names it.
          OSError: A shard cannot be read.
        """
        if not self._pending:
            raise StopIteration
        arrays, parts = self._pending.popleft()
        try:
            batch = HostBatch(arrays, max(part.result() for part in parts))
        except ValueError as error:
            raise ValueError(f"{error}; find all such records with: jpeg2tpu verify {self._path}") from error
        self._begin()
        return batch

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(cancel_futures=True)


def _fill(source: Any, arrays: dict[str, Any], first: int, places: range, batch_size: int) -> float:
    """Puts examples into their places of a batch; returns the time at which it was done."""
    for place in places:
        example = source[first + place]
        for name in NAMES:
            value = np.asarray(example[name])
            # setdefault() is atomic, so that all threads have the same array
            array = arrays.get(name)
            if array is None:
                array = arrays.setdefault(name, np.empty((batch_size, *value.shape), value.dtype))
            array[place] = value
    return time.time()


def make_mesh(devices: Any = None) -> Mesh:
    """Returns all devices of all processes as a line, over which a batch is divided.

    The devices of a process are next to each other, so that the order of a batch does not depend on the processes.

    Args:
      devices: List of jax.Device; None for all.

    Raises:
      ValueError: JAX finds none: its plugin is missing, does not fit the driver, or another process has the TPU.
    """
    try:
        in_order = sorted(jax.devices() if devices is None else devices, key=lambda one: (one.process_index, one.id))
        return Mesh(np.array(in_order), (_AXIS,))
    except (RuntimeError, AssertionError) as error:
        # Where JAX_PLATFORMS names cuda and its plugin is not installed, JAX raises an AssertionError without a text.
        platforms = f"no plugin for JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')} is installed"
        reason = first_line(error) if str(error) else platforms
        raise ValueError(f"JAX finds no device: {reason}; JAX_PLATFORMS=cpu runs on the processor alone") from error


def device_names(run: Any) -> str:
    """Returns the number and the kind of the devices of a JaxRun, such as "8 TPU v6 lite of 2 processes"."""
    devices = run.mesh.devices.flatten().tolist()
    num_processes = len({device.process_index for device in devices})
    processes = f" of {num_processes} processes" if num_processes > 1 else ""
    return f"{len(devices)} {devices[0].device_kind}{processes}"


@contextlib.contextmanager
def device_errors(flag: str = "") -> Iterator[None]:
    """Makes of what goes wrong on a device an error in one line.

    Args:
      flag: The flag whose batch runs there; "" where the network is made, before there is a batch.

    Raises:
      ValueError: The device has too little memory, or cannot run the step.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            advice = f"use a smaller {flag}" if flag else "end other processes that use it, or take a smaller network"
            raise ValueError(f"too little memory on the device; {advice} ({first_line(error)})") from error
        raise ValueError(f"JAX cannot run on the device: {first_line(error)}") from error


def whole_on(mesh: Mesh) -> NamedSharding:
    """Returns how the state lies on the devices: a copy on each."""
    return NamedSharding(mesh, PartitionSpec())


def divided_over(mesh: Mesh) -> NamedSharding:
    """Returns how a batch lies on the devices: each has a part of its examples."""
    return NamedSharding(mesh, PartitionSpec(_AXIS))


def check_divisible(flag: str, batch_size: int, mesh: Mesh) -> None:
    """Raises ValueError unless each device gets the same number of a batch's examples."""
    if batch_size % mesh.size:
        near = max(1, round(batch_size / mesh.size)) * mesh.size
        raise ValueError(f"{flag} must be a multiple of the {mesh.size} devices, got {batch_size}; use {near}")


def to_devices(batch: HostBatch, mesh: Mesh) -> dict[str, jax.Array]:
    """Returns the arrays of a batch over the devices; each process gives its own part of the examples."""
    divided = divided_over(mesh)
    return {name: jax.make_array_from_process_local_data(divided, array) for name, array in batch.arrays.items()}
