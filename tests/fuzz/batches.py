"""Cases in batches: Hypothesis draws a batch's cases from its seed."""

from __future__ import annotations

import atexit
import dataclasses
import multiprocessing
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

from fuzz.corpus import KINDS, Command
from fuzz.sandbox import Ended, Sandbox

_FEW, _MANY = 3, 100  # cases of a batch


@dataclasses.dataclass(frozen=True)
class Batch:
    """Cases of one kind that follow from a number; another count makes other cases."""

    kind: str
    seed: int
    count: int

    def __str__(self) -> str:
        return shlex.quote(f"--batch={self.kind},{self.seed},{self.count}")


@dataclasses.dataclass(frozen=True)
class Case:
    """One case, how its command ended, and what is wrong with that."""

    batch: Batch
    file: str
    damages: list[Any]
    command: Command
    ended: Ended
    problems: list[str]

    def __str__(self) -> str:
        damages = ", ".join(repr(damage)[:400] for damage in self.damages)
        stderr = "\n".join(line[:400] for line in self.ended.stderr.splitlines()[-6:])
        return (
            f"{'; '.join(self.problems)}\n  {self.file}: {damages}\n"
            f"  jpeg2tpu {' '.join(self.command.argv)}\n{stderr}\n  again: {self.batch}\n"
        )


def batches(cases: int, first_seed: int = 0, kinds: Sequence[str] = tuple(KINDS)) -> list[Batch]:
    """Returns batches of that many cases in all, over kinds by their weight."""
    order = [kind for kind in kinds for _ in range(KINDS[kind].weight)]
    size = max(_FEW, min(_MANY, cases // len(order)))
    num_full, rest = divmod(cases, size)
    counts = [size] * num_full + [rest] * (rest > 0)
    spread = max(1.0, len(order) / len(counts))  # a few batches are not all of the first kinds
    return [
        Batch(order[int(number * spread) % len(order)], first_seed + number, count)
        for number, count in enumerate(counts)
    ]


def cases(sandbox: Sandbox, batch: Batch) -> list[Case]:
    """Runs the cases of a batch."""
    results: list[Case] = []
    _test(sandbox, batch, results.append, [Phase.generate])()
    return results


def smallest(sandbox: Sandbox, batch: Batch) -> None:
    """Raises AssertionError with the smallest case that Hypothesis finds in a batch with something wrong."""

    def check(case: Case) -> None:
        assert not case.problems, str(case)

    _test(sandbox, batch, check, [Phase.generate, Phase.shrink])()


def _test(sandbox: Sandbox, batch: Batch, use: Callable[[Case], None], phases: list[Phase]) -> Callable[[], None]:
    kind = KINDS[batch.kind]

    @seed(batch.seed)
    @settings(
        max_examples=batch.count, database=None, deadline=None, phases=phases, suppress_health_check=list(HealthCheck)
    )
    @given(st.sampled_from(kind.commands), st.integers(0, 999), kind.damages)
    def test(command: Command, file: int, damages: list[Any]) -> None:
        path = sandbox.prepare(batch.kind, file, damages)
        problems, ended = sandbox.find_problems(command, damages)
        use(Case(batch, path, damages, command, ended, problems))

    return test


_sandbox: Sandbox


def _begin(folder: str) -> None:
    global _sandbox
    _sandbox = Sandbox(Path(tempfile.mkdtemp(dir=folder)))
    atexit.register(_sandbox.close)


def _cases(batch: Batch) -> list[Case]:
    return cases(_sandbox, batch)


def in_processes(todo: list[Batch], processes: int, folder: str) -> Iterator[list[Case] | Exception]:
    """Yields the cases of each batch as it is done, or what has kept it from being done."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _begin, (folder,)) as pool:
        for future in as_completed([pool.submit(_cases, batch) for batch in todo]):
            yield future.exception() or future.result()  # type: ignore[misc]
