"""Command line: train, watch, evaluate, export, predict, folds, preflight. All flags are defined in this module.

    train: dataset ──▶ MODEL_DIR (config.json, checkpoints, metrics.json) ──▶ EXPORT_DIR/… ──▶ predict: files → classes

TensorFlow is imported after the flags are parsed, so that --help and usage errors respond immediately, and so that its
log messages can be turned off first.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from estimator_app import commands
from estimator_app.config import TrainConfig, read_recipe
from estimator_app.model.keras_library import choose_backend, leave_out_unused_parts, uses_tensorflow
from estimator_app.model.network_names import is_users
from estimator_app.model_dir.exports import FORMATS
from estimator_app.runtime.tensorflow_startup import import_tensorflow, one_line, user_error_types
from tpu_input.command_line import Parser
from tpu_input.command_line.dataclass_options import Flag, add_flags, field_types
from tpu_input.command_line.jpeg2tpu import AddFlag, add_command
from tpu_input.command_line.paths import absolute, absolute_patterns
from tpu_input.command_line.program import place_of, run_program
from tpu_input.config import INPUT_FLAGS, InputConfig


def _optional_path(text: str) -> str:
    return absolute(text) if text else ""  # argparse parses defaults that are text, too


_Number = TypeVar("_Number", int, float)


def _numbers(kind: Callable[[str], _Number], count: int, description: str) -> Callable[[str], tuple[_Number, ...]]:
    """Returns the parser of a flag of several numbers."""

    def parse(text: str) -> tuple[_Number, ...]:
        try:
            values = tuple(map(kind, text.split(",")))
        except ValueError:
            values = ()
        if len(values) != count:
            raise argparse.ArgumentTypeError(f"must be {description}, got {text!r}")
        return values

    return parse


_EXAMPLES = {
    "train": "--dataset=shards --model_dir=model --image_size=224 --train_steps=5000",
    "watch": "--model_dir=model",
    "evaluate": "--model_dir=model --split=train",
    "export": "--model_dir=model",
    "predict": "--export_dir=model/export photo.jpg",
    "folds": "--dataset=folds --model_dir=models --output=predictions.parquet --train_steps=5000",
    "preflight": "--dataset=shards --topology=v5e:2x2 --network=resnet50 --train_batch_size=1024",
}
_RUN = ("--config", "--network", "--init_from", "--image_size", "--train_batch_size", "--train_steps", "--epochs")
# What --help shows next to the required options; None for all of a command's own.
_EVERYDAY: dict[str, tuple[str, ...] | None] = {
    "train": (*_RUN, "--learning_rate", "--augment", "--use_tpu"),
    "watch": ("--export_dir", "--network", "--poll_seconds", "--use_tpu"),
    "evaluate": ("--model_dir", "--export_dir", "--dataset", "--split", "--step", "--eval_batch_size", "--use_tpu"),
    "export": None,
    "predict": (
        *("--export_dir", "--top", "--batch_size"),
        *("--dataset", "--split", "--output", "--model_dir", "--use_tpu"),
    ),
    "folds": (*_RUN, "--learning_rate", "--augment", "--use_tpu"),
    "preflight": (
        *("--dataset", "--trainer", "--network", "--image_size", "--train_batch_size", "--model_dir"),
        *("--jax_step", "--compiler", "--largest_batch"),
    ),
}
Group = Callable[[str], AddFlag]  # from the title of a group to the function that adds an option to it


def make_parser(recipe: Mapping[str, Any] | None = None) -> Parser:
    """Returns the parser of all commands; each sets `command` to the function that runs it.

    Args:
      recipe: Options of --config, which become the defaults of the flags.
    """
    parser = Parser(prog="jpeg2tpu", description="Trains and serves an image classifier.")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def add(run: Callable[[argparse.Namespace], int], *parts: Callable[[Group], None]) -> None:
        name = run.__name__
        command = add_command(subparsers, name, _EXAMPLES[name], everyday=_EVERYDAY[name])
        command.set_defaults(command=run)
        group = functools.cache(lambda title: command.add_argument_group(title).add_argument)
        if _train_flags in parts:
            for title in _TRAIN_GROUPS:  # in the order of the help
                group(title)
        for part in parts:
            part(group)
        if {_train_flags, _preflight_train_flags} & {*parts}:
            command.set_defaults(**recipe or {})

    add(commands.train, _run_flags, _train_flags, _process_flags, _tpu_flags)
    add(commands.watch, _watch_flags, _tpu_flags)
    add(commands.evaluate, _evaluate_flags, _tpu_flags)
    add(commands.export, _export_flags)
    add(commands.predict, _predict_flags, _tpu_flags)
    add(commands.folds, _folds_flags, _train_flags, _tpu_flags)
    add(commands.preflight, _preflight_flags, _preflight_train_flags, _tpu_flags)
    return parser


def _run_flags(group: Group) -> None:
    flag = group("run")
    flag("--model_dir", type=absolute, metavar="FOLDER", required=True, help=_MODEL_DIR)
    flag("--export_dir", type=absolute, metavar="FOLDER", help=_EXPORT_DIR)


_MODEL_DIR = "folder or gs:// URI for checkpoints, config.json and metrics"
_EXPORT_DIR = "folder or gs:// URI for SavedModels (default: MODEL_DIR/export)"


def _folds_flags(group: Group) -> None:
    flag = group("run")
    flag("--model_dir", type=absolute, metavar="FOLDER", required=True, help=_MODEL_DIRS)
    flag("--output", type=absolute, metavar="FILE", required=True, help=_FOLDS_OUTPUT)
    flag(
        "--batch_size", type=int, metavar="N", default=32, help="images per batch of predictions (default: %(default)s)"
    )


_MODEL_DIRS = "folder or gs:// URI for the training runs, one per fold"
_FOLDS_OUTPUT = "Parquet file or gs:// URI for the predictions, one row per record of the dataset"


def _watch_flags(group: Group) -> None:
    _run_flags(group)
    flag = group("run")
    flag("--network", metavar="NAME", help=_OWN_NETWORK)
    flag("--poll_seconds", type=float, metavar="SECONDS", default=10.0, help=_POLL_SECONDS)


_POLL_SECONDS = "seconds between two looks for a new checkpoint (default: %(default)g)"


def _preflight_flags(group: Group) -> None:
    flag = group("TPU to compile for")
    flag("--topology", metavar="GENERATION:CHIPS", required=True, help=_TOPOLOGY)
    flag("--jax_step", metavar="MODULE:FUNCTION", help=_JAX_STEP)
    flag("--compiler", metavar="PYTHON", help=_COMPILER)
    flag("--largest_batch", action="store_true", help=_LARGEST_BATCH)
    flag = group("run")
    flag("--model_dir", type=absolute, metavar="FOLDER", help=_PREFLIGHT_MODEL_DIR)
    flag("--export_dir", type=absolute, metavar="FOLDER", help=_EXPORT_DIR)


_TOPOLOGY = "TPU generation and shape of the slice in chips: v2:2x2, v5e:4x4, v4:2x2x1, tpu7x:2x2x1, …"
_PREFLIGHT_MODEL_DIR = "folder or gs:// URI of the run, which may be one to resume (default: a new run)"
_JAX_STEP = (
    "function of your own JAX step, to compile instead of a run's. It takes the devices and returns the step and its "
    "arguments (docs/preflight.md)"
)
_LARGEST_BATCH = "find the largest batch that fits, even if this one does. Compiles once or twice more"
_COMPILER = (
    "Python of the environment with libtpu. `make preflight` makes one for the trainers of TensorFlow. With "
    "--trainer=jax, it is this Python, after pip install 'jpeg2tpu[preflight]' (default: .venv-preflight/bin/python)"
)


# Options of a training run by group; those that are not in _OWN_FLAGS are fields of TrainConfig and InputConfig.
_TRAIN_GROUPS = {
    "dataset": ("dataset", "version", "record", "classes", "hold_out"),
    "run": ("config", "trainer", "seed"),
    "network": ("network", "image_size", "precision", "init_from", "freeze"),
    "steps": ("train_batch_size", "train_steps", "epochs", "iterations_per_loop"),
    "optimizer": (
        *("optimizer", "learning_rate", "warmup_steps", "decay", "decay_steps", "weight_decay", "clip_norm", "ema"),
    ),
    "loss": ("label_smoothing", "class_weights"),
    "crops and augmentation": (
        *("resize", "crop_area", "eval_crop", "flip", "augment", "mixup", "cutmix", "sampling"),
    ),
    "evaluation": (
        *("eval", "split", "steps_per_eval", "eval_batch_size", "early_stop_metric", "early_stop_patience"),
    ),
    "checkpoints and exports": ("save_steps", "save_seconds", "keep_exports"),
    "input": ("mean", "std", "dtype", "layout", "cache", "service", "scaled_decode"),
    "TensorBoard": ("summary_steps", "profile", "wrong_images"),
}


def _train_flags(group: Group) -> None:
    for title, names in _TRAIN_GROUPS.items():
        for name in names:
            if name in _OWN_FLAGS:
                group(title)(f"--{name}", **_OWN_FLAGS[name])
            else:
                config = InputConfig if name in field_types(InputConfig) else TrainConfig
                add_flags(group(title), config, [name], **{name: _FLAGS.get(name, Flag())})


def _preflight_train_flags(group: Group) -> None:
    def optional(name: str, **settings: Any) -> argparse.Action:
        return group("dataset")(name, **settings | ({"required": False} if name == "--dataset" else {}))

    _train_flags(lambda title: optional if title == "dataset" else group(title))


_VERSION = "version of a dataset that was extended, from 1 (default: the run's, else the last)"
_OWN_FLAGS: dict[str, dict[str, Any]] = {
    "version": {"type": int, "metavar": "N", "help": _VERSION},
    "classes": {
        "metavar": "NUMBER|FILE",
        "help": "number of classes of --record, or file with their names, one per line in label order (default: 1000)",
    },
    "epochs": {
        "type": float,
        "metavar": "N",
        "help": "passes over the training examples, instead of --train_steps (default: none)",
    },
    "config": {
        "metavar": "RECIPE",
        "help": "recipe: digits, small_photos or imagenet_resnet50, or a file of options. The file is YAML or JSON, "
        "such as another run's config.json. Flags that are given take precedence (default: none)",
    },
}
_NORMALIZATION = "the run's, else the one that comes with a .safetensors of --init_from, else the dataset's"
_COLOR = _numbers(float, 3, "three numbers, RED,GREEN,BLUE")
_STEPS, _ALPHA = Flag(metavar="STEPS"), Flag(metavar="ALPHA")
_FLAGS = {
    **INPUT_FLAGS,
    "dataset": Flag(parse=absolute_patterns, required=True, metavar="FOLDER"),
    "record": Flag(metavar="FORMAT"),
    "hold_out": Flag(metavar="SPLIT"),
    "trainer": Flag(default="the run's, else the first that is installed"),
    "network": Flag(
        metavar="NAME",
        help="network: cnn, resnet18, resnet34, resnet50, resnet101, vit_s16, vit_b16, keras:NAME or your own. "
        "keras:NAME is a network of Keras, such as keras:EfficientNetV2B0; your own is PACKAGE.MODULE:FUNCTION",
    ),
    "image_size": Flag(metavar="PIXELS", default="the run's, else the images' own, at most 224"),
    "init_from": Flag(parse=_optional_path, metavar="PATH"),
    "freeze": Flag(metavar="REGEX"),
    "train_steps": Flag(metavar="STEPS", unset=True, default="1000"),
    "iterations_per_loop": _STEPS,
    "learning_rate": Flag(metavar="RATE"),
    "warmup_steps": _STEPS,
    "decay_steps": _STEPS,
    "weight_decay": Flag(metavar="SHARE"),
    "clip_norm": Flag(metavar="NORM"),
    "ema": Flag(metavar="DECAY"),
    "label_smoothing": Flag(metavar="SHARE"),
    "crop_area": Flag(
        parse=_numbers(float, 2, "two numbers, LOW,HIGH"),
        metavar="LOW,HIGH",
        unset=True,
        help="smallest and largest share of an image's area that a training crop covers. The share is uniformly "
        "distributed between them. For images smaller than 224 pixels, the default of LOW is larger, at most 0.6, so "
        "that the smallest crop has as many pixels as 0.08 of 224 x 224",
        default="the run's, else 0.08,1",
    ),
    "eval_crop": Flag(
        metavar="SHARE",
        help="side of the square that evaluation and serving take, as a share of the image's shorter side. It has an "
        "effect only with --resize=crop",
        default="0.875, which is 224 / 256",
    ),
    "flip": Flag(help="do not mirror images at random, for images whose left and right differ, such as digits"),
    "augment": Flag(
        metavar="NAME",
        help="augmentation: none, auto, rand_augment or color_jitter. auto is AutoAugment's policy for ImageNet. The "
        "strengths of the others may follow: rand_augment:LAYERS,MAGNITUDE (without them 2,9) and "
        "color_jitter:BRIGHTNESS,CONTRAST,SATURATION (without them 0.4,0.4,0.4)",
    ),
    "mean": Flag(
        parse=_COLOR,
        metavar="R,G,B",
        unset=True,
        help="red, green and blue that are subtracted from the pixels, from 0 to 255: 123.675,116.28,103.53 for "
        "ImageNet's",
        default=_NORMALIZATION,
    ),
    "std": Flag(
        parse=_COLOR,
        metavar="R,G,B",
        unset=True,
        help="red, green and blue that the pixels are then divided by, from 0 to 255: 58.395,57.12,57.375 for "
        "ImageNet's",
        default=_NORMALIZATION,
    ),
    "mixup": _ALPHA,
    "cutmix": _ALPHA,
    "split": Flag(metavar="NAME", unset=True, default="validation, or the one of --hold_out"),
    "steps_per_eval": _STEPS,
    "early_stop_metric": Flag(metavar="METRIC"),
    "save_steps": _STEPS,
    "save_seconds": Flag(metavar="SECONDS"),
    "service": Flag(
        metavar="grpc://ADDRESS:PORT",
        help="dispatcher of the input service that prepares training batches (docs/input-service.md). All hosts share "
        "it, and each example comes once per epoch over all of them. The order of batches then differs between runs; "
        "it needs --cache=none",
        default="none, this machine prepares them",
    ),
    "scaled_decode": Flag(help="decode every JPEG at its own size, even if a crop is far larger than --image_size"),
    "summary_steps": _STEPS,
    "profile": Flag(parse=_numbers(int, 2, "two steps, FIRST,LAST"), unset=True, default="none", metavar="FIRST,LAST"),
}


def _evaluate_flags(group: Group) -> None:
    flag = group("model")
    flag("--model_dir", type=absolute, metavar="FOLDER", help="folder or gs:// URI of the training run")
    flag("--export_dir", type=absolute, metavar="FOLDER", help=_EVALUATED_EXPORT)
    _checkpoint_flags(flag)
    flag = group("dataset")
    flag("--dataset", type=absolute_patterns, metavar="FOLDER", help=_EVALUATED_DATASET)
    flag("--version", type=int, metavar="N", help=_VERSION)
    flag("--split", metavar="NAME", help="split to evaluate on (default: the training run's)")
    flag("--eval_batch_size", type=int, metavar="N", help="images per step (default: as in the training run)")


_EVALUATED_EXPORT = "SavedModel to evaluate instead of a run, or a folder of them, whose newest is taken"
_EVALUATED_DATASET = "folder or gs:// URI of the shards (default: the dataset of the training run)"


def _export_flags(group: Group) -> None:
    flag = group("model")
    flag("--model_dir", type=absolute, metavar="FOLDER", required=True, help="folder or gs:// URI of the training run")
    _checkpoint_flags(flag)
    flag = group("export")
    flag("--export_dir", type=absolute, metavar="FOLDER", help=_EXPORT_DIR)
    flag("--format", choices=FORMATS, help=_FORMAT)
    flag("--export_to_tpu", action="store_true", help="add a graph for serving on a TPU, tagged serve and tpu")


_FORMAT = (
    "format of the export. A run that JAX has trained has both, and saved_model needs TensorFlow (default: "
    "saved_model, or stablehlo for a run that JAX has trained)"
)


def _checkpoint_flags(flag: AddFlag) -> None:
    flag("--step", type=int, metavar="N", help="step of the checkpoint in MODEL_DIR (default: the last)")
    flag("--checkpoint", type=absolute, metavar="PATH", help=_CHECKPOINT)
    flag("--network", metavar="NAME", help=_OWN_NETWORK)


_CHECKPOINT = "path of any checkpoint of the same network, e.g. OTHER_DIR/model.ckpt-5000"
_OWN_NETWORK = (
    "PACKAGE.MODULE:FUNCTION of a network of your own. Repeat it here, as only a module that is named here is imported"
)


def _predict_flags(group: Group) -> None:
    flag = group("model")
    flag("--export_dir", type=absolute, metavar="FOLDER", help=_PREDICT_EXPORT_DIR)
    flag("--model_dir", type=absolute, metavar="FOLDER", help=_PREDICT_MODEL_DIR)
    flag("--step", type=int, metavar="N", help="step of the checkpoint in MODEL_DIR (default: the last)")
    flag("--network", metavar="NAME", help=_OWN_NETWORK)
    flag = group("image files")
    flag("files", nargs="*", metavar="FILE", help=_FILES)
    flag(
        "--top", type=int, metavar="N", default=1, help="most likely classes to print per image (default: %(default)s)"
    )
    flag("--batch_size", type=int, metavar="N", default=32, help="images per batch (default: %(default)s)")
    flag = group("dataset")
    flag(
        "--dataset", type=absolute, metavar="FOLDER", help="folder or gs:// URI of shards to predict, instead of files"
    )
    flag("--version", type=int, metavar="N", help="version of a dataset that was extended, from 1 (default: the last)")
    flag("--split", metavar="NAME", help="split of --dataset (default: the training run's)")
    flag("--output", type=absolute, metavar="FILE", help=_OUTPUT)
    flag("--features", metavar="LAYER", help=_FEATURES)


_FILES = "image file, folder of JPEG and PNG files, or glob, as a path or gs:// URI"
_OUTPUT = (
    "Parquet file or gs:// URI for the predictions of --dataset. It has one row per record. The same command resumes "
    "after an interruption"
)
_FEATURES = (
    "layer of the run's network whose output becomes the column features. A wrong name lists them (default: none)"
)
_PREDICT_EXPORT_DIR = "SavedModel, or a folder of them, whose newest is taken"
_PREDICT_MODEL_DIR = (
    "training run, instead of --export_dir. For files, its newest export is taken; for --dataset, its last checkpoint"
)


def _process_flags(group: Group) -> None:
    flag = group("several processes, with --trainer=jax")
    flag("--coordinator_address", metavar="HOST:PORT", help=_COORDINATOR_ADDRESS)
    flag("--num_processes", type=int, metavar="N", help=_NUM_PROCESSES)
    flag("--process_id", type=int, metavar="I", help=_PROCESS_ID)
    flag("--initialization_timeout", type=float, metavar="SECONDS", default=300.0, help=_INITIALIZATION_TIMEOUT)


_DETECTED = "(default: as JAX finds it on Cloud TPU, Slurm and Kubernetes)"
_COORDINATOR_ADDRESS = f"address of process 0, and a port at which it listens to the others {_DETECTED}"
_NUM_PROCESSES = f"number of processes that train together. Each runs the same command; 1 trains alone {_DETECTED}"
_PROCESS_ID = f"number of this process, from 0, which alone reads and writes --model_dir {_DETECTED}"
_INITIALIZATION_TIMEOUT = "seconds within which all processes must have started (default: %(default)g)"


def _tpu_flags(group: Group) -> None:
    flag = group("Cloud TPU")
    flag("--use_tpu", action="store_true", help=_USE_TPU)
    flag("--tpu", metavar="NAME", help="name or grpc:// address of the TPU (default: the environment's)")
    flag("--tpu_zone", metavar="ZONE", help="zone of the TPU (default: this machine's)")
    flag("--gcp_project", metavar="PROJECT", help="Google Cloud project of the TPU (default: this machine's)")


_USE_TPU = "run on a Cloud TPU. Dataset and model_dir must be gs:// URIs, except for predict"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code, one of command_line.EXIT_CODES; user errors are printed as one line."""
    return run_program(
        sys.argv[1:] if argv is None else argv,
        _parsed,
        _run,
        describe=_described,
        interrupted=_interrupted,
    )


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    arguments = make_parser().parse_args(argv)
    if vars(arguments).get("config"):
        flags = make_parser({"network": None}).parse_args(argv)  # network is None unless a flag names it
        arguments = make_parser(_recipe(flags)).parse_args(argv)
    arguments.argv = argv
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    commands.check(arguments)
    trainer = commands.trainer_of(arguments)
    if not uses_tensorflow(trainer) or importlib.util.find_spec("tensorflow"):  # else the user hears that
        commands.check_existence(arguments)
    choose_backend(trainer)
    leave_out_unused_parts()
    if uses_tensorflow(trainer):
        import_tensorflow(arguments.verbose)
    return int(arguments.command(arguments))


def _described(error: Exception, arguments: argparse.Namespace) -> str:
    """Returns the line of an error; "" for a fault of the program."""
    return one_line(error, place_of(arguments)) if isinstance(error, user_error_types()) else ""


def _interrupted(arguments: argparse.Namespace) -> str:
    return (
        "interrupted"
        + ("; rerun the same command to resume from the last checkpoint" * (arguments.command is commands.train))
        + ("; rerun the same command to resume" * bool(vars(arguments).get("output")))
    )


def _recipe(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of --config; those that say how long to train only if no flag does.

    Raises:
      ValueError: As read_recipe(), or it names a custom network that the user has not named.
    """
    recipe = read_recipe(arguments.config)
    network = recipe.get("network", "")
    if is_users(network) and arguments.network is None:
        raise ValueError(
            f"recipe {arguments.config!r} has a custom network, whose code is imported only if you name it; if you "
            f"trust it, add --network={network}"
        )
    has_length = arguments.epochs is not None or arguments.train_steps is not None
    return {name: value for name, value in recipe.items() if not (has_length and name in ("epochs", "train_steps"))}


if __name__ == "__main__":
    sys.exit(main())
