"""The functions that run the commands of this package; imported when a command runs.

Beam, which takes more than a second to import, is imported with --runner alone; the page of a report, by its command.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from beam_pipelines import storage
from beam_pipelines.conversion.output_folder import LIKELY_WRONG_NAME
from beam_pipelines.conversion_flags import conversion_options, named_datasets
from beam_pipelines.convert import convert as convert_inputs, submit
from beam_pipelines.diff import diff as diff_datasets
from beam_pipelines.dry_run import dry_run, dry_run_of_dataflow
from beam_pipelines.options import FILES_OF_CHANGES, ConvertOptions, Source
from beam_pipelines.repair import remove_leftovers, repair
from beam_pipelines.report.summary import print_summary, summary
from beam_pipelines.rewrite import exporting, rewriting
from beam_pipelines.runners import phases
from beam_pipelines.sample_digits import write_sample
from beam_pipelines.verify import Findings, verify as verify_dataset
from tpu_input.command_line import is_json, print_line, to_json
from tpu_input.command_line.streams import check_printed
from tpu_input.dataset_format.lengths import lengths_name
from tpu_input.dataset_format.records import MANIFEST_NAME

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions


def run(flags: argparse.Namespace) -> int:
    """Runs the command that the flags name; returns its exit code."""
    functions = {
        "sample": sample,
        "convert": convert,
        "verify": verify,
        "rewrite": rewrite,
        "export_dataset": export_dataset,
        "diff": diff,
        "report": report,
    }
    code = functions[flags.run](flags, flags.beam_flags)
    if is_json(flags.argv):
        print_line(to_json(flags.result))
    if flags.run == "diff" or getattr(flags, "dry_run", False):
        check_printed()
    return code


def _say(flags: argparse.Namespace, line: str) -> None:
    """Prints a line of the result, unless it is asked for as JSON."""
    if not is_json(flags.argv):
        print_line(line)


def sample(flags: argparse.Namespace, _: list[str]) -> int:
    folder = storage.absolute(flags.output)
    num_written, total = write_sample(folder)
    flags.result = {"folder": folder, "num_digits": total, "num_written": num_written}
    _say(flags, f"{folder}: {total:,} digits in 10 class folders, {num_written:,} of them written now")
    return 0


def convert(flags: argparse.Namespace, beam_flags: list[str]) -> int:
    return _run_conversion(flags, conversion_options(flags), beam_flags)


def rewrite(flags: argparse.Namespace, beam_flags: list[str]) -> int:
    changes = {name: value for name in FILES_OF_CHANGES if (value := getattr(flags, name, ""))}
    if flags.command == "filter" and not changes:
        raise ValueError(f"filter needs at least one of {', '.join(f'--{name}' for name in FILES_OF_CHANGES[1:])}")
    if flags.command == "merge" and len(flags.datasets) < 2:
        raise ValueError(f"merge needs at least two datasets, got {flags.datasets!r}")
    sources = [
        Source(path, name=name, splits="again" if flags.command == "split" else "kept", **changes)
        for name, path in named_datasets(flags.datasets)
    ]
    changed = _changed_options(flags)
    if flags.command == "split":
        if (flags.folds is None) == ("splits" not in changed):
            raise ValueError("split needs either --splits, such as train=90%,validation=10%, or --folds")
        if flags.folds:
            changed["splits"] = tuple((f"fold{number + 1}", 1 / flags.folds) for number in range(flags.folds))
    if flags.command == "merge":
        changed = {"dedup": "exact"} | changed
    options = rewriting(sources, flags.output, getattr(flags, "add_classes", False), flags.check, **changed)
    return _run_conversion(flags, options, beam_flags)


def export_dataset(flags: argparse.Namespace, beam_flags: list[str]) -> int:
    options = exporting(flags.dataset, flags.output, flags.format, flags.split, **_changed_options(flags))
    return _run_conversion(flags, options, beam_flags)


def _changed_options(flags: argparse.Namespace) -> dict[str, Any]:
    """Returns the options that flags name, where the dataset's would be taken otherwise."""
    changed = {name: value for name in _CHANGED_OPTIONS if (value := getattr(flags, name, None)) is not None}
    return {"num_shards": ()} | changed if "shard_bytes" in changed else changed


