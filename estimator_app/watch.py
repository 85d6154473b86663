"""Evaluation during training: a process that evaluates the checkpoints of `train --eval=watch`, and exports.

    train --eval=watch:  checkpoint of step 400 ──train──▶ checkpoint of step 800 ──train──▶ … ──▶ train_steps
                                   └────evaluate────▶ history.csv ──evaluate──▶ … ──▶ export, metrics.json   :watch

Checkpoints of the multiples of steps_per_eval and of the last step are evaluated in ascending order, by the same code
as between two stretches of an inline run (run.py). The next action depends only on the checkpoints and history.csv, so
that a watcher that was killed anywhere and restarted continues.
"""

from __future__ import annotations

import dataclasses
import threading

from estimator_app.config import TrainConfig
from estimator_app.model_dir.checkpoints import (
    NAME,
    DamagedCheckpoint,
    damage,
    finished_steps,
    prune_checkpoints,
    steps,
    unreadable_errors,
)
from estimator_app.model_dir.exports import check_export_dir
from estimator_app.model_dir.lock import EVAL_LOCK_NAME, claim_lock, locked
from estimator_app.model_dir.run_files import CONFIG_NAME, Finished, check_free, read_config, read_named
from estimator_app.run import (
    Drawing,
    Report,
    Run,
    check_exports,
    completed_run,
    evaluate_and_keep,
    finish,
    is_due,
    is_evaluated,
)
from estimator_app.runtime import files
from estimator_app.runtime.host_memory import check_batch
from estimator_app.runtime.tpu import Tpu
from estimator_app.trainers.checks import check_split, read_dataset
from estimator_app.trainers.interruption import Stopped, lost_errors, retry_while_unavailable
from estimator_app.trainers.registry import find_trainer
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.command_line.paths import absolute
from tpu_input.command_line.wording import enumerated

_LISTED = 5  # most steps that a line names


@checks_arguments
def watch(
    model_dir: str,
    export_dir: str | None = None,
    network: str | None = None,
    tpu: Tpu | None = None,
    report: Report = print,
    stop: threading.Event | None = None,
    poll_seconds: float = 10.0,
) -> Finished:
    """Evaluates the checkpoints of a training with eval="watch", and exports, until the run is complete.

    Args:
      model_dir: Folder or URI of the run, which may not have begun yet.
      export_dir: Folder or URI for SavedModels; None for MODEL_DIR/export.
      network: "package.module:function" of a run with a custom network, which is imported only if it is named.
      tpu: The TPU, which must not be the training's; None runs on this machine.
      report: Called with each line of progress.
      stop: Event; when it is set, the watcher ends.
      poll_seconds: Seconds between two looks for a new checkpoint.

    Raises:
      ValueError: The run is not one with eval="watch", another watcher evaluates it, or a checkpoint that is whole
        cannot be evaluated.
      OSError: A folder cannot be written.
      Stopped: `stop` was set.
      Moved: The TPU was lost and is back at another address; a new process can continue.
    """
    if not 0 < poll_seconds < threading.TIMEOUT_MAX:
        raise ValueError(f"poll_seconds must be above 0, got {poll_seconds:g}")
    model_dir, stop = absolute(model_dir), stop or threading.Event()
    export_dir = absolute(export_dir) if export_dir else f"{model_dir}/export"
    check_free(model_dir)
    check_export_dir(export_dir)
    files.make_folder(model_dir)
    with locked(model_dir, EVAL_LOCK_NAME):
        _wait_for_training(model_dir, report, stop, poll_seconds)
        run = _make_run(read_named(model_dir, network), model_dir, export_dir, report, stop)
        if not tpu:
            check_batch("--eval_batch_size", run.config.eval_batch_size, run.config.input.image_size)
        files.make_folder(export_dir)
        check_exports(run)
        if finished := completed_run(run):
            return finished
        run = dataclasses.replace(run, check_alone=claim_lock(model_dir, EVAL_LOCK_NAME))
        if tpu is None:
            return _evaluate_to_end(run, None, poll_seconds)
        return retry_while_unavailable(
            lambda: _evaluate_to_end(run, tpu, poll_seconds), lambda: run.evaluated, stop.wait, report
        )


