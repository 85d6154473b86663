"""python -m estimator_app, called in this process."""

from __future__ import annotations

from estimator_app.__main__ import main

FLAGS = ("--image_size=16", "--train_batch_size=32", "--learning_rate=0.1", "--crop_area=0.6,1", "--no_flip")


def run(capsys, *args) -> tuple[int, str, str]:
    try:
        code = main([str(arg) for arg in args])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *args) -> str:
    """Returns the one line that a mistake is answered with."""
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err
