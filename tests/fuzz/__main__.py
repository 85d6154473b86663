"""make fuzz CASES=20000: runs that many cases and prints how each kind ended; fails when any broke the property."""

from __future__ import annotations

import argparse
import collections
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from fuzz.batches import Batch, Case, batches, in_processes, smallest
from fuzz.corpus import KINDS
from fuzz.sandbox import Sandbox


def _table(ended: collections.Counter[tuple[str, str]], seconds: Mapping[str, float]) -> str:
    """Returns how many cases of each kind ended how, and the CPU seconds that one took."""
    columns = sorted({how for _, how in ended})
    rows = [["", *columns, "CPU s"]]
    for kind in [*KINDS, "all"]:
        counts = [ended[kind, how] for how in columns]
        if any(counts):
            rows.append([kind, *map(str, counts), f"{seconds[kind] / sum(counts):.2f}"])
    return "\n".join(f"{row[0]:30}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows)


def _failure(case: Case) -> tuple[str, ...]:
    """Returns what failures of one cause share: the kind, what went wrong, and how the last line begins."""
    last = case.ended.stderr.splitlines()[-1:]
    return case.batch.kind, re.sub(r"\d+", "N", case.problems[0]), *(line[:60] for line in last)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first batch (default: 0)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kind", action="append", help="only these kinds, in place of all")
    parser.add_argument("--begin", type=int, default=0, help="leave out so many batches, of a run that was interrupted")
    parser.add_argument("--batch", metavar="KIND,SEED,COUNT", help="run this batch again and shrink what fails")
    flags = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        if flags.batch:
            kind, number, count = flags.batch.rsplit(",", 2)
            with Sandbox(Path(folder)) as sandbox:
                smallest(sandbox, Batch(kind, int(number), int(count)))
            return 0
        todo = batches(flags.cases, flags.seed, flags.kind or list(KINDS))[flags.begin :]
        ended = collections.Counter[tuple[str, str]]()
        seconds = collections.defaultdict[str, float](float)
        end = "\r" if sys.stderr.isatty() else "\n"
        failures = collections.Counter[tuple[str, ...]]()
        for number, outcome in enumerate(in_processes(todo, flags.processes, folder)):
            if isinstance(outcome, Exception):
                failures["a batch was not done", repr(outcome)[:400]] += 1
                outcome = []
            for case in outcome:
                for kind in (case.batch.kind, "all"):
                    ended[kind, "FAILED" if case.problems else f"exit {case.ended.code}"] += 1
                    seconds[kind] += case.ended.cpu
                if case.problems:
                    failures[failure := _failure(case)] += 1
                    if failures[failure] == 1:  # more of the same are counted
                        print(case, flush=True)
            print(f"{number + 1} of {len(todo)} batches", end=end, file=sys.stderr, flush=True)
    for failure, count in failures.most_common():
        print(f"{count} times: {', '.join(failure)}")
    total = sum(count for (kind, _), count in ended.items() if kind == "all")
    print(_table(ended, seconds))
    print(f"{total:,} cases in {time.monotonic() - start:,.0f} s: {failures.total():,} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
