"""Repair: re-creates damaged shards of a complete dataset from their sources, and lengths.parquet from the index.

damaged shards ──plan from the manifest's options──▶ their rows ──write──▶ DATASET/.jpeg2tpu/repair
               ──if each sha256 is that of the manifest──▶ move into place
every index    ──▶ DATASET/lengths.parquet
"""

from __future__ import annotations

import dataclasses
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines import storage
from beam_pipelines.conversion import output_folder as lock
from beam_pipelines.conversion import working_folder
from beam_pipelines.conversion.commit import write_lengths
from beam_pipelines.conversion.output_folder import WORK_NAME
from beam_pipelines.conversion.plan import Plan
from beam_pipelines.conversion.planning import make_plan
from beam_pipelines.conversion.shard_writing import write_shard
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.options import ConvertOptions, ImageOptions, Source
from beam_pipelines.runners import execution
from beam_pipelines.verify import Findings
from tpu_input.command_line.cores import num_cores
from tpu_input.dataset_format import json_fields
from tpu_input.dataset_format.index import index_path
from tpu_input.dataset_format.lengths import lengths_name
from tpu_input.dataset_format.records import MANIFEST_NAME, Manifest, parse_shard_name, shard_name


def repair(
    findings: Findings, beam_options: PipelineOptions | None = None, num_threads: int | None = None
) -> list[str]:
    """Re-creates the files that verify found damaged: shards with their indexes, and lengths.parquet; returns names.

    The sources of shards are those that the manifest names. Data from them is kept only if it is that of the dataset: a
    shard is moved into place only if it has the SHA-256 in the manifest. lengths.parquet is computed from the indexes,
    whatever it held before, so that no source is read for it.

    Args:
      findings: From verify().
      beam_options: The Beam runner that lists the sources, and its options; None for this machine.
      num_threads: Maximum number of threads that decode images; None for all cores.

    Raises:
      ValueError: The sources have changed since the conversion, or do not match the manifest.
    """
    manifest = findings.manifest
    options = options_of(manifest) if findings.damaged else None
    if options and not options.sources:
        raise ValueError(
            f"{manifest.path!r} was written by a pipeline with WriteDataset, which alone can make its shards again; "
            "run it again"
        )
    with lock.locked(manifest.path):
        try:
            if options:
                _repair_shards(findings, options, beam_options or execution.options_of(), num_threads or num_cores())
            if findings.damaged or findings.lengths_damaged:
                write_lengths(manifest)
        finally:
            working_folder.remove(manifest.path)
    return [*findings.damaged, *([lengths_name(manifest.edition)] if findings.lengths_damaged else [])]


def _repair_shards(
    findings: Findings, options: ConvertOptions, beam_options: PipelineOptions, num_decoders: int
) -> None:
    manifest = findings.manifest
    plan = make_plan(options, beam_options)
    if plan.fingerprint != manifest.fingerprint:
        raise ValueError(
            f"{[source.path for source in options.sources]} no longer contain the inputs that "
            f"{manifest.path!r} was made from: {manifest.num_inputs} inputs then, {plan.num_inputs} now, or "
            "their names or sizes differ; restore the inputs, or convert them again; nothing was changed"
        )
    if plan.classes != manifest.classes:
        raise ValueError(
            f"{manifest.path}/{MANIFEST_NAME} has other classes than its inputs: "
            f"{list(manifest.classes)[:5]!r}, not {list(plan.classes)[:5]!r}; restore the manifest from a "
            "copy, or convert the images again; nothing was changed"
        )
    aside = dataclasses.replace(options, output=f"{manifest.path}/{WORK_NAME}/{working_folder.REPAIR_NAME}")
    for name in findings.damaged:
        _make_again(name, manifest, aside, plan, num_decoders)
    for path in (path for name in findings.damaged for path in (name, index_path(name))):
        storage.move(f"{aside.output}/{path}", f"{manifest.path}/{path}")


def options_of(manifest: Manifest) -> ConvertOptions:
    """Returns the options that a dataset was converted with.

    Raises:
      ValueError: The manifest has invalid options.
    """
    sources = tuple(Source(**source) for source in manifest.sources)
    try:
        usual = ConvertOptions(sources, manifest.path).shaping()
        fields = _of_types(manifest.options, usual, "options")
        return ConvertOptions(
            sources=sources,
            output=manifest.path,
            splits=tuple(fields.pop("splits").items()),
            num_shards=tuple(fields.pop("num_shards").items()),
            labels=tuple(fields.pop("labels")),
            images=ImageOptions(**fields.pop("images")),
            **fields,
        )
    except ValueError as error:
        raise ValueError(
            f"{manifest.path}/{MANIFEST_NAME} does not contain the options of a conversion: {error}; convert the "
            "images again"
        ) from error


def _of_types(found: dict[str, Any], usual: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the options `found`; raises ValueError unless each has the type of the default in `usual`."""
    for key, value in json_fields.fields(found, name, list(usual)).items():
        if key == "splits":
            for split, share in json_fields.mapping(value, key).items():
                json_fields.number(share, f"share of {split!r}", 0, 1)
        elif key == "num_shards":
            json_fields.counts(value, key, 1)
        elif key == "labels":
            for label in json_fields.array(value, key):
                json_fields.text(label, "a label")
        elif isinstance(usual[key], dict):
            _of_types(json_fields.mapping(value, key), usual[key], key)
        elif type(value) is not type(usual[key]):
            raise ValueError(f"{key} must have the type of {usual[key]!r}, got {json_fields.shown(value)}")
    return dict(found)


def _make_again(name: str, manifest: Manifest, aside: ConvertOptions, plan: Plan, num_decoders: int) -> None:
    parts = parse_shard_name(name)
    planned = shard_name(parts.split, parts.number, parts.num_shards) if parts else name
    rows, num_images = WorkingFolder.of(manifest.path, plan).read_rows(planned), plan.num_images_beside(planned)
    receipt = write_shard(name, name, index_path(name), rows, num_images, aside, plan.classes, num_decoders)
    promised = {shard.name: shard.sha256 for split in manifest.splits.values() for shard in split.shards}
    if receipt.sha256 != promised[name]:
        raise ValueError(
            f"the source images of {name} have changed since the conversion; restore them, or convert them again; "
            "nothing was changed"
        )
