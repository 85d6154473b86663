"""Progress of a command by phase: a bar on a terminal, elsewhere a line every 30 seconds, both on stderr.

    with progress():                     a command; without this, nothing is shown
        begin("verifying", total=42)     a phase begins, and the one before it ends
        advance("verifying")

What workers do is counted where they can be asked: threads of this process call advance(), also for the units that
processes of this machine have done, and the workers of an engine count in Beam's counters, which job_progress() reads.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from tqdm import tqdm

from tpu_input.command_line import SECONDS_PER_LINE, is_quiet, print_line, shows_progress, speed

_DRAW_SECONDS = 0.5  # seconds between two drawings of a bar, while nothing is counted too
_ASK_SECONDS = 2.0  # seconds between two questions to an engine
# What is counted in each phase, in the order of the phases of a conversion.
UNITS = {
    "listing": "inputs",
    "hashing": "inputs",
    "planning": "inputs",
    "writing": "images",
    "moving": "files",
    "committing": "shards",
    "verifying": "shards",
    "reporting": "parts",
}
# Bars with and without a known total; tqdm's own ones show slow phases as "2.37s/ inputs".
_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_COUNT = "{desc}: {n_fmt}{unit} [{elapsed}{postfix}]"


class _Display:
    """Shows one phase at a time; its methods may be called by several threads."""

    def __init__(self, has_bars: bool) -> None:
        self.is_of_job = False  # whether an engine is asked, so that what this process counts is not added
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._has_bars = has_bars
        self._bar: tqdm[Any] | None = None
        self._phase, self._total, self._start_time = "", cast("int | None", None), 0.0
        self._count, self._num_bytes, self._num_rejected, self._note = 0, 0, 0, ""
        tqdm.monitor_interval = 0  # without a thread of its own, as ours draws the bar
        self._thread = threading.Thread(target=self._draw_often if has_bars else self._print_lines, daemon=True)
        self._thread.start()

    def begin(self, phase: str, total: int | None) -> None:
        with self._lock:
            if total is None and phase == "planning" and self._phase == "listing":
                total = self._count or None  # what was listed is planned
            self.end()
            self._phase, self._total, self._start_time = phase, total, time.monotonic()
            if self._has_bars:
                is_large = (total or 0) >= 100_000  # shown as 100k
                looks = {"unit": f" {UNITS[phase]}", "unit_scale": is_large, "dynamic_ncols": True, "leave": False}
                looks["bar_format"] = _BAR if total else _COUNT
                self._bar = tqdm(desc=phase, total=total, file=sys.stderr, **looks)

    def end(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.close()
            self._bar, self._phase, self._total = None, "", None
            self._count, self._num_bytes, self._num_rejected, self._note = 0, 0, 0, ""

    def note(self, text: str) -> None:
        """Shows a text after the counts of the phase."""
        with self._lock:
            self._note = text

    def advance(self, phase: str, count: int, num_bytes: int, num_rejected: int) -> None:
        with self._lock:
            if phase != self._phase:
                self.begin(phase, None)
            self._count += count
            self._num_bytes += num_bytes
            self._num_rejected += num_rejected
            if self._bar is not None and self._bar.update(count):  # True if the bar was redrawn
                self._bar.set_postfix_str(self._details(), refresh=False)

    def reach(self, phase: str, count: int, total: int | None, num_bytes: int = 0, num_rejected: int = 0) -> None:
        """Advances to these totals; the phase begins if another one is shown."""
        with self._lock:
            if phase != self._phase:
                self.begin(phase, total)
            more = num_bytes - self._num_bytes, num_rejected - self._num_rejected
            self.advance(phase, count - self._count, *more)

    def close(self) -> None:
        self._ended.set()
        try:
            self._thread.join()
        finally:
            self.end()

    def _details(self) -> str:
        seconds = time.monotonic() - self._start_time
        details = [speed(self._count, seconds, UNITS[self._phase])] if self._count else []
        details += [speed(self._num_bytes / 1e6, seconds, "MB")] if self._num_bytes else []
        details += [f"{self._num_rejected:,} rejected"] if self._num_rejected else []
        return ", ".join([*details, self._note] if self._note else details)

    def draw(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.set_postfix_str(self._details())

    def _draw_often(self) -> None:
        while not self._ended.wait(_DRAW_SECONDS):
            self.draw()

    def _print_lines(self) -> None:
        while not self._ended.wait(SECONDS_PER_LINE):
            with self._lock:
                if self._phase:
                    total = f" of {self._total:,}" if self._total else ""
                    seconds = f"{time.monotonic() - self._start_time:.0f} s"
                    parts = [f"{self._count:,}{total} {UNITS[self._phase]}", *filter(None, [self._details()]), seconds]
                    print_line(f"{self._phase}: {', '.join(parts)}", sys.stderr)


_display: _Display | None = None  # the command's; writers may run in processes without one


@contextlib.contextmanager
def progress() -> Iterator[None]:
    """Context manager: shows the phases of a command during its body."""
    global _display
    if is_quiet():
        yield
        return
    _display = _Display(shows_progress())
    try:
        yield
    finally:
        display, _display = _display, None
        display.close()


def is_shown() -> bool:
    """Returns whether anything is shown, so that it is worth counting what there is to do."""
    return _display is not None


def begin(phase: str, total: int | None = None) -> None:
    """Begins a phase, one of UNITS, and ends the one before it; `total` is the number of its units, if it is known."""
    if _display and not _display.is_of_job:
        _display.begin(phase, total)


def end() -> None:
    """Ends the phase, so that other text can be printed."""
    if _display:
        _display.end()


def advance(phase: str, count: int = 1, num_bytes: int = 0, num_rejected: int = 0) -> None:
    """Counts what was done in a phase, which begins with it if another one is shown."""
    if _display and not _display.is_of_job:
        _display.advance(phase, count, num_bytes, num_rejected)


def count_units(phase: str, number: int = 1) -> None:
    """Counts units of a phase: here, and in Beam's counter if this may be a step of a pipeline."""
    advance(phase, number)
    if sys.modules.get("apache_beam"):  # a process that has not loaded Beam runs no step
        counter(phase).inc(number)


