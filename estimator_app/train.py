"""The main loop of a training run: trains to the next evaluation, evaluates, repeats, and exports at the end.

    step 0 ──train──▶ 400 ──evaluate──▶ 400 ──train──▶ 800 ──evaluate──▶ … ──▶ train_steps ──export──▶ metrics.json
                               └─ best so far: export ─ history.csv

Training, by one of the trainers (trainers/registry.py), loads the last checkpoint and resumes the input
pipeline at its step, so that a run that was stopped anywhere and restarted gives the same result as an uninterrupted
one. The next action depends only on the last checkpoint and history.csv.

With --eval=watch or none, training does not stop for evaluations, but saves a checkpoint at the same steps:

    step 0 ──train──▶ train_steps, with checkpoints of steps 400, 800, … for watch.py, which evaluates them meanwhile
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from estimator_app.config import TrainConfig, chosen_input, default_trainer, surprises
from estimator_app.model.published_weights import is_published
from estimator_app.model_dir.checkpoints import NAME, latest_checkpoint, latest_step, prune_checkpoints
from estimator_app.model_dir.exports import check_export_dir
from estimator_app.model_dir.lock import EVAL_LOCK_NAME, claim_lock, locked
from estimator_app.model_dir.plots import write_hyperparameters, write_inputs
from estimator_app.model_dir.run_files import (
    Finished,
    check_free,
    command_for,
    read_started,
    remove_unfinished,
    write_run_config,
)
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
    is_over,
)
from estimator_app.runtime import files
from estimator_app.runtime.host_memory import check_batch
from estimator_app.runtime.tpu import Tpu
from estimator_app.trainers.callbacks import Callback
from estimator_app.trainers.checks import check_split, num_examples, read_shards
from estimator_app.trainers.interruption import Stopped, retry_while_unavailable
from estimator_app.trainers.missing_options import check_options
from estimator_app.trainers.progress import TimeLeft
from estimator_app.trainers.registry import find_trainer
from estimator_app.trainers.starting_weights import TABLE_NAME, published_normalization, starting_weights
from tpu_input import Manifest
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.command_line.paths import absolute, absolute_patterns
from tpu_input.datasets import DatasetLike, as_manifest, version_with
from tpu_input.pipeline.caching import cache_bytes, check_memory
from tpu_input.pipeline.hosts import Host
from tpu_input.storage.labels import check_labels


@checks_arguments
def train(
    dataset: DatasetLike,
    model_dir: str,
    export_dir: str | None = None,
    tpu: Tpu | None = None,
    report: Report = print,
    stop: threading.Event | None = None,
    command: str = "",
    classes: int | Sequence[str] = 1000,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Finished | None:
    """Trains, evaluates and exports, as the command `train` does; resumes the run if model_dir holds one.

    Returns None with eval="watch" while watch() has not evaluated and exported the last step.

    Args:
      dataset: Manifest of the dataset, or its folder or URI.
      model_dir: Folder or URI for checkpoints and all files that model_dir/run_files.py lists.
      export_dir: Folder or URI for SavedModels; None for MODEL_DIR/export.
      tpu: The TPU; None runs on this machine.
      report: Called with each line of progress.
      stop: Event; when it is set, the run ends after the current step, with a checkpoint.
      command: Command line of the user, stored in config.json.
      classes: Names of the classes of another program's TFRecords (option `record`) in label order, or their number.
      callbacks: Called during training.
      options: Fields of TrainConfig and of tpu_input.InputConfig by name, as TrainConfig.of() takes them:
        train_steps=5000, image_size=224.

    Raises:
      ValueError: An option is invalid, or as run().
      OSError: A folder cannot be written.
      Stopped: `stop` was set.
      Moved: The TPU was lost and is back at another address; a new process can resume the run.
    """
    if export_dir and options.get("eval") == "watch":
        raise ValueError("with eval='watch' training makes no exports; give export_dir to the watcher")
    model_dir = absolute(model_dir)
    export_dir = absolute(export_dir) if export_dir else f"{model_dir}/export"
    opened = open_run(dataset, model_dir, classes, options)
    manifest, config = opened.manifest, opened.config
    if opened.is_extended:
        report(
            f"note: {manifest.path!r} was extended after this run began; the run continues with version "
            f"{manifest.version} of {opened.newest.version}, and another --model_dir trains on all images"
        )
    if config.train_steps > config.decay_steps:
        report(
            f"note: the learning rate reaches its final value at step {config.decay_steps} (decay_steps) and "
            "stays constant after it"
        )
    input_line = "" if opened.earlier else chosen_input(config, options, manifest)
    notes = [line for line in (input_line, opened.normalization) if line]
    notes += [f"note: {surprise}" for surprise in surprises(config, manifest)]

    def report_with_notes(line: str) -> None:
        """Reports a line; after the first one, which says that training begins, reports the notes on its input."""
        report(line)
        while notes:
            report(notes.pop(0))

    return run(manifest, config, model_dir, export_dir, tpu, report_with_notes, stop, command, callbacks)


class Opened(NamedTuple):
    """The dataset and the options with which a training begins or resumes.

    Attributes:
      manifest: The dataset in the version of the run, its train split without the hold-out.
      newest: The dataset as it is now.
      config: All options.
      earlier: Options of the run that is resumed; None for a new run.
      normalization: Line that says which normalization a new run takes with published weights, "" if there are none
        or the user has given it.
    """

    manifest: Manifest
    newest: Manifest
    config: TrainConfig
    earlier: TrainConfig | None
    normalization: str

    @property
    def is_extended(self) -> bool:
        """Whether the dataset was extended after the run began."""
        return self.manifest.version != self.newest.version


def open_run(
    dataset: DatasetLike, model_dir: str | None, classes: int | Sequence[str], options: Mapping[str, Any]
) -> Opened:
    """Returns what train() trains on and with; reads, and writes nothing.

    Args:
      dataset: As of train().
      model_dir: Folder or URI of the run; None for a new run.
      classes: As of train().
      options: As of train().

    Raises:
      ValueError: There is no such dataset, or an option is invalid, or one that the trainer does not have.
    """
    earlier = read_started(model_dir) if model_dir else None
    check_options(options.get("trainer") or (earlier.trainer if earlier else default_trainer()), options)
    if record := options.get("record"):
        paths = absolute_patterns(dataset) if isinstance(dataset, str) else dataset
        newest, options = read_shards(paths, record, classes), {**options, "dataset": paths}
    else:
        newest = as_manifest(dataset if isinstance(dataset, Manifest) else absolute(dataset))
    manifest = version_with(newest, earlier.fingerprint) if earlier else newest
    if held_out := options.get("hold_out"):
        manifest = manifest.held_out(held_out)
    normalization = ""
    if not earlier and is_published(options.get("init_from") or ""):
        options, normalization = _with_normalization(options)
    return Opened(manifest, newest, TrainConfig.of(manifest, options, earlier), earlier, normalization)


def _with_normalization(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Returns the options with the mean and std on which the weights of init_from were trained, and a line about them.

    What the user has given stays as it is.
    """
    absent = [name for name in ("mean", "std") if options.get(name) is None]
    if not absent:
        return options, ""
    path = options["init_from"]
    if normalization := published_normalization(path):
        values = {name: getattr(normalization, name) for name in absent}
        flags = " ".join("--{}={:g},{:g},{:g}".format(name, *value) for name, value in values.items())
        return {**options, **values}, f"input: {flags}, of the {normalization.source} of {path}"
    return options, (
        f"note: neither {path} nor a config.json in its folder names the normalization of its training; this run takes "
        "the dataset's. Set it with --mean and --std: ResNets mostly have 123.675,116.28,103.53 and "
        "58.395,57.12,57.375, ViTs 127.5,127.5,127.5 for both"
    )


