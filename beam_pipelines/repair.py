"""Re-makes damaged shards of a complete dataset from their source.

damaged shards ──the manifest's options, planned again──▶ their rows ──write──▶ beside the dataset
               ──the same sha256 as promised──▶ into place
"""

from __future__ import annotations

import dataclasses

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines import locks, storage, work
from beam_pipelines.dataset import WORK_NAME
from beam_pipelines.index import index_path
from beam_pipelines.options import ConvertOptions, ImageOptions, Source
from beam_pipelines.planning import make_plan
from beam_pipelines.reading import num_cores
from beam_pipelines.verify import Findings
from beam_pipelines.work import Work
from beam_pipelines.writing import write_shard
from tpu_input.schema import Manifest


def repair(findings: Findings, beam_options: PipelineOptions) -> list[str]:
    """Re-makes the shards that verify found damaged, with their indexes; returns their names.

    Raises:
      ValueError: The source is no longer what the dataset was made of.
    """
    manifest = findings.manifest
    options = options_of(manifest)
    with locks.locked(manifest.path):
        try:
            plan = make_plan(options, beam_options)
            if plan.fingerprint != manifest.fingerprint:
                raise ValueError(
                    f"{[source.path for source in options.sources]} no longer hold what {manifest.path!r} was made "
                    f"of: {manifest.num_inputs} inputs then, {plan.num_inputs} now, or others of name or size; nothing "
                    "was changed"
                )
            aside = dataclasses.replace(options, output=f"{manifest.path}/{WORK_NAME}/repair")
            for name in findings.damaged:
                _make_again(name, manifest, aside, Work.of(manifest.path, plan))
            for path in (path for name in findings.damaged for path in (name, index_path(name))):
                storage.move(f"{aside.output}/{path}", f"{manifest.path}/{path}")
        finally:
            work.remove(manifest.path)
    return findings.damaged


def options_of(manifest: Manifest) -> ConvertOptions:
    """Returns the options that a dataset was converted with."""
    fields = manifest.options
    return ConvertOptions(
        sources=tuple(Source(**source) for source in manifest.sources),
        output=manifest.path,
        splits=tuple(fields["splits"].items()),
        shard_bytes=fields["shard_bytes"],
        num_shards=tuple(fields["num_shards"].items()),
        labels=tuple(fields["labels"]),
        first_label=fields["first_label"],
        seed=fields["seed"],
        dedup=fields["dedup"],
        images=ImageOptions(**fields["images"]),
    )


def _make_again(name: str, manifest: Manifest, aside: ConvertOptions, folder: Work) -> None:
    receipt = write_shard(name, folder.read_rows(name), folder.num_rows([name]), aside, manifest.classes, num_cores())
    promised = {shard.name: shard.sha256 for split in manifest.splits.values() for shard in split.shards}
    if receipt.sha256 != promised[name]:
        raise ValueError(f"the images of {name} have changed at their source; nothing was changed")
