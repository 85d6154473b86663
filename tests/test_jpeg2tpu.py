"""One command for all three packages, which loads none of them before it runs one."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
import textwrap
from importlib import import_module

import pytest

from tpu_input.command_line import Parser
from tpu_input.command_line.jpeg2tpu import COMMANDS, main
from tpu_input.command_line.paths import absolute

PACKAGES = ("beam_pipelines", "tpu_input", "estimator_app")


@pytest.mark.parametrize("package", PACKAGES)
def test_it_has_each_command_of_each_package(package):
    parser: Parser = import_module(f"{package}.__main__").make_parser()
    (commands,) = (action.choices for action in parser._actions if action.choices)
    assert set(commands) == {name for name, command in COMMANDS.items() if command.package == package}


def test_help_names_every_command_and_loads_no_package(capsys):
    assert main(["--help"]) == 0
    help_text = capsys.readouterr().out
    assert all(f"  {name} " in help_text for name in COMMANDS)
    assert "exit codes" in help_text
    code = "import sys; from tpu_input.command_line.jpeg2tpu import main; main([]); print(*sys.modules, sep=chr(10))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {line.split(".")[0] for line in result.stdout.splitlines()}
    assert not loaded & {"apache_beam", "tensorflow", "numpy", "PIL", "google"}


def test_a_command_is_run_by_its_package(tmp_path, capsys):
    assert main(["sample", str(tmp_path / "digits")]) == 0
    assert len(list((tmp_path / "digits").iterdir())) == 10
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    assert "--shard_size" in capsys.readouterr().out


def test_a_mistyped_command_is_one_line(capsys):
    assert main(["convrt"]) == 2
    assert capsys.readouterr().err == "error: unknown command 'convrt'; did you mean convert? (see jpeg2tpu --help)\n"
    assert main(["fly"]) == 2
    assert capsys.readouterr().err == "error: unknown command 'fly' (see jpeg2tpu --help)\n"


@pytest.mark.parametrize(
    ("package", "word", "suggestion"),
    [("beam_pipelines", "convrt", "convert"), ("tpu_input", "bench", "benchmark"), ("estimator_app", "trian", "train")],
)
def test_each_package_suggests_the_command_that_was_meant(package, word, suggestion, capsys):
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"{package}.__main__").main([word])
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err
        == f"error: unknown command {word!r}; did you mean {suggestion}? (see jpeg2tpu --help)\n"
    )


def test_the_version_is_the_distribution_s(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "jpeg2tpu 0.1.0\n"


@pytest.mark.parametrize(
    ("flag", "suggestion"),
    [("--batch_size", "--train_batch_size"), ("--lr=0.1", "--learning_rate"), ("--num_epochs", "--epochs")],
)
def test_flags_of_other_programs_are_told_ours(flag, suggestion, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "--dataset=d", "--model_dir=m", flag])
    assert ended.value.code == 2
    assert f"unknown flag {flag.partition('=')[0]}; did you mean {suggestion}?" in capsys.readouterr().err


@pytest.mark.parametrize("dataset_args", [["--dataset=d"], ["--dataset", "d"], ["d"]])
@pytest.mark.parametrize("verb", ["verify", "repair", "reshard", "report", "benchmark", "idx", "tfds"])
def test_a_dataset_has_one_name_in_every_command(verb, dataset_args):
    parser = import_module(f"{COMMANDS[verb].package}.__main__").make_parser()
    more = {"reshard": ["--output=o"]}.get(verb, [])
    options = vars(parser.parse_args([verb, *dataset_args, *more, "--quiet"]))
    dataset = options["datasets"][0] if "datasets" in options else options["dataset"]
    assert absolute(dataset) == absolute("d")


def test_an_output_has_one_name_in_every_command():
    assert import_module("beam_pipelines.__main__").make_parser().parse_args(["sample", "--output=o"]).output == "o"


def test_hyphens_in_flags_are_taken_as_underscores():
    parser = Parser()
    parser.add_argument("--train_steps", type=int)
    parser.add_argument("words", nargs="*")
    args = parser.parse_args(["--train-steps=3", "--", "--train-steps"])
    assert (args.train_steps, args.words) == (3, ["--train-steps"])


@pytest.mark.parametrize("module", ["tpu_input.command_line.jpeg2tpu", "beam_pipelines.__main__"])
@pytest.mark.parametrize("stdout", ["pipe", "/dev/full"])
def test_threads_of_grpc_do_not_take_part_in_the_end_of_a_command(module, stdout):
    """Python waits at its end for a thread that is no daemon: this one never ends, so Python's end must not begin."""
    program = f"""
        import atexit, sys, threading
        from {module} import main

        sys.argv = ["jpeg2tpu", "verify", "missing"]
        sys.modules["grpc"] = threading
        atexit.register(print, "registered", file=sys.stderr)
        threading.Thread(target=threading.Event().wait).start()
        sys.exit(main())
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    with open(stdout, "w") if stdout != "pipe" else contextlib.nullcontext(subprocess.PIPE) as file:
        result = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, timeout=100)
    assert result.returncode == 2
    error, registered = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert registered == "registered"
