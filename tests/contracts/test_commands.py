"""Every command ends with the exit code of its work, whatever stdout can take, and with one line for one mistake."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import sys
from collections.abc import Iterator

import pytest

from beam_pipelines import commands as beam_commands
from estimator_app import commands as app_commands
from support.app_fixtures import keras_warns
from tpu_input.command_line.jpeg2tpu import COMMANDS, main

pytestmark = keras_warns

OUTPUTS = ("ascii", "latin-1", "full", "closed pipe")


@contextlib.contextmanager
def stdout_of(kind: str) -> Iterator[None]:
    """Context manager in which stdout is a real file or pipe of this kind."""
    if kind == "closed pipe":
        read, write = os.pipe()
        os.close(read)
    else:
        write = os.open("/dev/full" if kind == "full" else os.devnull, os.O_WRONLY)
    encoding = kind if kind in ("ascii", "latin-1") else "utf-8"
    stream = io.TextIOWrapper(os.fdopen(write, "wb"), encoding=encoding)
    with contextlib.redirect_stdout(stream):
        yield
    with contextlib.suppress(OSError):
        stream.close()


def code_of(*argv: str) -> int:
    try:
        return main(argv)
    except SystemExit as end:  # of argparse
        return int(end.code or 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_output_does_not_decide_the_exit_code(command, kind, capsys):
    with stdout_of(kind):
        assert code_of(command, "--help") == 0
        assert code_of(command, "--no_such_flag=\u732b") == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == [lines[-1]]
    assert len(lines) <= 2


@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_sound_and_a_damaged_dataset_have_their_codes(kind, dataset_copy, capsys):
    with stdout_of(kind):
        assert code_of("verify", str(dataset_copy), "--quick") == 0
    (dataset_copy / "lengths.parquet").unlink()
    with stdout_of(kind):
        assert code_of("verify", str(dataset_copy), "--quick") == 1
    assert "rerun" not in capsys.readouterr().err
    assert sys.stdout is not None


# Commands whose result is what they print, and the functions that see to it.
PRINTING = {
    "diff": beam_commands.run,
    "convert": beam_commands.run,  # with --dry_run
    "evaluate": app_commands.evaluate,
    "predict": app_commands.predict,
}


def test_every_command_whose_lines_are_its_result_is_among_these():
    modules = (beam_commands, app_commands)
    callers = {
        function
        for module in modules
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and "check_printed()" in inspect.getsource(function)
    }
    assert callers == set(PRINTING.values())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize("command", PRINTING)
def test_a_command_whose_lines_are_its_result_fails_if_they_are_lost_and_ends_if_nobody_reads(
    finished, digits, digits_dataset, tmp_path, capsys, command, flags
):
    arguments = {
        "diff": (digits_dataset.path, digits_dataset.path),
        "convert": (f"--input={digits}", f"--output={tmp_path}/out", "--dry_run"),
        "evaluate": (f"--export_dir={finished.export}", f"--dataset={digits_dataset.path}"),
        "predict": (f"--export_dir={finished.export}", *map(str, sorted((digits / "3").iterdir())[:3])),
    }
    codes = {}
    for kind in ("full", "closed pipe"):
        with stdout_of(kind):
            codes[kind] = code_of(command, *arguments[command], *flags)
    lines = capsys.readouterr().err.splitlines()
    assert codes == {"full": 2, "closed pipe": 0}
    assert lines == [
        "warning: stdout cannot be written (No space left on device); its other lines are lost",
        "error: the result of this command is what it prints, and some lines are lost; run it again",
    ]
