"""One stretch of training, and one evaluation, with JAX; both start from the last checkpoint.

checkpoint of step N ──train()──▶ checkpoint of a later step ──evaluate()──▶ Metrics
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable
from contextlib import closing

import jax

from estimator_app.config import TrainConfig
from estimator_app.model.metrics import Metrics
from estimator_app.model.scores import Scores
from estimator_app.model_dir.checkpoints import latest_checkpoint
from estimator_app.model_dir.events import EventFile
from estimator_app.trainers.checkpointing import CheckpointSaver
from estimator_app.trainers.checks import check_evaluable, counted, no_number
from estimator_app.trainers.interruption import Stopped
from estimator_app.trainers.jax.batches import BatchReader, check_divisible, device_errors, to_devices
from estimator_app.trainers.jax.checkpoints import read_evaluated, restore, save
from estimator_app.trainers.jax.mixing import draw_mixing
from estimator_app.trainers.jax.state import JaxRun
from estimator_app.trainers.jax.step import TrainState
from estimator_app.trainers.profile import Profile
from estimator_app.trainers.progress import Progress, TimeLeft
from tpu_input import EvalSource, Manifest, TrainSource, eval_steps


def train(
    run: JaxRun,
    manifest: Manifest,
    config: TrainConfig,
    step: int,
    last: int,
    stop: threading.Event,
    left: TimeLeft | None = None,
    saved: Callable[[int], None] = lambda step: None,
    took: Callable[[int, float], None] = lambda step, loss: None,
) -> dict[str, float]:
    """Trains from the checkpoint of `step` to `last`; returns columns of history.csv.

    `left` is the TimeLeft of the run; None makes one for this stretch only. `saved` is called with the step of each
    checkpoint that was written; there is one at each multiple of steps_per_eval. `took` is called with the step and its
    loss after each step.

    Raises:
      ValueError: The loss is NaN, an image cannot be decoded, or the checkpoint is of another network.
      Stopped: `stop` was set.
    """
    began = time.monotonic()
    check_divisible("--train_batch_size", config.train_batch_size, run.mesh)
    if config.eval != "watch":
        check_divisible("--eval_batch_size", config.eval_batch_size, run.mesh)
    path = latest_checkpoint(run.model_dir)
    state = restore(run, path) if path else run.initial()
    saver = CheckpointSaver(config, step if path else -1, saved)
    saver.reached(step, lambda: save(run, state, step))
    left = left or TimeLeft.of(config, manifest.split(config.split).num_examples)
    progress = Progress.of(config, step, last, left, took)
    events = EventFile(run.model_dir)
    profile = Profile(run.model_dir, *config.profile, jax.profiler.start_trace, jax.profiler.stop_trace)
    try:
        with device_errors("--train_batch_size"), closing(_training_batches(run, manifest, step, last)) as batches:
            _train_to(run, state, batches, progress, events, profile, last, stop, saver)
    finally:
        profile.close()
        progress.close()
        events.close()
    return progress.values() | {"train_seconds": time.monotonic() - began}


def _training_batches(run: JaxRun, manifest: Manifest, step: int, last: int) -> BatchReader:
    """Returns this process' parts of the batches of the steps from `step` to before `last`."""
    hosts, own = jax.process_count(), run.config.train_batch_size // jax.process_count()
    source = TrainSource(
        manifest, run.config.input, own, host=jax.process_index(), num_hosts=hosts, start_step=step, end_step=last
    )
    return BatchReader(source, own, last - step, manifest.path)


def _train_to(
    run: JaxRun,
    state: TrainState,
    batches: BatchReader,
    progress: Progress,
    events: EventFile,
    profile: Profile,
    last: int,
    stop: threading.Event,
    saver: CheckpointSaver,
) -> None:
    """Trains up to `last`, step by step."""
    began, batch = time.time(), next(batches)
    on_devices = to_devices(batch, run.mesh)
    while progress.step < last:
        profile.reached(progress.step)
        state, of_step = run.train_step(state, on_devices, draw_mixing(run.config, progress.step))
        ready, step = batch.ready, progress.step + 1
        is_ahead = batches.is_ready()
        if is_ahead:  # its way to the devices takes no time while the step runs
            batch = next(batches)
            on_devices = to_devices(batch, run.mesh)
        loss = float(of_step)  # waits for the step
        progress.took(step, loss, began, ready)
        began = time.time()
        if math.isnan(loss):
            raise no_number(step, run.config)
        if curves := progress.curves(run.config, step - 1):
            events.scalars(step, curves)
        # Read once: if it were set between two reads, the run would end without saving.
        stopping = stop.is_set()
        saver.reached(step, functools.partial(save, run, state, step), now=step == last or stopping)
        if stopping:
            raise Stopped
        if not is_ahead and step < last:
            batch = next(batches)
            on_devices = to_devices(batch, run.mesh)


def evaluate(
    run: JaxRun,
    manifest: Manifest,
    config: TrainConfig,
    stop: threading.Event | None = None,
    checkpoint: str | None = None,
) -> Metrics:
    """Returns metrics over every example of config.split, exactly once, at a checkpoint; None for the last one.

    Raises:
      ValueError: The dataset has other classes or fewer examples than it states, an image cannot be decoded, the
        checkpoint is of another network, or the loss is NaN or infinite.
      Stopped: `stop` was set.
    """
    check_evaluable(manifest, config)
    check_divisible("--eval_batch_size", config.eval_batch_size, run.mesh)
    path = checkpoint or str(latest_checkpoint(run.model_dir))
    values, step = read_evaluated(run.config, run.variables, path)
    values = run.on_devices(values)
    hosts, own = jax.process_count(), config.eval_batch_size // jax.process_count()
    source = EvalSource(manifest, run.config.input, own, config.split, jax.process_index(), hosts)
    steps = eval_steps(manifest, config.split, config.eval_batch_size, hosts)
    scores = Scores(len(config.classes))
    with device_errors("--eval_batch_size"), closing(BatchReader(source, own, steps, manifest.path)) as batches:
        for batch in batches:
            if stop and stop.is_set():
                raise Stopped
            scores.add(jax.device_get(run.eval_step(values, to_devices(batch, run.mesh))))
    metrics = counted(scores.results() | {"global_step": step}, manifest, config)
    events = EventFile(f"{run.model_dir}/eval")
    events.scalars(metrics.step, metrics.scalars())
    events.close()
    return metrics