def _wait_for_training(model_dir: str, report: Report, stop: threading.Event, poll_seconds: float) -> None:
    """Returns when the run has a checkpoint of a step after 0.

    Raises:
      Stopped: `stop` was set.
    """
    is_reported = False
    # A config.json without a checkpoint may be an earlier attempt's, which training replaces.
    while not files.exists(f"{model_dir}/{CONFIG_NAME}") or not any(steps(model_dir)):
        if not is_reported:
            report(f"waiting for the first checkpoint in {model_dir}")
            is_reported = True
        if stop.wait(poll_seconds):
            raise Stopped


def _make_run(config: TrainConfig, model_dir: str, export_dir: str, report: Report, stop: threading.Event) -> Run:
    _check_watched(config, model_dir)
    manifest = read_dataset(config)
    check_split(manifest, config.split)
    return Run(find_trainer(config.trainer), manifest, config, model_dir, export_dir, report, stop)


def _check_watched(config: TrainConfig, model_dir: str) -> None:
    if config.eval != "watch":
        raise ValueError(
            f"the run in {model_dir!r} has --eval={config.eval}, so train evaluates it; watch needs train --eval=watch"
        )


def _refreshed(run: Run) -> Run:
    """Returns the run with the options that may have changed since, as training was resumed with others.

    Raises:
      ValueError: It is another run, or no longer one with eval="watch".
    """
    config = read_config(run.model_dir)
    _check_watched(config, run.model_dir)
    if differences := run.config.differences(config):
        raise ValueError(f"{run.model_dir!r} now holds another run: its {'; its '.join(differences)}")
    return run if config == run.config else dataclasses.replace(run, config=config)


def _evaluate_to_end(run: Run, tpu: Tpu | None, poll_seconds: float) -> Finished:
    """Evaluates the checkpoints that are not evaluated yet, and each new one, to train_steps; then completes the run.

    Raises:
      Stopped: run.stop was set.
    """
    state = run.trainer.make(run.config, run.model_dir, tpu and tpu.connect())
    drawing, passed, failed = Drawing(), 0, -1
    while True:
        if run.stop.is_set():
            raise Stopped
        run = _refreshed(run)
        run.check_alone()
        last_step = max((row.step for row in run.evaluations()), default=0)
        if last_step >= run.config.train_steps and is_evaluated(last_step, run):
            return finish(run, last_step)
        # If metrics.json is missing after all, the last step is evaluated again.
        passed = max(passed, min(last_step, run.config.train_steps - 1))
        due = [step for step in finished_steps(run.model_dir) if step > passed and is_due(step, run)]
        if not due:
            if run.stop.wait(poll_seconds):
                raise Stopped
            continue
        step, checkpoint = due[0], f"{run.model_dir}/{NAME}-{due[0]}"
        _report_gone(run, passed, step)
        try:
            evaluate_and_keep(run, state, checkpoint=checkpoint)
        except Stopped:
            raise
        except lost_errors():
            raise
        except unreadable_errors() as error:
            wrong = damage(checkpoint)
            # Training that is resumed writes its first checkpoint again, so that a second look may find it whole.
            if not wrong and (
                step == failed or (isinstance(error, ValueError) and not isinstance(error, DamagedCheckpoint))
            ):
                raise
            if step != failed:
                failed = step
                if run.stop.wait(poll_seconds):
                    raise Stopped from None
                continue
            if step >= run.config.train_steps:
                raise ValueError(f"the last checkpoint, step {step}, cannot be evaluated: {wrong}") from error
            run.report(f"step {step} was not evaluated: {wrong}")
        else:
            drawing.evaluated(run)
        passed = step
        prune_checkpoints(run.model_dir, passed, run.config.steps_per_eval)


def _report_gone(run: Run, passed: int, step: int) -> None:
    """Reports the multiples of steps_per_eval between two steps whose checkpoints were removed before evaluation."""
    every = run.config.steps_per_eval
    expected = range((passed // every + 1) * every, step, every)
    if expected:
        run.report(f"steps not evaluated, as they have no checkpoint any more: {enumerated(expected, _LISTED)}")
