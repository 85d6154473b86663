"""Verification of a dataset: re-reads all its files and compares them with the manifest.

manifest.json ──▶ every shard: size, sha256, record checksums, labels, index, a decode of each image
              ──▶ hashes of the keys: none occurs more than once
              ──▶ lengths.parquet: the lengths of the records read
              ──▶ the sums: records + rejected = inputs; no missing files, no extra files

The shards are checked by workers of this machine or as elements of a pipeline, by the same functions. A pipeline hands
over its results in a file of the working folder, with a line per shard, and per class that occurs in a split.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_pipelines import storage
from beam_pipelines.conversion import duplicate_keys, working_folder
from beam_pipelines.conversion.duplicate_keys import Hashes
from beam_pipelines.conversion.output_folder import (
    complete_manifest,
    create,
    every_shard,
    files_of,
    list_dataset,
    manifest_digest,
    optional_files,
    rejected_name,
    unchanged_manifest,
)
from beam_pipelines.conversion.shard_checking import check_shard, keys_with, lengths_digest
from beam_pipelines.report.rejections import read_lines
from beam_pipelines.runners import phases
from beam_pipelines.runners.executors import is_much_work, local_executor
from tpu_input.command_line.cores import num_cores
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.dataset_format.index import index_path
from tpu_input.dataset_format.lengths import lengths_name, max_bytes, parse_lengths
from tpu_input.dataset_format.records import Manifest, Shard
from tpu_input.stored_images.check import check_image

if TYPE_CHECKING:  # a verification on this machine does without Beam
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions


@dataclasses.dataclass
class Findings:
    """Result of verify().

    Attributes:
      manifest: Manifest of the dataset.
      problems: One line per problem; empty if there are none.
      damaged: Names of the shards with a problem in the shard or its index.
      lengths_damaged: Whether lengths.parquet is damaged or missing. Intact datasets of earlier builds lack it too, but
        cannot be told apart. Without it, training starts slowly; a repair writes it from the index.
    """

    manifest: Manifest
    problems: list[str] = dataclasses.field(default_factory=list)
    damaged: list[str] = dataclasses.field(default_factory=list)
    lengths_damaged: bool = False


@checks_arguments
def verify(
    dataset: str,
    decode_images: bool = True,
    num_threads: int | None = None,
    beam_options: PipelineOptions | None = None,
    shards: Sequence[str] = (),
) -> Findings:
    """Compares a dataset with its manifest; returns the problems found.

    Args:
      dataset: Folder or URI.
      decode_images: Whether to decode every image, which takes most of the time.
      num_threads: Maximum number of shards that are read at the same time on this machine, by processes, or by threads
        if there are few images; None for all cores.
      beam_options: The Beam runner whose workers read the shards, and its options; None for this machine. Its workers
        write a file into the working folder of the dataset, which is removed at the end.
      shards: Names of the shards to check, with their indexes and lengths, and nothing else; () for the whole dataset.

    Raises:
      ValueError: There is no valid manifest, so no complete dataset, or it has no such shards, or it was replaced in
        the meantime.
    """
    manifest = complete_manifest(storage.absolute(dataset))
    findings = Findings(manifest, [] if shards else [*_check_files(manifest), *_check_rejected(manifest)])
    numbers = _numbers(manifest, shards)
    if beam_options:
        checks = _check_with_beam(manifest, numbers, decode_images, beam_options)
    else:
        checks = _check_here(manifest, numbers, decode_images, num_threads or num_cores())
    every = _shards(manifest)
    for number in numbers:
        shard, problems = every[number][1], checks.problems[number]
        problems += [f"key {key!r} occurs more than once" for key in sorted(checks.surplus_keys[number])]
        findings.problems += [f"{shard.name}: {problem}" for problem in problems]
        findings.damaged += [shard.name] if problems else []
    digests = {every[number][1].name: digest for number, digest in sorted(checks.lengths_digests.items())}
    if problem := _lengths_problem(manifest, digests):
        findings.problems.append(problem)
        findings.lengths_damaged = True
    for name, split in () if shards else manifest.splits.items():
        labels = tuple(checks.class_counts[name, label] for label in range(len(manifest.classes)))
        if labels != split.class_counts:
            findings.problems.append(
                f"split {name!r} has {labels} examples by class, but the manifest has {split.class_counts}"
            )
    return findings


@dataclasses.dataclass
class _Checks:
    """Results of the checks of all shards, which are numbered as by _shards().

    Attributes:
      problems: Problems by shard.
      lengths_digests: lengths_digest() of the records of each shard without problems.
      class_counts: Number of records by (split, label).
      surplus_keys: Keys by shard that occur in it although they occur before, once per occurrence.
    """

    problems: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    lengths_digests: dict[int, str] = dataclasses.field(default_factory=dict)
    class_counts: Counter[tuple[str, int]] = dataclasses.field(default_factory=Counter)
    surplus_keys: defaultdict[int, list[str]] = dataclasses.field(default_factory=lambda: defaultdict(list))

    def add_shard(self, number: int, problems: list[str], digest: str) -> None:
        self.problems[number] = problems
        if digest:
            self.lengths_digests[number] = digest


def _shards(manifest: Manifest) -> list[tuple[str, Shard]]:
    """Returns (split, shard) of every shard of a dataset; its position is its number here."""
    return [(name, shard) for name, split in manifest.splits.items() for shard in split.shards]


def _numbers(manifest: Manifest, names: Sequence[str]) -> Sequence[int]:
    """Returns the numbers of the shards with these names, or of all if there are none; raises ValueError."""
    every = _shards(manifest)
    if not names:
        return range(len(every))
    by_name = {shard.name: number for number, (_, shard) in enumerate(every)}
    if unknown := [name for name in names if name not in by_name]:
        raise ValueError(
            f"{manifest.path!r} has no shard {unknown[0]!r}; its shards are {every[0][1].name!r} to "
            f"{every[-1][1].name!r}"
        )
    return sorted({by_name[name] for name in names})


def _num_bands(manifest: Manifest) -> int:
    return duplicate_keys.num_bands(manifest.num_examples)


def _check_here(manifest: Manifest, numbers: Sequence[int], decode_images: bool, num_threads: int) -> _Checks:
    checks, shards, key_hashes = _Checks(), _shards(manifest), list[Hashes]()
    selected = [shards[number][1] for number in numbers]
    is_much = is_much_work(sum(shard.num_examples for shard in selected), sum(shard.num_bytes for shard in selected))
    # Not the module of check_shard(): it has Arrow, which starts a thread, and the server of processes must have one.
    with local_executor(num_threads, is_much, check_image.__module__) as executor:
        checked = executor.map_units(functools.partial(check_shard, manifest, decode_images=decode_images), selected)
        phases.begin("verifying", len(numbers))
        for number, shard in zip(numbers, checked, strict=True):
            phases.advance("verifying", 1, shards[number][1].num_bytes)
            split = shards[number][0]
            checks.add_shard(number, shard.problems, shard.lengths_digest)
            checks.class_counts.update({(split, label): count for label, count in shard.class_counts.items()})
            key_hashes.append(shard.key_hashes.copy())  # not as a part of a worker's message, which has an open file
    by_shard: defaultdict[int, list[int]] = defaultdict(list)
    bands = _num_bands(manifest)
    for band in range(bands):
        parts = (
            (number, duplicate_keys.in_band(hashes, band, bands))
            for number, hashes in zip(numbers, key_hashes, strict=True)
        )
        for number, key_hash in duplicate_keys.repeated(parts):
            by_shard[number].append(key_hash)
    occurrences: defaultdict[str, list[int]] = defaultdict(list)
    for number, hashes in sorted(by_shard.items()):
        for key in keys_with(manifest, shards[number][1], hashes):
            occurrences[key].append(number)
    for key, in_shards in occurrences.items():
        for number in sorted(in_shards)[1:]:
            checks.surplus_keys[number].append(key)
    return checks


def _check_with_beam(
    manifest: Manifest, numbers: Sequence[int], decode_images: bool, beam_options: PipelineOptions
) -> _Checks:
    from beam_pipelines.runners import execution

    path = working_folder.new_checks_path()
    try:
        with phases.job_progress("verifying", len(numbers)) as watch, execution.pipeline(beam_options) as pipeline:
            watch(pipeline)
            build_checks(pipeline, manifest, numbers, decode_images, path)
        return _read_checks(f"{manifest.path}/{path}", len(numbers))
    finally:
        working_folder.remove_checks(manifest.path, path)


def build_checks(
    pipeline: beam.Pipeline, manifest: Manifest, numbers: Sequence[int], decode_images: bool, path: str
) -> None:
    """Adds the steps that check shards and write what they find into a file.

    Args:
      pipeline: The pipeline.
      manifest: Manifest of the dataset.
      numbers: Numbers of the shards, as by _shards().
      decode_images: Whether to decode every image.
      path: Path of the file within the dataset; it gets lines of JSON, which _read_checks() reads.
    """
    import apache_beam as beam

    dataset, digest = manifest.path, manifest_digest(manifest)
    checked = (
        pipeline
        # A range of numbers is as small in the job graph for a million shards as for one.
        | "Numbers" >> beam.Create([numbers])
        | "Each shard" >> beam.FlatMap(lambda shards: shards).with_output_types(int)
        | "Spread shards" >> beam.Reshuffle()
        | "Check shards"
        >> beam.FlatMap(_check_numbered, dataset, digest, decode_images).with_outputs("counts", "hashes", main="found")
    )
    counts = checked.counts | "Count labels" >> beam.CombinePerKey(sum)  # ((split, label), number of records)
    surplus = (
        checked.hashes  # (band, (shard, hashes))
        | "Group bands" >> beam.GroupByKey()
        | "Find repeated" >> beam.FlatMap(_repeated).with_output_types(tuple[int, int])  # (shard, hash)
        | "Group repeated" >> beam.GroupByKey()
        | "Read their keys"
        >> beam.FlatMap(_keys_of, dataset, digest).with_output_types(tuple[str, int])  # (key, shard)
        | "Group keys" >> beam.GroupByKey()
        | "All but the first"
        >> beam.FlatMapTuple(lambda key, shards: [(number, key) for number in sorted(shards)[1:]])  # (shard, key)
    )
    lines: beam.pvalue.PCollection[str] = (
        checked.found | "Lines of shards" >> beam.Map(_line, "shard"),
        counts | "Lines of counts" >> beam.Map(_line, "count"),
        surplus | "Lines of keys" >> beam.Map(_line, "surplus key"),
    ) | "All lines" >> beam.Flatten()
    pipeline | "Path" >> beam.Create([path]) | "Write" >> beam.Map(_write_checks, dataset, beam.pvalue.AsIter(lines))


def _check_numbered(number: int, dataset: str, digest: str, decode_images: bool) -> Iterator[Any]:
    from apache_beam.pvalue import TaggedOutput

    manifest = unchanged_manifest(dataset, digest)
    split, shard = _shards(manifest)[number]
    checked = check_shard(manifest, shard, decode_images)
    phases.count_units("verifying")
    yield number, checked.problems, checked.lengths_digest
    for label, count in checked.class_counts.items():
        yield TaggedOutput("counts", ((split, label), count))
    bands = _num_bands(manifest)
    for band in range(bands):
        if len(hashes := duplicate_keys.in_band(checked.key_hashes, band, bands)):
            yield TaggedOutput("hashes", (band, (number, hashes.tobytes())))


def _repeated(band: tuple[int, Iterable[tuple[int, bytes]]]) -> Iterable[tuple[int, int]]:
    return duplicate_keys.repeated((number, np.frombuffer(hashes, np.int64)) for number, hashes in band[1])


def _keys_of(shard: tuple[int, Iterable[int]], dataset: str, digest: str) -> Iterator[tuple[str, int]]:
    number, hashes = shard
    manifest = unchanged_manifest(dataset, digest)
    yield from ((key, number) for key in keys_with(manifest, _shards(manifest)[number][1], hashes))


def _line(result: tuple[Any, ...], kind: str) -> str:
    return json.dumps([kind, *result])


def _write_checks(path: str, dataset: str, lines: Iterable[str]) -> None:
    with create(dataset, path) as file:
        file.writelines(line.encode() + b"\n" for line in lines)


def _read_checks(path: str, num_shards: int) -> _Checks:
    checks = _Checks()
    with storage.open_file(path) as file:
        for line in file:
            kind, key, *values = json.loads(line)
            if kind == "shard":
                checks.add_shard(key, *values)
            elif kind == "count":
                checks.class_counts[key[0], key[1]] = values[0]
            else:
                checks.surplus_keys[key].append(values[0])
    if len(checks.problems) != num_shards:
        raise OSError(f"the job has checked {len(checks.problems)} of {num_shards} shards")
    return checks


def _check_files(manifest: Manifest) -> Iterator[str]:
    shards, promised = every_shard(manifest), files_of(manifest)
    present = {path for path, _ in list_dataset(manifest.path)}
    last = {shard.name for shard in manifest.shards}
    earlier = {path for shard in shards if shard not in last for path in (shard, index_path(shard))}
    for path in sorted(promised - present):
        # Others are reported by shard, or by _lengths_problem().
        if path in earlier or not path.endswith((".tfrecord", ".parquet")):
            yield f"{path} is missing" + (", which an earlier version of the dataset has" if path in earlier else "")
    try:
        promised |= working_folder.files_in_transit(manifest.path)
    except ValueError as error:
        yield str(error)
    for path in sorted(present - promised - optional_files(shards)):
        if not working_folder.is_in_working_folder(path):
            yield f"{path} is not part of the dataset"


def _lengths_problem(manifest: Manifest, digests: Mapping[str, str]) -> str:
    """Returns what is wrong with lengths.parquet, or "".

    `digests` has the checksums of the shards without problems, by name; of other shards, only the sums are compared.
    """
    name = lengths_name(manifest.edition)
    shards, num_rows = manifest.shards, manifest.num_examples
    try:
        content = storage.read_bytes(f"{manifest.path}/{name}", most=max_bytes(num_rows))
        listed = parse_lengths(content, num_rows)
        listed.shard_lengths(shards)
    except FileNotFoundError:
        return f"{name} is missing"
    except (OSError, ValueError) as error:
        return f"{name} cannot be used: {error}"
    if listed.names != [shard.name for shard in shards]:
        return f"{name} lists the shards in another order than the manifest"
    shards_listed = listed.by_shard()
    wrong = [shard for shard, digest in digests.items() if digest != lengths_digest(shards_listed[shard])]
    return f"{name} does not match the records of {wrong[0]}" if wrong else ""


def _check_rejected(manifest: Manifest) -> Iterator[str]:
    name = rejected_name(manifest.edition)
    if not storage.exists(f"{manifest.path}/{name}"):  # reported by _check_files()
        return
    try:
        reasons = dict(sorted(Counter(rejection.reason for rejection in read_lines(manifest)).items()))
    except ValueError as error:
        yield f"{name} cannot be read: {error}"
        return
    if reasons != manifest.num_rejected:
        yield f"{name} lists {reasons}, but the manifest has {manifest.num_rejected}"
