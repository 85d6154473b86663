"""python -m beam_pipelines, called in this process."""

from __future__ import annotations

from beam_pipelines.__main__ import main


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
    assert "Traceback" not in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err
