"""The functions that run the commands; TensorFlow-dependent modules are imported only when a command runs.

train: dataset ──▶ MODEL_DIR ──export──▶ EXPORT_DIR/… ──▶ predict: files → classes
└──────evaluate──────┘
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import os
import re
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from estimator_app.preflight.compiler import Compiler, default_python
from estimator_app.preflight.findings import FAILS, NO_COMPILER, Finding, Part, conclusion
from estimator_app.runtime import missing_paths
from estimator_app.runtime.tensorflow_startup import require_estimator
from estimator_app.runtime.topologies import Topology, find_topology
from estimator_app.runtime.tpu import Tpu, check_paths
from estimator_app.trainers.interruption import Moved, Stop, Stopped, on_signals
from tpu_input.command_line import failed, note, print_failure, print_line, to_json
from tpu_input.command_line.streams import check_printed, stdout_is_lost
from tpu_input.command_line.text_files import read_lines
from tpu_input.dataset_format.class_names import class_table
from tpu_input.dataset_format.record_spec import parse_record
from tpu_input.storage.patterns import is_pattern

if TYPE_CHECKING:
    from estimator_app.config import TrainerName
    from estimator_app.model_dir.run_files import Finished
    from estimator_app.trainers.jax.processes import Group


def check(arguments: argparse.Namespace) -> None:
    """Checks the flags for errors that can be found before anything slow is done.

    Raises:
      ValueError: The flags contradict each other, or a TPU cannot open a path.
      ImportError: They ask for TPUEstimator, which the installed TensorFlow does not have.
    """
    tpu_flags = [f"--{name}" for name in ("tpu", "tpu_zone", "gcp_project") if vars(arguments).get(name)]
    if tpu_flags and not arguments.use_tpu:
        raise ValueError(f"{tpu_flags[0]} has no effect without --use_tpu; add --use_tpu, or leave out {tpu_flags[0]}")
    if vars(arguments).get("use_tpu") and trainer_of(arguments) == "jax":
        raise ValueError(
            "--trainer=jax takes no --use_tpu: JAX finds the TPU of its machine itself; leave it out, or use "
            "--trainer=tf_distribute"
        )
    if arguments.command is train:
        process_flags = [f"--{name}" for name in _PROCESS_FLAGS if vars(arguments)[name] is not None]
        if process_flags and (trainer := trainer_of(arguments)) != "jax":
            raise ValueError(f"{process_flags[0]} is for --trainer=jax, but this run has --trainer={trainer}")
    if arguments.command is evaluate:
        _check_evaluated(arguments)
    if arguments.command is predict:
        _check_predicted(arguments)
    if arguments.command in (evaluate, export) and arguments.step is not None and arguments.checkpoint:
        raise ValueError("--step and --checkpoint both select a checkpoint; use only one of them")
    if arguments.command is preflight:
        _check_preflight(arguments)
    if vars(arguments).get("trainer") == "tpu_estimator":
        require_estimator()
    # For a prediction, this machine reads all files, and sends images.
    if arguments.command not in (preflight, predict) and (tpu := _tpu(arguments)) and tpu.is_remote:
        paths = {name: vars(arguments).get(name) for name in ("dataset", "model_dir")}
        check_paths({f"--{name}": path for name, path in paths.items() if path is not None})


def trainer_of(arguments: argparse.Namespace) -> TrainerName:
    """Returns the trainer whose framework a command needs for its run or export; imports no framework.

    Returns the default trainer if the run or export is unreadable; the command reports why.
    """
    from estimator_app.config import default_trainer
    from estimator_app.model_dir.exports import STABLEHLO_NAME, program_name
    from estimator_app.model_dir.run_files import CONFIG_NAME, read_config
    from estimator_app.runtime import files
    from estimator_app.saved_model.find import find_export

    values = vars(arguments)
    if values.get("format") == "saved_model":  # which TensorFlow writes, of a run of jax too
        return "tf_distribute"
    with contextlib.suppress(ValueError, OSError):
        if values.get("export_dir") and arguments.command in (evaluate, predict):
            return "jax" if program_name(find_export(arguments.export_dir)) == STABLEHLO_NAME else "tf_distribute"
        if values.get("model_dir") and files.exists(f"{arguments.model_dir}/{CONFIG_NAME}"):
            return values.get("trainer") or read_config(arguments.model_dir).trainer
    return values.get("trainer") or default_trainer()


def check_existence(arguments: argparse.Namespace) -> None:
    """Raises ValueError for a local path that does not exist, and a wrong --classes or --record.

    The folder of a watcher's run is not looked for: the watcher may be started first.
    """
    values = vars(arguments)
    if values.get("classes"):
        _classes(arguments)
    if values.get("record"):
        parse_record(arguments.record)
    if values.get("dataset"):
        has_shards = values.get("record") or is_pattern(arguments.dataset)
        check = missing_paths.check_shards if has_shards else missing_paths.check_dataset
        check(arguments.dataset)
    if values.get("init_from") and not (arguments.model_dir and missing_paths.may_exist(arguments.model_dir)):
        missing_paths.check_weights(arguments.init_from)
    if values.get("checkpoint"):
        missing_paths.check_checkpoint(arguments.checkpoint)
    if arguments.command in (evaluate, export, predict) and arguments.model_dir:
        missing_paths.check_run(arguments.model_dir)
    if arguments.command in (evaluate, predict) and arguments.export_dir:
        missing_paths.check_export(arguments.export_dir)
    missing_paths.check_images(values.get("files") or ())


def train(arguments: argparse.Namespace) -> int:
    """Trains to the end, evaluates and exports; resumes from the last checkpoint if there is one."""
    from estimator_app.model_dir.checkpoints import latest_step
    from estimator_app.model_dir.run_files import read_config
    from estimator_app.train import train

    model_dir, command = arguments.model_dir, _command(arguments.argv)
    tpu, options, finished = _tpu(arguments), _options(arguments), None
    with _stoppable(arguments, "resuming") as stop:
        try:
            with _processes(arguments) as group:
                if group and group.index:
                    from estimator_app.trainers.jax.train import follow

                    return follow(group, arguments.dataset, stop)
                places = (_dataset(arguments), model_dir, arguments.export_dir)
                repeated = _command(without_process_flags(arguments.argv))
                finished = train(*places, tpu, _reporter(arguments), stop, repeated, _classes(arguments), **options)
        except Stopped:
            steps = read_config(model_dir).train_steps
            stopped = f"stopped and saved at step {latest_step(model_dir)}/{steps}; resume with: {command}"
            return _stopped(arguments, stopped, stop.number)
    _print_finished(arguments, finished)
    return 0


_PROCESS_FLAGS = ("coordinator_address", "num_processes", "process_id")
# What may differ between the processes of a run; of the dataset, its content is compared.
_FLAGS_OF_ONE_PROCESS = {"command", "argv", "coordinator_address", "process_id", "initialization_timeout", "dataset"}
_FLAGS_OF_ONE_PROCESS |= {"verbose", "quiet", "json", "log_file"}


def _processes(arguments: argparse.Namespace) -> contextlib.AbstractContextManager[Group | None]:
    """Returns the context manager of a run's processes, which yields None for other trainers than jax."""
    if trainer_of(arguments) != "jax":
        return contextlib.nullcontext()
    from estimator_app.model.keras_library import require_backend
    from estimator_app.model_dir.run_files import versions

    require_backend("jax")
    from estimator_app.trainers.jax.processes import find_place, joined

    flags = {f"--{name}": value for name, value in vars(arguments).items() if name not in _FLAGS_OF_ONE_PROCESS}
    place = find_place(*(vars(arguments)[name] for name in _PROCESS_FLAGS))
    report = functools.partial(failed, arguments.argv)
    return joined(place, flags | versions("jax"), arguments.initialization_timeout, report)


