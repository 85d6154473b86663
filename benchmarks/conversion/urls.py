"""Reading of URLs beside img2dataset: from a server on loopback, one URL in 20 faulty, in ten ways.

    LyingServer, a process ──▶ jpeg2tpu convert --input=urls.csv     ──▶ records, rejected.jsonl
                           └─▶ img2dataset --output_format=webdataset ──▶ tars, *_stats.json

    PYTHONPATH=tests python -m benchmarks.conversion.urls --count=5000 --repeats=3

Needs tests/ on the path for the server, and in VENV_PEERS_URLS an environment of
benchmarks/requirements-peers-urls.txt; without it, img2dataset is left out. Both have the same number of connections,
the same timeout, and no retries. img2dataset stores the bytes as they are and decodes nothing, which is what
--check=header does; by default each image is decoded once.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.corpus import photograph
from tpu_input import read_manifest

_PEERS = Path(os.environ.get("VENV_PEERS_URLS", ".venv-peers-urls")) / "bin" / "python"
_PHOTOGRAPHS = 200
_TIMEOUT, _CONNECTIONS, _PROCESSES = 5, 64, 2


def _serve() -> None:
    """Answers until stdin ends; prints the URL of the server."""
    from support.lying_server import LyingServer  # of tests/

    @functools.lru_cache(_PHOTOGRAPHS)
    def image(number: int) -> bytes:
        return photograph(np.random.default_rng(number))

    with LyingServer(image=lambda name: image(int(name) % _PHOTOGRAPHS)) as server:
        for number in range(_PHOTOGRAPHS):
            image(number)
        print(server.url, flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.conversion.urls", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.stdout.readline().strip()


def _ours(listed: Path, output: Path, *more: str) -> dict[str, Any]:
    flags = [f"--input={listed}", f"--output={output}", "--allow_private_addresses", f"--num_processes={_PROCESSES}"]
    flags += [f"--url_timeout={_TIMEOUT}", "--url_retries=0", "--max_rejected=10%", "--label_type=none"]
    flags += [f"--url_concurrency={_CONNECTIONS}", f"--url_host_concurrency={_CONNECTIONS}", "--url_max_size=2MB"]
    command = [sys.executable, "-W", "ignore", "-m", "jpeg2tpu", "convert", *flags, *more]
    run = measure.check(measure.run(command), command)
    manifest = read_manifest(str(output))
    stored = sum(split.num_examples for split in manifest.splits.values())
    reported = ", ".join(f"{reason} {count}" for reason, count in sorted(manifest.num_rejected.items()))
    return _row(run, stored, stored + sum(manifest.num_rejected.values()), reported)


def _img2dataset(listed: Path, output: Path) -> dict[str, Any]:
    arguments = {
        "url_list": str(listed),
        "input_format": "csv",
        "url_col": "image",
        "output_folder": str(output),
        "output_format": "webdataset",
        "disable_all_reencoding": True,
        "resize_mode": "no",
        "processes_count": _PROCESSES,
        "thread_count": _CONNECTIONS // _PROCESSES,
        "timeout": _TIMEOUT,
        "number_sample_per_shard": 1000,
    }
    program = f"import img2dataset, json; img2dataset.download(**json.loads({json.dumps(arguments)!r}))"
    run = measure.run([_PEERS, "-W", "ignore", "-c", program], NO_ALBUMENTATIONS_UPDATE="1")
    stats = [json.loads(path.read_text()) for path in sorted(output.glob("*_stats.json"))]
    statuses = collections.Counter[str]()
    for stat in stats:
        # Texts of exceptions, some of several lines, some with numbers in parentheses.
        for status, number in stat["status_dict"].items():
            statuses[" ".join(status.partition("(")[0].split())[:40] or "no status"] += number
    stored = statuses.pop("success", 0)
    reported = ", ".join(f"{status} {count}" for status, count in sorted(statuses.items()))
    return _row(run, stored, stored + sum(statuses.values()), reported)


def _row(run: measure.Run, stored: int, accounted: int, reported: str) -> dict[str, Any]:
    return {
        "speed": stored / run.seconds,
        "cpu_ms": 1e3 * run.cpu_seconds / max(stored, 1),
        "peak_mb": run.peak_mb,
        "stored": stored,
        "accounted": accounted,
        "reported": reported or f"nothing; exit code {run.exit_code}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conversion.urls", description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="number of URLs (default: 5,000)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help="only answer, for the other process")
    flags = parser.parse_args()
    if flags.serve:
        _serve()
        return
    from support.lying_server import urls  # of tests/

    with _server() as server, tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "list" / "urls.csv"
        listed.parent.mkdir()
        listed.write_text("image\n" + "".join(f"{url}\n" for url, _ in urls(server, flags.count)))

        def output() -> Path:
            return Path(tempfile.mkdtemp(dir=folder)) / "out"

        ways = {
            "jpeg2tpu": lambda: _ours(listed, output()),
            "jpeg2tpu --check=header": lambda: _ours(listed, output(), "--check=header"),
        }
        if _PEERS.exists():
            ways["img2dataset"] = lambda: _img2dataset(listed, output())
        else:
            print(f"left out: img2dataset, whose environment {_PEERS} is missing (see docs/benchmarks.md)")
        runs = measure.in_turn(ways, flags.repeats)
        rows = [{"way": name} | measure.medians(results) for name, results in runs.items()]
    columns = {
        "way": "way",
        "images/s": "speed:,.0f",
        "CPU ms/image": "cpu_ms:.2f",
        "memory, MB": "peak_mb:,.0f",
        "stored": "stored:,",
        "accounted for": "accounted:,",
        "what else is reported": "reported",
    }
    measure.keep("urls", measure.Table(rows, columns))


if __name__ == "__main__":
    main()
