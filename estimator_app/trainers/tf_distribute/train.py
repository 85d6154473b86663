"""One stretch of training, and one evaluation, with tf.distribute; both start from the last checkpoint.

checkpoint of step N ──train()──▶ checkpoint of a later step ──evaluate()──▶ Metrics
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable
from contextlib import closing

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.model.metrics import Metrics
from estimator_app.model.tensorflow_metrics import added, results
from estimator_app.model_dir.checkpoints import latest_checkpoint, step_of
from estimator_app.runtime.record_errors import record_errors
from estimator_app.trainers.checkpointing import CheckpointSaver
from estimator_app.trainers.checks import check_evaluable, counted, nan_loss_error
from estimator_app.trainers.interruption import Stopped
from estimator_app.trainers.profile import Profile
from estimator_app.trainers.progress import Progress, TimeLeft, timed
from estimator_app.trainers.tf_distribute.state import TrainState
from tpu_input import Manifest, eval_steps, make_eval_input_fn, make_train_input_fn


def train(
    state: TrainState,
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
    that was written; there is one at each multiple of steps_per_eval. `on_step` is called with the step and its loss
    after each step, on a TPU after each loop of steps.

    Raises:
      ValueError: The loss is NaN, an image cannot be decoded, the checkpoint is of another network, or the batch size
        is not divisible by the number of replicas.
      Stopped: `stop` was set.
    """
    began = time.monotonic()
    input_fn = make_train_input_fn(manifest, config.input, start_step=step, end_step=last)
    batches = state.batches(input_fn if state.cluster else timed(input_fn), config.train_batch_size)
    # Tracing creates the optimizer's variables, which the checkpoint contains too.
    state.steps.get_concrete_function(batches, tf.constant(1))
    path = latest_checkpoint(state.model_dir)
    if path:
        state.restore(path).assert_consumed()
    saver, manager = CheckpointSaver(config, step if path else -1, saved), state.manager()
    saver.reached(step, lambda: manager.save(checkpoint_number=step))
    time_left = time_left or TimeLeft.from_config(config, manifest.split(config.split).num_examples)
    progress = Progress.from_config(config, step, last, time_left, on_step)
    profile = Profile(state.model_dir, *config.profile, tf.profiler.experimental.start, tf.profiler.experimental.stop)
    at_once, steps_per_eval = config.iterations_per_loop if state.cluster else 1, config.steps_per_eval
    writer = tf.summary.create_file_writer(state.model_dir)
    with closing(progress), closing(profile), record_errors(manifest, "train"), writer.as_default():
        while progress.step < last:
            loop_start, before = time.time(), progress.step
            profile.reached(before)
            # A loop ends at a multiple of steps_per_eval, for the checkpoint there.
            count = min(at_once, last - before, steps_per_eval - before % steps_per_eval)
            loss, ready = state.steps(batches, tf.constant(count))
            progress.add_step(int(state.global_step.numpy()), float(loss), loop_start, float(ready))
            if math.isnan(progress.loss):
                raise nan_loss_error(progress.step, config)
            for name, value in progress.curves(config, before).items():
                tf.summary.scalar(name, value, progress.step)
            # Read once: if it were set between two reads, the run would end without saving.
            stopping = stop.is_set()
            write = functools.partial(manager.save, checkpoint_number=progress.step)
            saver.reached(progress.step, write, now=progress.step == last or stopping)
            if stopping:
                raise Stopped
    return progress.values() | {"train_seconds": time.monotonic() - began}


def evaluate(
    state: TrainState,
    manifest: Manifest,
    config: TrainConfig,
    stop: threading.Event | None = None,
    checkpoint: str | None = None,
) -> Metrics:
    """Returns metrics over every example of config.split, exactly once, at a checkpoint; None for the last one.

    Raises:
      ValueError: For the reasons of tpu_estimator.train.evaluate(), or the batch size is not divisible by the number of
        replicas.
      Stopped: `stop` was set.
    """
    check_evaluable(manifest, config)
    path = checkpoint or str(latest_checkpoint(state.model_dir))
    state.restore_evaluated(path)
    batches = state.batches(make_eval_input_fn(manifest, config.input, config.split), config.eval_batch_size)
    totals: dict[str, tf.Tensor] = {}
    with record_errors(manifest, config.split):
        for _ in range(eval_steps(manifest, config.split, config.eval_batch_size, state.num_hosts)):
            if stop and stop.is_set():
                raise Stopped
            totals = added(totals, state.sums(next(batches)))
    values = {name: value.numpy() for name, value in results(totals).items()} | {"global_step": step_of(path)}
    metrics = counted(values, manifest, config)
    with tf.summary.create_file_writer(f"{state.model_dir}/eval").as_default(metrics.step):
        for name, number in metrics.scalars().items():
            tf.summary.scalar(name, number)
    return metrics
