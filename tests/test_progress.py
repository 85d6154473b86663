"""The line that a terminal shows while training goes on."""

from __future__ import annotations

import os
import re
import sys
import threading
from types import SimpleNamespace

import tensorflow as tf
from terminal import open_terminal, read_all

from estimator_app import progress as progress_module
from estimator_app.progress import READY, Progress, timed


def test_the_whole_line_fits_into_80_columns(monkeypatch):
    leader, terminal = open_terminal(columns=80)
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        seconds = iter([100.0, 100.03])
        monkeypatch.setattr(progress_module, "time", SimpleNamespace(time=lambda: next(seconds)))
        progress = Progress(start=1000, stop=1500, train_steps=9000, batch_size=64)
        for step in (1001, 1002):
            progress.took(step, loss=0.1181, began=99.0, ready=99.0)
        progress._bar.refresh()
        progress.close()  # overwrites the line with blanks
    last = [line for line in re.split(r"[\r\n]|\x1b\[A", read_all(leader)) if line.strip()][-1]
    assert last.startswith("step 1002/9000 |")
    assert last.endswith(", waits 0 %, eval 1500")
    assert ", loss 0.118, 2133 images/s, " in last
    assert len(last) < 80


def test_batches_are_stamped_before_a_step_asks_for_them():
    second_is_asked_for = threading.Event()

    def batches():
        yield {"image": 1}, 0
        second_is_asked_for.set()
        yield {"image": 2}, 0

    signature = {"image": tf.TensorSpec([], tf.int32)}, tf.TensorSpec([], tf.int32)
    stamped = iter(
        timed(lambda params, config: tf.data.Dataset.from_generator(batches, output_signature=signature))({})
    )
    first, _ = next(stamped)
    assert second_is_asked_for.wait(60)
    second, _ = next(stamped)
    assert first[READY] < second[READY]
