"""How benchmarks of input make their datasets, and start one way of reading them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipelines.convert import convert
from beam_pipelines.options import ConvertOptions, Source
from benchmarks import measure
from benchmarks.corpus import SMALL, make_corpus
from benchmarks.measure import PEERS
from tpu_input.dataset_format.records import Manifest


def corpus_of(folder: Path, count: int, size: tuple[int, int] = SMALL) -> Path:
    return folder / f"jpegs{count}of{size[0]}"


def make_dataset(output: Path, count: int, size: tuple[int, int] = SMALL, **options: Any) -> Manifest:
    """Returns the dataset of so many photographs, which lie two folders up; made, if it is not there."""
    corpus = corpus_of(output.parent.parent, count, size)
    make_corpus(corpus, count, size)
    return convert_folder(corpus, output, **{"splits": (("train", 1.0),), "shard_bytes": 25_000_000} | options)


def convert_folder(corpus: Path, output: Path, **options: Any) -> Manifest:
    local = PipelineOptions(["--runner=FnApiRunner"])
    manifest, *_ = convert(ConvertOptions((Source(str(corpus)),), str(output), **options), local)
    return manifest


def run_ours(
    dataset: Path | str, way: str, *arguments: Any, cores: int | None = None, **environment: str
) -> dict[str, Any]:
    """Returns what benchmarks/input/ours.py found of a way, on the first `cores` cores; None: on all."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.input.ours", dataset, way, *arguments]
    return measure.check(measure.run(command, cores, None, **environment), command).result


def run_peer(jpegs: Path, dataset: Path, way: str, count: int) -> dict[str, Any]:
    """Returns what benchmarks/input/peers.py found of a way."""
    command = [PEERS, "-W", "ignore", "-m", "benchmarks.input.peers", way, jpegs, dataset, count]
    return measure.check(measure.run(command), command).result
