"""Command line of this package: sample, convert, verify, report, … All flags of these commands are defined here."""

from __future__ import annotations

import argparse
import functools
import logging
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import cast

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports (about 1 s) ends without a traceback
# This must precede the imports of the Google clients, which warn that this version of Python is old, and of Beam, which
# warns that packages are missing that it does not need here.
warnings.simplefilter("ignore", FutureWarning)
logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")

from beam_pipelines import missing_inputs  # noqa: E402
from beam_pipelines.conversion_flags import (  # noqa: E402
    add_conversion_flags,
    add_output_flags,
    add_rewriting_flags,
    positive,
)
from beam_pipelines.options import FILES_OF_CHANGES  # noqa: E402
from beam_pipelines.runners import heap_limits  # noqa: E402
from beam_pipelines.runners.beam_private import log_no_errors_of_workers  # noqa: E402
from beam_pipelines.shard_formats.all_formats import EXPORTS  # noqa: E402
from tpu_input.command_line import Parser  # noqa: E402
from tpu_input.command_line.error_lines import one_line  # noqa: E402
from tpu_input.command_line.jpeg2tpu import AddFlag, add_command  # noqa: E402
from tpu_input.command_line.program import end_process, place_of, run_program  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit code, one of command_line.EXIT_CODES."""
    log_no_errors_of_workers()
    # Pillow logs an error that it also raises, and that becomes the reason of a rejected image.
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    heap_limits.apply()
    try:
        code = run_program(
            sys.argv[1:] if argv is None else argv,
            _parsed,
            _run,
            describe=_described,
            interrupted=lambda _: _INTERRUPTED,
        )
    finally:
        if worker_output := sys.modules.get("beam_pipelines.runners.worker_output"):  # some commands end without Beam
            worker_output.command_ends()
    if argv is None:
        end_process(code)
    return code


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    flags, beam_flags = cast(tuple[argparse.Namespace, list[str]], make_parser().parse_known_args(argv))
    flags.argv, flags.result, flags.beam_flags = list(argv), {}, beam_flags
    if beam_flags and not getattr(flags, "runner", None):
        raise ValueError(f"unknown argument {beam_flags[0]!r}; see --help")
    return flags


def _run(flags: argparse.Namespace) -> int:
    missing_inputs.check(flags)
    from beam_pipelines import commands  # Beam takes a second to import

    return commands.run(flags)


def _described(error: Exception, flags: argparse.Namespace) -> str:
    """Returns the line of an error; "" for a fault of the program."""
    if isinstance(error, OSError):
        return f"{one_line(error, place_of(flags))}; written files are kept; rerun the same command to resume"
    is_known = isinstance(error, ValueError) or type(error).__module__.startswith("google.")
    return one_line(error) if is_known else ""


_INTERRUPTED = "interrupted; rerun the same command to resume"


def make_parser() -> Parser:
    """Returns the parser of all commands; each sets `run` to the name of its function in commands.py."""
    parser = Parser(prog="jpeg2tpu", description="Images and labels -> TFRecord shards + manifest.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    command = add_command(commands, "sample", "digits")
    command.set_defaults(run="sample")
    command.add_argument("output", metavar="OUTPUT", help="folder or URI to write to")

    command = add_command(commands, "convert", *_CONVERT_EXAMPLES, everyday=_EVERYDAY["convert"])
    command.set_defaults(run="convert")
    group = _groups_of(command)
    add_conversion_flags(group)
    _add_running_flags(group("execution"))

    for name in ("verify", "repair"):
        command = add_command(commands, name, "digits")
        command.set_defaults(run="verify", repair=name == "repair")
        command.add_argument("dataset", metavar="DATASET", help=_HELP["dataset"])
        flag = command.add_argument_group("what to check").add_argument
        flag("--quick", action="store_true", help="skip decoding the images")
        flag("--shard", default=[], action="append", metavar="FILE", help=_HELP["shard"])
        if name == "verify":
            flag("--repair", action="store_true", help=_HELP["repair"])
        flag = command.add_argument_group("execution").add_argument
        flag("--num_threads", type=positive, metavar="N", help=_HELP["num_threads"])
        flag("--runner", metavar="NAME", help=_HELP["verify_runner"])

    for name, example in _REWRITING.items():
        command = add_command(commands, name, example, everyday=_EVERYDAY[name])
        command.set_defaults(run="rewrite", command=name)
        _add_rewriting_flags(name, command)

    command = add_command(
        commands, "export-dataset", *_EXPORT_EXAMPLES, everyday=("--format", "--output", "--split", "--shard_size")
    )
    command.set_defaults(run="export_dataset")
    command.add_argument("dataset", metavar="DATASET", help=_HELP["dataset"])
    group = _groups_of(command)
    flag = group("export")
    flag("--format", required=True, choices=tuple(EXPORTS), help=_HELP["format"])
    flag("--split", default="", metavar="NAME", help=_HELP["split"])
    add_output_flags(flag)
    _add_running_flags(group("execution"))

    command = add_command(commands, "diff", "flowers flowers_relabelled")
    command.set_defaults(run="diff")
    command.add_argument("before", metavar="A", help="folder or URI of a dataset, or of an export")
    command.add_argument("after", metavar="B", help="folder or URI of another dataset, or of an export")

    command = add_command(commands, "report", "digits")
    command.set_defaults(run="report")
    command.add_argument("dataset", metavar="DATASET", help=_HELP["dataset"])
    flag = command.add_argument_group("page").add_argument
    flag("--sources", default=[], action="append", metavar="PATH", help=_HELP["sources"])
    flag("--predictions", default=[], action="append", metavar="FILE", help=_HELP["predictions"])
    flag("--pairs", default="", metavar="FILE", help=_HELP["pairs"])
    return parser


def _groups_of(command: Parser) -> Callable[[str], AddFlag]:
    """Returns the function from the title of a group of flags to the function that adds a flag to it."""
    return functools.cache(lambda title: command.add_argument_group(title).add_argument)


def _add_running_flags(flag: AddFlag) -> None:
    flag("--runner", metavar="NAME", help=_HELP["runner"])
    flag("--num_processes", type=positive, metavar="N", help=_HELP["num_processes"])
    flag("--dry_run", action="store_true", help=_HELP["dry_run"])
    flag("--no_wait", action="store_true", help=_HELP["no_wait"])


# Arguments of an example of each command that makes a dataset of datasets.
_REWRITING = {
    "relabel": "flowers --labels=corrected.csv --output=flowers_corrected",
    "merge": "old=flowers new=more_flowers --output=all_flowers --dedup=exact",
    "filter": "flowers --without_keys=blurred.txt --output=sharp_flowers",
    "split": "flowers --splits=train=80%,validation=10%,test=10% --output=flowers_again",
    "reshard": "flowers --shard_size=500MB --output=flowers_large",
}
# What --help shows next to the arguments and the required options.
_EVERYDAY = {
    "convert": (
        *("--input", "--output", "--splits", "--resize_shorter", "--dedup", "--max_rejected"),
        *("--shard_size", "--extend", "--overwrite", "--runner"),
    ),
    "relabel": ("--labels", "--add_classes", "--output", "--overwrite"),
    "merge": ("--output", "--dedup", "--shard_size", "--overwrite"),
    "filter": (*(f"--{name}" for name in FILES_OF_CHANGES[1:]), "--output", "--overwrite"),
    "split": ("--splits", "--folds", "--stratify", "--group_by", "--near_duplicates", "--output", "--overwrite"),
    "reshard": ("--shard_size", "--num_shards", "--output", "--overwrite"),
}


def _add_rewriting_flags(name: str, command: Parser) -> None:
    group = _groups_of(command)
    if name == "merge":
        command.add_argument("datasets", nargs="+", metavar="[NAME=]DATASET", help=_HELP["datasets"])
    else:
        command.add_argument("datasets", nargs=1, metavar="DATASET", help=_HELP["dataset"])
    if name == "relabel":
        flag = group("changes")
        flag("--labels", dest="new_labels", required=True, metavar="FILE", help=_HELP["new_labels"])
        flag("--add_classes", action="store_true", help=_HELP["add_classes"])
    if name == "split":
        group("changes")("--folds", type=positive, metavar="N", help=_HELP["folds"])
    files_by_command = {"filter": FILES_OF_CHANGES[1:], "split": FILES_OF_CHANGES[-1:]}
    for file in files_by_command.get(name, ()):
        group("changes")(f"--{file}", default="", metavar="FILE", help=_HELP[file])
    add_rewriting_flags(group, name)
    _add_running_flags(group("execution"))


_EXPORT_EXAMPLES = (
    "flowers --format=parquet --output=flowers_parquet",
    "gs://bucket/flowers --format=webdataset --output=gs://bucket/flowers_tars --split=train --shard_size=500MB",
)
_HELP = {
    "format": "format of the shards: "
    + "; ".join(f"{name}, {shard_format.purpose}" for name, shard_format in EXPORTS.items()),
    "split": "split to export (default: all)",
    "dataset": "folder or URI of the dataset",
    "repair": "re-create damaged shards from the sources that the manifest names. A shard is replaced only if the new "
    "one has the SHA-256 of the manifest. lengths.parquet is written again from the index",
    "sources": "folder, .tar or URI of the dataset's inputs, for thumbnails of rejected inputs. Files elsewhere that "
    "rejected.jsonl names are not read. May be repeated (default: no thumbnails)",
    "predictions": "Parquet file of `jpeg2tpu predict --dataset`, to show labels that are likely wrong. They are also "
    "listed in DATASET/likely_wrong_labels.csv for relabel. May be repeated, with predictions of other records "
    "(default: none)",
    "num_processes": "maximum number of processes that read, check and encode images, without --runner. They share the "
    "work on each shard. Few images need no processes: docs/conversion.md (default: all cores, or the container's CPU "
    "quota)",
    "num_threads": "maximum number of shards to read at the same time, without --runner (default: all cores, or the "
    "container's CPU quota)",
    "runner": "Beam runner, such as DataflowRunner. All of its own flags may follow: docs/clusters.md (default: "
    "processes of this machine)",
    "verify_runner": "Beam runner whose workers read the shards. All of its own flags may follow: docs/clusters.md "
    "(default: processes of this machine)",
    "shard": "file name of a shard, to read only this one, with its index and lengths. May be repeated (default: all "
    "shards)",
    "datasets": "folder or URI of a dataset. Its examples get the keys NAME/KEY; without NAME, it is the folder's",
    "new_labels": ".csv with the header key,label: the class of each of these examples. All others keep theirs. "
    "Several classes are separated by ; or a JSON list, [] for none",
    "add_classes": "accept labels that are not the name of a class yet. They are added after the others, sorted",
    "only_keys": "file with one key per line, of the examples to keep (default: all)",
    "without_keys": "file with one key per line, of examples to leave out (default: none)",
    "only_classes": "file with one class name per line, of classes to keep (default: all)",
    "without_classes": "file with one class name per line, of classes to leave out (default: none)",
    "folds": "number of splits of equal shares, fold1, fold2, …, instead of --splits. The command folds trains on them "
    "(default: none)",
    "near_duplicates": "file of `jpeg2tpu report --pairs`, of images that look alike. filter keeps one image of each "
    "group; split puts each group into one split (default: none)",
    "pairs": "Parquet file to write all pairs of images that look alike to, instead of the page (default: none)",
    "no_wait": "submit the job to the engine of --runner and end, without waiting for the job",
    "dry_run": "check the inputs and estimate shards, time and memory, without writing anything. With "
    "--runner=DataflowRunner, it also installs and builds all that a job needs, without submitting one",
}
_CONVERT_EXAMPLES = (
    "--input=flowers --output=flowers_tfrecords",
    "--input=photos.csv --output=gs://bucket/photos --resize_shorter=256",
    "--input=train=ILSVRC2012_img_train.tar --input=validation=ILSVRC2012_img_val.tar "
    "--label_list=validation=imagenet_2012_validation_synset_labels.txt --output=imagenet "
    "--num_shards=train=1024,validation=128 --first_label=1",
    "--input=gs://bucket/images --output=gs://bucket/dataset --runner=DataflowRunner --project=my-project "
    "--region=us-central1 --temp_location=gs://bucket/temp --dry_run",
)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
