"""Progress, speed and remaining time of training, by the clock of this machine: a bar on a terminal, else lines.

    input_fn ──timed()──▶ batches with the time at which each was ready ──Progress──▶ share of time spent waiting
    end times of steps, of all stretches of the run ──TimeLeft──▶ seconds to the end of the run, with evaluations

A step waits for its batch from the time at which the step begins to the time at which the batch is ready; the wait is 0
if the batch was ready before. The hosts of a Cloud TPU feed it from a queue in separate threads, whose waits cannot be
measured here: there the share is unknown.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from estimator_app.config import TrainConfig
from tpu_input.command_line import SECONDS_PER_LINE, is_quiet, print_line, shows_progress, speed

if TYPE_CHECKING:
    import tensorflow as tf

READY = "ready"  # the feature that timed() adds
_FORMAT = "step {n_fmt}/{total_fmt} |{bar}| %s left{postfix}"  # the bar fills the remaining columns
_LEAST_BAR = 2
_BAR = 10  # tqdm's default width, if the number of columns is not known


# Time of evaluation relative to training on the same images: the backward pass has twice the operations of the
# forward pass (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1).
_FORWARD = 1 / 3
_BEGINNING = 2  # measurements that are the beginning of a stretch
_ENOUGH = 3  # measurements of the pace before an estimate is given


@dataclasses.dataclass
class TimeLeft:
    """Estimate of the remaining time of a run, from the times measured in this process; one object per run.

    Training consists of stretches, from one evaluation to the next. Time is measured after each step, on a TPU after
    each loop of steps. The first two measurements of a stretch are its beginning and not part of the pace: before the
    first, the graph is built and compiled, and the input starts; TPUEstimator's second step makes a new executor, as
    only its first has summaries, and took 9 times as long as later steps (cnn, 32 px, 2 cores). The pace is
    the mean over all other measurements of all stretches. Between two stretches is an evaluation, with an export if it
    was the best. Until one has been measured, its time is estimated as the beginning of a stretch, which builds a
    graph too, plus a third of training's time per image. If all stretches have only two measurements, there is no
    pace, and their beginnings hold all of the time.

    Attributes:
      train_steps: Steps of the whole run.
      steps_per_eval: Steps of a stretch; 0 if the trainer does not evaluate.
      eval_batches: Number of images of an evaluation, in units of the training batch size.
    """

    train_steps: int
    steps_per_eval: int
    eval_batches: float

    def __post_init__(self) -> None:
        self._step, self._last_time = 0, math.nan  # at the last measurement
        self._stretch_start = (0, math.nan)  # step and time at which the stretch began
        self._ahead = 0  # remaining measurements that are part of the beginning
        self._looks, self._steps, self._seconds = 0, 0, 0.0
        self._beginnings: list[tuple[int, float]] = []  # (steps, seconds) of each
        self._evaluations: list[float] = []  # seconds

    @classmethod
    def from_config(cls, config: TrainConfig, eval_examples: int) -> TimeLeft:
        """Returns the TimeLeft of a run that evaluates `eval_examples` examples each time."""
        steps_per_eval = {"inline": config.steps_per_eval, "none": config.train_steps, "watch": 0}[config.eval]
        return cls(config.train_steps, steps_per_eval, eval_examples / config.train_batch_size)

    def begin(self, step: int, now: float) -> None:
        """Starts a stretch at `step`; `now` is the time in seconds."""
        if not math.isnan(self._last_time):
            self._evaluations.append(now - self._last_time)
        if 0 < self._ahead < _BEGINNING:  # the previous stretch had too few measurements
            self._end_beginning()
        self._step, self._last_time, self._stretch_start, self._ahead = step, now, (step, now), _BEGINNING

    def add_step(self, step: int, now: float) -> None:
        """Adds a measurement: the stretch has reached `step` at the time `now`, in seconds."""
        steps, seconds = step - self._step, now - self._last_time
        self._step, self._last_time = step, now
        if self._ahead:
            self._ahead -= 1
            if not self._ahead:
                self._end_beginning()
        else:
            self._looks, self._steps, self._seconds = self._looks + 1, self._steps + steps, self._seconds + seconds

    def _end_beginning(self) -> None:
        step, start_time = self._stretch_start
        self._beginnings.append((self._step - step, self._last_time - start_time))

    def seconds(self) -> float | None:
        """Returns the remaining seconds of the run after the last measurement; None while there is no estimate."""
        if not self._beginnings or (not self._evaluations and self._looks < _ENOUGH):
            return None
        pace = self._seconds / self._steps if self._steps else 0.0
        if not self.steps_per_eval:
            return (self.train_steps - self._step) * pace
        beginning = statistics.fmean(max(0.0, seconds - steps * pace) for steps, seconds in self._beginnings)
        guessed = beginning + self.eval_batches * pace * _FORWARD
        evaluation = statistics.fmean(self._evaluations) if self._evaluations else guessed
        ahead = -(-self.train_steps // self.steps_per_eval) - max(1, -(-self._step // self.steps_per_eval)) + 1
        return (self.train_steps - self._step) * pace + ahead * evaluation + (ahead - 1) * beginning


def timed(input_fn: Callable[..., tf.data.Dataset]) -> Callable[..., tf.data.Dataset]:
    """Returns input_fn with an extra feature READY: the time at which a batch was ready, float64 seconds since 1970."""
    import tensorflow as tf

    def timed_input_fn(params: Mapping[str, Any], config: Any = None) -> tf.data.Dataset:
        def stamp(features: dict[str, tf.Tensor], label: tf.Tensor) -> Any:
            return features | {READY: tf.timestamp()}, label

        # Prefetches, so that the stamp is made before the step asks for the batch. Otherwise each step would wait for
        # the stamp itself, which would be counted as slow input.
        return input_fn(params, config).map(tf.autograph.experimental.do_not_convert(stamp)).prefetch(1)

    return timed_input_fn


class Progress:
    """Measures speed, loss and input wait of training up to the next evaluation, and shows them: see __init__().

    Attributes:
      step: Global step.
      loss: Loss of the last step.
    """

    def __init__(
        self,
        start: int,
        stop: int | None,
        train_steps: int,
        batch_size: int,
        time_left: TimeLeft,
        on_step: Callable[[int, float], None] = lambda step, loss: None,
    ) -> None:
        """Starts the measurement, and shows a bar if stderr is a terminal.

        Else it prints a line to stderr every SECONDS_PER_LINE, unless the command is --quiet.

        Args:
          start: Number of steps done so far.
          stop: Step of the next evaluation; None if the trainer does not evaluate.
          train_steps: Steps of the whole run.
          batch_size: Images per step.
          time_left: TimeLeft of the run.
          on_step: Called with the step and its loss after each measurement.
        """
        self.step, self.loss = start, math.nan
        self._time_left, self._on_step = time_left, on_step
        time_left.begin(start, time.time())
        self._stop, self._train_steps, self._batch_size = stop, train_steps, batch_size
        self._runs, self._losses, self._waited = 0, 0.0, 0.0
        hidden = not shows_progress()
        self._prints_lines = hidden and not is_quiet()
        self._last_line = time.time()
        self._bar = tqdm(
            total=train_steps, initial=start, bar_format=_FORMAT % "?", dynamic_ncols=True, leave=False, disable=hidden
        )
        self._bar.format_meter = _fitted

    @classmethod
    def from_config(
        cls,
        config: TrainConfig,
        start: int,
        stop: int,
        time_left: TimeLeft,
        on_step: Callable[[int, float], None] = lambda step, loss: None,
    ) -> Progress:
        """Returns the Progress of a stretch of training from step `start` to `stop`; `on_step` as in __init__()."""
        evaluated = None if config.eval == "watch" else stop
        return cls(start, evaluated, config.train_steps, config.train_batch_size, time_left, on_step=on_step)

    def add_step(self, step: int, loss: float, began: float, ready: float) -> None:
        """Adds a measurement after a step, on a TPU after a loop of steps.

        Args:
          step: Global step after it.
          loss: Loss of the last step.
          began: Time at which the step began, in seconds since 1970.
          ready: Time at which its batch was ready, in seconds since 1970; NaN if unknown.
        """
        before, self.step, self.loss = self.step, step, loss
        self._losses += self.loss
        self._runs += 1
        self._last_end = time.time()
        if self._runs == 1:  # includes building and compiling the step
            self._first_end, self._first_step = self._last_end, self.step
        else:
            self._waited += max(0.0, ready - began)
        self._time_left.add_step(self.step, self._last_end)
        seconds = self._time_left.seconds()
        remaining = "?" if seconds is None else tqdm.format_interval(seconds)
        self._bar.bar_format = _FORMAT % remaining
        self._bar.set_postfix_str(self._line(), refresh=False)
        self._bar.update(self.step - before)
        if self._prints_lines and self._last_end - self._last_line >= SECONDS_PER_LINE:
            self._last_line = self._last_end
            print_line(f"step {step}/{self._train_steps}: {remaining} left, {self._line()}", sys.stderr)
        self._on_step(step, loss)

    def values(self) -> dict[str, float]:
        """Returns columns of history.csv for the steps so far; columns of speed exclude the first step."""
        if not self._runs:
            return {}
        values = {"train_loss": self._losses / self._runs}
        if self._runs > 1:
            seconds = max(self._last_end - self._first_end, 1e-9)
            values["images_per_second"] = (self.step - self._first_step) * self._batch_size / seconds
            values["input_wait"] = self._waited / seconds
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def curves(self, config: TrainConfig, before: int) -> dict[str, float]:
        """Returns TensorBoard's points of the last step; {} if no multiple of summary_steps was reached since `before`.

        Args:
          config: Config of the run.
          before: Step before the last measurement.
        """
        if self.step // config.summary_steps == before // config.summary_steps:
            return {}
        points = {
            "train/loss": self.loss,
            "train/learning_rate": float(config.schedule.learning_rate(self.step - 1.0)),
            "train/epoch": self.step * config.train_batch_size / config.train_examples,
        }
        images_per_second = self.values().get("images_per_second")
        return points if images_per_second is None else points | {"examples/sec": images_per_second}

    def close(self) -> None:
        """Removes the bar."""
        self._bar.close()

    def _line(self) -> str:
        values = self.values()
        parts = [f"loss {self.loss:.3f}"]
        if "images_per_second" in values:
            parts.append(speed(values["images_per_second"], 1, "images"))
        if "input_wait" in values:
            parts.append(f"waits {100 * values['input_wait']:.0f} %")
        if self._stop is not None:
            parts.append(f"eval {self._stop}")
        return ", ".join(parts)


def _fitted(ncols: int | None = None, postfix: str | None = None, **others: Any) -> str:
    """Returns tqdm's line without the last parts that do not fit; tqdm would cut it anywhere, even within a number."""
    parts = postfix.split(", ") if postfix else []
    while parts and ncols:
        line = tqdm.format_meter(ncols=None, postfix=", ".join(parts), **others)
        if len(line) - _BAR + _LEAST_BAR <= ncols:
            break
        parts.pop()
    return str(tqdm.format_meter(ncols=ncols, postfix=", ".join(parts), **others))
