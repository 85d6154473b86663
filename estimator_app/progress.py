"""How far training is and how fast, on this machine's clock; a bar on a terminal.

    input_fn ──timed()──▶ batches with the moment at which each was ready ──Progress──▶ share of time spent waiting

The wait is that of the step for its batch: from the moment a step begins to the moment its batch was there, which is 0
when the input was ahead. A Cloud TPU's hosts feed it from a queue in threads of their own, whose wait nobody here
sees: there the share is unknown.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tqdm import tqdm

v1 = tf.compat.v1
SessionRunHook: Any = v1.train.SessionRunHook

READY = "ready"  # the feature that timed() adds
_FORMAT = "step {n_fmt}/{total_fmt} |{bar}| {remaining} left{postfix}"  # the bar has what the columns leave
_LEAST_BAR = 2
_BAR = 10  # tqdm's own, where the columns are not known


def timed(input_fn: Callable[..., tf.data.Dataset]) -> Callable[..., tf.data.Dataset]:
    """Returns input_fn with a feature more: the time, in seconds since 1970 as float64, at which a batch was ready."""

    def timed_input_fn(params: Mapping[str, Any], config: Any = None) -> tf.data.Dataset:
        def stamp(features: dict[str, tf.Tensor], label: tf.Tensor) -> Any:
            return features | {READY: tf.timestamp()}, label

        # Ahead of the step, which would otherwise wait for the stamp itself and have that taken for a slow input.
        return input_fn(params, config).map(tf.autograph.experimental.do_not_convert(stamp)).prefetch(1)

    return timed_input_fn


class Progress(SessionRunHook):  # type: ignore[misc]
    """Counts what training does from now to the next evaluation.

    Attributes:
      step: Global step.
      loss: Of the last step.
    """

    def __init__(self, start: int, stop: int, train_steps: int, batch_size: int, shown: bool | None = None) -> None:
        self.step, self.loss = start, math.nan
        self._stop, self._batch_size = stop, batch_size
        self._runs, self._losses, self._waited = 0, 0.0, 0.0
        hidden = not sys.stderr.isatty() if shown is None else not shown
        self._bar = tqdm(
            total=train_steps, initial=start, bar_format=_FORMAT, dynamic_ncols=True, leave=False, disable=hidden
        )
        self._bar.format_meter = _fitted

    def begin(self) -> None:
        graph = v1.get_default_graph()
        outputs = [op.outputs for op in graph.get_operations() if op.type == "IteratorGetNext"]
        ready = [tensor for tensors in outputs for tensor in tensors if tensor.dtype == tf.float64]
        self._fetches = {"loss": v1.get_collection(v1.GraphKeys.LOSSES)[-1]} | dict(zip(["ready"], ready, strict=False))
        self._global_step = v1.train.get_global_step()

    def before_run(self, run_context: Any) -> Any:
        self._began = time.time()
        return v1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        results = run_values.results
        step = int(run_context.session.run(self._global_step))
        self.took(step, float(results["loss"]), self._began, results.get("ready", math.nan))

    def took(self, step: int, loss: float, began: float, ready: float) -> None:
        """Counts what has just been trained.

        Args:
          step: Global step by now.
          loss: Of the last step.
          began: When it began, in seconds since 1970.
          ready: When its batch was there; NaN when nobody knows.
        """
        before, self.step, self.loss = self.step, step, loss
        self._losses += self.loss
        self._runs += 1
        self._last_end = time.time()
        if self._runs == 1:  # has also filled the shuffle buffer
            self._first_end, self._first_step = self._last_end, self.step
        else:
            self._waited += max(0.0, ready - began)
        self._bar.set_postfix_str(self._line(), refresh=False)
        self._bar.update(self.step - before)

    def values(self) -> dict[str, float]:
        """Returns history.csv's columns: of the steps so far, those of speed without the first."""
        if not self._runs:
            return {}
        values = {"train_loss": self._losses / self._runs}
        if self._runs > 1:
            seconds = max(self._last_end - self._first_end, 1e-9)
            values["images_per_second"] = (self.step - self._first_step) * self._batch_size / seconds
            values["input_wait"] = self._waited / seconds
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def close(self) -> None:
        """Removes the bar."""
        self._bar.close()

    def _line(self) -> str:
        values = self.values()
        parts = [f"loss {self.loss:.3f}"]
        if "images_per_second" in values:
            parts.append(f"{values['images_per_second']:.0f} images/s")
        if "input_wait" in values:
            parts.append(f"waits {100 * values['input_wait']:.0f} %")
        return ", ".join([*parts, f"eval {self._stop}"])


def _fitted(ncols: int | None = None, postfix: str | None = None, **others: Any) -> str:
    """Returns tqdm's line without the last parts that do not fit; tqdm would cut it, maybe within a number."""
    parts = postfix.split(", ") if postfix else []
    while parts and ncols:
        whole = tqdm.format_meter(ncols=None, postfix=", ".join(parts), **others)
        if len(whole) - _BAR + _LEAST_BAR <= ncols:
            break
        parts.pop()
    return str(tqdm.format_meter(ncols=ncols, postfix=", ".join(parts), **others))
