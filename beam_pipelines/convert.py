"""The conversion: list → plan → write → commit.

    1. a pipeline lists the input and cuts it into shards: DATASET/.jpeg2tpu/FINGERPRINT/SHARD.rows, a file a shard
    2. a pipeline of one element a shard writes the shards and leaves a receipt beside each file of rows
    3. the receipts become the manifest, and the working files go

Only rows pass through Beam's shuffle, never image bytes, which would cost several times the dataset in memory. Both
pipelines may be run again after any interruption: the plan is a function of input, options and seed, and a shard with
a receipt is not written again.
"""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines import rows, storage
from beam_pipelines.commit import commit
from beam_pipelines.options import ConvertOptions
from beam_pipelines.plan import Plan, Survey, by_bucket, cut, in_order
from beam_pipelines.receipts import Receipt
from beam_pipelines.rows import Row, check_row, list_rows
from beam_pipelines.writing import write_shard
from tpu_input.schema import MANIFEST_NAME, Manifest

WORK_NAME = ".jpeg2tpu"


def convert(options: ConvertOptions, beam_options: PipelineOptions) -> tuple[Manifest, bool]:
    """Returns the manifest of the dataset at options.output, and whether this call wrote anything of it.

    Raises:
      ValueError: The input cannot become a dataset, or the output holds something else.
    """
    _check_input(options)
    _check_output(options)
    plan = _make_plan(options, beam_options)
    if storage.exists(f"{options.output}/{MANIFEST_NAME}"):
        storage.delete([f"{options.output}/{WORK_NAME}"])
        return _existing(options, plan), False
    _write_shards(options, plan, beam_options)
    receipts = {split: [_read_receipt(options, plan, name) for name in names] for split, names in plan.shards.items()}
    manifest = commit(options, plan, receipts)
    storage.delete([f"{options.output}/{WORK_NAME}"])
    return manifest, True


def _check_input(options: ConvertOptions) -> None:
    if not storage.exists(options.input):
        raise ValueError(f"input {options.input!r} does not exist; it is a folder of class folders, a .csv or a .jsonl")
    if rows.is_list(options.input):
        rows.list_columns(options.input)
    if f"{options.output}/".startswith(f"{options.input}/") or f"{options.input}/".startswith(f"{options.output}/"):
        raise ValueError(f"input {options.input!r} and output {options.output!r} lie in each other; keep them apart")


def _check_output(options: ConvertOptions) -> None:
    """Refuses an output that holds what no conversion of ours has put there."""
    files = [path for path, _ in storage.list_files(options.output)]
    known = [path for path in files if path == MANIFEST_NAME or path.startswith(f"{WORK_NAME}/")]
    if files and not known:
        raise ValueError(
            f"output {options.output!r} holds no dataset but {min(files)!r} and {len(files) - 1} other files; "
            "choose another output, nothing was changed"
        )


def _make_plan(options: ConvertOptions, beam_options: PipelineOptions) -> Plan:
    """Lists the input and writes the rows of every shard; returns the plan."""
    work = f"{options.output}/{WORK_NAME}"
    found = {path.partition("/")[0] for path, _ in storage.list_files(work) if "/" in path}
    plan_path = f"{work}/plan-{uuid.uuid4().hex}.json"
    with beam.Pipeline(options=beam_options) as pipeline:
        _build_planning(pipeline, options, plan_path)
    plan = Plan.from_json(storage.read_bytes(plan_path).decode())
    storage.delete([plan_path])
    mine = _work_folder(options, plan)
    try:
        _check_plan(options, plan)
        if others := found - {mine.rpartition("/")[2]}:
            raise ValueError(
                f"output {options.output!r} holds an unfinished conversion of other inputs or options "
                f"({', '.join(sorted(others))}); repeat that one's command, or choose another output"
            )
    except ValueError:
        storage.delete([mine, work] if not found else [mine])
        raise
    with storage.create(f"{mine}/{_PLAN_NAME}") as file:
        file.write(plan.to_json().encode())
    return plan


