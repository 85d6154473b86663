"""The line that a terminal shows while training goes on."""

from __future__ import annotations

import os
import sys
import termios
from types import SimpleNamespace

from estimator_app import progress as progress_module
from estimator_app.progress import Progress


def test_the_whole_line_fits_into_80_columns(monkeypatch):
    leader, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        seconds = iter([100.0, 100.03])
        monkeypatch.setattr(progress_module, "time", SimpleNamespace(time=lambda: next(seconds)))
        progress = Progress(start=1000, stop=1500, train_steps=9000, batch_size=64)
        for step in (1001, 1002):
            progress.took(step, loss=0.1181, began=99.0, ready=99.0)
        progress._bar.refresh()
        shown = os.read(leader, 10_000).decode()
        progress.close()
    os.close(leader)
    last = shown.replace("\x1b[A", "").rstrip("\r\n ").rpartition("\r")[2]
    assert last.startswith("step 1002/9000 |")
    assert last.endswith(", waits 0 %, eval 1500")
    assert ", loss 0.118, 2133 images/s, " in last
    assert len(last) < 80
