"""Command jpeg2tpu, which runs the commands of all three packages and imports a package only to run its command.

jpeg2tpu convert …, python -m jpeg2tpu convert …  ──▶  beam_pipelines.__main__.main(["convert", …])
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tpu_input.command_line import EXIT_CODES, INTERRUPTED, Parser, completion, help_text, print_error, print_line
from tpu_input.command_line.dataclass_options import suggestion
from tpu_input.command_line.distribution import __version__
from tpu_input.command_line.output import AddFlag as AddFlag, add_output_flags
from tpu_input.command_line.program import end_process
from tpu_input.command_line.streams import streams

_COMPLETION = "print the script that completes commands and flags in a shell"


class Command(NamedTuple):
    """Command of one of the packages.

    Attributes:
      package: The package whose __main__ runs it.
      summary: What it does, in one line.
    """

    package: str
    summary: str


COMMANDS = {
    "sample": Command("beam_pipelines", "write 1,797 real handwritten digits as class folders of JPEGs"),
    "convert": Command("beam_pipelines", "convert images to sharded TFRecords"),
    "verify": Command("beam_pipelines", "re-read a dataset and check all that its manifest states"),
    "repair": Command("beam_pipelines", "verify a dataset and re-create its damaged shards, as verify --repair"),
    "relabel": Command("beam_pipelines", "write a dataset with other labels for some of its examples"),
    "merge": Command("beam_pipelines", "write one dataset of the examples of several"),
    "filter": Command("beam_pipelines", "write a dataset without some of its examples"),
    "split": Command("beam_pipelines", "write a dataset with its examples in other splits"),
    "reshard": Command("beam_pipelines", "write a dataset in shards of another size"),
    "export-dataset": Command("beam_pipelines", "write a dataset in a format of another library, every byte as it is"),
    "diff": Command("beam_pipelines", "compare two datasets by key: what differs; exit 1 if anything does"),
    "report": Command("beam_pipelines", "write DATASET/report.html, one page to open in a browser"),
    "benchmark": Command("tpu_input", "measure images/s, the cost of each stage, and the gain of changed options"),
    "idx": Command("tpu_input", "write DALI's index files, DATASET/index/*.idx"),
    "tfds": Command("tpu_input", "write what TensorFlow Datasets opens DATASET with: dataset_info.json, …"),
    "dispatcher": Command("tpu_input", "run the dispatcher that assigns input work to workers (docs/input-service.md)"),
    "worker": Command("tpu_input", "run a worker that does a dispatcher's input work; any number of them"),
    "train": Command("estimator_app", "train, evaluate and export; a rerun resumes from the last checkpoint"),
    "watch": Command("estimator_app", "evaluate and export during train --eval=watch, as a separate process"),
    "evaluate": Command("estimator_app", "evaluate a checkpoint or an export on every example of a split"),
    "export": Command("estimator_app", "write a checkpoint as a SavedModel"),
    "predict": Command("estimator_app", "classify image files, or all records of a dataset, with a trained model"),
    "folds": Command("estimator_app", "train a model without each split of a dataset, and predict that split with it"),
    "preflight": Command(
        "estimator_app", "check without a TPU whether and how a training would run on one; exit 1 if not"
    ),
}


def add_command(
    commands: argparse._SubParsersAction[Parser], name: str, *examples: str, everyday: Sequence[str] | None = None
) -> Parser:
    """Adds a command to the subparsers of its package's parser, and returns the command's parser.

    Args:
      commands: From Parser.add_subparsers().
      name: One of COMMANDS.
      examples: Arguments of each example at the end of the help.
      everyday: Options that --help shows, in their order, next to the required ones; None for all of the command's own.
    """
    summary = COMMANDS[name].summary
    command = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    command.everyday, command.examples = everyday, [f"jpeg2tpu {name} {arguments}" for arguments in examples]
    add_output_flags(command.messages.add_argument, has_result=name not in _SERVERS)
    return command


_SERVERS = ("dispatcher", "worker")  # which run until they are ended, and have no result


def _help() -> list[str]:
    summaries = {name: command.summary for name, command in COMMANDS.items()} | {"completion": _COMPLETION}
    return [
        "usage: jpeg2tpu [--version] COMMAND …",
        "",
        "Images and labels to sharded TFRecords, to batches for an accelerator, to a",
        "trained classifier.",
        "Run jpeg2tpu COMMAND --help for the everyday options of a command, and",
        "jpeg2tpu COMMAND --help-all for all of them.",
        "",
        "commands:",
        *help_text.table(list(summaries.items())),
        "",
        *EXIT_CODES.splitlines(),
    ]


def _completion(argv: Sequence[str]) -> int:
    """Prints the script for a shell; it is not a command of a package, so that none is imported."""
    parser = Parser(
        prog="jpeg2tpu completion",
        description=f"{_COMPLETION[0].upper()}{_COMPLETION[1:]}.",
    )
    parser.examples = ["source <(jpeg2tpu completion bash)"]
    parser.add_argument("shell", choices=completion.SHELLS, metavar="|".join(completion.SHELLS), help="the shell")
    try:
        script = completion.script(parser.parse_args(argv).shell)
    except ValueError as error:
        print_error(error)
        return 2
    for line in script.split("\n"):
        print_line(line.replace("\t", "    "))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code, one of command_line.EXIT_CODES."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    packages = {command: entry.package for command, entry in COMMANDS.items()}
    completion.complete(packages, {"completion": completion.SHELLS})
    with streams():
        code = _run(name, arguments)
    if argv is None:
        end_process(code)
    return code


def _run(name: str, arguments: list[str]) -> int:
    if name in ("-h", "--help", "--help-all", "--help_all"):
        for line in _help():
            print_line(line)
        return 0
    if name == "--version":
        print_line(f"jpeg2tpu {__version__}")
        return 0
    if name == "completion":
        return _completion(arguments[1:])
    if name not in COMMANDS:
        commands = [*COMMANDS, "completion"]
        print_error(f"unknown command {name!r}{suggestion(name, commands)} (see jpeg2tpu --help)")
        return 2
    try:
        package = importlib.import_module(f"{COMMANDS[name].package}.__main__")
    except KeyboardInterrupt:  # the command has not started
        return INTERRUPTED
    return int(package.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
