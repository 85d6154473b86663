"""One training run: its options, what its files say is done, and the evaluations and exports that complete it.

    checkpoint ──evaluate_and_keep()──▶ metrics.json ─ best so far: export ─ history.csv
    last checkpoint ──finish()──▶ export, curves, metrics.json with the path of the export

train.py calls these between two stretches of training, and watch.py in a separate process during the training.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimator_app.config import TrainConfig
from estimator_app.export import copy_export, export_model
from estimator_app.model.metrics import Metrics
from estimator_app.model_dir.checkpoints import latest_step
from estimator_app.model_dir.exports import (
    EXPORTS_NAME,
    KINDS,
    folder,
    prune_exports,
    read_complete_exports,
    read_exports,
)
from estimator_app.model_dir.history import Row, best, is_stale, read_history, with_row, write_by_class, write_history
from estimator_app.model_dir.plots import write_pictures, write_wrong
from estimator_app.model_dir.run_files import Finished, read_finished, write_finished
from estimator_app.predictions.wrong_images import find_wrong
from estimator_app.runtime import files
from estimator_app.saved_model.classifier import load_classifier
from estimator_app.saved_model.find import read_origin
from estimator_app.trainers.callbacks import Callback
from estimator_app.trainers.registry import Trainer
from tpu_input import Manifest, read_manifest
from tpu_input.command_line import activity

Report = Callable[[str], None]

# Least time between two drawings of the curves. Drawing takes a second, which is too long after every short round of
# training, and needless if the run ends soon, as the curves are drawn at its end.
_DRAW_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Run:
    """The arguments of train.run() or watch(), and what is derived from them.

    Attributes:
      trainer: What trains and evaluates the run.
      manifest: Manifest of config.dataset.
      config: Options of the run.
      model_dir: Folder or URI for checkpoints and all files that model_dir/run_files.py lists.
      export_dir: Folder or URI for SavedModels.
      report: Called with each line of progress.
      stop: Event; when it is set, training and evaluation end.
      check_alone: Raises an error if another process has taken this one's place.
      callbacks: What the user's program does during training.
    """

    trainer: Trainer
    manifest: Manifest
    config: TrainConfig
    model_dir: str
    export_dir: str
    report: Report
    stop: threading.Event
    check_alone: Callable[[], None] = lambda: None
    callbacks: Sequence[Callback] = ()

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
            current = read_manifest(self.manifest.path)
        except ValueError as error:
            raise ValueError(f"the dataset was removed or damaged during training ({error}), {advice}") from error
        if self.manifest.fingerprint in current.earlier:  # it was extended, and the files of this version stay
            return
        current = current.held_out(self.config.hold_out) if self.config.hold_out else current
        if _content(current) != _content(self.manifest):
            raise ValueError(f"{self.manifest.path!r} was converted again during training, {advice}")

    @property
    def evaluated(self) -> int:
        """The step of the last evaluation; 0 before the first."""
        return max((row.step for row in self.rows()), default=0)

    def evaluations(self) -> list[Row]:
        """Returns the rows of the evaluated split, config.split."""
        return [row for row in self.rows() if row.split == self.config.split]


class Drawing:
    """Draws the curves after evaluations, at most once per _DRAW_SECONDS."""

    def __init__(self) -> None:
        self._last_drawing = time.monotonic()

    def evaluated(self, run: Run) -> None:
        """Draws the curves of a run that was just evaluated, unless they were drawn a short time ago."""
        if time.monotonic() - self._last_drawing >= _DRAW_SECONDS:
            _draw(run)
            self._last_drawing = time.monotonic()


def _content(manifest: Manifest) -> tuple[object, ...]:
    """Returns what training depends on. The fingerprint alone misses files that changed but kept their size."""
    return manifest.fingerprint, manifest.classes, manifest.first_label, manifest.splits


def _is_of_run(run: Run, path: str) -> bool:
    """Returns whether the SavedModel at `path` is an export of this run, according to its copy of config.json."""
    try:
        return not read_origin(path)[0].differences(run.config)
    except ValueError:
        return False


def check_exports(run: Run) -> None:
    """Checks, before training starts, that all exports that may be removed later were made by this run.

    Raises:
      ValueError: exports.json names an export that is not of this run.
    """
    for kind in KINDS:
        for entry in read_complete_exports(run.model_dir, kind):
            in_place = entry["path"].rpartition("/")[0] == folder(run.export_dir, kind)
            if in_place and not _is_of_run(run, entry["path"]):
                raise ValueError(
                    f"{run.model_dir}/{EXPORTS_NAME} lists {entry['path']!r}, which is not an export of this run; "
                    "remove it from that file"
                )


def completed_run(run: Run) -> Finished | None:
    """Returns and reports the result of a run that is already complete; None when something is left to do."""
    if not (finished := read_finished(run.model_dir)):
        return None
    step, parent = latest_step(run.model_dir), finished.export.rpartition("/")[0]
    is_exported = parent == run.export_dir and files.is_folder(finished.export)
    if not (is_over(step, run) and is_evaluated(step, run) and is_exported):
        return None
    run.report(f"nothing to train: step {finished.metrics.step} is done, {finished.metrics}")
    if finished.metrics.step < run.config.train_steps:
        run.report(_why_early(run))
    run.report(f"export: {finished.export}")
    return finished


def is_over(step: int, run: Run) -> bool:
    """Returns whether training is over: all steps are done, or early stopping applies."""
    metric, patience = run.config.early_stop_metric, run.config.early_stop_patience
    return step >= run.config.train_steps or is_stale(run.evaluations(), metric, patience)


def is_due(step: int, run: Run) -> bool:
    """Returns whether a checkpoint of this step is to be evaluated: the last one, and with eval="none" only that."""
    multiple = run.config.eval != "none" and step % run.config.steps_per_eval == 0
    return multiple or is_over(step, run)


def is_evaluated(step: int, run: Run) -> bool:
    """Returns whether the last evaluation was of a given step, and metrics.json has its metrics."""
    rows, finished = run.evaluations(), read_finished(run.model_dir)
    final_evaluation = (finished.metrics.step, finished.metrics.split) if finished else None
    return bool(rows) and rows[-1].step == step and final_evaluation == (step, run.config.split)


def _why_early(run: Run) -> str:
    metric, patience = run.config.early_stop_metric, run.config.early_stop_patience
    return (
        f"stopped early: the last {patience} evaluations did not improve {metric}; to continue, rerun the command with "
        "a larger --early_stop_patience, or 0"
    )


def evaluate_and_keep(
    run: Run, state: Any, trained: Mapping[str, float] | None = None, checkpoint: str | None = None
) -> None:
    """Evaluates a checkpoint and exports it if it is the best; the row of history.csv is written after both.

    Args:
      run: The run.
      state: From run.trainer.make().
      trained: Columns of history.csv from run.trainer.train(); None if another process trains.
      checkpoint: Path of the checkpoint; None for the last one.
    """
    config, began = run.config, time.monotonic()
    run.check_dataset()
    with activity(f"evaluating on {run.manifest.split(config.split).num_examples:,} images of {config.split}"):
        metrics = run.trainer.evaluate(state, run.manifest, config, run.stop, checkpoint)
    run.check_dataset()  # checked again, so that no result of a changed dataset is written or exported
    rate = float(config.schedule.learning_rate(metrics.step - 1.0))
    more = {"learning_rate": rate, **(trained or {}), "eval_seconds": time.monotonic() - began}
    row = Row(metrics.step, metrics.split, {**metrics.scalars(), **more})
    write_finished(run.model_dir, Finished(metrics, ""), config.classes)
    rows = with_row(run.rows(), row)
    if best([one for one in rows if one.split == row.split], config.early_stop_metric) is row:
        _keep(run, "best", metrics, checkpoint)
    write_by_class(run.model_dir, metrics, config.classes)
    write_history(run.model_dir, rows)
    run.report(f"step {metrics.step}/{config.train_steps}: {metrics}")
    for callback in run.callbacks:
        callback.on_evaluation(metrics)


def finish(run: Run, step: int) -> Finished:
    """Exports the last checkpoint, and marks and reports the run as complete."""
    finished = read_finished(run.model_dir)
    assert finished  # is of this step, as is_evaluated() was true
    run.check_dataset()
    finished = dataclasses.replace(finished, export=_keep(run, "last", finished.metrics))
    pictures = _draw(run)
    _show_wrong(run, finished.export, step)
    write_finished(run.model_dir, finished, run.config.classes)
    metric = run.config.early_stop_metric
    if step < run.config.train_steps:
        run.report(_why_early(run))
    run.report(f"{'curves and confusion matrix' if len(pictures) > 1 else 'curves'}: {', '.join(pictures)}")
    for entry in read_exports(run.model_dir).get("best", [])[-1:]:
        run.report(f"export with the best {metric}, step {entry['step']}: {entry['path']}")
    run.report(f"export: {finished.export}")
    return finished


def _keep(run: Run, kind: str, metrics: Metrics, checkpoint: str | None = None) -> str:
    """Exports the checkpoint to which `metrics` belong, None for the last, unless it is exported; returns the path."""

    def export() -> str:
        for entry in read_complete_exports(run.model_dir, "best")[-1:] if kind == "last" else []:
            # Copying follows symbolic links, so an untrusted link would put another file's content into the copy.
            is_whole = entry["step"] == metrics.step and files.is_without_links(entry["path"])
            if is_whole and _is_of_run(run, entry["path"]):
                return copy_export(entry["path"], run.export_dir)
        fields = metrics.to_fields(run.config.classes)
        return export_model(run.config, run.model_dir, folder(run.export_dir, kind), checkpoint, fields)

    parent, num = folder(run.export_dir, kind), run.config.keep_exports
    return prune_exports(run.model_dir, kind, metrics.step, parent, num, export, lambda path: _is_of_run(run, path))


def _draw(run: Run) -> list[str]:
    """Draws the curves and the confusion matrix, and returns the paths of the pictures."""
    finished = read_finished(run.model_dir)
    assert finished  # evaluate_and_keep() has written it
    return write_pictures(run.model_dir, run.config, run.evaluations(), finished.metrics)


def _show_wrong(run: Run, export: str, step: int) -> None:
    """Writes some images that the last checkpoint classifies wrongly for TensorBoard."""
    config = run.config
    if not config.wrong_images or not config.task.has_one_answer:
        return
    images = find_wrong(load_classifier(export), run.manifest, config.split, config.wrong_images)
    by_caption = {f"{one.key}: {one.label}, not {one.predicted} ({one.probability:.1%})": one.encoded for one in images}
    write_wrong(run.model_dir, step, by_caption, config.input)
