"""Command line of this package: sample, convert, verify, report, … All flags of these commands are defined here."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import cast

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports (about 1 s) ends without a traceback
# This must precede the imports of the Google clients, which warn that this version of Python is old, and of Beam, which
# warns that packages are missing that it does not need here.
warnings.simplefilter("ignore", FutureWarning)
logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")

from beam_pipelines import path_checks  # noqa: E402
from beam_pipelines.conversion_flags import add_conversion_flags, add_rewriting_flags, positive  # noqa: E402
from beam_pipelines.options import FILES_OF_CHANGES  # noqa: E402
from tpu_input.command_line import Parser  # noqa: E402
from tpu_input.command_line.error_lines import one_line  # noqa: E402
from tpu_input.command_line.jpeg2tpu import add_command  # noqa: E402
from tpu_input.command_line.program import place_of, run_program  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit code, one of command_line.EXIT_CODES."""
    # Beam logs the traceback of an error and raises it too; the error is printed below, in one line.
    logging.getLogger("apache_beam.runners.common").setLevel(logging.CRITICAL)
    # A job server may close the connection to workers, which are threads of this process, when their job is done.
    logging.getLogger("apache_beam.runners.worker.data_plane").setLevel(logging.CRITICAL)
    # Pillow logs an error that it also raises, and that becomes the reason of a rejected image.
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    try:
        return run_program(
            sys.argv[1:] if argv is None else argv,
            _parsed,
            _run,
            describe=_described,
            interrupted=lambda _: _INTERRUPTED,
        )
    finally:
        if worker_output := sys.modules.get("beam_pipelines.runners.worker_output"):  # some commands end without Beam
            worker_output.command_ends()


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    flags, beam_flags = cast(tuple[argparse.Namespace, list[str]], make_parser().parse_known_args(argv))
    flags.argv, flags.found, flags.beam_flags = list(argv), {}, beam_flags
    if beam_flags and not getattr(flags, "runner", None):
        raise ValueError(f"unknown argument {beam_flags[0]!r}; see --help")
    return flags


def _run(flags: argparse.Namespace) -> int:
    path_checks.check(flags)
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

    command = add_command(commands, "convert", epilog=_CONVERT_EPILOG)
    command.set_defaults(run="convert")
    _add_convert_flags(command)

    for name in ("verify", "repair"):
        command = add_command(commands, name, "digits")
        command.set_defaults(run="verify", repair=name == "repair")
        command.add_argument("dataset", metavar="DATASET", help="folder or URI of the dataset")
        command.add_argument("--quick", action="store_true", help="skip decoding the images")
        command.add_argument("--num_threads", type=positive, metavar="N", help=_HELP["num_threads"])
        command.add_argument("--runner", help=_HELP["runner"])
        command.add_argument("--shard", default=[], action="append", metavar="NAME", help=_HELP["shard"])
        if name == "verify":
            command.add_argument("--repair", action="store_true", help=_HELP["repair"])

    for name, example in _REWRITING.items():
        command = add_command(commands, name, example)
        command.set_defaults(run="rewrite", command=name)
        _add_rewriting_flags(name, command)

    command = add_command(commands, "diff", "flowers flowers_relabelled")
    command.set_defaults(run="diff")
    command.add_argument("before", metavar="A", help="folder or URI of a dataset")
    command.add_argument("after", metavar="B", help="folder or URI of another dataset")

    command = add_command(commands, "report", "digits")
    command.set_defaults(run="report")
    command.add_argument("dataset", metavar="DATASET", help="folder or URI of the dataset")
    command.add_argument("--sources", default=[], action="append", metavar="PATH", help=_HELP["sources"])
    command.add_argument("--predictions", default=[], action="append", metavar="FILE", help=_HELP["predictions"])
    command.add_argument("--pairs", default="", metavar="FILE", help=_HELP["pairs"])
    return parser


def _add_convert_flags(command: Parser) -> None:
    add_conversion_flags(lambda title: command.add_argument_group(title).add_argument)
    _add_running_flags(command)


def _add_running_flags(command: Parser) -> None:
    command.add_argument("--runner", help="Beam runner (default: processes on this machine)")
    command.add_argument("--num_processes", type=positive, metavar="N", help=_HELP["num_processes"])
    command.add_argument("--dry_run", action="store_true", help=_HELP["dry_run"])
    command.add_argument("--no_wait", action="store_true", help=_HELP["no_wait"])