def _build_planning(pipeline: beam.Pipeline, options: ConvertOptions, plan_path: str) -> None:
    listed = (
        pipeline
        | "Start" >> beam.Create([options])
        | "List inputs" >> beam.FlatMap(list_rows)
        | "Spread" >> beam.Reshuffle()
        | "Check rows" >> beam.Map(check_row, options)
    )  # Row
    plan = listed | "Survey" >> beam.CombineGlobally(Survey(options))  # Plan, one
    plan | "Write plan" >> beam.Map(_write_plan, plan_path)
    (
        listed
        | "Key by bucket" >> beam.Map(by_bucket, options.seed)  # (bucket, Row)
        | "Group buckets" >> beam.GroupByKey()  # (bucket, [Row])
        | "Cut into shards" >> beam.FlatMap(cut, beam.pvalue.AsSingleton(plan), options)  # (shard, Row)
        | "Group shards" >> beam.GroupByKey()  # (shard, [Row])
        | "Write rows" >> beam.Map(_write_rows, beam.pvalue.AsSingleton(plan), options)
    )


def _check_plan(options: ConvertOptions, plan: Plan) -> None:
    if not plan.num_inputs:
        raise ValueError(f"input {options.input!r} is empty")
    if not plan.num_usable:
        raise ValueError(
            f"none of the {plan.num_inputs} inputs of {options.input!r} can be used, e.g. "
            f"{next(row.detail for row in map(functools.partial(check_row, options=options), list_rows(options)))}"
        )
    if len(plan.classes) < 2:
        raise ValueError(
            f"input {options.input!r} holds one class, {plan.classes[0]!r}; a classifier needs at least 2: "
            "INPUT/CLASS/IMAGE.jpg, or a list of image,label"
        )


def _existing(options: ConvertOptions, plan: Plan) -> Manifest:
    text = storage.read_bytes(f"{options.output}/{MANIFEST_NAME}").decode()
    manifest = Manifest.from_json(text, options.output)
    if manifest.fingerprint != plan.fingerprint:
        raise ValueError(
            f"output {options.output!r} holds another dataset, made of {manifest.num_inputs} inputs with "
            f"{manifest.options}; choose another output, nothing was changed"
        )
    return manifest


def _write_shards(options: ConvertOptions, plan: Plan, beam_options: PipelineOptions) -> None:
    with beam.Pipeline(options=beam_options) as pipeline:
        (
            pipeline
            | "Start" >> beam.Create([_work_folder(options, plan)])
            | "Name shards" >> beam.FlatMap(_unfinished)  # shard
            | "Spread" >> beam.Reshuffle()
            | "Write shards" >> beam.Map(_write_shard, _work_folder(options, plan), options)
        )


_PLAN_NAME = "plan.json"


def _work_folder(options: ConvertOptions, plan: Plan) -> str:
    return f"{options.output}/{WORK_NAME}/{plan.fingerprint[:16]}"


@functools.lru_cache(maxsize=1)
def _read_plan(work: str) -> Plan:
    return Plan.from_json(storage.read_bytes(f"{work}/{_PLAN_NAME}").decode())


def _write_plan(plan: Plan, path: str) -> None:
    with storage.create(path) as file:
        file.write(plan.to_json().encode())


def _write_rows(keyed: tuple[str, Iterable[Row]], plan: Plan, options: ConvertOptions) -> None:
    name, unordered = keyed
    ordered = sorted(unordered, key=functools.partial(in_order, seed=options.seed))
    with storage.create(f"{_work_folder(options, plan)}/{name}.rows") as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in ordered)


def _unfinished(work: str) -> Iterator[str]:
    for names in _read_plan(work).shards.values():
        for name in names:
            if not storage.exists(f"{work}/{name}.receipt"):
                yield name


def _write_shard(name: str, work: str, options: ConvertOptions) -> None:
    lines = storage.read_bytes(f"{work}/{name}.rows").splitlines()
    planned = (Row(*json.loads(line)) for line in lines)
    receipt = write_shard(name, planned, options.output, _read_plan(work).classes, options.first_label)
    with storage.create(f"{work}/{name}.receipt") as file:
        file.write(receipt.to_json().encode())


def _read_receipt(options: ConvertOptions, plan: Plan, name: str) -> Receipt:
    return Receipt.from_json(storage.read_bytes(f"{_work_folder(options, plan)}/{name}.receipt").decode())
