"""The line that a terminal shows while training goes on."""

from __future__ import annotations

import os
import re
import sys
import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf
from terminal import open_terminal, read_all

from estimator_app import progress as progress_module
from estimator_app.progress import READY, Progress, timed
from tpu_input.reading import untuned


@pytest.mark.parametrize(
    ("seconds", "left", "end"),
    [(0.5, "33:19", ", waits 0 %, eval 1500"), (60, "66:39:00", ", waits 0 %"), (6000, "6665:00:00", ", waits 0 %")],
)
def test_the_line_fits_into_80_columns_and_no_number_is_cut(monkeypatch, seconds, left, end):
    leader, terminal = open_terminal(columns=80)
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        times = iter([100.0, 100.03])
        monkeypatch.setattr(progress_module, "time", SimpleNamespace(time=lambda: next(times)))
        progress = Progress(start=1000, stop=1500, train_steps=9000, batch_size=64)
        bar = progress._bar  # on a clock of its own, which stands still: 2 of 8,000 steps have taken so long
        bar._time, bar.start_t, bar.last_print_t = (lambda: 10_000.0), 10_000.0 - seconds, 10_000.0
        for step in (1001, 1002):
            progress.took(step, loss=0.1181, began=99.0, ready=99.0)
        bar.refresh()
        progress.close()  # overwrites the line with blanks
    last = [line for line in re.split(r"[\r\n]|\x1b\[A", read_all(leader)) if line.strip()][-1]
    assert last.startswith("step 1002/9000 |")
    assert last.endswith(f"| {left} left, loss 0.118, 2133 images/s{end}")
    assert len(last) < 80


def test_batches_are_stamped_before_a_step_asks_for_them():
    second_is_asked_for = threading.Event()

    def batches():
        yield {"image": 1}, 0
        second_is_asked_for.set()
        yield {"image": 2}, 0

    signature = {"image": tf.TensorSpec([], tf.int32)}, tf.TensorSpec([], tf.int32)
    # Untuned, as ours are: tf.data's tuning would prefetch by itself.
    dataset = untuned(tf.data.Dataset.from_generator(batches, output_signature=signature))
    stamped = iter(timed(lambda params, config: dataset)({}))
    first, _ = next(stamped)
    assert second_is_asked_for.wait(20)
    second, _ = next(stamped)
    assert first[READY] < second[READY]
