"""One peer's way of reading records in a random order, in an environment of its own; __main__.py starts it.

    python -m benchmarks.order.peers seen|resume|waits|cost WAY DATASET ARGUMENTS_IN_JSON
    python -m benchmarks.order.peers write array_record|mds DATASET       copies the records of data.py

Needs benchmarks/requirements-peers.txt (grain), or requirements-peers-torch.txt (MosaicML streaming), and of this
repository what reads TFRecords without TensorFlow. Records stay serialized.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.order.measures import Ask, Way, main, read_manifest
from tpu_input.dataset_format.records import read_frames

THREADS = len(os.sched_getaffinity(0))
# (package, modules that are imported before anything is measured) of each way
_GRAIN = ("grain", ("grain", "grain.experimental", "grain.python", "tpu_input.record_source"))
PACKAGES = {
    "grain": _GRAIN,
    "grain_sampler": _GRAIN,
    "grain_record_source": _GRAIN,
    "mosaicml": ("mosaicml-streaming", ("streaming", "streaming.base.batching", "streaming.base.world")),
}


def write_array_record(dataset: Path) -> None:
    """A file for each shard; groups of one record, for access in any order, and no compression, as of JPEGs."""
    from array_record.python.array_record_module import ArrayRecordWriter

    for shard, payloads in _shards(dataset):
        writer = ArrayRecordWriter(str(_make_folder(dataset / "array_record") / shard), "group_size:1,uncompressed")
        for payload in payloads:
            writer.write(payload)
        writer.close()


def write_mds(dataset: Path) -> None:
    """Shards of the same size as the largest of the TFRecords."""
    from streaming import MDSWriter

    size = max(shard.num_bytes for shard in read_manifest(dataset).split("train").shards)
    with MDSWriter(out=str(dataset / "mds"), columns={"record": "bytes"}, size_limit=max(size, 1 << 16)) as writer:
        for _, payloads in _shards(dataset):
            for payload in payloads:
                writer.write({"record": payload})


def _shards(dataset: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yields (name, its serialized records) of each shard."""
    manifest = read_manifest(dataset)
    for shard in manifest.split("train").shards:
        with open(f"{manifest.path}/{shard.name}", "rb") as file:
            yield shard.name, (payload for _, payload in read_frames(file))