# Not all of these commands have a flag for each.
_CHANGED_OPTIONS = (
    *("splits", "stratify", "group_by", "seed", "dedup"),
    *("shard_bytes", "num_shards", "max_rejected", "overwrite"),
)


def _run_conversion(flags: argparse.Namespace, options: ConvertOptions, beam_flags: list[str]) -> int:
    beam_options = _beam_options(flags, beam_flags, "processes")
    if not flags.runner and flags.no_wait:
        raise ValueError("--no_wait needs --runner of an engine, as this machine works only while the command does")
    if not flags.runner and flags.dry_run:
        _say_checks(flags, dry_run(options, flags.num_processes))
        return 0
    paths = [path for source in options.sources for path in (source.path, *(path for _, path, _ in source.files))]
    with _on_workers(beam_options, [*paths, options.output]):
        if beam_options and _is_launched(flags, options, beam_options):
            return 0
        with phases.progress():
            manifest, is_new, num_resumed, num_outdated = convert_inputs(
                options, beam_options, flags.num_processes, _as_written(flags.argv)
            )
    flags.result = {"is_new": is_new, "num_shards_resumed": num_resumed} | summary(manifest)
    if is_json(flags.argv):
        return 0
    print_summary(manifest)
    if num_resumed:
        num_shards = len(manifest.shards)
        print_line(f"resumed: {num_resumed:,} of {num_shards:,} shards were written by an earlier run")
    state = "complete" if is_new else "unchanged" if num_outdated else "already complete, nothing to do"
    if num_outdated:
        count = f"{num_outdated:,} image{'s' * (num_outdated > 1)}"
        line = f"not applied: changes of the inputs of {count} (label, split, file, or removed)"
        print_line(f"{line}; apply them with --extend --prune")
    print_line(f"{state}: {manifest.path}/{MANIFEST_NAME}")
    return 0


@contextlib.contextmanager
def _on_workers(beam_options: PipelineOptions | None, paths: list[str]) -> Iterator[None]:
    """Context manager: checks an engine, and that it reaches these paths, and sets its workers up for the body.

    After a body that did not raise, it prints the steps that failed and were run again. It does nothing without Beam.
    """
    if not beam_options:
        yield
        return
    from beam_pipelines.runners import launch_checks, worker_output, workers

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


def _is_launched(flags: argparse.Namespace, options: ConvertOptions, beam_options: PipelineOptions) -> bool:
    """Returns whether the command is done with a dry run, or with a job that continues without it."""
    from beam_pipelines.runners import launch_checks

    if flags.dry_run:
        if launch_checks.name_of(beam_options) != "dataflow":
            raise ValueError(
                "--dry_run is only available on this machine and with --runner=DataflowRunner; to test another runner, "
                "convert a few images"
            )
        _say_checks(flags, dry_run_of_dataflow(options, beam_options))
    elif flags.no_wait or launch_checks.template_of(beam_options):
        _submit(flags, options, beam_options)
    else:
        launch_checks.check_writable(beam_options)
        return False
    return True


def _submit(flags: argparse.Namespace, options: ConvertOptions, beam_options: PipelineOptions) -> None:
    from beam_pipelines.runners import launch_checks

    job = submit(options, beam_options, _as_written(flags.argv))
    if template := launch_checks.template_of(beam_options):
        flags.result = {"template": template}
        _say(flags, f"written: the template {template}; nothing was submitted")
    else:
        flags.result = {"job": job, "dataset": options.output}
        _say(flags, f"submitted: job {job}; the dataset is complete when {options.output}/{MANIFEST_NAME} is there")


def _say_checks(flags: argparse.Namespace, lines: Iterator[str]) -> None:
    flags.result = {"dry_run": []}
    for line in lines:
        flags.result["dry_run"].append(line)
        _say(flags, line)