# Arguments of an example of each command that makes a dataset of datasets.
_REWRITING = {
    "relabel": "flowers --labels=corrected.csv --output=flowers_corrected",
    "merge": "old=flowers new=more_flowers --output=all_flowers --dedup=exact",
    "filter": "flowers --without_keys=blurred.txt --output=sharp_flowers",
    "split": "flowers --splits=train=80%,validation=10%,test=10% --output=flowers_again",
    "reshard": "flowers --shard_size=500MB --output=flowers_large",
}


def _add_rewriting_flags(name: str, command: Parser) -> None:
    if name == "merge":
        command.add_argument("datasets", nargs="+", metavar="[NAME=]DATASET", help=_HELP["datasets"])
    else:
        command.add_argument("datasets", nargs=1, metavar="DATASET", help="folder or URI of the dataset")
    if name == "relabel":
        command.add_argument("--labels", dest="new_labels", required=True, metavar="FILE", help=_HELP["new_labels"])
        command.add_argument("--add_classes", action="store_true", help=_HELP["add_classes"])
    if name == "split":
        command.add_argument("--folds", type=positive, metavar="K", help=_HELP["folds"])
    of_command = {"filter": FILES_OF_CHANGES[1:], "split": FILES_OF_CHANGES[-1:]}
    for flag in of_command.get(name, ()):
        command.add_argument(f"--{flag}", default="", metavar="FILE", help=_HELP[flag])
    add_rewriting_flags(command.add_argument, name)
    _add_running_flags(command)


_HELP = {
    "repair": "re-create damaged shards from the sources that the manifest names; a shard is replaced only if the new "
    "one has the SHA-256 of the manifest. lengths.parquet is written again from the index",
    "sources": "folder, .tar or URI of the dataset's inputs: the report shows thumbnails of rejected inputs below it. "
    "May be repeated. Files that rejected.jsonl names elsewhere are not read (default: no thumbnails)",
    "predictions": "Parquet file of `jpeg2tpu predict --dataset`: the report shows the labels that are "
    "likely wrong, and lists them in DATASET/likely_wrong_labels.csv for relabel. May be repeated, with predictions of "
    "other records (default: none)",
    "num_processes": "maximum number of processes on this machine that write shards, without --runner (default: all "
    "cores, or the CPU quota of the container; none for few images: docs/conversion.md)",
    "num_threads": "maximum number of shards that are read at the same time on this machine, without --runner "
    "(default: all cores, or the CPU quota of the container)",
    "runner": "Beam runner whose workers read the shards; its own flags may follow: docs/clusters.md (default: threads "
    "on this machine)",
    "shard": "file name of a shard: only this one is read, with its index and lengths. May be repeated (default: all "
    "shards, and the sums and files of the dataset)",
    "datasets": "folder or URI of a dataset; its examples get the keys NAME/KEY (default: the name of its folder)",
    "new_labels": ".csv with the header key,label: the class of each of these examples; all others keep theirs",
    "add_classes": "accept labels that are the name of no class yet, and add them after the others in sorted order",
    "only_keys": "file with one key per line: keep only these examples (default: all)",
    "without_keys": "file with one key per line: leave these examples out (default: none)",
    "only_classes": "file with one class name per line: keep only examples of these classes (default: all)",
    "without_classes": "file with one class name per line: leave out examples of these classes (default: none)",
    "folds": "number of splits of equal shares, fold1, fold2, …, instead of --splits, for the command folds of "
    "estimator_app (default: none)",
    "near_duplicates": "file of report --pairs: filter leaves out all but one of each group of images that look alike; "
    "split keeps each group in one split (default: none)",
    "pairs": "write all pairs of images that look alike to this Parquet file, in the place of the page (default: none)",
    "no_wait": "submit the job to the engine of --runner and end; without it, the command waits for the job",
    "dry_run": "install, build, check and estimate everything, without submitting a job; needs --runner=DataflowRunner",
}
_CONVERT_EPILOG = """\
examples:
  jpeg2tpu convert --input=flowers --output=flowers_tfrecords
  jpeg2tpu convert --input=photos.csv --output=gs://bucket/photos --resize_shorter=256
  jpeg2tpu convert --input=train=ILSVRC2012_img_train.tar --input=validation=ILSVRC2012_img_val.tar \\
      --label_list=validation=imagenet_2012_validation_synset_labels.txt --output=imagenet \\
      --num_shards=train=1024,validation=128 --first_label=1

  jpeg2tpu convert --input=gs://bucket/images --output=gs://bucket/dataset --runner=DataflowRunner \\
      --project=my-project --region=us-central1 --temp_location=gs://bucket/temp --dry_run

With --runner, all flags of that Beam runner may follow: docs/clusters.md."""


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
