"""One stretch of training, and one evaluation, with TPUEstimator; both start from the last checkpoint.

checkpoint of step N ──train()──▶ checkpoint of a later step ──evaluate()──▶ Metrics
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.model.metrics import Metrics
from estimator_app.model_dir.checkpoints import latest_checkpoint
from estimator_app.runtime.record_errors import record_errors
from estimator_app.runtime.tpu import Unreachable
from estimator_app.trainers.checks import check_evaluable, counted, nan_loss_error
from estimator_app.trainers.interruption import Stopped
from estimator_app.trainers.profile import Profile
from estimator_app.trainers.progress import Progress, TimeLeft, timed
from estimator_app.trainers.tpu_estimator.hooks import AfterSave, CheckFits, ProgressHook, SaveEvery, StopHook
from tpu_input import Manifest, eval_steps, make_eval_input_fn, make_train_input_fn

v1 = tf.compat.v1


def train(
    estimator: Any,
    manifest: Manifest,
    config: TrainConfig,
    step: int,
    last: int,
    stop: threading.Event,
    time_left: TimeLeft | None = None,
    saved: Callable[[int], None] = lambda step: None,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> dict[str, float]:
    """Trains from the checkpoint of `step` to `last`; returns columns of history.csv.

    `time_left` is of the run; None makes one for this stretch only. `saved` is called with the step of each checkpoint
    that was written; unless config.eval is "inline", there is one at each multiple of steps_per_eval.
    `on_step` is called with the step and its loss after each step, on a TPU after each loop of steps.

    Raises:
      ValueError: The loss is NaN, an image cannot be decoded, or the checkpoint is of another network.
      Stopped: `stop` was set.
      Unreachable: The session ended before `last` although `stop` was not set.
    """
    began = time.monotonic()
    input_fn = make_train_input_fn(manifest, config.input, start_step=step, end_step=last)
    time_left = time_left or TimeLeft.from_config(config, manifest.split(config.split).num_examples)
    progress = Progress.from_config(config, step, last, time_left, on_step)
    profile = Profile(
        estimator.model_dir, *config.profile, tf.profiler.experimental.start, tf.profiler.experimental.stop
    )
    hooks = [_check(latest_checkpoint(estimator.model_dir), config), StopHook(stop), ProgressHook(progress, profile)]
    every = [config.save_steps] * bool(config.save_steps)
    if config.eval != "inline":
        every.append(config.steps_per_eval)
    if every:
        hooks.append(SaveEvery(estimator.model_dir, every, saved))
    fed = input_fn if estimator.config.cluster else timed(input_fn)
    with closing(progress), closing(profile), record_errors(manifest, "train"):
        try:
            estimator.train(fed, hooks, max_steps=last, saving_listeners=[AfterSave(saved)])
        except v1.estimator.NanLossDuringTrainingError:
            raise nan_loss_error(progress.step, config) from None
    if progress.step < last:
        raise Stopped if stop.is_set() else Unreachable(f"training ended at step {progress.step}, before step {last}")
    return progress.values() | {"train_seconds": time.monotonic() - began}


def evaluate(
    estimator: Any,
    manifest: Manifest,
    config: TrainConfig,
    stop: threading.Event | None = None,
    checkpoint: str | None = None,
) -> Metrics:
    """Returns metrics over every example of config.split, exactly once, at a checkpoint; None for the last one.

    Raises:
      ValueError: The dataset has other classes, the split does not have as many examples as its manifest says, an image
        cannot be decoded, the loss is NaN or infinite, or the checkpoint is of another network.
      Stopped: `stop` was set.
    """
    check_evaluable(manifest, config)
    cluster = estimator.config.cluster
    num_hosts = cluster.get_tpu_system_metadata().num_hosts if cluster else 1
    steps = eval_steps(manifest, config.split, config.eval_batch_size, num_hosts)
    stop = stop or threading.Event()
    checkpoint = checkpoint or latest_checkpoint(estimator.model_dir)
    hooks = [_check(checkpoint, config), StopHook(stop)]
    with record_errors(manifest, config.split):
        results = estimator.evaluate(make_eval_input_fn(manifest, config.input, config.split), steps, hooks, checkpoint)
    if stop.is_set():
        raise Stopped
    return counted(results, manifest, config)


def _check(checkpoint: str | None, config: TrainConfig) -> CheckFits:
    return CheckFits(checkpoint, config.network, len(config.classes))
