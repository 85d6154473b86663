"""Command line of this package: sample, convert, verify, report. All flags of these commands are defined here."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import cast

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports (about 1 s) ends without a traceback
# This must precede the imports of the Google clients, which warn that this version of Python is old, and of Beam, which
# warns that packages are missing that it does not need here.
warnings.simplefilter("ignore", FutureWarning)
logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402

from beam_pipelines import storage  # noqa: E402
from beam_pipelines.conversion.output_folder import LIKELY_WRONG_NAME  # noqa: E402
from beam_pipelines.conversion_flags import (  # noqa: E402
    add_conversion_flags,
    add_rewriting_flags,
    conversion_options,
    named_datasets,
    positive,
)
from beam_pipelines.convert import convert, submit  # noqa: E402
from beam_pipelines.diff import diff  # noqa: E402
from beam_pipelines.dry_run import dry_run  # noqa: E402
from beam_pipelines.options import FILES_OF_CHANGES, ConvertOptions, Source  # noqa: E402
from beam_pipelines.repair import remove_leftovers, repair  # noqa: E402
from beam_pipelines.report.page import write_pairs, write_report  # noqa: E402
from beam_pipelines.report.summary import print_summary, summary  # noqa: E402
from beam_pipelines.rewrite import rewriting  # noqa: E402
from beam_pipelines.runners import execution, launch_checks, phases, worker_output, workers  # noqa: E402
from beam_pipelines.sample_digits import write_sample  # noqa: E402
from beam_pipelines.verify import Findings, verify  # noqa: E402
from tpu_input.command_line import Parser, is_json, print_line, to_json  # noqa: E402
from tpu_input.command_line.error_lines import one_line  # noqa: E402
from tpu_input.command_line.jpeg2tpu import add_command  # noqa: E402
from tpu_input.command_line.program import place_of, run_program  # noqa: E402
from tpu_input.command_line.streams import check_printed  # noqa: E402
from tpu_input.dataset_format.lengths import lengths_name  # noqa: E402
from tpu_input.dataset_format.records import MANIFEST_NAME  # noqa: E402


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
        worker_output.command_ends()


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    flags, beam_flags = cast(tuple[argparse.Namespace, list[str]], make_parser().parse_known_args(argv))
    flags.argv, flags.found, flags.beam_flags = list(argv), {}, beam_flags
    if beam_flags and not getattr(flags, "runner", None):
        raise ValueError(f"unknown argument {beam_flags[0]!r}; see --help")
    return flags


def _run(flags: argparse.Namespace) -> int:
    code = int(flags.run(flags, flags.beam_flags))
    if is_json(flags.argv):
        print_line(to_json(flags.found))
    return code


def _described(error: Exception, flags: argparse.Namespace) -> str:
    """Returns the line of an error; "" for a fault of the program."""
    if isinstance(error, OSError):
        return f"{one_line(error, place_of(flags))}; written files are kept; rerun the same command to resume"
    is_known = isinstance(error, ValueError) or type(error).__module__.startswith("google.")
    return one_line(error) if is_known else ""


_INTERRUPTED = "interrupted; rerun the same command to resume"


def _say(flags: argparse.Namespace, line: str) -> None:
    """Prints a line of the result, unless it is asked for as JSON."""
    if not is_json(flags.argv):
        print_line(line)


def make_parser() -> Parser:
    """Returns the parser of all commands; each sets `run` to the function that runs it."""
    parser = Parser(prog="jpeg2tpu", description="Images and labels -> TFRecord shards + manifest.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    command = add_command(commands, "sample", "digits")
    command.set_defaults(run=_sample)
    command.add_argument("output", metavar="OUTPUT", help="folder or URI to write to")

    command = add_command(commands, "convert", epilog=_CONVERT_EPILOG)
    command.set_defaults(run=_convert)
    _add_convert_flags(command)

    for name in ("verify", "repair"):
        command = add_command(commands, name, "digits")
        command.set_defaults(run=_verify, repair=name == "repair")
        command.add_argument("dataset", metavar="DATASET", help="folder or URI of the dataset")
        command.add_argument("--quick", action="store_true", help="skip decoding the images")
        command.add_argument("--num_threads", type=positive, metavar="N", help=_HELP["num_threads"])
        command.add_argument("--runner", help=_HELP["runner"])
        command.add_argument("--shard", default=[], action="append", metavar="NAME", help=_HELP["shard"])
        if name == "verify":
            command.add_argument("--repair", action="store_true", help=_HELP["repair"])

    for name, example in _REWRITING.items():
        command = add_command(commands, name, example)
        command.set_defaults(run=_rewrite, command=name)
        _add_rewriting_flags(name, command)

    command = add_command(commands, "diff", "flowers flowers_relabelled")
    command.set_defaults(run=_diff)
    command.add_argument("before", metavar="A", help="folder or URI of a dataset")
    command.add_argument("after", metavar="B", help="folder or URI of another dataset")

    command = add_command(commands, "report", "digits")
    command.set_defaults(run=_report)
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


def _sample(flags: argparse.Namespace, _: list[str]) -> int:
    folder = storage.absolute(flags.output)
    written, total = write_sample(folder)
    flags.found = {"folder": folder, "num_digits": total, "num_written": written}
    _say(flags, f"{folder}: {total:,} digits in 10 class folders, {written:,} of them written now")
    return 0


_M_MMAP_THRESHOLD = -3  # of malloc.h


def _return_memory_once_freed() -> None:
    """Makes glibc return memory in blocks of 1 MiB and more to the operating system as soon as it is freed.

    By itself, it raises this size to up to 32 MiB, and keeps smaller blocks. After planning 200,000 inputs, these would
    be 60 MB beside the processes that write shards.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def _convert(flags: argparse.Namespace, beam_flags: list[str]) -> int:
    return _run_conversion(flags, conversion_options(flags), beam_flags)


