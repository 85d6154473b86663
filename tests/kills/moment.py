"""One moment: a conversion is killed in it, and the same command completes the dataset."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kills.places import Files, Place

ROOT = Path(__file__).parents[2]
Started = tuple[subprocess.Popen[bytes], Path, Path]  # process, what it says, the file that counts its operations
SECONDS = 120  # after which a command hangs
VICTIMS = ("all", "command", "worker")
_NEVER = 1 << 40
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly however many there are


@dataclasses.dataclass(frozen=True)
class Moment:
    """When a conversion is killed.

    Attributes:
      number: Of the moment, from 0; with the seed it decides all else.
      victim: One of VICTIMS: all processes, the command alone, or one that writes shards.
      overwrite: Whether another dataset stands in the output, which is replaced.
      share: Share of the run's operations, from 0 to 1, at which it is killed.
    """

    number: int
    victim: str
    overwrite: bool
    share: float

    @classmethod
    def from_number(cls, number: int, seed: int) -> Moment:
        kinds = list(itertools.product(VICTIMS, (False, True)))
        victim, overwrite = kinds[number % len(kinds)]
        first = random.Random(f"{seed} {victim} {overwrite}").random()
        return cls(number, victim, overwrite, (first + number // len(kinds) * _GOLDEN) % 1)


@dataclasses.dataclass
class Outcome:
    """What was seen after a kill and after the same command had run again.

    Attributes:
      killed: Whether the moment was reached before the conversion ended.
      stood: What stood in the output after the kill: "none", "old" or "new".
      findings: What `verify` found then and at the end.
      differing: Bytes that differ from an undisturbed conversion, with those of missing and superfluous files.
      problems: What else was wrong.
      hung: Whether the engine worked on endlessly after a worker was killed, so that the command was killed too.
    """

    killed: bool
    stood: str = "none"
    findings: list[str] = dataclasses.field(default_factory=list)
    differing: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)
    hung: bool = False


class Conversions:
    """Conversions at one place, and what they leave when nobody disturbs them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._runs = itertools.count()
        self._counts: dict[tuple[str, bool], int] = {}
        self._old = self._undisturbed({}, "all", overwrite=False)
        self._new = self._undisturbed(self._old, "all", overwrite=True)
        for overwrite in (False, True):
            self._undisturbed(self._old if overwrite else {}, "worker", overwrite)
            self._counts["command", overwrite] = self._counts["all", overwrite]

    def _undisturbed(self, before: Files, victim: str, overwrite: bool) -> Files:
        """Returns the files that a conversion leaves, and counts the operations at which it could have been killed."""
        output = self._place.new_output()
        self._place.put(output, before)
        code, log_text, counter = self._run(output, overwrite, victim, _NEVER)
        if code != 0:
            raise RuntimeError(f"a conversion that nobody disturbs ended with {code}: {log_text}")
        self._counts[victim, overwrite] = counter.stat().st_size
        files = self._place.files(output)
        self._place.remove(output)
        return files

    def try_moment(self, moment: Moment) -> Outcome:
        """Kills a conversion in a moment, then runs the same command until the end."""
        place, output = self._place, self._place.new_output()
        old, new = (self._old, self._new) if moment.overwrite else ({}, self._old)
        place.put(output, old)
        operation = 1 + int(moment.share * self._counts[moment.victim, moment.overwrite])
        with self._started(output, moment.overwrite, moment.victim, operation) as (process, log, counter):
            code = _wait(process)
            outcome = Outcome(killed=Path(f"{counter}.killed").exists())
            if not outcome.killed:
                return outcome
            expected = {"worker": (0, 2)}.get(moment.victim, (-signal.SIGKILL,))
            if code is None and moment.victim == "worker" and place.may_hang:
                outcome.hung = True
                _end(process)
            elif code not in expected:
                outcome.problems.append(f"ended with {code} after the kill: {log.read_text()[-2000:]}")
            self._look(output, old, new, outcome)
            # The workers of a command that was killed alone go on meanwhile.
            code, log_text, _ = self._run(output, moment.overwrite, "", _NEVER)
            if code != 0:
                outcome.problems.append(f"the same command ended with {code}: {log_text}")
        files = place.files(output)
        if moment.victim != "command":  # whose workers may leave working files
            outcome.differing += sum(len(data) for path, data in files.items() if path.startswith(".jpeg2tpu/"))
        outcome.differing += _differing({path: files[path] for path in files if not path.startswith(".jpeg2tpu/")}, new)
        try:
            outcome.findings += self._place.findings(output)
        except ValueError as error:  # there is no dataset
            outcome.problems.append(str(error))
        place.remove(output)
        return outcome

    def _look(self, output: str, old: Files, new: Files, outcome: Outcome) -> None:
        """Finds out which dataset stands after the kill, and verifies it.

        The workers of a command that was killed alone may replace it meanwhile; then the new one is verified.
        """
        manifest, findings = self._place.files(output).get("manifest.json"), list[str]()
        while manifest is not None:
            findings = self._place.findings(output)
            verified, manifest = manifest, self._place.files(output).get("manifest.json")
            if manifest == verified:
                break
        outcome.findings += findings
        if manifest is None:
            if old:
                outcome.problems.append("no dataset stands, but the old one did before")
            return
        if manifest not in (old.get("manifest.json"), new["manifest.json"]):
            outcome.problems.append("a manifest stands that is neither the old one nor the new one")
        outcome.stood = "new" if manifest == new["manifest.json"] else "old"

    def _run(self, output: str, overwrite: bool, victim: str, operation: int) -> tuple[int | None, str, Path]:
        """Returns the exit code of a conversion, the end of what it said, and the file that counts its operations."""
        with self._started(output, overwrite, victim, operation) as (process, log, counter):
            return _wait(process), log.read_text()[-2000:], counter

    @contextlib.contextmanager
    def _started(self, output: str, overwrite: bool, victim: str, operation: int) -> Iterator[Started]:
        """Context manager: starts a conversion; at the end of the body all of its processes end."""
        place, number = self._place, next(self._runs)
        counter, log = place.folder / f"count{number}", place.folder / f"log{number}"
        environment = os.environ | place.environment
        environment["PYTHONPATH"] = f"{Path(__file__).with_name('site')}{os.pathsep}{ROOT}"
        environment["PATH"] = (
            f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # Beam starts its worker as `python`
        )
        if victim:
            places = "\n".join((place.images, output))
            killing = {"VICTIM": victim, "AT": str(operation), "COUNTER": str(counter), "PLACES": places}
            environment |= {f"KILL_{name}": value for name, value in killing.items()}
        command = [sys.executable, "-W", "ignore", *place.command, *place.arguments(output, overwrite)]
        with log.open("w") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=file, stderr=file, start_new_session=True
            )
        try:
            yield process, log, counter
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """Returns the exit code; None for a process that hangs."""
    try:
        return process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _differing(actual: Files, expected: Files) -> int:
    """Returns the number of bytes that differ."""
    num_bytes = 0
    for path in actual.keys() | expected.keys():
        one, other = actual.get(path, b""), expected.get(path, b"")
        num_bytes += abs(len(one) - len(other)) + sum(a != b for a, b in zip(one, other, strict=False))
    return num_bytes
