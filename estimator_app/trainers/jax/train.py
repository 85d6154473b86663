"""One stretch of training, and one evaluation, with JAX; both start from the last checkpoint.

checkpoint of step N ──train()──▶ checkpoint of a later step ──evaluate()──▶ Metrics

With several processes, process 0 calls these; the others take the same steps in follow(), and write nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import jax

from estimator_app.config import TrainConfig
from estimator_app.model.metrics import Metrics
from estimator_app.model.scores import Scores
from estimator_app.model_dir.checkpoints import latest_checkpoint
from estimator_app.model_dir.events import EventFile
from estimator_app.trainers.checkpointing import CheckpointSaver
from estimator_app.trainers.checks import check_evaluable, counted, nan_loss_error, read_dataset
from estimator_app.trainers.interruption import Stopped
from estimator_app.trainers.jax.batches import BatchReader, check_divisible, device_errors, to_devices
from estimator_app.trainers.jax.checkpoints import read_evaluated, restore, save
from estimator_app.trainers.jax.mixing import draw_mixing
from estimator_app.trainers.jax.processes import Group
from estimator_app.trainers.jax.state import JaxRun, make_run
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
    time_left: TimeLeft | None = None,
    saved: Callable[[int], None] = lambda step: None,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> dict[str, float]:
    """Trains from the checkpoint of `step` to `last`; returns columns of history.csv.

    `time_left` is of the run; None makes one for this stretch only. `saved` is called with the step of each checkpoint
    that was written; there is one at each multiple of steps_per_eval. `on_step` is called with the step and its loss
    after each step.

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
    run.group.call("train", step=step, last=last)
    saver = CheckpointSaver(config, step if path else -1, saved)
    saver.reached(step, lambda: save(run, state, step))
    time_left = time_left or TimeLeft.from_config(config, manifest.split(config.split).num_examples)
    progress = Progress.from_config(config, step, last, time_left, on_step)
    events = EventFile(run.model_dir)
    profile = Profile(run.model_dir, *config.profile, jax.profiler.start_trace, jax.profiler.stop_trace)
    steps = _steps(run, state, manifest, step, last)
    with closing(events), closing(progress), closing(profile):
        profile.reached(step)
        with device_errors("--train_batch_size"), closing(steps):
            for result in steps:
                progress.add_step(result.step, result.loss, result.began, result.ready)
                if math.isnan(result.loss):
                    raise nan_loss_error(result.step, run.config)
                if curves := progress.curves(run.config, result.step - 1):
                    events.scalars(result.step, curves)
                # Asked once: if it were set between two questions, the run would end without saving.
                stopping = run.group.is_stopped(stop)
                write = functools.partial(save, run, result.state, result.step)
                saver.reached(result.step, write, now=result.step == last or stopping)
                if stopping:
                    raise Stopped
                if result.step < last:
                    profile.reached(result.step)
    return progress.values() | {"train_seconds": time.monotonic() - began}


class _StepResult(NamedTuple):
    """A step that has been taken.

    Attributes:
      step: Number of steps done with it.
      state: The state after it; the next step uses it up.
      loss: Mean loss of its batch.
      began: Time at which it began, in seconds since 1970.
      ready: Time at which its batch was ready, in seconds since 1970.
    """

    step: int
    state: TrainState
    loss: float
    began: float
    ready: float


def _steps(run: JaxRun, state: TrainState, manifest: Manifest, step: int, last: int) -> Generator[_StepResult]:
    """Yields each step after `step`, up to `last`, when it is done, the same in all processes.

    The state before them is in NumPy arrays; process 0's is taken.
    """
    config, size = run.config, run.group.size
    host_batch = config.train_batch_size // size
    source = TrainSource(
        manifest, config.input, host_batch, host=run.group.index, num_hosts=size, start_step=step, end_step=last
    )
    with closing(BatchReader(source, host_batch, last - step, manifest.path)) as batches:
        state = run.on_devices(state)
        began, batch = time.time(), next(batches)
        on_devices = to_devices(batch, run.mesh)
        while step < last:
            state, loss = run.train_step(state, on_devices, draw_mixing(config, step))
            ready, step = batch.ready, step + 1
            is_ahead = batches.is_ready()
            if is_ahead:  # its way to the devices takes no time while the step runs
                batch = next(batches)
                on_devices = to_devices(batch, run.mesh)
            yield _StepResult(step, state, float(loss), began, ready)  # float() waits for the step
            began = time.time()
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
    run.group.call("evaluate")
    scores = Scores(len(config.classes))
    batches = _evaluated(run, values, manifest, config, stop or threading.Event())
    with device_errors("--eval_batch_size"), closing(batches):
        for results in batches:
            scores.add(jax.device_get(results))
    metrics = counted(scores.results() | {"global_step": step}, manifest, config)
    with closing(EventFile(f"{run.model_dir}/eval")) as events:
        events.scalars(metrics.step, metrics.scalars())
    return metrics


def _evaluated(
    run: JaxRun, values: Mapping[str, Any], manifest: Manifest, config: TrainConfig, stop: threading.Event
) -> Generator[Mapping[str, Any]]:
    """Yields what eval_step finds of all examples of each batch of config.split, the same in all processes.

    The variables are in NumPy arrays; process 0's are taken. When `stop` is set in any process, all raise Stopped.
    """
    size, batch_size = run.group.size, config.eval_batch_size // run.group.size
    source = EvalSource(manifest, run.config.input, batch_size, config.split, run.group.index, size)
    steps = eval_steps(manifest, config.split, config.eval_batch_size, size)
    with closing(BatchReader(source, batch_size, steps, manifest.path)) as batches:
        on_devices = run.on_devices(values)
        for batch in batches:
            if run.group.is_stopped(stop):
                raise Stopped
            yield run.eval_step(on_devices, to_devices(batch, run.mesh))


def follow(group: Group, dataset: str, stop: threading.Event) -> int:
    """Takes part in what process 0 trains and evaluates until its command ends; returns the exit code of that.

    Args:
      group: The processes; this one is not process 0.
      dataset: Folder or URI of the dataset, as this process reaches it.
      stop: Event; when it is set, all processes end after the current step.

    Raises:
      ValueError: The dataset is not process 0's, or an image cannot be decoded.
    """
    for name, arguments in group.calls():
        if name == "make":
            config = dataclasses.replace(TrainConfig.from_json(arguments["config"], "process 0"), dataset=dataset)
            manifest = read_dataset(config)
            if manifest.fingerprint != config.fingerprint:
                raise ValueError(f"{dataset!r} has other content than the dataset of process 0; copy it again")
            run = make_run(config, "")
        elif name == "train":
            with (
                device_errors("--train_batch_size"),
                closing(_steps(run, run.initial(), manifest, **arguments)) as steps,
            ):
                for _ in steps:
                    if run.group.is_stopped(stop):
                        break
        else:
            batches = _evaluated(run, run.initial().evaluated, manifest, run.config, stop)
            with contextlib.suppress(Stopped), device_errors("--eval_batch_size"), closing(batches):
                for _ in batches:
                    pass
    return group.code
