"""Conversion: list → plan → write → commit.

    1. the sources are listed and assigned to shards, with a file of rows for each (working_folder.py)
    2. each shard is written, then its receipt
    3. the shards are moved into place, the manifest is computed from the receipts, and the working files are removed

With a Beam runner, this is one pipeline (transforms.WriteRows), which needs the command no more once it is submitted to
an engine. Without one, this process plans and commits, and processes of its own write the shards; Beam is not loaded.

Only rows pass through Beam's shuffle, never image bytes, which would need several times the size of the dataset in
memory. A conversion is resumable: it may be rerun after any interruption, because the plan is a deterministic function
of inputs, options and seed, and shards with a receipt are skipped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from beam_pipelines import storage
from beam_pipelines.conversion import extension, output_checks, output_folder, working_folder
from beam_pipelines.conversion.commit import commit, leave_out
from beam_pipelines.conversion.plan import Plan
from beam_pipelines.conversion.planning.make_plan import make_plan
from beam_pipelines.conversion.shard_owners import write_on_this_machine
from beam_pipelines.conversion.working_folder import Output, WorkingFolder
from beam_pipelines.options import ConvertOptions
from beam_pipelines.runners import phases
from beam_pipelines.runners.executors import is_much_work
from beam_pipelines.sources import listing
from tpu_input.command_line import print_line
from tpu_input.command_line.cores import num_cores
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.dataset_format.records import Manifest

if TYPE_CHECKING:  # a conversion on this machine does without Beam
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions


class Converted(NamedTuple):
    """Result of convert().

    Attributes:
      manifest: Manifest of the dataset.
      is_new: Whether this call had anything to write; False if the dataset was complete before.
      num_resumed: Number of shards that an earlier, interrupted run had written; None if the engine does not report it.
      num_outdated: Without prune, number of images of the extended dataset that stay although their inputs have
        changed or are gone; None if the engine does not report it.
    """

    manifest: Manifest
    is_new: bool
    num_resumed: int | None = 0
    num_outdated: int | None = 0


@checks_arguments
def convert(
    options: ConvertOptions,
    beam_options: PipelineOptions | None = None,
    num_processes: int | None = None,
    command: Sequence[str] = (),
) -> Converted:
    """Converts images to the dataset at options.output; resumes a conversion that was interrupted.

    Args:
      options: Options of the conversion.
      beam_options: The Beam runner and its options; None for this machine, without Beam.
      num_processes: Without beam_options, the maximum number of processes that make records, or of threads for so few
        images that processes would take longer to start than they save; with 1, this process makes them. None means
        one for each core.
      command: Command and its arguments, stored while the conversion is unfinished, to be shown in messages about it.

    Raises:
      ValueError: The input cannot be converted to a dataset, or the output holds something else.
    """
    if num_processes is not None and num_processes < 1:
        raise ValueError(f"num_processes must be at least 1, got {num_processes}")
    if num_processes and beam_options:
        raise ValueError(f"num_processes={num_processes} is for this machine alone; leave it out with beam_options")
    options, remarks = check_inputs(options)
    with contextlib.ExitStack() as stack:
        try:
            still_locked = stack.enter_context(output_folder.locked(options.output))
        except OSError as error:
            if manifest := _complete_and_read_only(options, error):
                return Converted(manifest, is_new=False)
            raise
        options = extension.begin(options) if options.extend else options
        if beam_options:
            return _convert_in_one_job(options, beam_options, command, remarks)
        output_checks.remove_replaced(options.output)
        plan, output = _plan(options, num_processes, remarks)
        is_new, num_resumed = not output_checks.is_complete(output, plan), 0
        if options.parent and not any(plan.totals.values()):
            extension.say_nothing_new(plan.num_rejected)
            manifest, is_new = leave_out(options.output, options.parent, plan), bool(plan.pruned_keys)
        elif output.manifest and not is_new:
            manifest = output.manifest
        else:
            sources = [source.fields() for source in options.sources]
            conversion = working_folder.Conversion(list(command), os.getcwd(), sources, options.shaping())
            WorkingFolder.for_plan(options.output, plan).write_conversion(conversion)
            manifest, num_resumed = _write_and_commit(options, plan, output, num_processes, still_locked)
        output_checks.remove_replaced(options.output)
        working_folder.remove(options.output)
        return Converted(manifest, is_new, num_resumed, plan.num_outdated)


def _plan(options: ConvertOptions, num_processes: int | None, remarks: Sequence[str]) -> tuple[Plan, Output]:
    """Returns the plan, and what the output held before; prints how the inputs were interpreted.

    Raises:
      ValueError: The inputs cannot be converted, or the output holds something else; nothing is left then.
    """
    output = Output(options.output)
    before = output.unfinished()
    try:
        phases.begin("listing")
        plan = make_plan(options, None, num_processes)
        phases.end()
        output_checks.check_plan(options, plan)
        _print([*remarks, *plan.remarks])
        return plan, output_checks.existing(options, plan, output)
    except ValueError:
        working_folder.tidy(options.output, keep=before)
        raise


def check_inputs(options: ConvertOptions) -> tuple[ConvertOptions, list[str]]:
    """Returns the options with the kinds of inputs that were recognized, and lines about how the inputs are read.

    Raises:
      ValueError: Something is wrong with inputs or output, before anything is listed or written.
    """
    if not options.sources:
        raise ValueError("at least one input is required")
    options, remarks = listing.recognise(options)
    for source in options.sources:
        listing.check_source(source, options)
    output_checks.check_output(options)
    return options, remarks + [line for source in options.sources for line in listing.remarks(source, options)]


def _print(remarks: Iterable[str]) -> None:
    """Prints how the inputs were interpreted, when they are known to be convertible."""
    for remark in remarks:
        print_line(remark, sys.stderr)


def _convert_in_one_job(
    options: ConvertOptions, beam_options: PipelineOptions, command: Sequence[str], remarks: Sequence[str]
) -> Converted:
    from beam_pipelines.runners import execution

    before = output_folder.read_manifest(options.output)
    _print(remarks)
    try:
        with phases.job_progress() as watch, execution.pipeline(beam_options) as pipeline:
            watch(pipeline)
            build_conversion(pipeline, options, command)
    except ValueError:
        working_folder.tidy(options.output, keep=working_folder.unfinished(options.output))
        raise
    manifest = output_folder.complete_manifest(options.output, allow_export=True)
    working_folder.remove_lock(options.output)
    is_new = not before or before.fingerprint != manifest.fingerprint
    counters = phases.counters(pipeline)
    return Converted(manifest, is_new, counters.get("shards_resumed"), counters.get("images_outdated"))


def submit(options: ConvertOptions, beam_options: PipelineOptions, command: Sequence[str] = ()) -> str:
    """Submits a conversion to an engine, which needs this process no more; returns the name of the job.

    The dataset is complete when its manifest is there. With Dataflow's template_location, a template is made instead of
    a job, and "" is returned.

    Args:
      options: Options of the conversion.
      beam_options: The Beam runner and its options.
      command: As of convert().

    Raises:
      ValueError: As of convert(), or the job would end with this process.
    """
    from beam_pipelines.runners import execution, launch_checks

    launch_checks.check_outlives(beam_options)
    options, remarks = check_inputs(options)
    with output_folder.locked(options.output):
        options = extension.begin(options) if options.extend else options
        _print(remarks)
        job = execution.submit(beam_options, lambda pipeline: build_conversion(pipeline, options, command))
        working_folder.remove_lock(options.output)
    return job


def build_conversion(pipeline: beam.Pipeline, options: ConvertOptions, command: Sequence[str] = ()) -> None:
    """Adds the steps of a whole conversion: list, plan, write and commit; an engine needs no other process for it."""
    from beam_pipelines.conversion.planning.beam_steps import plan_rows
    from beam_pipelines.transforms import WriteRows

    rows, layout = plan_rows(pipeline, options)
    rows | "Write dataset" >> WriteRows(options, command, layout)


_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def _complete_and_read_only(options: ConvertOptions, why: OSError) -> Manifest | None:
    """Returns the manifest of this conversion's dataset if it is complete, in a folder that cannot be written.

    The plan that the manifest is compared with is made in a temporary folder of this machine, whatever the runner.

    Raises:
      ValueError: The output holds something else.
    """
    if storage.is_uri(options.output) or why.errno not in _READ_ONLY:
        return None
    if not (manifest := output_folder.read_manifest(options.output)):
        return None
    with tempfile.TemporaryDirectory() as folder:
        plan = make_plan(dataclasses.replace(options, output=folder))
    output_checks.check_plan(options, plan)
    if manifest.fingerprint != plan.fingerprint:
        difference = output_checks.difference(options, plan, manifest, manifest.num_inputs)
        raise ValueError(
            f"output {options.output!r} holds another dataset: {difference}; "
            f"choose another output, because this one cannot be written: {why.strerror}"
        )
    output_checks.check_files(plan, Output(options.output), [])
    return manifest


def _write_and_commit(
    options: ConvertOptions,
    plan: Plan,
    output: Output,
    num_processes: int | None,
    still_locked: Callable[[], None],
) -> tuple[Manifest, int]:
    """Returns the manifest, and the number of shards that an earlier run had written."""
    folder = WorkingFolder.for_plan(options.output, plan)
    folder.write_plan(plan)
    unwritten = folder.reopen(output)
    num_resumed = len(plan.shard_names) - len(unwritten)
    if unwritten:
        if phases.is_shown():
            phases.begin("writing", folder.num_rows(plan, unwritten))
        is_much = bool(num_processes) or is_much_work(sum(plan.num_images.values()), plan.num_bytes)
        write_on_this_machine(unwritten, folder, options, num_processes or num_cores(), is_much)
    still_locked()
    manifest = commit(options, plan, folder.receipts_of(plan))
    phases.end()
    return manifest, num_resumed