def run(
    manifest: Manifest,
    config: TrainConfig,
    model_dir: str,
    export_dir: str,
    tpu: Tpu | None = None,
    report: Report = print,
    stop: threading.Event | None = None,
    command: str = "",
    callbacks: Sequence[Callback] = (),
) -> Finished | None:
    """Trains, evaluates and exports; idempotent: work that is already done is not repeated.

    Returns None with config.eval="watch" while watch() has not evaluated and exported the last step.

    Args:
      manifest: Manifest of config.dataset.
      config: Options of the run.
      model_dir: Folder or URI for checkpoints and all files that model_dir/run_files.py lists.
      export_dir: Folder or URI for SavedModels, each in a folder named after the time.
      tpu: The TPU; None runs on this machine.
      report: Called with each line of progress.
      stop: Event; when it is set, the run ends after the current step, with a checkpoint.
      command: Command line of the user, stored in config.json.
      callbacks: Called during training.

    Raises:
      ValueError: A split has no examples, a cache or a batch would not fit into memory, `model_dir` holds another run
        or another process trains there, its checkpoints are damaged, files would be written through a symbolic link,
        the loss is NaN or infinite, there is no TPU, or the dataset has changed.
      OSError: A folder cannot be written.
      Stopped: `stop` was set.
      Moved: The TPU was lost and is back at another address; a new process can resume the run.
    """
    for split in ("train", config.split):
        check_split(manifest, split)
    if config.input.sampling == "balanced":
        check_labels(manifest)
    if config.input.cache and not tpu:  # a TPU's hosts use their own memory, and each caches its share
        check_memory(cache_bytes(manifest, "train", Host(), config.input), config.input)
    if not tpu:
        check_batch("--train_batch_size", config.train_batch_size, config.input.image_size)
        check_batch("--eval_batch_size", config.eval_batch_size, config.input.image_size)
    trainer, stop = find_trainer(config.trainer), stop or threading.Event()
    run = Run(trainer, manifest, config, model_dir, export_dir, report, stop, callbacks=callbacks)
    check_free(model_dir)
    check_export_dir(export_dir)
    files.make_folder(model_dir)
    with locked(model_dir), contextlib.nullcontext() if config.eval == "watch" else locked(model_dir, EVAL_LOCK_NAME):
        if wrong := write_run_config(model_dir, config, command):
            report(f"{wrong}; resuming from step {latest_step(model_dir)}, the newest intact checkpoint")
        if config.eval != "watch":
            files.make_folder(export_dir)  # checks the permission now, not after hours of training
            check_exports(run)
        return completed_run(run) or _wait_and_go_on(dataclasses.replace(run, check_alone=claim_lock(model_dir)), tpu)


