"""The commands of estimator_app, called in this process."""

from __future__ import annotations

import re

import pytest

from estimator_app.__main__ import main

FLAGS = (
    *("--image_size=16", "--train_batch_size=32", "--learning_rate=0.1", "--crop_area=0.6,1", "--no_flip"),
    "--wrong_images=0",  # which would take a second
)


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int | str | None, str, str]:
    try:
        code: int | str | None = main([str(arg) for arg in args])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def without_progress(err: str) -> str:
    """Returns what was printed to stderr without the lines of progress, which a slow machine prints."""
    return re.sub(r"^step \d+/\d+: \S+ left, .*\n", "", err, flags=re.MULTILINE)


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """Returns the one line that a mistake is answered with."""
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err
