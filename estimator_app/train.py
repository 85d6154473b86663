"""The main loop of a training run: trains to the next evaluation, evaluates, repeats, and exports at the end.

    step 0 ──train──▶ 400 ──evaluate──▶ 400 ──train──▶ 800 ──evaluate──▶ … ──▶ train_steps ──export──▶ metrics.json
                               └─ best so far: export ─ history.csv

Training, by TPUEstimator or tf.distribute (trainers/registry.py), loads the last checkpoint and resumes the input
pipeline at its step, so that a run that was stopped anywhere and restarted gives the same result as an uninterrupted
one. The next action depends only on the last checkpoint and history.csv.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig, chosen_input, surprises
from estimator_app.export import copy_export, export_model
from estimator_app.model.metrics import Metrics
from estimator_app.model_dir.checkpoints import latest_checkpoint, latest_step
from estimator_app.model_dir.exports import (
    EXPORTS_NAME,
    KINDS,
    check_no_links,
    folder,
    prune_exports,
    read_exports,
    read_kept,
)
from estimator_app.model_dir.history import Row, best, is_stale, read_history, with_row, write_history
from estimator_app.model_dir.lock import claim_lock, locked
from estimator_app.model_dir.plots import write_inputs, write_pictures
from estimator_app.model_dir.run_files import (
    Finished,
    begun,
    check_free,
    read_finished,
    write_finished,
    write_run_config,
)
from estimator_app.runtime import files
from estimator_app.runtime.host_memory import check_batch
from estimator_app.runtime.paths import absolute
from estimator_app.runtime.tpu import Tpu
from estimator_app.saved_model.find import read_origin
from estimator_app.trainers.checks import num_examples
from estimator_app.trainers.interruption import Stopped, no_recovery_in_place, retry_while_unavailable
from estimator_app.trainers.progress import TimeLeft
from estimator_app.trainers.registry import Trainer, find_trainer
from estimator_app.trainers.starting_weights import TABLE_NAME, starting_weights
from tpu_input import Manifest, read_manifest
from tpu_input.datasets import DatasetLike, as_manifest, version_with
from tpu_input.pipeline.caching import cache_bytes, check_memory
from tpu_input.pipeline.hosts import Host

Report = Callable[[str], None]

# Least time between two drawings of the curves. Drawing takes a second, which is too long after every short round of
# training, and needless if the run ends soon, as the curves are drawn at its end.
_DRAW_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class _Run:
    """The arguments of run(), and what is derived from them."""

    trainer: Trainer
    manifest: Manifest
    config: TrainConfig
    model_dir: str
    export_dir: str
    report: Report
    stop: threading.Event
    check_alone: Callable[[], None] = lambda: None

    def rows(self) -> list[Row]:
        """Returns the rows of history.csv up to the last checkpoint: a user may have removed later checkpoints."""
        step = latest_step(self.model_dir)
        return [row for row in read_history(self.model_dir) if row.step <= step]

    def check_dataset(self) -> None:
        """Checks that the dataset has not changed since the run was started.

        Raises:
          ValueError: It was removed or converted again.
        """
        if not self.manifest.fingerprint:  # TFRecords of other programs have no fingerprint
            return
        advice = (
            f"so this run ends: its steps since the last evaluation, at step {self.evaluated}, may have used other "
            "data; restore the dataset and remove the checkpoints after that step, or train in another --model_dir"
        )
        try:
            found = read_manifest(self.manifest.path)
        except ValueError as error:
            raise ValueError(f"the dataset was removed or damaged during training ({error}), {advice}") from error
        if self.manifest.fingerprint in found.earlier:  # it was extended, and the files of this version stay
            return
        if _content(found) != _content(self.manifest):
            raise ValueError(f"{self.manifest.path!r} was converted again during training, {advice}")

    @property
    def evaluated(self) -> int:
        """The step of the last evaluation; 0 before the first."""
        return max((row.step for row in self.rows()), default=0)

    def evaluations(self) -> list[Row]:
        """Returns the rows of the evaluated split, config.split."""
        return [row for row in self.rows() if row.split == self.config.split]


def train(
    dataset: DatasetLike,
    model_dir: str,
    export_dir: str | None = None,
    tpu: Tpu | None = None,
    report: Report = print,
    stop: threading.Event | None = None,
    command: str = "",
    **options: Any,
) -> Finished:
    """Trains, evaluates and exports, as the command `train` does; resumes the run if model_dir holds one.

    Args:
      dataset: Manifest of the dataset, or its folder or URI.
      model_dir: Folder or URI for checkpoints and all files that model_dir/run_files.py lists.
      export_dir: Folder or URI for SavedModels; None for MODEL_DIR/export.
      tpu: The TPU; None runs on this machine.
      report: Called with each line of progress.
      stop: Event; when it is set, the run ends after the current step, with a checkpoint.
      command: Command line of the user, stored in config.json.
      options: Fields of TrainConfig and of tpu_input.InputConfig by name, as TrainConfig.of() takes them:
        train_steps=5000, image_size=224.

    Raises:
      ValueError: An option is invalid, or as run().
      OSError: A folder cannot be written.
      Stopped: `stop` was set.
      Moved: The TPU was lost and is back at another address; a new process can resume the run.
    """
    model_dir = absolute(model_dir)
    export_dir = absolute(export_dir) if export_dir else f"{model_dir}/export"
    manifest, earlier = as_manifest(dataset if isinstance(dataset, Manifest) else absolute(dataset)), begun(model_dir)
    last = manifest
    manifest = version_with(manifest, earlier.fingerprint) if earlier else manifest
    config = TrainConfig.of(manifest, options, earlier)
    if manifest is not last:
        report(
            f"note: {manifest.path!r} was extended after this run began; the run goes on with version "
            f"{manifest.version} of {last.version}, and another --model_dir trains on all images"
        )
    if config.train_steps > config.decay_steps:
        report(
            f"note: the learning rate reaches its final value at step {config.decay_steps} (decay_steps) and "
            "stays constant after it"
        )
    chosen = "" if earlier else chosen_input(config, options, manifest)
    notes = [chosen] * bool(chosen) + [f"note: {surprise}" for surprise in surprises(config, manifest)]

    def report_with_notes(line: str) -> None:
        """Reports a line; after the first one, which says that training begins, reports the notes on its input."""
        report(line)
        while notes:
            report(notes.pop(0))

    return run(manifest, config, model_dir, export_dir, tpu, report_with_notes, stop, command)


def run(
    manifest: Manifest,
    config: TrainConfig,
    model_dir: str,
    export_dir: str,
    tpu: Tpu | None = None,
    report: Report = print,
    stop: threading.Event | None = None,
    command: str = "",
) -> Finished:
    """Trains, evaluates and exports; idempotent: work that is already done is not repeated.

    Args:
      manifest: Manifest of config.dataset.
      config: Options of the run.
      model_dir: Folder or URI for checkpoints and all files that model_dir/run_files.py lists.
      export_dir: Folder or URI for SavedModels, each in a folder named after the time.
      tpu: The TPU; None runs on this machine.
      report: Called with each line of progress.
      stop: Event; when it is set, the run ends after the current step, with a checkpoint.
      command: Command line of the user, stored in config.json.

    Raises:
      ValueError: A split has no examples, a cache or a batch would not fit into memory, `model_dir` holds another run
        or another process trains there, its checkpoints are damaged, files would be written through a symbolic link,
        the loss is NaN or infinite, there is no TPU, or the dataset has changed.
      OSError: A folder cannot be written.
      Stopped: `stop` was set.
      Moved: The TPU was lost and is back at another address; a new process can resume the run.
    """
    for split in ("train", config.split):
        num_examples(manifest, split)
    if config.input.cache and not tpu:  # a TPU's hosts use their own memory, and each caches its share
        check_memory(cache_bytes(manifest, "train", Host(), config.input), config.input)
    if not tpu:
        check_batch("--train_batch_size", config.train_batch_size, config.input.image_size)
        check_batch("--eval_batch_size", config.eval_batch_size, config.input.image_size)
    run = _Run(find_trainer(config.trainer), manifest, config, model_dir, export_dir, report, stop or threading.Event())
    check_free(model_dir)
    check_no_links(export_dir)
    files.make_folder(model_dir)
    with locked(model_dir):
        if wrong := write_run_config(model_dir, config, command):
            report(f"{wrong}; resuming from step {latest_step(model_dir)}, the newest intact checkpoint")
        files.make_folder(export_dir)  # checks the permission now, not after hours of training
        _check_exports(run)
        return _completed_run(run) or _wait_and_go_on(dataclasses.replace(run, check_alone=claim_lock(model_dir)), tpu)


def _content(manifest: Manifest) -> tuple[object, ...]:
    """Returns what training depends on. The fingerprint alone misses files that changed but kept their size."""
    return manifest.fingerprint, manifest.classes, manifest.first_label, manifest.splits


def _is_of_run(run: _Run, path: str) -> bool:
    """Returns whether the SavedModel at `path` is an export of this run, according to its copy of config.json."""
    try:
        return not read_origin(path)[0].differences(run.config)
    except ValueError:
        return False


def _check_exports(run: _Run) -> None:
    """Checks, before training starts, that all exports that may be removed later were made by this run.

    Raises:
      ValueError: exports.json names an export that is not of this run.
    """
    for kind in KINDS:
        for entry in read_kept(run.model_dir, kind):
            in_place = entry["path"].rpartition("/")[0] == folder(run.export_dir, kind)
            if in_place and not _is_of_run(run, entry["path"]):
                raise ValueError(
                    f"{run.model_dir}/{EXPORTS_NAME} lists {entry['path']!r}, which is not an export of this run; "
                    "remove it from that file"
                )


def _completed_run(run: _Run) -> Finished | None:
    """Returns and reports the result of a run that is already complete; None when something is left to do."""
    finished = read_finished(run.model_dir)
    if not finished or not _is_all(finished, run):
        return None
    run.report(f"nothing to train: step {finished.metrics.step} is done, {finished.metrics}")
    if finished.metrics.step < run.config.train_steps:
        run.report(_why_early(run))
    run.report(f"export: {finished.export}")
    return finished


def _wait_and_go_on(run: _Run, tpu: Tpu | None) -> Finished:
    """Completes the run; when the TPU is lost, retries from the last checkpoint."""
    with no_recovery_in_place() if run.config.trainer == "tpu_estimator" else contextlib.nullcontext():
        if tpu is None:
            return _train_to_end(run, None)
        return retry_while_unavailable(
            lambda: _train_to_end(run, tpu), lambda: latest_step(run.model_dir), run.stop.wait, run.report
        )


def _train_to_end(run: _Run, tpu: Tpu | None) -> Finished:
    """Completes the run from the last checkpoint on.

    Raises:
      Stopped: run.stop was set.
    """
    if run.stop.is_set():
        raise Stopped
    initial, step = _starting_weights(run), latest_step(run.model_dir)
    state = run.trainer.make(run.config, run.model_dir, tpu and tpu.connect(), initial)
    if not _is_over(step, run):
        _announce(run, step)
    trained: dict[str, float] = {}
    left = TimeLeft.of(run.config, num_examples(run.manifest, run.config.split))
    drawn = time.monotonic()
    while not _is_over(step, run) or not _is_evaluated(step, run):
        run.check_alone()
        if step and not _is_evaluated(step, run) and (step % run.config.steps_per_eval == 0 or _is_over(step, run)):
            _evaluate_and_keep(run, state, trained)
            if time.monotonic() - drawn >= _DRAW_SECONDS:
                _draw(run)
                drawn = time.monotonic()
        else:
            next_step = next_stop(step, run.config.steps_per_eval, run.config.train_steps)
            trained = run.trainer.train(state, run.manifest, run.config, step, next_step, run.stop, left)
            step = next_step
    run.check_alone()
    return _finish(run, step)


def _starting_weights(run: _Run) -> Mapping[str, Any] | None:
    """Returns the weights of --init_from for a run without a checkpoint, and writes the table of what was taken."""
    if not run.config.init_from or latest_checkpoint(run.model_dir):
        return None
    taken = starting_weights(run.config)
    path = f"{run.model_dir}/{TABLE_NAME}"
    files.write(path, taken.to_csv())
    run.report(f"initial weights: {taken}; {path}")
    return taken.values


def _announce(run: _Run, step: int) -> None:
    run.report(
        f"{'resuming' if step else 'training'} {run.config.network} at step {step}/{run.config.train_steps}: "
        f"{num_examples(run.manifest, 'train')} images of {len(run.config.classes)} classes"
    )
    if not step:
        write_inputs(run.model_dir, run.manifest, run.config.input)


def _is_over(step: int, run: _Run) -> bool:
    """Returns whether training is over: all steps are done, or early stopping applies."""
    metric, patience = run.config.early_stop_metric, run.config.early_stop_patience
    return step >= run.config.train_steps or is_stale(run.evaluations(), metric, patience)


def _is_evaluated(step: int, run: _Run) -> bool:
    rows, finished = run.evaluations(), read_finished(run.model_dir)
    of_finished = (finished.metrics.step, finished.metrics.split) if finished else None
    return bool(rows) and rows[-1].step == step and of_finished == (step, run.config.split)


def _why_early(run: _Run) -> str:
    metric, patience = run.config.early_stop_metric, run.config.early_stop_patience
    return (
        f"stopped early: the last {patience} evaluations did not improve {metric}; to continue, rerun the command with "
        "a larger --early_stop_patience, or 0"
    )


def next_stop(step: int, steps_per_eval: int, train_steps: int) -> int:
    """Returns the step of the next evaluation: a multiple of `steps_per_eval`, or the last."""
    return min((step // steps_per_eval + 1) * steps_per_eval, train_steps)


def _evaluate_and_keep(run: _Run, state: Any, trained: dict[str, float]) -> None:
    """Evaluates the last checkpoint and exports it if it is the best; the row of history.csv is written after both."""
    config, began = run.config, time.monotonic()
    run.check_dataset()
    metrics = run.trainer.evaluate(state, run.manifest, config, run.stop)
    run.check_dataset()  # checked again, so that no result of a changed dataset is written or exported
    rate = float(config.schedule.learning_rate(metrics.step - 1.0))
    more = {"learning_rate": rate, **trained, "eval_seconds": time.monotonic() - began}
    row = Row(metrics.step, metrics.split, {**metrics.scalars(), **more})
    write_finished(run.model_dir, Finished(metrics, ""), config.classes)
    rows = with_row(run.rows(), row)
    if best([one for one in rows if one.split == row.split], config.early_stop_metric) is row:
        _keep(run, "best", metrics)
    write_history(run.model_dir, rows)
    run.report(f"step {metrics.step}/{config.train_steps}: {metrics}")


def _finish(run: _Run, step: int) -> Finished:
    """Exports the last checkpoint, and marks and reports the run as complete."""
    finished = read_finished(run.model_dir)
    assert finished  # is of this step, as _is_evaluated() was true
    run.check_dataset()
    finished = dataclasses.replace(finished, export=_keep(run, "last", finished.metrics))
    pictures = _draw(run)
    write_finished(run.model_dir, finished, run.config.classes)
    metric = run.config.early_stop_metric
    if step < run.config.train_steps:
        run.report(_why_early(run))
    run.report(f"{'curves and confusion matrix' if len(pictures) > 1 else 'curves'}: {', '.join(pictures)}")
    for entry in read_exports(run.model_dir).get("best", [])[-1:]:
        run.report(f"export with the best {metric}, step {entry['step']}: {entry['path']}")
    run.report(f"export: {finished.export}")
    return finished


def _keep(run: _Run, kind: str, metrics: Metrics) -> str:
    """Exports the last checkpoint, to which `metrics` belong, unless it is already exported; returns the path."""

    def export() -> str:
        for entry in read_kept(run.model_dir, "best")[-1:] if kind == "last" else []:
            # Copying follows symbolic links, so an untrusted link would put another file's content into the copy.
            is_whole = entry["step"] == metrics.step and files.is_without_links(entry["path"])
            if is_whole and _is_of_run(run, entry["path"]):
                return copy_export(entry["path"], run.export_dir)
        fields = metrics.to_fields(run.config.classes)
        return export_model(run.config, run.model_dir, folder(run.export_dir, kind), metrics=fields)

    parent, num = folder(run.export_dir, kind), run.config.keep_exports
    return prune_exports(run.model_dir, kind, metrics.step, parent, num, export, lambda path: _is_of_run(run, path))


def _draw(run: _Run) -> list[str]:
    """Draws the curves and the confusion matrix, and returns the paths of the pictures."""
    finished = read_finished(run.model_dir)
    assert finished  # _evaluate_and_keep has just written it
    return write_pictures(run.model_dir, run.config, run.evaluations(), finished.metrics)


def _is_all(finished: Finished, run: _Run) -> bool:
    """Returns whether nothing is left to do."""
    step = latest_step(run.model_dir)
    exported = finished.export.rpartition("/")[0] == run.export_dir and tf.io.gfile.isdir(finished.export)
    return _is_over(step, run) and _is_evaluated(step, run) and bool(exported)
