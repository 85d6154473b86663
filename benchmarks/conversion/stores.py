"""CPU time and memory of a conversion whose inputs are local, at gs:// and at s3://, and of reading objects.

    export PYTHONPATH=tests FAKE_GCS_SERVER=.servers/fake-gcs-server-v1.56.1/fake-gcs-server
    python -m benchmarks.conversion.stores --images=1000
    python -m benchmarks.conversion.stores --reads=300         # obstore beside s3fs, where that is installed, too

Without FAKE_GCS_SERVER, gs:// is left out. Both stores are servers of the tests on this machine, which share its cores:
so no wall-clock time is shown, and the CPU time is that of the conversion with its workers, without the server's.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from beam_pipelines import storage
from benchmarks import measure
from benchmarks.corpus import describe, make_corpus
from benchmarks.own_cost import cost_of
from support.cloud import running_cloud
from support.s3 import ENVIRONMENT, running_s3


def convert(uri: str, output: Path, environment: dict[str, str]) -> measure.Run:
    """Returns what a conversion of a folder took; removes what it wrote."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    command = ["env", *variables, sys.executable, "-W", "ignore", "-m", "jpeg2tpu", "convert"]
    command += [f"--input={uri}", f"--output={output}", "--num_processes=2"]
    run = measure.check(measure.run(command), command)
    shutil.rmtree(output)
    return run


def compare_reads(count: int, repeats: int) -> measure.Table:
    """Returns the CPU time of reading objects of 100 KB by 32 threads, with obstore and with fsspec's s3fs."""
    with running_s3() as s3:
        os.environ.update(ENVIRONMENT, AWS_ENDPOINT_URL=s3.url)
        bucket = s3.make_bucket()
        paths = [f"{bucket}/{number}" for number in range(count)]
        for path in paths:
            s3.put(path, os.urandom(100_000))
        readers: dict[str, Callable[[str], bytes]] = {"obstore": storage.read_bytes}
        try:
            readers["s3fs"] = importlib.import_module("s3fs").S3FileSystem().cat_file
        except ImportError:
            print("left out: s3fs, which is not installed")

        def cpu_ms(read: Callable[[str], bytes]) -> float:
            def read_all() -> int:
                with ThreadPoolExecutor(32) as pool:
                    return len(list(pool.map(read, paths)))

            return cost_of(read_all)["cpu_ms"]

        for read in readers.values():
            read(paths[0])
        runs = measure.in_turn({name: functools.partial(cpu_ms, read) for name, read in readers.items()}, repeats)
    rows = [{"reader": f"{name} {version(name)}", "cpu_ms": statistics.median(times)} for name, times in runs.items()]
    return measure.Table(rows, {"reader": "reader", "CPU ms per object": "cpu_ms:.2f"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--reads", type=int, help="compare reads of so many objects instead")
    flags = parser.parse_args()
    if flags.reads:
        return measure.keep("stores_reads", compare_reads(flags.reads, flags.repeats))
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        num_bytes = make_corpus(work / "in", flags.images)
        print(describe(flags.images, num_bytes))
        s3 = stack.enter_context(running_s3())
        stores: dict[str, tuple[Any, dict[str, str]]] = {"s3://": (s3, ENVIRONMENT | {"AWS_ENDPOINT_URL": s3.url})}
        if server := os.environ.get("FAKE_GCS_SERVER"):
            cloud = stack.enter_context(running_cloud(server, work))
            stores = {"gs://": (cloud, cloud.environment)} | stores
        else:
            print("left out: gs://, as FAKE_GCS_SERVER names no server; make cloud-server builds it")
        places: dict[str, tuple[str, dict[str, str]]] = {"local": (f"{work}/in", {})}
        for name, (store, environment) in stores.items():
            bucket = store.make_bucket()
            store.upload(work / "in", f"{bucket}/in")
            places[name] = (f"{bucket}/in", environment)
        ways = {name: lambda place=place: convert(place[0], work / "out", place[1]) for name, place in places.items()}
        runs = measure.in_turn(ways, flags.repeats)
    rows = [
        {
            "inputs": name,
            "cpu_ms": 1000 * statistics.median(run.cpu_seconds for run in results) / flags.images,
            "peak_mb": statistics.median(run.peak_mb for run in results),
        }
        for name, results in runs.items()
    ]
    columns = {"inputs": "inputs", "CPU ms per image": "cpu_ms:.2f", "memory, MB": "peak_mb:,.0f"}
    measure.keep("stores", measure.Table(rows, columns))


if __name__ == "__main__":
    main()