def _rewrite(flags: argparse.Namespace, beam_flags: list[str]) -> int:
    changes = {name: value for name in FILES_OF_CHANGES if (value := getattr(flags, name, ""))}
    if flags.command == "filter" and not changes:
        raise ValueError(f"filter needs at least one of {', '.join(f'--{name}' for name in FILES_OF_CHANGES[1:])}")
    if flags.command == "merge" and len(flags.datasets) < 2:
        raise ValueError(f"merge needs at least two datasets, got {flags.datasets!r}")
    sources = [
        Source(path, name=name, splits="again" if flags.command == "split" else "kept", **changes)
        for name, path in named_datasets(flags.datasets)
    ]
    changed = {name: value for name in _CHANGED_OPTIONS if (value := getattr(flags, name, None)) is not None}
    if flags.command == "split":
        if (flags.folds is None) == ("splits" not in changed):
            raise ValueError("split needs either --splits, such as train=90%,validation=10%, or --folds")
        if flags.folds:
            changed["splits"] = tuple((f"fold{number + 1}", 1 / flags.folds) for number in range(flags.folds))
    if "shard_bytes" in changed:
        changed = {"num_shards": ()} | changed
    if flags.command == "merge":
        changed = {"dedup": "exact"} | changed
    options = rewriting(sources, flags.output, getattr(flags, "add_classes", False), flags.check, **changed)
    return _run_conversion(flags, options, beam_flags)


_CHANGED_OPTIONS = (
    "splits",
    "stratify",
    "group_by",
    "seed",
    "dedup",
    "shard_bytes",
    "num_shards",
    "max_rejected",
    "overwrite",
)


def _run_conversion(flags: argparse.Namespace, options: ConvertOptions, beam_flags: list[str]) -> int:
    if flags.runner and flags.num_processes:
        raise ValueError(
            f"--num_processes={flags.num_processes} is for processes on this machine; leave it out, as "
            f"--runner={flags.runner} has flags of its own for the number of workers, or leave out --runner"
        )
    _return_memory_once_freed()
    beam_options = _beam_options(flags.runner, beam_flags)
    paths = [path for source in options.sources for path in (source.path, *(path for _, path, _ in source.files))]
    with _on_workers(beam_options, [*paths, options.output]):
        if flags.dry_run:
            return _dry_run(flags, options, beam_options)
        if flags.no_wait or launch_checks.template_of(beam_options):
            return _submit(flags, options, beam_options)
        launch_checks.check_writable(beam_options)
        with phases.shown():
            manifest, is_new, num_resumed, num_outdated = convert(
                options, beam_options if flags.runner else None, flags.num_processes, _as_written(flags.argv)
            )
    flags.found = {"is_new": is_new, "num_shards_resumed": num_resumed} | summary(manifest)
    if is_json(flags.argv):
        return 0
    print_summary(manifest)
    if num_resumed:
        num_shards = sum(len(split.shards) for split in manifest.splits.values())
        print_line(f"resumed: {num_resumed:,} of {num_shards:,} shards were written by an earlier run")
    done = "complete" if is_new else "unchanged" if num_outdated else "already complete, nothing to do"
    if num_outdated:
        count = f"{num_outdated:,} image{'s' * (num_outdated > 1)}"
        line = f"not applied: changes of the inputs of {count} (label, split, file, or removed)"
        print_line(f"{line}; apply them with --extend --prune")
    print_line(f"{done}: {manifest.path}/{MANIFEST_NAME}")
    return 0


@contextlib.contextmanager
def _on_workers(beam_options: PipelineOptions, paths: list[str]) -> Iterator[None]:
    """Context manager: checks an engine, and that it reaches these paths, and sets its workers up for the body.

    After a body that did not raise, it prints the steps that failed and were run again.
    """
    launch_checks.check(beam_options, paths)
    if is_engine := bool(launch_checks.name_of(beam_options)):
        workers.set_up(beam_options)
        worker_output.show_errors_once()
    with launch_checks.packed(beam_options):
        yield
    if is_engine:
        worker_output.show_retried()


def _as_written(argv: list[str]) -> list[str]:
    """Returns the command and its arguments without --overwrite, to be shown while the conversion is unfinished."""
    return [word for word in argv if word != "--overwrite"]


