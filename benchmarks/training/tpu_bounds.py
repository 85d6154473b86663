"""Memory of a training step and the most images/s that a TPU can train, of the networks by name; needs no TPU.

    python -m benchmarks.training.tpu_bounds [--networks=resnet18,…] [--topologies=v3:2x2,…] [--batch_size=128]

libtpu compiles the step of one core for each generation (make preflight). The images/s are FLOPs and bytes of that step
against the peaks of a chip, as preflight has them: a bound, which no step reaches. A compilation takes minutes; what an
earlier run has kept, with the same libtpu and the same options of the step, is compiled again only with --again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import measure
from estimator_app.runtime.tensorflow_startup import import_tensorflow

import_tensorflow(verbose=False)

import tensorflow as tf  # noqa: E402

from beam_pipelines import ConvertOptions, Source, convert  # noqa: E402
from beam_pipelines.sample_digits import write_sample  # noqa: E402
from estimator_app.config import TrainConfig  # noqa: E402
from estimator_app.preflight.compiler import DEFAULT_PYTHON, Compiler, TooLarge  # noqa: E402
from estimator_app.preflight.feeding import pace  # noqa: E402
from estimator_app.preflight.tensorflow_checks import TensorFlowChecks  # noqa: E402
from estimator_app.preflight.xla import lower  # noqa: E402
from estimator_app.runtime.topologies import find_topology  # noqa: E402
from estimator_app.trainers.registry import find_trainer  # noqa: E402

NETWORKS = "resnet18,resnet50,vit_s16,keras:EfficientNetV2B0,keras:MobileNetV2"
TOPOLOGIES = "v3:2x2,v5e:1x1,v6e:1x1"
NUM_CLASSES = 1000
COLUMNS = {
    "network": "network",
    "TPU": "tpu",
    "GiB per core": "gib:.2f",
    "GFLOP per image": "gflop:.1f",
    "MB per image": "mb:.0f",
    "limited by": "limit",
    "images/s of a chip, at most": "images:,.0f",
}


def config_of(folder: str, image_size: int) -> TrainConfig:
    """Returns a config for NUM_CLASSES classes; its dataset, which is of digits, is not read."""
    write_sample(f"{folder}/digits")
    options = ConvertOptions(sources=(Source(f"{folder}/digits"),), output=f"{folder}/dataset")
    manifest, *_ = convert(options)
    config = TrainConfig.of(manifest, {"image_size": image_size, "precision": "bfloat16"})
    names = tuple(map(str, range(NUM_CLASSES)))
    return dataclasses.replace(config, classes=names, class_counts=())


def spec_of(image_size: int, batch_size: int) -> Any:
    """Returns the spec of a core's batch, as make_train_input_fn() has it by default."""
    features = {
        "image": tf.TensorSpec([batch_size, image_size, image_size, 3], tf.uint8),
        "weight": tf.TensorSpec([batch_size], tf.float32),
    }
    return features, tf.TensorSpec([batch_size], tf.int32)


def generation(topology: str) -> str:
    return topology.partition(":")[0]


def earlier_rows(notes: list[str]) -> list[dict[str, Any]]:
    """Returns the rows of an earlier run whose steps were built with the same options.

    Raises:
      SystemExit: It had other options, so that its rows would be lost.
    """
    path = measure.RESULTS / "tpu_bounds.json"
    if not path.exists():
        return []
    report: dict[str, Any] = json.loads(path.read_text())
    if report["notes"] != notes:
        raise SystemExit(f"error: {path} is of other options; move it away first: {report['notes'][0]}")
    return list(report["rows"])


def libtpu_version() -> str:
    match = re.search(r"^libtpu==(\S+)", Path("constraints/preflight.txt").read_text(), re.MULTILINE)
    return match[1] if match else "of unknown version"


def row(network: str, topology: str, hlo: bytes, batch_size: int, compiler: str) -> dict[str, Any]:
    """Returns a row of the table."""
    place, labels = find_topology(topology), {"network": network, "tpu": generation(topology)}
    try:
        compiled = Compiler(compiler, place)(hlo)
    except ValueError as error:
        if "rejects the step" not in str(error):
            raise
        print(f"{network}, {topology}: {error}", flush=True)
        return labels | {"limit": "the compiler fails"}
    if isinstance(compiled, TooLarge):
        return labels | {"gib": compiled.needs / 2**30, "limit": "does not fit"}
    bound = pace(compiled.flops, compiled.bytes_accessed, place, batch_size)
    return labels | {
        "gib": compiled.bytes / 2**30,
        "gflop": compiled.flops / batch_size / 1e9,
        "mb": compiled.bytes_accessed / batch_size / 1e6,
        "limit": "arithmetic" if bound.compute_seconds >= bound.memory_seconds else "memory bandwidth",
        "images": bound.images_per_second * place.chip.cores,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--topologies", default=TOPOLOGIES)
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--batch_size", type=int, default=128, help="images per core")
    parser.add_argument("--compiler", default=DEFAULT_PYTHON)
    parser.add_argument("--again", action="store_true", help="compile also what an earlier run has kept")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(folder, flags.image_size)
        checks = find_trainer(config.trainer).checks
        assert issubclass(checks, TensorFlowChecks)
        spec = spec_of(flags.image_size, flags.batch_size)
        notes = [
            f"training with {config.optimizer} in bfloat16, {flags.image_size} px, {flags.batch_size} images per core, "
            f"{NUM_CLASSES:,} classes, by {config.trainer}; compiled by libtpu {libtpu_version()}; a "
            "chip of v3 has two cores, others one"
        ]
        requested = [
            (name, generation(topology))
            for name in flags.networks.split(",")
            for topology in flags.topologies.split(",")
        ]
        rows = [
            entry
            for entry in earlier_rows(notes)
            if not flags.again or (entry["network"], entry["tpu"]) not in requested
        ]
        for network in flags.networks.split(","):
            generations = {entry["tpu"] for entry in rows if entry["network"] == network}
            topologies = [
                topology for topology in flags.topologies.split(",") if generation(topology) not in generations
            ]
            if not topologies:
                continue
            variant = dataclasses.replace(config, network=network)
            hlo = lower(checks.make_step(variant, f"{folder}/model", spec)).serialized
            for topology in topologies:
                rows.append(row(network, topology, hlo, flags.batch_size, os.path.abspath(flags.compiler)))
                measure.keep("tpu_bounds", measure.Table(rows, COLUMNS, notes))


if __name__ == "__main__":
    main()
