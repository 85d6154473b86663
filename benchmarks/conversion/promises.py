"""What converters keep of what one would like them to promise; found out by doing it, not by reading.

run it four times        ──▶ have all outputs the same bytes? else, do the images come in the same order?
kill -9 it half way, when half of the bytes lie there, and run it again
                         ──▶ does it refuse? how many records are there? are the bytes those of a whole run?
a file cut short and a text called .jpg among 300 photographs
                         ──▶ does it end? are they in the shards?
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measure
from benchmarks.conversion.ways import Way
from benchmarks.corpus import describe, make_corpus

SHARD_BYTES = {"SHARD_BYTES": "20000000"}  # several shards of few images
# Two may be alike by chance: a protobuf map of two features, as TFDS writes, has them in either order.
RUNS = 4
_JPEG = re.compile(rb"\xff\xd8\xff\xe0..JFIF", re.DOTALL)
COLUMNS = {
    "way": "way",
    "run four times": "repeated",
    "killed and run again": "killed",
    "two damaged files of 302": "damaged",
}


def check_all(ways: Sequence[Way], folder: Path, count: int) -> measure.Table:
    """Returns a row for each way."""
    corpus, damaged = folder / f"promises{count}", folder / "damaged"
    print(describe(count, make_corpus(corpus, count)))
    make_damaged(damaged, 300)
    output, rows = folder / "output", []
    for way in (way for way in ways if way.is_installed):
        reference = run_reference(way, corpus, output, count)
        others = [run_reference(way, corpus, output, count) for _ in range(RUNS - 1)]
        row = {"way": way.title, "repeated": compare(reference, others)}
        row |= {"killed": run_killed(way, corpus, output, reference)}
        rows.append(row | {"damaged": run_damaged(way, damaged, output, 300)})
    return measure.Table(rows, COLUMNS)


def make_damaged(folder: Path, count: int) -> None:
    """Writes `count` photographs and two files that are none."""
    make_corpus(folder, count)
    photo = (folder / "class0" / "0000000.jpg").read_bytes()
    (folder / "class0" / "cut.jpg").write_bytes(photo[: len(photo) // 2])
    (folder / "class1" / "text.jpg").write_text("<html>404 Not Found</html>\n")


@dataclasses.dataclass(frozen=True)
class Reference:
    """What an undisturbed run wrote: files' hashes, images in order, bytes; and what it took."""

    hashes: dict[str, str]
    order: list[bytes]
    num_bytes: int
    seconds: float


def run_reference(way: Way, corpus: Path, output: Path, count: int) -> Reference:
    shutil.rmtree(output, ignore_errors=True)
    run = measure.check(way.run(corpus, output, None, **SHARD_BYTES), way.command(corpus, output))
    if num_records(way, output) != count:
        raise RuntimeError(f"{way.name} wrote {num_records(way, output)} records of {count} images")
    return Reference(hashes_of(output), order_of(output), bytes_of(output), run.seconds)


def compare(first: Reference, others: Sequence[Reference]) -> str:
    """Returns what runs have in common."""
    if all(other.hashes == first.hashes for other in others):
        return "the same bytes"
    return "the same order, other bytes" if all(other.order == first.order for other in others) else "another order"


def run_killed(way: Way, corpus: Path, output: Path, reference: Reference) -> str:
    """Returns what a killed run and the same command again leave, beside a whole one."""
    shutil.rmtree(output, ignore_errors=True)
    ended = way.run(corpus, output, kill_when=lambda: bytes_of(output) > reference.num_bytes / 2, **SHARD_BYTES)
    if ended.exit_code == 0:
        return "ended before it could be killed"
    again = way.run(corpus, output, None, **SHARD_BYTES)
    if again.exit_code:
        return f"refuses: {last_words(again, output)}"
    hashes = hashes_of(output)
    stale = len(hashes.keys() - reference.hashes.keys())
    content = "the same bytes" if hashes.items() >= reference.hashes.items() else "other bytes or another order"
    summary = (
        f"{num_records(way, output):,} records, {content}, in {again.seconds / reference.seconds:.0%} of a run's time"
    )
    return f"{summary}; files left over: {stale}" if stale else summary


def run_damaged(way: Way, folder: Path, output: Path, good: int) -> str:
    """Returns what becomes of two files that are no images among others."""
    shutil.rmtree(output, ignore_errors=True)
    run = way.run(folder, output, None, **SHARD_BYTES)
    if run.exit_code:
        return f"ends: {last_words(run, output)}"
    count = num_records(way, output)
    return {good: "left out", good + 2: "both written", good + 1: "one written"}.get(count, f"{count} records")


def last_words(run: measure.Run, output: Path) -> str:
    """Returns the end of what a run said, without the folder that it was told."""
    words = run.stderr.strip().splitlines()[-1].replace(str(output), "OUTPUT")
    return words if len(words) <= 100 else words[:100] + " …"


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


def order_of(folder: Path) -> list[bytes]:
    """Returns which images lie in the files, in the order of the files' names, in whatever format.

    A JPEG is known by its first bytes, and which it is by some of those that follow its tables.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = ((data, _JPEG.finditer(data)) for data in (path.read_bytes() for path in files))
    return [data[match.start() + 1000 : match.start() + 1100] for data, matches in contents for match in matches]


def num_records(way: Way, output: Path) -> int:
    """Returns how many examples a reader of the output would find."""
    return sum(_records_of(path) for path in output.glob(way.files))


def _records_of(path: Path) -> int:
    if path.suffix == ".tar":
        with tarfile.open(path) as shard:
            return sum(name.endswith(".jpg") for name in shard.getnames())
    if path.suffix == ".json":  # of MDS, or of litData
        index: dict[str, list[dict[str, int]]] = json.loads(path.read_text())
        return sum(entry["samples"] for entry in index.get("shards", [])) + sum(
            entry["chunk_size"] for entry in index.get("chunks", [])
        )
    number, data = 0, memoryview(path.read_bytes())
    while data:  # length, its checksum, payload, its checksum
        data = data[struct.unpack_from("<Q", data)[0] + 16 :]
        number += 1
    return number