def _submit(flags: argparse.Namespace, options: ConvertOptions, beam_options: PipelineOptions) -> int:
    job = submit(options, beam_options, _as_written(flags.argv))
    if template := launch_checks.template_of(beam_options):
        flags.found = {"template": template}
        _say(flags, f"written: the template {template}; nothing was submitted")
        return 0
    flags.found = {"job": job, "dataset": options.output}
    _say(flags, f"submitted: job {job}; the dataset is complete when {options.output}/{MANIFEST_NAME} is there")
    return 0


def _dry_run(flags: argparse.Namespace, options: ConvertOptions, beam_options: PipelineOptions) -> int:
    if launch_checks.name_of(beam_options) != "dataflow":
        raise ValueError(
            "--dry_run is only available with --runner=DataflowRunner; to test another runner, convert a few images"
        )
    flags.found = {"dry_run": []}
    for line in dry_run(options, beam_options):
        flags.found["dry_run"].append(line)
        _say(flags, line)
    return 0


def _verify(flags: argparse.Namespace, beam_flags: list[str]) -> int:
    if not flags.runner:
        return _verify_or_repair(flags, None)
    if flags.num_threads:
        raise ValueError(
            f"--num_threads={flags.num_threads} is for threads on this machine; leave it out, as "
            f"--runner={flags.runner} has flags of its own for the number of workers, or leave out --runner"
        )
    beam_options = _beam_options(flags.runner, beam_flags)
    with _on_workers(beam_options, [flags.dataset]):
        launch_checks.check_writable(beam_options)
        return _verify_or_repair(flags, beam_options)


def _verify_or_repair(flags: argparse.Namespace, beam_options: PipelineOptions | None) -> int:
    with phases.shown():
        findings = verify(flags.dataset, not flags.quick, flags.num_threads, beam_options, flags.shard)
    remove_leftovers(findings.manifest)
    path, before = findings.manifest.path, findings
    for problem in findings.problems:
        _say(flags, problem)
    if flags.repair and (findings.damaged or findings.lengths_damaged):
        findings = _repair(flags, findings, beam_options)
    repaired = [*before.damaged, *[lengths_name(before.manifest.edition)] * before.lengths_damaged]
    flags.found = {
        "problems": findings.problems,
        "damaged": findings.damaged,
        "repaired": repaired if findings is not before else [],
        "is_decoded": not flags.quick,
    } | summary(findings.manifest)
    if findings.problems:
        _say(flags, f"{path}: {len(findings.problems)} problems" + (" remain" if flags.repair else ""))
        return 1
    if is_json(flags.argv):
        return 0
    if not flags.shard:
        print_summary(findings.manifest)
    where = f" in {', '.join(flags.shard)}" if flags.shard else ""
    read = "every record was read" + ("" if flags.quick else ", every image was decoded")
    print_line(f"{path}: no problems found{where}; {read}")
    return 0


def _repair(flags: argparse.Namespace, findings: Findings, beam_options: PipelineOptions | None) -> Findings:
    """Re-creates what is damaged; returns what is found afterwards."""
    path = findings.manifest.path
    if findings.damaged:
        sources = ", ".join(repr(source["path"]) for source in findings.manifest.sources)
        _say(flags, f"{path}: re-reading {sources}")
    repair(findings, beam_options, flags.num_threads)
    if findings.damaged:
        _say(flags, f"{path}: re-created from the sources: {', '.join(findings.damaged)}")
    if findings.lengths_damaged:
        _say(flags, f"{path}: re-created from the index: {lengths_name(findings.manifest.edition)}")
    with phases.shown():
        return verify(path, not flags.quick, flags.num_threads, beam_options, flags.shard)


def _diff(flags: argparse.Namespace, _: list[str]) -> int:
    with phases.shown():
        found = diff(storage.absolute(flags.before), storage.absolute(flags.after))
    flags.found = found.to_json()
    for line in found.lines():
        _say(flags, line)
    check_printed()
    return 0


def _report(flags: argparse.Namespace, _: list[str]) -> int:
    if flags.pairs and flags.predictions:
        raise ValueError("--pairs writes a file in the place of the page, so --predictions would have no effect")
    if flags.pairs:
        count = write_pairs(flags.dataset, flags.pairs)
        flags.found = {"pairs": storage.absolute(flags.pairs), "num_pairs": count}
        _say(flags, f"{storage.absolute(flags.pairs)}: {count:,} pair{'s' * (count != 1)} of images that look alike")
        return 0
    with phases.shown():
        path = write_report(flags.dataset, flags.sources, flags.predictions)
    flags.found = {"report": path}
    _say(flags, path)
    if flags.predictions:
        listed = f"{path.rpartition('/')[0]}/{LIKELY_WRONG_NAME}"
        flags.found["likely_wrong_labels"] = listed
        _say(flags, listed)
    return 0


def _beam_options(runner: str | None, beam_flags: list[str]) -> PipelineOptions:
    if any("multi_processing" in flag for flag in beam_flags):
        raise ValueError(
            "Beam's local runner hangs forever if one of its worker processes dies; leave out multi_processing: "
            "without --runner, a conversion uses processes of its own on all cores"
        )
    return execution.options_of(runner, beam_flags)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
