"""What commands print where: the flags that all of them have, progress on a terminal, completion; docs/terminal.md."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from support.terminal import run_in_terminal
from tpu_input.command_line import EXIT_CODES
from tpu_input.command_line.jpeg2tpu import main

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "terminal.md").read_text()
PACKAGES = ("beam_pipelines", "tpu_input", "estimator_app")
COMMON_FLAGS = {"--help", "--help-all", "--quiet", "--verbose", "--json", "--log_file"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_command_has_the_flags_of_all_commands(package):
    parser = import_module(f"{package}.__main__").make_parser()
    (commands,) = (action.choices for action in parser._actions if action.choices)
    for name, command in commands.items():
        flags = {flag for action in command._actions for flag in action.option_strings}
        assert flags >= COMMON_FLAGS - ({"--json"} if name in ("dispatcher", "worker") else set()), name
        assert {f"`{flag}" for flag in COMMON_FLAGS} <= set(re.findall(r"^\| (`--[\w-]+)", PAGE, re.MULTILINE))


def test_the_list_of_commands_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    help_text = capsys.readouterr().out
    assert max(map(len, help_text.splitlines())) <= 80
    assert "  completion " in help_text


def test_the_page_has_the_exit_codes_of_the_help():
    codes = re.findall(r"^  (\d+) ", EXIT_CODES, re.MULTILINE)
    assert codes == re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)


def test_a_result_is_json_on_stdout_and_the_log_has_all_lines(tmp_path, capsys):
    log = tmp_path / "log"
    assert main(["sample", str(tmp_path / "digits"), "--json", f"--log_file={log}"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "folder": str(tmp_path / "digits"),
        "num_digits": 1797,
        "num_written": 1797,
    }
    assert main(["sample", str(tmp_path / "digits"), f"--log_file={log}", "--quiet"]) == 0
    line = capsys.readouterr().out.strip()
    assert line == f"{tmp_path}/digits: 1,797 digits in 10 class folders, 0 of them written now"
    assert main(["diff", str(tmp_path / "no"), str(tmp_path / "other"), f"--log_file={log}"]) == 2
    error = capsys.readouterr().err.strip()
    logged = [
        re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (\w+) (.*)", row) for row in log.read_text().splitlines()
    ]
    entries = [match.groups() for match in logged if match]
    assert len(entries) == len(logged)
    assert [text.partition(" ")[0] for level, text in entries if text.startswith("command: ")] == ["command:"] * 3
    assert ("INFO", line) in entries
    assert ("WARNING", error) in entries
    assert error.startswith("error: ")


@pytest.mark.parametrize(
    "command",
    [["diff", "no", "other"], ["idx", "no"], ["predict", "--export_dir=no", "photo.jpg"]],
    ids=lambda words: words[0],
)
def test_an_error_is_an_object_too_and_verbose_shows_its_traceback(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    level = logging.getLogger().level
    assert main([*command, "--json"]) == 2
    out, err = capsys.readouterr()
    assert f"error: {json.loads(out)['error']}\n" == err
    assert main([*command, "--verbose"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback (most recent call last):" in err
    assert err.splitlines()[-1].startswith("error: ")
    assert logging.getLogger().level == level  # for the next command of this process
    with pytest.raises(SystemExit):
        main([*command, "--json", "--no_such_flag"])
    assert "unknown flag --no_such_flag" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("command", ["sample out", "idx data", "export --model_dir=model"])
def test_a_log_that_cannot_be_written_is_one_line(command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "--log_file=no/log"]) == 2
    expected = "error: --log_file=no/log cannot be written: No such file or directory\n"
    assert capsys.readouterr().err == expected
    assert list(tmp_path.iterdir()) == []


def run_command(*command: str) -> tuple[int, str]:
    return run_in_terminal("tpu_input.command_line.jpeg2tpu", *command)


def test_a_terminal_shows_that_tensorflow_starts_and_then_the_result_alone(dataset_copy):
    command = ("benchmark", str(dataset_copy), "--images=64", "--rounds=1", "--batch_size=16")
    code, output = run_command(*command)
    assert code == 0
    assert output.startswith("\rstarting TensorFlow …")
    *drawings, last = output.split("\r\x1b[K")
    assert "images/s" in last
    assert "…" not in last
    assert all(len(line) <= 80 for line in "".join(drawings).replace("\x1b[K", "").split("\r"))
    code, output = run_command(*command, "--quiet")
    assert (code, "\r\x1b" in output, "starting" in output) == (0, False, False)


def test_a_command_without_tensorflow_shows_its_result_alone(dataset_copy):
    assert run_command("idx", str(dataset_copy)) == (0, f"11 index files in {dataset_copy}/index\r\n")


def test_completion_is_printed_without_importing_tensorflow_or_beam():
    pytest.importorskip("argcomplete")
    code = (
        "import sys; from tpu_input.command_line.jpeg2tpu import main; code = main(['completion', 'fish']); "
        "print(code, *sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    code, *modules = result.stderr.split()
    assert code == "0"
    assert "complete --command jpeg2tpu" in result.stdout
    assert not {name.partition(".")[0] for name in modules} & {"tensorflow", "apache_beam", "numpy"}


def test_another_shell_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "must be one of bash, zsh, fish, got 'tcsh'" in capsys.readouterr().err


@pytest.fixture
def shell(tmp_path):
    """Environment of a shell that finds jpeg2tpu, in an empty folder."""
    program = tmp_path / "bin" / "jpeg2tpu"
    program.parent.mkdir()
    python = shlex.join([sys.executable, "-W", "ignore", "-m", "jpeg2tpu"])
    program.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    program.chmod(0o755)
    return os.environ | {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }


def in_bash(script: str, shell: dict[str, str], folder: Path) -> str:
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=shell, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def test_bash_completes_commands_flags_and_choices_of_every_package(shell, tmp_path):
    pytest.importorskip("argcomplete")
    lines = {
        "jpeg2tpu prefl": "preflight",
        "jpeg2tpu completion f": "fish",
        "jpeg2tpu train --resiz": "--resize",
        "jpeg2tpu train --resize ": "crop pad squash",
        "jpeg2tpu convert --shard_": "--shard_size",
        "jpeg2tpu benchmark --need": "--need",
    }
    script = ". <(jpeg2tpu completion bash)\n"
    for line in lines:
        script += (
            f"COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)} COMP_TYPE=9 COMPREPLY=()\n"
            '_python_argcomplete jpeg2tpu; echo "${COMPREPLY[@]}"\n'
        )
    assert [words.strip() for words in in_bash(script, shell, tmp_path).splitlines()] == [*lines.values()]


@pytest.mark.long
def test_the_blocks_of_the_page_run(shell, tmp_path):
    pytest.importorskip("argcomplete")
    results, completion = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    out = in_bash(results, shell, tmp_path).splitlines()
    assert json.loads(out[0])["num_digits"] == 1797
    assert out[-2].startswith("complete: ")
    assert json.loads(out[-1])["problems"] == []
    assert "complete: " in (tmp_path / "convert.log").read_text()
    assert "_python_argcomplete jpeg2tpu" in in_bash(f"{completion}complete -p jpeg2tpu", shell, tmp_path)
    for shell_name, line in re.findall(r"^\| (\w+) \|.*\| `(.*)` \|$", PAGE, re.MULTILINE):
        assert f"jpeg2tpu completion {shell_name}" in line