def _reporter(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Returns what is called with each line of a run: it prints on stdout, or with --json on stderr."""
    if arguments.quiet:
        return note
    return warn if arguments.json else say


def _stopped(arguments: argparse.Namespace, line: str, signal_number: int | None) -> int:
    """Reports that a run was stopped by a signal; returns the exit code."""
    _reporter(arguments)(line)
    print_failure(arguments.argv, line)
    return 128 + (signal_number or 0)


def _print_predictions(arguments: argparse.Namespace, path: str) -> None:
    say(to_json({"predictions": path}) if arguments.json else f"predictions: {path}")


def _print_finished(arguments: argparse.Namespace, finished: Finished | None) -> None:
    """Prints what a run resulted in, where its lines have not shown that; None if another process evaluates it."""
    from estimator_app.model_dir.run_files import read_config

    fields: dict[str, Any] = {"model_dir": arguments.model_dir}
    if finished:
        fields |= finished.metrics.to_fields(read_config(arguments.model_dir).classes) | {"export": finished.export}
    if arguments.json:
        say(to_json(fields))
    elif arguments.quiet and finished:
        say(f"step {finished.metrics.step}: {finished.metrics}")
        say(f"export: {finished.export}")


def watch(arguments: argparse.Namespace) -> int:
    """Evaluates the checkpoints of a training with --eval=watch, and exports, until the run is complete."""
    from estimator_app.watch import watch

    tpu, command = _tpu(arguments), _command(arguments.argv)
    places, finished = (arguments.model_dir, arguments.export_dir), None
    with _stoppable(arguments, "continuing") as stop:
        try:
            report = _reporter(arguments)
            finished = watch(*places, arguments.network, tpu, report, stop, arguments.poll_seconds)
        except Stopped:
            return _stopped(arguments, f"stopped; resume with: {command}", stop.number)
    _print_finished(arguments, finished)
    return 0


def _dataset(arguments: argparse.Namespace) -> Any:
    """Returns the dataset that the flags name: its path, or the manifest of one of its versions.

    Raises:
      ValueError: It has no such version, or --version is without --dataset.
    """
    from tpu_input import read_manifest

    if vars(arguments).get("record"):
        if arguments.version is not None:
            raise ValueError("--version needs a dataset with a manifest; leave it out with --record")
        return arguments.dataset
    if arguments.version is None:
        return arguments.dataset
    if arguments.dataset is None:
        raise ValueError("--version selects a version of --dataset; name the dataset, too")
    return read_manifest(arguments.dataset, arguments.version)


def _classes(arguments: argparse.Namespace) -> int | list[str]:
    """Returns the classes of other programs' TFRecords: their number, or their names, of the lines of a file.

    Raises:
      ValueError: The file cannot be read, or --classes is without --record.
    """
    if arguments.classes is None:
        return 1000
    if not arguments.record:
        raise ValueError("--classes is for --record; a dataset's own manifest has its classes")
    if arguments.classes.isdecimal():
        return int(arguments.classes)
    try:
        lines = read_lines(arguments.classes)
    except (OSError, ValueError) as error:
        raise ValueError(f"--classes={arguments.classes} is neither a number nor a file of names: {error}") from error
    while lines and not lines[-1].strip():
        lines.pop()
    return list(class_table(lines, f"--classes={arguments.classes}"))


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of a training run but its dataset, by name, with those that --service implies."""
    from estimator_app.config import config_options

    # Only runs with the same job name share the batches of a service. It gives the next batch to whichever host asks
    # first, so the order is not deterministic.
    service_options = {"service_job": arguments.model_dir or "", "deterministic": False} if arguments.service else {}
    flags = {name: value for name, value in vars(arguments).items() if name != "dataset"}
    return config_options(flags) | {"epochs": arguments.epochs} | service_options


def evaluate(arguments: argparse.Namespace) -> int:
    """Prints the metrics of a checkpoint or an export."""
    from estimator_app.evaluate import evaluate

    names = ("split", "eval_batch_size", "step", "checkpoint", "network")
    metrics, classes = evaluate(
        arguments.model_dir,
        arguments.export_dir,
        dataset=_dataset(arguments),
        tpu=_tpu(arguments),
        **{name: getattr(arguments, name) for name in names},
    )
    say(to_json(metrics.to_fields(classes)) if arguments.json else f"step {metrics.step}: {metrics}")
    check_printed()
    return 0


def _check_evaluated(arguments: argparse.Namespace) -> None:
    """Raises ValueError if the flags name both a model_dir and an export or neither, or do not belong together."""
    models = [name for name in ("export_dir", "model_dir") if vars(arguments)[name]]
    if len(models) != 1:
        raise ValueError(f"evaluate needs --model_dir or --export_dir, got {'both' if models else 'neither'}")
    model_dir_flags = [f"--{name}" for name in ("step", "checkpoint", "network", "use_tpu") if vars(arguments)[name]]
    if arguments.export_dir and model_dir_flags:
        raise ValueError(f"{model_dir_flags[0]} can be used only with --model_dir, not with --export_dir")


def export(arguments: argparse.Namespace) -> int:
    """Exports a checkpoint."""
    from estimator_app.export import export

    names = ("model_dir", "export_dir", "step", "checkpoint", "network", "export_to_tpu", "format")
    path = export(**{name: getattr(arguments, name) for name in names})
    say(to_json({"export": path}) if arguments.json else f"export: {path}")
    return 0


def predict(arguments: argparse.Namespace) -> int:
    """Prints one line per image file; returns 1 when one could not be classified or there was none.

    With --dataset, writes a file of predictions instead.
    """
    if arguments.dataset:
        from estimator_app.predict_dataset import predict_dataset

        names = ("export_dir", "model_dir", "split", "batch_size", "features", "step", "network")
        options = {name: getattr(arguments, name) for name in names}
        places, report = (_dataset(arguments), arguments.output), _reporter(arguments)
        path = predict_dataset(*places, tpu=_tpu(arguments), report=report, **options)
        _print_predictions(arguments, path)
        return 0
    from estimator_app.predict import image_files, predict, write
    from estimator_app.saved_model.classifier import load_classifier

    classifier, skipped = load_classifier(arguments.export_dir or arguments.model_dir), Counter[str]()
    files = image_files(arguments.files, skipped)
    results = predict(classifier, files, arguments.batch_size, arguments.top)
    results = itertools.takewhile(lambda _: not stdout_is_lost(), results)
    is_table = sys.stdout.isatty() and not arguments.json
    classified, failed = write(results, classifier.classes, is_table, say, warn)
    if skipped:
        warn("skipped in folders: " + ", ".join(f"{count} named *{ending}" for ending, count in skipped.items()))
    if not classified and not failed:
        warn(f"no image files in {', '.join(arguments.files)}")
    check_printed()
    return 0 if classified and not failed else 1


def _check_predicted(arguments: argparse.Namespace) -> None:
    """Raises ValueError if the flags do not name either files or a dataset, and a model for them."""
    values = vars(arguments)
    model = "--export_dir or --model_dir"
    if arguments.export_dir and arguments.model_dir:
        raise ValueError("predict takes --export_dir or --model_dir, got both")
    if arguments.dataset is None:
        dataset_flags = ("output", "split", "version", "features", "step", "network", "use_tpu")
        if misplaced := [f"--{name}" for name in dataset_flags if values[name] not in (None, False)]:
            raise ValueError(f"{misplaced[0]} can be used only with --dataset")
        needed = {model: arguments.export_dir or arguments.model_dir, "FILE": arguments.files}
    else:
        if arguments.files or arguments.top != 1:
            raise ValueError(f"{'FILE' if arguments.files else '--top'} cannot be used with --dataset")
        run_flags = [f"--{name}" for name in ("features", "step", "network") if values[name] is not None]
        if run_flags and not arguments.model_dir:
            raise ValueError(f"{run_flags[0]} needs --model_dir, as an export has only its probabilities")
        if arguments.use_tpu and not arguments.model_dir:
            raise ValueError("--use_tpu needs --model_dir, as an export runs on this machine")
        needed = {"--output": arguments.output, model: arguments.export_dir or arguments.model_dir}
    if missing := [name for name, value in needed.items() if not value]:
        raise ValueError(f"the following arguments are required: {', '.join(missing)}")


def folds(arguments: argparse.Namespace) -> int:
    """Trains a model without each split of a dataset, and writes the predictions of that split with it."""
    from estimator_app.predict_dataset import predict_folds

    tpu, command, options = _tpu(arguments), _command(arguments.argv), _options(arguments)
    with _stoppable(arguments, "continuing") as stop:
        try:
            places = (_dataset(arguments), arguments.output, arguments.model_dir)
            report = _reporter(arguments)
            path = predict_folds(*places, batch_size=arguments.batch_size, tpu=tpu, report=report, stop=stop, **options)
        except Stopped:
            return _stopped(arguments, f"stopped; resume with: {command}", stop.number)
    _print_predictions(arguments, path)
    return 0


def preflight(arguments: argparse.Namespace) -> int:
    """Prints whether a training would run on a TPU, and how; returns 1 when something would fail."""
    from estimator_app.config import chosen_input
    from estimator_app.model_dir.checkpoints import latest_step
    from estimator_app.preflight.preflight import check_runtime, preflight
    from estimator_app.train import open_run
    from estimator_app.trainers.registry import find_trainer

    topology = find_topology(arguments.topology)
    if arguments.jax_step:
        return _preflight_jax_step(arguments, topology)
    options = _options(arguments)
    opened = open_run(_dataset(arguments), arguments.model_dir, _classes(arguments), options)
    manifest, config, earlier = opened.manifest, opened.config, opened.earlier
    input_line = "" if earlier else chosen_input(config, options, manifest)
    trained = latest_step(arguments.model_dir) if earlier else 0
    differences = earlier.differences(config, trained) if earlier else []
    advice = "use another --model_dir, or repeat the options of its run"
    findings = tuple(Finding(FAILS, f"its {difference}", advice) for difference in differences)
    run_part = [Part("model_dir", findings)] if findings else []
    make_checks = find_trainer(config.trainer).checks
    python = arguments.compiler or make_checks.compiler_python()
    parts: list[Part] = []
    with tempfile.TemporaryDirectory() as folder:
        checks = make_checks(manifest, config, topology, folder)
        _tell(arguments, f"{config.network} by {config.trainer} on {topology}, batches of {config.train_batch_size:,}")
        for line in filter(None, (input_line, opened.normalization)):
            _tell(arguments, line)
        runtime = check_runtime(checks, _tpu(arguments), arguments.dataset, arguments.model_dir, arguments.export_dir)
        looked = preflight(checks, Compiler(python, topology) if python else None, arguments.largest_batch)
        for part in itertools.chain(run_part, [runtime], looked):
            parts.append(part)
            _tell(arguments, f"\n{part}")
    sizes = {"image_size": config.input.image_size, "crop_area": config.input.crop_area}
    return _end_preflight(arguments, topology, parts, sizes)


def _preflight_jax_step(arguments: argparse.Namespace, topology: Topology) -> int:
    from estimator_app.preflight.compile import check_jax_step

    python = arguments.compiler or default_python()
    compiler = Compiler(python, topology) if python else None
    part = check_jax_step(compiler, arguments.jax_step) if compiler else Part("compile", (NO_COMPILER,))
    _tell(arguments, f"{arguments.jax_step} on {topology}\n\n{part}")
    return _end_preflight(arguments, topology, [part], {})


def _tell(arguments: argparse.Namespace, text: str) -> None:
    """Prints lines for people; nothing with --json."""
    for line in text.split("\n") if not arguments.json else ():
        say(line)


def _end_preflight(
    arguments: argparse.Namespace, topology: Topology, parts: Sequence[Part], sizes: dict[str, Any]
) -> int:
    """Prints the conclusion, or with --json all parts and the sizes; returns the exit code."""
    _tell(arguments, f"\n{conclusion(parts)}")
    fails = any(part.fails for part in parts)
    if arguments.json:
        fields = {"topology": topology.name, "fails": fails, **sizes}
        say(to_json(fields | {"parts": [dataclasses.asdict(part) for part in parts]}))
    return int(fails)


def _check_preflight(arguments: argparse.Namespace) -> None:
    """Raises ValueError if the flags name neither a dataset nor a step in JAX, or both, or a compiler that is none."""
    if arguments.jax_step and arguments.dataset:
        raise ValueError("preflight takes --dataset or --jax_step, got both")
    if not arguments.jax_step and not arguments.dataset:
        raise ValueError("the following arguments are required: --dataset")
    if arguments.jax_step and not re.fullmatch(r"\w[\w.]*:\w+", arguments.jax_step):
        raise ValueError(f"--jax_step must name a function as package.module:function, got {arguments.jax_step!r}")
    topology = find_topology(arguments.topology)
    if arguments.compiler:
        arguments.compiler = os.path.abspath(arguments.compiler)
        Compiler(arguments.compiler, topology)  # checks it


def _tpu(arguments: argparse.Namespace) -> Tpu | None:
    """Returns the TPU of the flags; None if a command uses none."""
    uses_tpu = vars(arguments).get("use_tpu")
    return Tpu(arguments.tpu, arguments.tpu_zone, arguments.gcp_project) if uses_tpu else None


def _command(argv: Sequence[str]) -> str:
    """Returns the command line as a shell command."""
    return shlex.join(["jpeg2tpu", *argv])


def without_process_flags(argv: Sequence[str]) -> list[str]:
    """Returns the arguments without those that differ between the processes of a run, or count them."""
    names = "|".join((*_PROCESS_FLAGS, "initialization_timeout"))
    words = list(argv)
    for number in reversed([number for number, word in enumerate(words) if re.fullmatch(f"--({names})(=.*)?", word)]):
        del words[number : number + (1 if "=" in words[number] else 2)]
    return words


@contextlib.contextmanager
def _stoppable(arguments: argparse.Namespace, verb: str) -> Iterator[Stop]:
    """Yields the event of a signal; if the TPU is back at another address, a new process takes this one's place."""
    with on_signals() as stop:
        try:
            yield stop
        except Moved as moved:
            say(f"{moved}; {verb} in a new process")
            _restart(arguments.argv)


def _restart(argv: Sequence[str]) -> None:
    """Replaces this process by a new one of the same command.

    Python looks for modules first in the folder of a script, but in the current folder with -m; so the script jpeg2tpu
    is started again as the script that it is.
    """
    script = [sys.argv[0]] if os.path.basename(sys.argv[0]) == "jpeg2tpu" else ["-m", "jpeg2tpu"]
    os.execv(sys.executable, [sys.executable, *script, *argv])


def say(line: str) -> None:
    """Prints one line of output on stdout, with control characters escaped."""
    print_line(line)


def warn(line: str) -> None:
    """Prints one line of a warning or an error on stderr, with control characters escaped."""
    print_line(line, sys.stderr)
