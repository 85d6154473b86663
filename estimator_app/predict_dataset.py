"""Prediction of a dataset: one row for each record of a split, exactly once, in the order of the split.

    shards ──records by number──▶ batches ──Predictor──▶ OUTPUT.parts/part-00000.parquet, … ──▶ OUTPUT

    splits, each held out in turn ──train()──▶ runs ──▶ predictions of each split ──▶ OUTPUT     (predict_folds())

Parts have the same batches however often the command is interrupted, so that the file has the same bytes as without
interruptions.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from estimator_app.predictions.parts import Parts, join_predictions
from estimator_app.predictions.predictor import Predictor, load_export, load_run
from estimator_app.predictions.record_batches import run_on_records
from estimator_app.runtime.host_memory import check_batch
from estimator_app.runtime.tpu import Tpu
from estimator_app.saved_model.classifier import THRESHOLD, Array
from estimator_app.train import train
from estimator_app.trainers.checks import check_split
from tpu_input import Manifest
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.command_line.paths import absolute
from tpu_input.command_line.wording import enumerated
from tpu_input.datasets import DatasetLike, as_manifest

PART_RECORDS = 4096  # records of a part, which a process that is killed loses at most
_PART_BYTES = 64 << 20  # of the numbers of a part; with large features, it has fewer records
_MOST_NAMES = 3  # classes that a message lists
_NOT_OF_FOLDS = ("hold_out", "split", "record")  # options of train() that predict_folds() sets itself


@checks_arguments
def predict_dataset(
    dataset: DatasetLike,
    output: str,
    *,
    export_dir: str | None = None,
    model_dir: str | None = None,
    split: str | None = None,
    batch_size: int = 32,
    features: str | None = None,
    step: int | None = None,
    network: str | None = None,
    part_records: int = PART_RECORDS,
    tpu: Tpu | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> str:
    """Writes the predictions of a model for every record of a split as Parquet; returns the path of the file.

    Its columns are key, shard (file name) and record (number in the shard); label, as the dataset has it: an integer,
    a list of integers in a dataset with several labels per image, null in one without labels; class and probability,
    of the most likely class; probabilities, a list of float32 in the order of the model's classes; with several
    labels per image, classes, the names of all with a probability of at least 0.5; and with `features`, features, the
    flattened output of that layer, a list of float32.

    The rows are written in parts to OUTPUT.parts first. After an interruption, the same call continues from them.

    Args:
      dataset: Manifest, folder or URI of a dataset. It may have other classes than the model.
      output: Path or URI of the file.
      export_dir: SavedModel, a folder of them or a model_dir, from which the newest is taken.
      model_dir: Folder or URI of a run whose checkpoint is taken, instead of export_dir.
      split: Split to read; None for the run's.
      batch_size: Images per batch.
      features: Name of a layer, as in MODEL_DIR/initial_weights.csv or of a layer without weights, whose output is
        written, too; needs model_dir.
      step: Step of a checkpoint in model_dir; None for the last.
      network: "package.module:function" of a run with a custom network, which is imported only if it is named.
      part_records: Records per part; rounded to whole batches, and fewer if they have many numbers.
      tpu: The TPU, for the checkpoint of a model_dir; None runs on this machine. This machine decodes the images.
      report: Called with a line of progress at a time.

    Raises:
      ValueError: There is no such model, dataset or split; a record cannot be read or decoded (the message names it);
        or there are other predictions at `output`.
      OSError: The file cannot be written.
    """
    for name, value in (("batch_size", batch_size), ("part_records", part_records)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value!r}")
    _check_source(export_dir, model_dir, features or network or step is not None, tpu)
    output, manifest = absolute(output), as_manifest(dataset)
    predictor = (
        load_export(absolute(export_dir or ""))
        if model_dir is None
        else load_run(absolute(model_dir), step, network, features, batch_size, tpu and tpu.connect())
    )
    split = predictor.config.split if split is None else split
    total = check_split(manifest, split)
    check_batch("--batch_size", batch_size, predictor.config.input.image_size)
    if manifest.classes != predictor.classes:
        report(_differing_classes(manifest.classes, predictor.classes))
    per_part = _records_of_part(part_records, batch_size, len(predictor.classes) + predictor.num_features)
    ranges = [range(start, min(start + per_part, total)) for start in range(0, total, per_part)]
    origin = {
        "model": predictor.digest,
        "classes": list(predictor.classes),
        "dataset": _digest(manifest),
        "split": split,
        "batch_size": batch_size,
        "part_records": per_part,
        "features": features or "",
        **_library(predictor.is_jax),
    }
    if tpu:
        origin["device"] = "TPU"
    parts = Parts(output, _schema(manifest, predictor), origin, list(map(len, ranges)))
    columns = functools.partial(_columns, predictor, manifest, split, batch_size=batch_size)
    _write_missing(parts, ranges, columns, report)
    parts.join()
    return output


def _write_missing(
    parts: Parts,
    ranges: Sequence[range],
    columns: Callable[[range], dict[str, Any]],
    report: Callable[[str], None],
) -> None:
    """Writes the parts that an earlier call has not written: parts.write_part() of columns(numbers of its records)."""
    total, missing = sum(map(len, ranges)), parts.missing()
    if len(missing) < len(ranges) and not parts.is_complete:
        report(
            f"resuming: {total - sum(len(ranges[number]) for number in missing):,} of {total:,} records are predicted"
        )
    for number in missing:
        parts.write_part(number, columns(ranges[number]))
        report(f"{ranges[number].stop:,} of {total:,} records predicted")


def _check_source(export_dir: str | None, model_dir: str | None, is_of_run: object, tpu: Tpu | None) -> None:
    """Raises ValueError unless there is one source of the model, which has what is asked of it."""
    if (model_dir is None) == (export_dir is None):
        raise ValueError(f"predict needs export_dir or model_dir, got {'neither' if model_dir is None else 'both'}")
    if model_dir is None and is_of_run:
        raise ValueError("features, step and network need model_dir: an export has only its probabilities")
    if model_dir is None and tpu:
        raise ValueError("a TPU needs model_dir: an export runs on this machine")


@checks_arguments
def predict_folds(
    dataset: DatasetLike,
    output: str,
    model_dir: str,
    *,
    batch_size: int = 32,
    tpu: Tpu | None = None,
    report: Callable[[str], None] = lambda line: None,
    stop: threading.Event | None = None,
    **options: Any,
) -> str:
    """Predicts each split of a dataset by a model that was trained on all the others; returns the path of the file.

    The file is one of predict_dataset(), with a row for each record of all splits, in the order of the splits. Each
    split has its run in a folder of model_dir named after it, whose last step predicts, and its predictions in a
    file next to it. After an interruption, the same call continues from them.

    Args:
      dataset: Manifest, folder or URI of a dataset whose splits are the folds.
      output: Path or URI of the file.
      model_dir: Folder or URI for the runs.
      batch_size: Images per batch of predictions.
      tpu: The TPU; None runs on this machine.
      report: Called with a line of progress at a time.
      stop: Event; when it is set, training ends after the current step, with a checkpoint.
      options: As of train(), except hold_out, split and record.

    Raises:
      ValueError: The dataset has fewer than two splits, an option is invalid, or as train() or predict_dataset().
      Stopped: `stop` was set.
    """
    manifest, model_dir = as_manifest(dataset), absolute(model_dir)
    _check_folds(manifest, options)
    for name in _NOT_OF_FOLDS:
        options.pop(name, None)
    paths = []
    for fold in manifest.splits:

        def report_fold(line: str, fold: str = fold) -> None:
            report(f"{fold}: {line}")

        run_dir, path = f"{model_dir}/{fold}", f"{model_dir}/{fold}.parquet"
        if options.get("service"):
            options["service_job"] = run_dir  # only the hosts of one run share a job
        finished = train(manifest, run_dir, tpu=tpu, report=report_fold, stop=stop, hold_out=fold, **options)
        assert finished  # as eval is not "watch"
        # An export would run on this machine.
        model = {"model_dir": run_dir, "network": options.get("network")} if tpu else {"export_dir": finished.export}
        predict_dataset(manifest, path, split=fold, batch_size=batch_size, tpu=tpu, report=report_fold, **model)
        paths.append(path)
    join_predictions(paths, absolute(output))
    return absolute(output)


def _check_folds(manifest: Manifest, options: Mapping[str, Any]) -> None:
    """Raises ValueError unless the splits of a dataset are folds, and the options of train() are for them."""
    if misplaced := [name for name in _NOT_OF_FOLDS if options.get(name)]:
        raise ValueError(f"{misplaced[0]} cannot be used with folds, where each split is held out in turn")
    if options.get("eval") == "watch":
        raise ValueError("eval='watch' cannot be used with folds, which waits for each run; use 'inline' or 'none'")
    if len(manifest.splits) < 2 or "train" in manifest.splits:
        raise ValueError(
            f"the splits of {manifest.path!r} are not folds; make some with: jpeg2tpu split "
            f"{manifest.path} --folds=5 --output=FOLDS"
        )


def _digest(manifest: Manifest) -> str:
    """Returns a hex digest of what the rows take from a dataset, wherever it lies."""
    shards = {
        name: [(shard.name, shard.num_examples, shard.num_bytes, shard.sha256) for shard in split.shards]
        for name, split in sorted(manifest.splits.items())
    }
    content = [shards, manifest.classes, manifest.first_label, manifest.label_type, repr(manifest.record)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _records_of_part(most: int, batch_size: int, numbers: int) -> int:
    """Returns the number of records of a part: whole batches, so that each record is always in the same batch."""
    return max(1, min(most, _PART_BYTES // (4 * numbers)) // batch_size) * batch_size


def _differing_classes(dataset_classes: Sequence[str], model_classes: Sequence[str]) -> str:
    only = [
        [name for name in one if name not in set(other)]
        for one, other in ((dataset_classes, model_classes), (model_classes, dataset_classes))
    ]
    if not any(only):
        return "the dataset has the model's classes in another order: labels and probabilities are each in their own"
    names = [enumerated([*map(repr, classes)], _MOST_NAMES) or "none" for classes in only]
    return (
        f"the dataset has other classes than the model: only the dataset has {names[0]}; only the model has {names[1]}"
    )


def _schema(manifest: Manifest, predictor: Predictor) -> pa.Schema:
    fields = [
        ("key", pa.string()),
        ("shard", pa.string()),
        ("record", pa.int64()),
        ("label", pa.list_(pa.int64()) if manifest.num_labels else pa.int64()),
        ("class", pa.string()),
        ("probability", pa.float32()),
        *([("classes", pa.list_(pa.string()))] if not predictor.config.task.has_one_answer else []),
        ("probabilities", pa.list_(pa.float32(), len(predictor.classes))),
        *([("features", pa.list_(pa.float32(), predictor.num_features))] if predictor.num_features else []),
    ]
    return pa.schema(fields)


def _columns(
    predictor: Predictor, manifest: Manifest, split: str, record_range: range, batch_size: int
) -> dict[str, Any]:
    """Returns the columns of _schema() for a range of the records of a split."""
    results = run_on_records(predictor.run, manifest, split, batch_size, [record_range], not predictor.is_jax)
    columns_of_batches = [(batch.numbers, batch.keys, batch.labels, rows) for batch, rows in results]
    numbers, keys, labels, rows = map(np.concatenate, zip(*columns_of_batches, strict=True))
    if numbers.tolist() != list(record_range):
        raise ValueError(f"split {split!r} of {manifest.path!r} was not read record by record; run the command again")
    num_classes = len(predictor.classes)
    probabilities, shards = rows[:, :num_classes], manifest.split(split).shards
    if not np.isfinite(probabilities).all():
        raise ValueError(
            "the model's probabilities are NaN: its training diverged; use an earlier checkpoint, or train with a "
            "smaller --learning_rate"
        )
    starts = np.cumsum([0, *(shard.num_examples for shard in shards)])
    places = np.searchsorted(starts, numbers, side="right") - 1
    best, classes = probabilities.argmax(axis=1), np.array(predictor.classes, object)
    columns: dict[str, Any] = {
        "key": [key.decode(errors="replace") or None for key in keys.tolist()],
        "shard": [shards[place].name for place in places],
        "record": numbers - starts[places],
        "label": _labels(labels, manifest.num_labels),
        "class": classes[best],
        "probability": probabilities[np.arange(len(best)), best],
        "probabilities": _lists(probabilities),
    }
    if not predictor.config.task.has_one_answer:
        columns["classes"] = [classes[row >= THRESHOLD].tolist() for row in probabilities]
    if predictor.num_features:
        columns["features"] = _lists(rows[:, num_classes:])
    return columns


def _labels(labels: Array, num_labels: int | None) -> list[Any]:
    """Returns for each record its label, the list of its labels where it may have several, or None without classes."""
    if num_labels is None:
        return labels.tolist()  # type: ignore[no-any-return]
    return [np.flatnonzero(row).tolist() if num_labels else None for row in labels]


def _lists(rows: Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).ravel()), rows.shape[1])


def _library(is_jax: bool) -> dict[str, str]:
    """Returns the version of what computes the predictions by its name: other versions round differently."""
    if is_jax:
        return {"jax": importlib.metadata.version("jax")}
    import tensorflow as tf

    return {"tensorflow": tf.__version__}