def _wait_and_go_on(run: Run, tpu: Tpu | None) -> Finished | None:
    """Completes the run; when the TPU is lost, retries from the last checkpoint."""
    with run.trainer.running():
        if tpu is None:
            return _train_to_end(run, None)
        return retry_while_unavailable(
            lambda: _train_to_end(run, tpu), lambda: latest_step(run.model_dir), run.stop.wait, run.report
        )


def _train_to_end(run: Run, tpu: Tpu | None) -> Finished | None:
    """Completes the run from the last checkpoint on; with --eval=watch, its training.

    Raises:
      Stopped: run.stop was set.
    """
    if run.stop.is_set():
        raise Stopped
    remove_unfinished(run.model_dir)
    initial, step = _starting_weights(run), latest_step(run.model_dir)
    state = run.trainer.make(run.config, run.model_dir, tpu and tpu.connect(), initial)
    if not is_over(step, run):
        _announce(run, step, run.trainer.devices(state))
    trained: dict[str, float] = {}
    time_left = TimeLeft.from_config(run.config, num_examples(run.manifest, run.config.split))
    drawing = Drawing()
    last_saved = step if latest_checkpoint(run.model_dir) else -1

    def saved(step: int) -> None:
        """Does at a checkpoint what an inline run does between two stretches, and calls the callbacks."""
        nonlocal last_saved
        if step <= last_saved:  # TPUEstimator writes the same checkpoint again when a stretch begins or ends with it
            return
        last_saved = step
        for callback in run.callbacks:
            callback.on_checkpoint(step, f"{run.model_dir}/{NAME}-{step}")
        if run.config.eval == "watch":
            prune_checkpoints(run.model_dir, run.evaluated, run.config.steps_per_eval)
        if run.config.eval != "inline" and step % run.config.steps_per_eval == 0:
            run.check_alone()
            run.check_dataset()

    def on_step(step: int, loss: float) -> None:
        for callback in run.callbacks:
            callback.on_step(step, loss)

    evaluates = run.config.eval != "watch"
    while not is_over(step, run) or (evaluates and not is_evaluated(step, run)):
        run.check_alone()
        if evaluates and step and is_due(step, run) and not is_evaluated(step, run):
            evaluate_and_keep(run, state, trained)
            drawing.evaluated(run)
        else:
            # On a TPU, TPUEstimator's loops of steps end at a multiple of steps_per_eval only if training ends there.
            through = run.config.eval != "inline" and not (tpu and run.config.trainer == "tpu_estimator")
            every = run.config.train_steps if through else run.config.steps_per_eval
            next_step = next_stop(step, every, run.config.train_steps)
            trained = run.trainer.train(
                state, run.manifest, run.config, step, next_step, run.stop, time_left, saved, on_step
            )
            step = next_step
    run.check_alone()
    if not evaluates:
        run.check_dataset()
        run.report(
            f"trained and saved step {step}/{run.config.train_steps}; to evaluate and export: "
            f"{command_for('watch', run.model_dir)}"
        )
        return None
    return finish(run, step)


def next_stop(step: int, steps_per_eval: int, train_steps: int) -> int:
    """Returns the step of the next evaluation: a multiple of `steps_per_eval`, or the last."""
    return min((step // steps_per_eval + 1) * steps_per_eval, train_steps)


def _starting_weights(run: Run) -> Mapping[str, Any] | None:
    """Returns the weights of --init_from for a run without a checkpoint, and writes the table of what was taken."""
    if not run.config.init_from or latest_checkpoint(run.model_dir):
        return None
    weights = starting_weights(run.config)
    path = f"{run.model_dir}/{TABLE_NAME}"
    files.write(path, weights.to_csv())
    run.report(f"initial weights: {weights}; {path}")
    return weights.values


def _announce(run: Run, step: int, devices: str) -> None:
    run.report(
        f"{'resuming' if step else 'training'} {run.config.network} at step {step}/{run.config.train_steps}: "
        f"{num_examples(run.manifest, 'train')} images of {len(run.config.classes)} classes"
        + (f", on {devices}" if devices else "")
    )
    if not step:
        write_inputs(run.model_dir, run.manifest, run.config.input)
        write_hyperparameters(run.model_dir, run.config)
