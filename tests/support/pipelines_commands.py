"""The commands of beam_pipelines, called in this process."""

from __future__ import annotations

import pytest

from beam_pipelines.__main__ import main
from support.signatures import remember_signatures

remember_signatures()


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int | str | None, str, str]:
    try:
        code: int | str | None = main([str(arg) for arg in args])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """Returns the one line that a mistake is answered with."""
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert err.startswith("error: "), err
    assert err.count("\n") == 1, err
    return err