def _make_folder(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def grain(ask: Ask, record_source: bool = False) -> Iterator[Sequence[Any]]:
    """All numbers permuted, epoch after epoch, and dealt out to hosts by grain's ElasticIterator.

    Args:
      ask: What to read.
      record_source: Whether the TFRecords are read, with this package's RecordSource, in the place of ArrayRecord.
    """
    from grain import MapDataset, ReadOptions
    from grain.experimental import ElasticIterator
    from grain.python import ShardOptions

    from tpu_input.record_source import RecordSource

    source = RecordSource(read_manifest(ask.dataset), "train") if record_source else _array_record(ask.dataset)
    records = MapDataset.source(source).seed(ask.seed).shuffle().repeat().map(_boxed)
    options = ReadOptions(num_threads=THREADS, prefetch_buffer_size=2)  # batches
    shard = ShardOptions(shard_index=ask.host, shard_count=ask.hosts)
    batches = iter(ElasticIterator(records, ask.step_records, shard, read_options=options))
    batches.set_state({"global_next_index": ask.step * ask.step_records})
    yield from batches


def grain_sampler(ask: Ask) -> Iterator[Sequence[Any]]:
    """Each host's own part of the records, permuted: IndexSampler and DataLoader, as grain's documentation has them."""
    from grain import python as loaders

    class Box(loaders.MapTransform):
        def map(self, element: bytes) -> npt.NDArray[Any]:
            return _boxed(element)

    source = _array_record(ask.dataset)
    shard = loaders.ShardOptions(shard_index=ask.host, shard_count=ask.hosts, drop_remainder=True)
    sampler = loaders.IndexSampler(len(source), shard_options=shard, shuffle=True, seed=ask.seed)
    options = loaders.ReadOptions(num_threads=THREADS, prefetch_buffer_size=2 * ask.batch_size)
    operations = [Box(), loaders.Batch(ask.batch_size, drop_remainder=True)]
    loader = loaders.DataLoader(data_source=source, sampler=sampler, operations=operations, read_options=options)
    yield from loader


def _array_record(dataset: Path) -> Any:
    from grain.python import ArrayRecordDataSource

    return ArrayRecordDataSource(sorted(str(path) for path in (dataset / "array_record").glob("*.tfrecord")))


def _boxed(record: Any) -> npt.NDArray[Any]:
    """Returns a record as an object, since grain would copy bytes of different lengths into one array."""
    box = np.empty((), object)
    box[()] = record
    return box


def mosaicml(ask: Ask) -> Iterator[Sequence[Any]]:
    """StreamingDataset as it is by default (shuffle_algo="py1e"); with hosts, a node of one rank each.

    Of several hosts, what streaming computes for each is taken, and no record is read: it cannot have several nodes on
    one machine. Batches that are not full are left out, as drop_last=True does.
    """
    from streaming import StreamingDataLoader

    dataset = _streaming_dataset(ask.dataset, ask.batch_size, ask.seed, ask.first_hosts)
    if ask.hosts > 1:
        yield from _streaming_numbers(ask, dataset)
        return
    loader = StreamingDataLoader(dataset, batch_size=ask.batch_size, collate_fn=_records, drop_last=True)
    if ask.step:
        epoch, step = divmod(ask.step, dataset.size // ask.batch_size)
        state = {"epoch": epoch, "sample_in_epoch": step * ask.batch_size, "shuffle_seed": ask.seed}
        nodes = {"num_canonical_nodes": ask.first_hosts, "initial_physical_nodes": ask.first_hosts}
        loader.load_state_dict(state | nodes)
    while True:
        yield from loader


@functools.cache  # one for all hosts
def _streaming_dataset(dataset: Path, batch_size: int, seed: int, first_hosts: int) -> Any:
    from streaming import StreamingDataset

    return StreamingDataset(
        local=str(dataset / "mds"),
        batch_size=batch_size,
        shuffle=True,
        shuffle_seed=seed,
        num_canonical_nodes=first_hosts,
    )


def _records(samples: Sequence[dict[str, bytes]]) -> list[bytes]:
    return [sample["record"] for sample in samples]


def _streaming_numbers(ask: Ask, dataset: Any) -> Iterator[Sequence[int]]:
    """Yields the numbers of the records of a host's batches, as streaming's generate_work() has them."""
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    dataset.initial_physical_nodes = ask.first_hosts
    dataset.shuffle_block_size = max(4_000_000 // ask.first_hosts, 1 << 18)  # its default
    world, first = World(ask.hosts, 1, 1, ask.host), ask.step * ask.step_records
    for epoch in itertools.count():
        numbers = generate_work("random", dataset, world, epoch, 0 if epoch else first)
        for batch in range(numbers.shape[3]):
            if (numbers[:, 0, 0, batch] >= 0).all():  # of all hosts, as a step takes a batch of each
                yield numbers[ask.host, 0, 0, batch].tolist()


WRITERS = {"array_record": write_array_record, "mds": write_mds}
WAYS: dict[str, Way] = {
    "grain": grain,
    "grain_sampler": grain_sampler,
    "grain_record_source": functools.partial(grain, record_source=True),
    "mosaicml": mosaicml,
}


def package_version(way: str) -> str:
    package, _ = PACKAGES[way]
    return f"{package} {version(package)}"


if __name__ == "__main__":
    if sys.argv[1] == "write":
        WRITERS[sys.argv[2]](Path(sys.argv[3]))
    else:
        for module in PACKAGES[sys.argv[2]][1]:
            importlib.import_module(module)
        main(WAYS, package_version)