def verify(flags: argparse.Namespace, beam_flags: list[str]) -> int:
    beam_options = _beam_options(flags, beam_flags, "threads")
    with _on_workers(beam_options, [flags.dataset]):
        if beam_options:
            from beam_pipelines.runners import launch_checks

            launch_checks.check_writable(beam_options)
        return _verify_or_repair(flags, beam_options)


def _verify_or_repair(flags: argparse.Namespace, beam_options: PipelineOptions | None) -> int:
    with phases.progress():
        findings = verify_dataset(flags.dataset, not flags.quick, flags.num_threads, beam_options, flags.shard)
    remove_leftovers(findings.manifest)
    path, repaired = findings.manifest.path, list[str]()
    for problem in findings.problems:
        _say(flags, problem)
    if flags.repair and (findings.damaged or findings.lengths_damaged):
        repaired, findings = _repair(flags, findings, beam_options)
    flags.result = {
        "problems": findings.problems,
        "damaged": findings.damaged,
        "repaired": repaired,
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


def _repair(
    flags: argparse.Namespace, findings: Findings, beam_options: PipelineOptions | None
) -> tuple[list[str], Findings]:
    """Re-creates what is damaged; returns the names of these files, and what is found after that."""
    path = findings.manifest.path
    if findings.damaged:
        sources = ", ".join(repr(source["path"]) for source in findings.manifest.sources)
        _say(flags, f"{path}: re-reading {sources}")
    repaired = repair(findings, beam_options, flags.num_threads)
    if findings.damaged:
        _say(flags, f"{path}: re-created from the sources: {', '.join(findings.damaged)}")
    if findings.lengths_damaged:
        _say(flags, f"{path}: re-created from the index: {lengths_name(findings.manifest.edition)}")
    with phases.progress():
        return repaired, verify_dataset(path, not flags.quick, flags.num_threads, beam_options, flags.shard)


def diff(flags: argparse.Namespace, _: list[str]) -> int:
    with phases.progress():
        differences = diff_datasets(storage.absolute(flags.before), storage.absolute(flags.after))
    flags.result = differences.to_json()
    for line in differences.lines():
        _say(flags, line)
    return 1 if differences else 0


def report(flags: argparse.Namespace, _: list[str]) -> int:
    from beam_pipelines.report.page import write_pairs, write_report

    if flags.pairs and flags.predictions:
        raise ValueError("--pairs writes a file instead of the page, so --predictions would have no effect")
    if flags.pairs:
        count = write_pairs(flags.dataset, flags.pairs)
        flags.result = {"pairs": storage.absolute(flags.pairs), "num_pairs": count}
        _say(flags, f"{storage.absolute(flags.pairs)}: {count:,} pair{'s' * (count != 1)} of images that look alike")
        return 0
    with phases.progress():
        path = write_report(flags.dataset, flags.sources, flags.predictions)
    flags.result = {"report": path}
    _say(flags, path)
    if flags.predictions:
        listed = f"{path.rpartition('/')[0]}/{LIKELY_WRONG_NAME}"
        flags.result["likely_wrong_labels"] = listed
        _say(flags, listed)
    return 0


def _beam_options(flags: argparse.Namespace, beam_flags: list[str], workers: str) -> PipelineOptions | None:
    """Returns the options of --runner; None without it, when the command has `workers` of this machine."""
    if not flags.runner:
        return None
    if number := getattr(flags, f"num_{workers}"):
        raise ValueError(
            f"--num_{workers}={number} is for {workers} on this machine; leave it out, as --runner={flags.runner} has "
            "flags of its own for the number of workers, or leave out --runner"
        )
    from beam_pipelines.runners import execution

    if any("multi_processing" in flag for flag in beam_flags):
        raise ValueError(
            "Beam's local runner hangs forever if one of its worker processes dies; leave out multi_processing: "
            "without --runner, a conversion uses processes of its own on all cores"
        )
    return execution.options_of(flags.runner, beam_flags)
