"""How exactly loaders evaluate: which examples one evaluation counts, once, twice or not at all.

    python -m benchmarks.evaluation [--images=1003] [--batch_size=64]

    1,003 images of 1,003 classes, so that a label says which image it is; 7 shards ──each way, every one of 1 and 3
    hosts in a process of its own──▶ the labels of each batch ──▶ counted, padded, seen twice, dropped

A step takes a batch from every host, so an evaluation ends where the first host has no more. An example of weight 0 is
padding; one that comes again with nothing to tell it is counted twice. A batch that is not full has a shape of its own,
which a TPU compiles anew for or refuses.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.conversion.ways import OTHERS
from benchmarks.corpus import photograph
from benchmarks.input.start import convert_folder
from benchmarks.measure import PEERS
from tpu_input.record_source import write_dali_index

NUM_SHARDS = 7
# (what it is, way of ours.py or peers.py)
OURS = (
    ("make_eval_input_fn, eval_steps", "ours"),
    ("reference ResNet's, drop_remainder", "reference"),
    ("Keras image_dataset_from_directory, shard", "keras"),
)
OTHER = (
    ("NVIDIA DALI, pad_last_batch", "dali"),
    ("grain DataLoader over RecordSource", "grain"),
    ("webdataset, split_by_node", "webdataset"),
)
COLUMNS = {
    "way": "way",
    "hosts": "hosts",
    "steps": "steps",
    "counted once": "once:,",
    "padding, weight 0": "padded:,",
    "counted more than once": "twice:,",
    "dropped": "dropped:,",
    "batches not full": "ragged:,",
}


@dataclasses.dataclass(frozen=True)
class Data:
    """The same images as files, as a dataset and as tar files."""

    jpegs: Path
    dataset: Path
    tar: Path


def make_data(folder: Path, images: int) -> Data:
    data = Data(folder / f"jpegs{images}", folder / f"dataset{images}", folder / f"tar{images}")
    for number in range(images):
        path = data.jpegs / f"class{number:04d}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(photograph(np.random.default_rng([0, number]), (64, 48)))
    shards = (("validation", NUM_SHARDS),)
    manifest = convert_folder(data.jpegs, data.dataset, splits=(("validation", 1.0),), num_shards=shards)
    write_dali_index(manifest)
    way = next(way for way in OTHERS if way.function == "webdataset")
    if way.is_installed and not data.tar.exists():
        run = way.run(data.jpegs, data.tar, SHARD_IMAGES=str(-(-images // NUM_SHARDS)))
        measure.check(run, way.command(data.jpegs, data.tar))
    return data


def batches_of(way: str, python: Any, data: Data, host: int, num_hosts: int, batch_size: int) -> list[list[int]]:
    """Returns what one host sees: the labels of each batch, -1 for padding."""
    module = "benchmarks.evaluation.ours" if python == sys.executable else "benchmarks.evaluation.peers"
    command = [python, "-W", "ignore", "-m", module, way, *dataclasses.astuple(data), batch_size]
    # webdataset asks these two which host it is; the others are told.
    run = measure.run(command, RANK=str(host), WORLD_SIZE=str(num_hosts))
    return list(measure.check(run, command).result["batches"])


def account(hosts: Sequence[Sequence[Sequence[int]]], images: int, batch_size: int) -> dict[str, int]:
    """Returns how often the examples are counted: hosts' batches' labels, with as many steps as all hosts can take."""
    steps = min(map(len, hosts))
    batches = [batch for host in hosts for batch in host[:steps]]
    counts = Counter(label for batch in batches for label in batch)
    padded = counts.pop(-1, 0)
    return {
        "hosts": len(hosts),
        "steps": steps,
        "once": sum(count == 1 for count in counts.values()),
        "padded": padded,
        "twice": sum(count > 1 for count in counts.values()),
        "dropped": images - len(counts),
        "ragged": sum(len(batch) != batch_size for batch in batches),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/jpeg2tpu_evaluation"))
    parser.add_argument("--images", type=int, default=1003, help="(default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=64, help="of each host (default: %(default)s)")
    flags = parser.parse_args()
    print(measure.in_words(measure.machine()), "\n")
    data = make_data(flags.folder, flags.images)
    ways: list[tuple[str, str, Path | str]] = [(name, way, sys.executable) for name, way in OURS]
    ways += [(name, way, PEERS) for name, way in OTHER if PEERS.exists()]
    rows = []
    for name, way, python in ways:
        for num_hosts in (1, 3):
            hosts = [batches_of(way, python, data, host, num_hosts, flags.batch_size) for host in range(num_hosts)]
            rows.append({"way": name, **account(hosts, flags.images, flags.batch_size)})
    measure.keep("evaluation", measure.Table(rows, COLUMNS))


if __name__ == "__main__":
    main()
