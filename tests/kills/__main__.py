"""make kills MOMENTS=100: kills conversions in so many moments at each place, and compares what they then complete."""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

from kills.moment import Conversions, Moment, Outcome
from kills.places import NEEDS, place

_MOST_HUNG = 0.25  # share of the kills of a worker after which an engine may hang


def _line(name: str, outcomes: list[tuple[Moment, Outcome]], seconds: float) -> str:
    """Returns what was seen at a place."""
    victims = collections.Counter(moment.victim for moment, _ in outcomes)
    num_hung = sum(outcome.hung for _, outcome in outcomes)
    stood = collections.Counter(outcome.stood for moment, outcome in outcomes if moment.overwrite)
    return (
        f"{name}: {len(outcomes)} kills in {seconds:,.0f} s ({victims['all']} of all processes, {victims['command']} "
        f"of the command alone, {victims['worker']} of a worker, after {num_hung} of "
        f"which the engine hung); {stood.total()} of them during a replacement, after "
        f"which the old dataset stood {stood['old']} times and the new one {stood['new']} times; "
        f"{sum(outcome.differing for _, outcome in outcomes):,} differing bytes, "
        f"{sum(len(outcome.findings) for _, outcome in outcomes)} findings of verify, "
        f"{sum(len(outcome.problems) for _, outcome in outcomes)} other problems"
    )


def _try_moments(name: str, folder: Path, first: int, num_moments: int, seed: int) -> list[tuple[Moment, Outcome]]:
    """Returns what came of moments; those that a conversion did not reach, as it ended before, are left out."""
    outcomes = list[tuple[Moment, Outcome]]()
    with place(name, folder) as where:
        conversions = Conversions(where)
        for number in itertools.count(first):
            if len(outcomes) == num_moments:
                return outcomes
            moment = Moment.from_number(number, seed)
            outcome = conversions.try_moment(moment)
            if not outcome.killed:
                continue
            outcomes.append((moment, outcome))
            if outcome.findings or outcome.differing or outcome.problems:
                print(
                    f"FAILED: --place={name} --seed={seed} --first={number} --moments=1: {moment}, {outcome}",
                    flush=True,
                )
            end = "\r" if sys.stderr.isatty() else "\n"
            print(f"{name}: {len(outcomes)} of {num_moments} moments", end=end, file=sys.stderr, flush=True)
    raise AssertionError("unreachable")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kills", description=__doc__)
    parser.add_argument("--moments", type=int, default=100, help="at each place (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first moment, to try one again")
    parser.add_argument("--place", action="append", choices=NEEDS, help="only this one, in place of all")
    flags = parser.parse_args()
    failed = 0
    for name in flags.place or NEEDS:
        if NEEDS[name] and NEEDS[name] not in os.environ:
            parser.error(f"--place={name} needs {NEEDS[name]} in the environment; make kills sets it")
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="kills") as folder:
            outcomes = _try_moments(name, Path(folder), flags.first, flags.moments, flags.seed)
        print(_line(name, outcomes, time.monotonic() - start), flush=True)
        failed += sum(bool(outcome.findings or outcome.differing or outcome.problems) for _, outcome in outcomes)
        num_workers = sum(moment.victim == "worker" for moment, _ in outcomes)
        failed += sum(outcome.hung for _, outcome in outcomes) > _MOST_HUNG * num_workers
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
