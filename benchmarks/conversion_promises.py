"""What converters keep of what one would like them to promise; found out by doing it, not by reading.

run it twice             ──▶ do both outputs have the same bytes?
kill -9 it half way, when half of the bytes lie there, and run it again
                         ──▶ does it refuse? is each image there once? are the bytes those of an undisturbed run?
a file cut short and a text called .jpg among 300 photographs
                         ──▶ does it end? are they in the shards?
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.conversion_ways import Way
from benchmarks.corpus import describe, make_corpus

SHARD_BYTES = {"SHARD_BYTES": "20000000"}  # several shards of few images
COLUMNS = {"way": "way", "run twice": "twice", "killed and run again": "killed", "two damaged files of 302": "damaged"}


def check_all(ways: Sequence[Way], folder: Path, count: int) -> list[dict[str, Any]]:
    """Prints and returns a row for each way."""
    corpus, damaged = folder / f"promises{count}", folder / "damaged"
    print(describe(count, make_corpus(corpus, count)))
    make_damaged(damaged, 300)
    rows = []
    for way in (way for way in ways if way.is_installed):
        twice, killed = run_and_kill(way, corpus, folder / "output", count)
        rows.append({"way": way.title, "twice": twice, "killed": killed})
        rows[-1]["damaged"] = run_damaged(way, damaged, folder / "output", 300)
    measure.print_table(rows, COLUMNS)
    return rows


def make_damaged(folder: Path, count: int) -> None:
    """Writes `count` photographs and two files that are none."""
    make_corpus(folder, count)
    whole = (folder / "class0" / "0000000.jpg").read_bytes()
    (folder / "class0" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "class1" / "text.jpg").write_text("<html>404 Not Found</html>\n")


def run_and_kill(way: Way, corpus: Path, output: Path, count: int) -> tuple[str, str]:
    """Returns what two runs into two folders differ in, and what a killed run and another leave."""
    first = fresh(output)
    whole = measure.check(way.run(corpus, first, **SHARD_BYTES), way.command(corpus, first))
    hashes, num_bytes = hashes_of(first), bytes_of(first)
    if num_records(way, first) != count:
        raise RuntimeError(f"{way.name} wrote {num_records(way, first)} records of {count} images")
    second = fresh(output)
    measure.check(way.run(corpus, second, **SHARD_BYTES), way.command(corpus, second))
    differ = [name for name, digest in hashes_of(second).items() if hashes.get(name) != digest]
    third = fresh(output)
    ended = way.run(corpus, third, kill_when=lambda: bytes_of(third) > num_bytes / 2, **SHARD_BYTES)
    if ended.exit_code == 0:
        return says(differ), "ended before it could be killed"
    again = way.run(corpus, third, **SHARD_BYTES)
    left = (
        f", {len(set(hashes_of(third)) - set(hashes))} files left over" if set(hashes_of(third)) - set(hashes) else ""
    )
    if again.exit_code:
        return says(differ), f"refuses: {again.stderr.strip().splitlines()[-1]}"
    if num_records(way, third) != count:
        return says(differ), f"{num_records(way, third):,} records of {count:,} images{left}"
    same = all(hashes_of(third).get(name) == digest for name, digest in hashes.items())
    share = f"in {again.seconds / whole.seconds:.0%} of a run's time"
    return says(differ), f"{'the same bytes' if same else 'every image once, other bytes'}, {share}{left}"


def says(differ: Sequence[str]) -> str:
    return f"{', '.join(sorted(differ)[:3])}{', …' if len(differ) > 3 else ''} differ" if differ else "the same bytes"


def run_damaged(way: Way, folder: Path, output: Path, good: int) -> str:
    """Returns what becomes of two files that are no images among others."""
    done = way.run(folder, fresh(output), **SHARD_BYTES)
    if done.exit_code:
        return f"ends: {done.stderr.strip().splitlines()[-1]}"
    written = num_records(way, output)
    return {good: "left out", good + 2: "both written", good + 1: "one written"}.get(written, f"{written} records")


def fresh(output: Path) -> Path:
    shutil.rmtree(output, ignore_errors=True)
    return output


def bytes_of(folder: Path) -> int:
    """Returns the bytes of all files, also of those in hiding and of those that vanish."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def hashes_of(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def num_records(way: Way, output: Path) -> int:
    """Returns how many examples a reader of the output would find."""
    return sum(_records_of(path) for path in output.glob(way.files))


def _records_of(path: Path) -> int:
    if path.suffix == ".tar":
        with tarfile.open(path) as shard:
            return sum(name.endswith(".jpg") for name in shard.getnames())
    if path.suffix == ".json":  # of MDS, or of litData
        index = json.loads(path.read_text())
        return sum(of["samples"] for of in index.get("shards", [])) + sum(
            of["chunk_size"] for of in index.get("chunks", [])
        )
    number, data = 0, memoryview(path.read_bytes())
    while data:  # length, its checksum, payload, its checksum
        data = data[struct.unpack_from("<Q", data)[0] + 16 :]
        number += 1
    return number
