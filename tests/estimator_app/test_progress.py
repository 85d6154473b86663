"""The line that a terminal shows while training goes on."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.trainers import progress as progress_module
from estimator_app.trainers.progress import READY, Progress, TimeLeft, timed
from support.terminal import open_terminal, read_all
from tpu_input.pipeline.reading import finished


@pytest.mark.parametrize(
    ("seconds", "remaining", "end"),
    [
        (0.125, "16:40", ", waits 0 %, eval 1500"),
        (64, "142:13:20", ", waits 0 %"),
        (6400, "14222:13:20", ", waits 0 %"),
    ],
)
def test_the_line_fits_into_80_columns_and_no_number_is_cut(monkeypatch, seconds, remaining, end):
    leader, terminal = open_terminal(columns=80)
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        clock = SimpleNamespace(now=0.0)
        monkeypatch.setattr(progress_module, "time", SimpleNamespace(time=lambda: clock.now))
        time_left = TimeLeft(train_steps=9006, steps_per_eval=1500, eval_batches=0)
        progress = Progress(1000, 1500, 9006, round(seconds * 2000), time_left)
        progress._bar._time = lambda: clock.now
        for step in range(1001, 1007):  # the first two as fast as the others: a run of 8,006 steps without pauses
            clock.now += seconds
            progress.add_step(step, loss=0.1181, began=clock.now, ready=clock.now)
        progress._bar.refresh()
        progress.close()  # overwrites the line with blanks
    last = [line for line in re.split(r"[\r\n]|\x1b\[A", read_all(leader)) if line.strip()][-1]
    assert last.startswith("step 1006/9006 |")
    assert last.endswith(f"| {remaining} left, loss 0.118, 2000 images/s{end}")
    assert len(last) < 80


@pytest.mark.parametrize(("quiet", "expected"), [(False, [2, 4]), (True, [])])
def test_where_there_is_no_terminal_a_line_now_and_then_shows_where_training_is(monkeypatch, capsys, quiet, expected):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(time=lambda: clock.now))
    monkeypatch.setattr(progress_module, "SECONDS_PER_LINE", 30)
    monkeypatch.setattr(progress_module, "is_quiet", lambda: quiet)
    progress = Progress(0, 100, 600, 32, TimeLeft(train_steps=600, steps_per_eval=100, eval_batches=0))
    for step in range(1, 6):
        clock.now += 16
        progress.add_step(step, loss=0.5, began=clock.now, ready=clock.now)
    progress.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert [int(line.removeprefix("step ").partition("/600: ")[0]) for line in err.splitlines()] == expected
    assert all(line.endswith(" left, loss 0.500, 2 images/s, waits 0 %, eval 100") for line in err.splitlines())


@dataclasses.dataclass
class Run:
    """A run as runs were seen to go: how long its parts take, in seconds, and how many of its steps a look has.

    The beginning of a stretch, its second look and every other step take what `estimator_app train` took on two cores,
    noise included; 60 s apart a checkpoint is written; every evaluation costs a quarter more or less than the mean.
    """

    steps: int = 5000
    steps_per_eval: int = 500
    at_once: int = 1
    step: float = 0.08
    start: float = 20.0
    second: float = 0.7
    pause: float = 16.0

    def estimates(self, seed: int) -> list[tuple[float, float, float]]:
        """Returns (share of the run that is over, seconds that are left, those that were told) of each look."""
        random, now, saved, step = np.random.default_rng(seed), 0.0, 0.0, 0
        time_left, looks = TimeLeft(self.steps, self.steps_per_eval, eval_batches=5), []
        while step < self.steps:
            time_left.begin(step, now)
            stop = min(step + self.steps_per_eval, self.steps)
            now, first = now + self.start, step
            while step < stop:
                num_steps = min(self.at_once, stop - step)
                now += random.lognormal(0, 0.3 / num_steps**0.5) * self.step * num_steps
                now += self.second * (step == first + self.at_once)
                if now - saved > 60:
                    now, saved = now + 0.5, now
                step += num_steps
                time_left.add_step(step, now)
                looks.append((now, time_left.seconds()))
            now += random.uniform(0.75, 1.25) * self.pause
        return [(moment / now, now - moment, seconds) for moment, seconds in looks if seconds is not None]


@pytest.mark.parametrize(
    "run",
    [
        Run(),
        Run(steps=1500, steps_per_eval=300, start=10),
        Run(steps=20_000, steps_per_eval=20_000, start=90),
        Run(steps=12_500, steps_per_eval=1250, at_once=100, step=0.1, start=60, second=5, pause=30),
        Run(steps=1000, steps_per_eval=100, at_once=100, start=15),
    ],
    ids=str,
)
def test_what_is_told_to_be_left_of_a_run_is_steady(run):
    for seed in range(5):
        estimates = run.estimates(seed)
        total = estimates[-1][1] / (1 - estimates[-1][0])
        # Until the first evaluation is over, what one takes is a guess; from the next loop on it has been measured.
        stretch = run.start + run.second + run.steps_per_eval * run.step
        measured = (stretch + 1.25 * run.pause + run.start + run.second + 2 * run.at_once * run.step) / total
        for share, truth, seconds in estimates:
            if share > 0.02:
                assert abs(seconds - truth) < 0.2 * total, (seed, share, truth, seconds)
            if share > measured:
                assert abs(seconds - truth) < 0.1 * truth + 0.5 * run.pause, (seed, share, truth, seconds)
        assert estimates[0][0] < 0.2


def test_nothing_is_told_of_a_run_before_its_pace_has_been_seen():
    time_left = TimeLeft(train_steps=1000, steps_per_eval=100, eval_batches=0)
    time_left.begin(0, now=0.0)
    estimates = []
    for step, now in ((1, 30.0), (2, 31.0), (3, 31.1), (4, 31.2), (5, 31.3)):
        time_left.add_step(step, now)
        estimates.append(time_left.seconds())
    assert estimates[:4] == [None] * 4
    # 995 steps of 0.1 s and ten evaluations, each guessed to take what came before the third step, and nine such
    # beginnings.
    assert estimates[4] == pytest.approx(995 * 0.1 + (10 + 9) * (31.0 - 2 * 0.1))


def test_batches_are_stamped_before_a_step_asks_for_them():
    second_is_asked_for = threading.Event()

    def batches():
        yield {"image": 1}, 0
        second_is_asked_for.set()
        yield {"image": 2}, 0

    signature = {"image": tf.TensorSpec([], tf.int32)}, tf.TensorSpec([], tf.int32)
    # Untuned, as ours are: tf.data's tuning would prefetch by itself.
    dataset = finished(tf.data.Dataset.from_generator(batches, output_signature=signature))
    stamped = iter(timed(lambda params, config: dataset)({}))
    first, _ = next(stamped)
    assert second_is_asked_for.wait(20)
    second, _ = next(stamped)
    assert first[READY] < second[READY]