def count(num_inputs: int, num_bytes: int, num_rejected: int) -> None:
    """Counts inputs of a Beam pipeline: how many there were, the bytes written for them, and how many were rejected."""
    counter("records").inc(num_inputs - num_rejected)
    counter("rejected").inc(num_rejected)
    counter("bytes_written").inc(num_bytes)
    advance("writing", num_inputs, num_bytes, num_rejected)


@functools.cache
def counter(name: str) -> Any:
    """Returns Beam's counter of this name in the namespace jpeg2tpu."""
    from apache_beam.metrics.metric import Metrics  # imported here, as commands on this machine do without Beam

    return Metrics.counter("jpeg2tpu", name)


@contextlib.contextmanager
def job_progress(phase: str = "listing", total: int | None = None) -> Iterator[Callable[[Any], None]]:
    """Context manager: shows the phases of a pipeline that runs until the end of the body.

    An engine is asked for its counters; the steps of a runner within this process count here themselves.

    Args:
      phase: The first phase of the job.
      total: Number of its units, if it is known.

    Yields:
      A function to be called with the job's pipeline.
    """
    ended, asking = threading.Event(), list[threading.Thread]()

    def watch(pipeline: Any) -> None:
        from beam_pipelines.runners import launch_checks  # imported here, as it imports Beam

        begin(phase, total)
        if _display and launch_checks.name_of(pipeline.options):
            _display.is_of_job = True
            asking.append(threading.Thread(target=_ask, args=(_display, pipeline, ended), daemon=True))
            asking[-1].start()

    try:
        yield watch
    finally:
        ended.set()
        for thread in asking:
            thread.join(_ASK_SECONDS)  # it may wait for an engine that does not answer
        if _display:
            _display.is_of_job = False
            _display.end()


def _ask(display: _Display, pipeline: Any, ended: threading.Event) -> None:
    while not ended.wait(_ASK_SECONDS):
        counts, state = counters(pipeline), ""
        # As in counters(): there is no result before the job is submitted, and an engine may have gone.
        with contextlib.suppress(Exception):
            state = pipeline.result.state
        if ended.is_set():
            return
        if counts:
            _show(display, counts)
        display.note(f"the job is {state}" if state else "")


def counters(pipeline: Any) -> dict[str, int]:
    """Returns the values of Beam's counters in the namespace jpeg2tpu, by name; none if the engine does not tell."""
    from apache_beam.metrics.metric import MetricsFilter

    counts: dict[str, int] = {}
    # Not every engine can be asked while it works, and a question may fail: the job is not to end for that.
    with contextlib.suppress(Exception):
        for result in pipeline.result.metrics().query(MetricsFilter().with_namespace("jpeg2tpu"))["counters"]:
            counts[result.key.metric.name] = max(result.committed or 0, result.attempted or 0)
    return counts


def _show(display: _Display, counts: dict[str, int]) -> None:
    """Shows the last phase in which a job has counted something."""
    num_rejected = counts.get("rejected", 0)
    counts = counts | {"writing": counts.get("records", 0) + num_rejected}
    phase = max((phase for phase in UNITS if counts.get(phase)), key=list(UNITS).index, default="listing")
    total = counts.get("listing") if phase in ("planning", "writing") else None
    more = (counts.get("bytes_written", 0), num_rejected) if phase == "writing" else ()
    display.reach(phase, counts.get(phase, 0), total, *more)
