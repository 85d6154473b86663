"""How long training waits for its next batch, from files and from a bucket on this machine, at full speed.

    input.ours waits ──▶ TensorFlow's gs:// ──▶ proxy of tests/support, which delays requests ──▶ fake-gcs-server
    the first half of the cores                 the other half

The bucket is left out where FAKE_GCS_SERVER does not name the server, as `make cloud-server benchmark-input` does.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.input.start import make_dataset, run_ours
from benchmarks.measure import Table

COUNT = 4000
DELAY = 0.03  # seconds
GOAL = 3  # times the median
COLUMNS = {
    "from": "way",
    "median wait, ms": "median_ms:.1f",
    "longest wait, ms": "longest_ms:,.1f",
    "times": "times:.1f",
    "peak MB": "peak_mb:,.0f",
}


def waits(folder: Path, count: int | None, repeats: int | None) -> Table:
    """The longest wait for a batch of training at 224 px across two borders of epochs, after the first ten batches."""
    count = count or COUNT
    dataset = folder / f"datasets{count}of500" / "original"
    make_dataset(dataset, count)
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    turns = [
        [{"way": "files", **run_ours(dataset, "waits", cores=cores)}, *_from_bucket(dataset, cores)]
        for _ in range(repeats or 3)
    ]
    rows = [measure.medians(runs) for runs in zip(*turns, strict=True)]
    missed = [f"{row['way']}: {row['times']:.1f} times; at most {GOAL} wanted" for row in rows if row["times"] > GOAL]
    return Table(rows, COLUMNS, missed)


def _from_bucket(dataset: Path, cores: int) -> Iterator[dict[str, Any]]:
    if "FAKE_GCS_SERVER" not in os.environ:
        print("left out: the bucket, as FAKE_GCS_SERVER names no server; make cloud-server benchmark-input does")
        return
    from support.cloud import running_cloud  # of tests/, which make benchmark-input has on its path
    from support.gs import running_gs

    def delay(request: object) -> str:
        time.sleep(DELAY)
        return ""

    with (
        tempfile.TemporaryDirectory() as temporary,
        _on_the_last_cores(cores),
        running_cloud(os.environ["FAKE_GCS_SERVER"], Path(temporary)) as cloud,
        running_gs(cloud, Path(temporary)) as gs,
    ):
        uri = f"{cloud.make_bucket()}/photographs"
        cloud.upload(dataset, uri)
        variables = gs.variables() | {"GCS_READAHEAD_BUFFER_SIZE_BYTES": "65536"}  # as our commands have it
        yield {"way": "gs:// on this machine", **run_ours(uri, "waits", cores=cores, **variables)}
        gs.proxy.fault = delay
        late = f"gs://, each request {1000 * DELAY:.0f} ms later"
        yield {"way": late, **run_ours(uri, "waits", cores=cores, **variables)}


@contextlib.contextmanager
def _on_the_last_cores(but: int) -> Iterator[None]:
    """Context manager: this process and those that it starts leave the first cores to others, if there are more."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(all_cores)[but:]) or all_cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cores)
