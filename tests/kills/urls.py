"""python -m kills.urls --count=100000 --kills=20: a conversion of URLs that is killed, again and again, from outside.

A server on loopback answers, one URL in 20 with a fault, in ten ways. One conversion is undisturbed. The other is
killed with all its processes after so many answers, and run again by the same command. Both have to leave the same
files, byte for byte, in which every URL is accounted for: stored, or rejected with the reason of its fault.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kills.moment import ROOT
from support.folders import files
from support.lying_server import LyingServer, urls
from tpu_input import read_manifest

_FLAGS = (
    *("--allow_private_addresses", "--url_host_concurrency=64", "--url_timeout=6", "--url_retries=0"),
    *("--url_max_size=1MB", "--max_rejected=6%", "--num_processes=2"),
)
_SHARDS = 60
_TICK = 0.02  # seconds between two looks at how far a conversion is


def _start(listed: Path, output: Path, count: int) -> subprocess.Popen[bytes]:
    size = max(1_100 * count // _SHARDS, 10_000)
    flags = [f"--input={listed}", f"--output={output}", "--url_image_size=800", f"--shard_size={size}", *_FLAGS]
    command = [sys.executable, "-W", "ignore", "-m", "beam_pipelines", "convert", *flags]
    with output.with_suffix(".log").open("ab") as log:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)


def _complete(listed: Path, output: Path, count: int) -> None:
    if code := _start(listed, output, count).wait():
        raise RuntimeError(f"the conversion ended with {code}: {output.with_suffix('.log').read_text()[-2000:]}")


def _kill(listed: Path, output: Path, count: int, after: int, server: LyingServer) -> None:
    """Starts the conversion, and kills it after so many answers of the server."""
    process, end = _start(listed, output, count), server.num_answered + after
    try:
        while server.num_answered < end and process.poll() is None:
            time.sleep(_TICK)
        if process.returncode is not None:
            log_text = output.with_suffix(".log").read_text()[-2000:]
            raise RuntimeError(f"the conversion ended with {process.returncode} before it was killed: {log_text}")
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def problems(output: Path, expected: dict[str, str]) -> list[str]:
    """Returns what is not accounted for, given the reason of each URL, "" for an image."""
    manifest = read_manifest(str(output))
    lines = list(map(json.loads, (output / "rejected.jsonl").read_text().splitlines()))
    rejected = {line["key"]: line["reason"] for line in lines}
    faulty = {url: reason for url, reason in expected.items() if reason}
    stored = sum(split.num_examples for split in manifest.splits.values())
    differing = {url for url in faulty.keys() | rejected.keys() if faulty.get(url) != rejected.get(url)}
    messages = [f"{url} is {rejected.get(url)!r}, not {faulty.get(url)!r}" for url in sorted(differing)]
    if len(lines) + stored != len(expected) or manifest.num_inputs != len(expected):
        messages.append(f"{stored} stored and {len(lines)} rejected are not {len(expected)} URLs")
    return messages


def run(folder: Path, count: int, kills: int, seed: int = 0) -> tuple[dict[str, str], list[str]]:
    """Returns (hashes of the dataset's files by name, what is wrong with them after so many kills)."""
    with LyingServer() as server:
        expected = dict(urls(server.url, count))
        listed = folder / "list" / "urls.csv"
        listed.parent.mkdir()
        listed.write_text("image,label\n" + "".join(f"{url},{i % 10}\n" for i, url in enumerate(expected)))
        undisturbed, killed, chance = folder / "undisturbed", folder / "killed", random.Random(seed)
        _complete(listed, undisturbed, count)
        for _ in range(kills):
            _kill(listed, killed, count, int(count / kills * chance.uniform(0.2, 0.9)), server)
        _complete(listed, killed, count)
        first, second = files(undisturbed), files(killed)
        messages = problems(killed, expected)
        names = sorted(first.keys() | second.keys())
        return second, messages + [f"{name} differs" for name in names if first.get(name) != second.get(name)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kills.urls", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="number of URLs (default: 100,000)")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills") as folder:
        hashes, messages = run(Path(folder), flags.count, flags.kills, flags.seed)
        reasons = collections.Counter(reason for _, reason in urls("", flags.count) if reason)
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    print(
        f"{flags.count:,} URLs, {sum(reasons.values()):,} of them faulty ({dict(sorted(reasons.items()))}), "
        f"{flags.kills} kills in {time.monotonic() - start:,.0f} s; {len(hashes)} files; the largest process had "
        f"{largest:,.0f} MB; {len(messages)} problems"
    )
    print(*messages[:20], sep="\n", end="\n" if messages else "")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
