"""Command line: train, watch, evaluate, export, predict, folds, preflight. All flags are defined in this module.

    train: dataset ──▶ MODEL_DIR (config.json, checkpoints, metrics.json) ──▶ EXPORT_DIR/… ──▶ predict: files → classes

TensorFlow is imported after the flags are parsed, so that --help and usage errors respond immediately, and so that its
log messages can be turned off first.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from estimator_app import commands
from estimator_app.config import TrainConfig, read_recipe
from estimator_app.runtime.tensorflow_startup import import_tensorflow, one_line, user_error_types
from tpu_input.command_line import Parser
from tpu_input.command_line.dataclass_options import Flag, add_flags
from tpu_input.command_line.jpeg2tpu import AddFlag, add_command
from tpu_input.command_line.paths import absolute, absolute_patterns
from tpu_input.command_line.program import place_of, run_program
from tpu_input.config import InputConfig

EXAMPLES = {
    "train": "--dataset=shards --model_dir=model --image_size=224 --train_steps=5000",
    "watch": "--model_dir=model",
    "evaluate": "--model_dir=model --split=train",
    "export": "--model_dir=model",
    "predict": "--export_dir=model/export photo.jpg",
    "folds": "--dataset=folds --model_dir=models --output=predictions.parquet --train_steps=5000",
    "preflight": "--dataset=shards --topology=v5e:2x2 --network=resnet50 --train_batch_size=1024",
}


def make_parser(recipe: Mapping[str, Any] | None = None) -> Parser:
    """Returns the parser of all commands; each sets `command` to the function that runs it.

    Args:
      recipe: Options of --config, which become the defaults of the flags.
    """
    parser = Parser(prog="jpeg2tpu", description="Trains and serves an image classifier.")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def add(run: Callable[[argparse.Namespace], int], *groups: Callable[[AddFlag], None]) -> None:
        command = add_command(subparsers, run.__name__, EXAMPLES[run.__name__])
        command.set_defaults(command=run)
        for group in groups:
            group(command.add_argument)
        if {_train_flags, _preflight_train_flags} & {*groups}:
            command.set_defaults(**recipe or {})

    add(commands.train, _model_dir_flags, _train_flags, _training_flags, _tpu_flags)
    add(commands.watch, _model_dir_flags, _watch_flags, _tpu_flags)
    add(commands.evaluate, _evaluate_flags, _tpu_flags)
    add(commands.export, _export_flags)
    add(commands.predict, _predict_flags, _tpu_flags)
    add(commands.folds, _folds_flags, _train_flags, _training_flags, _tpu_flags)
    add(commands.preflight, _preflight_flags, _preflight_train_flags, _training_flags, _tpu_flags)
    return parser


def _model_dir_flags(flag: AddFlag) -> None:
    flag("--model_dir", type=absolute, required=True, help="folder or gs:// URI for checkpoints, config and metrics")
    flag("--export_dir", type=absolute, help="folder or gs:// URI for SavedModels (default: MODEL_DIR/export)")


def _folds_flags(flag: AddFlag) -> None:
    flag("--model_dir", type=absolute, required=True, help="folder or gs:// URI for a training run per fold")
    flag("--output", type=absolute, metavar="PARQUET", required=True, help=_FOLDS_OUTPUT)
    flag("--batch_size", type=int, default=32, help="images per batch of predictions (default: %(default)s)")


_FOLDS_OUTPUT = "file or gs:// URI for the predictions, one row per record of the dataset"


def _watch_flags(flag: AddFlag) -> None:
    flag("--network", help=_OWN_NETWORK)
    flag(
        "--poll_seconds",
        type=float,
        default=10.0,
        help="seconds between two looks for a new checkpoint (default: %(default)g)",
    )


def _preflight_flags(flag: AddFlag) -> None:
    flag("--topology", required=True, help="TPU generation and slice shape in chips: v2:2x2, v5e:4x4, v4:2x2x1, …")
    flag("--model_dir", type=absolute, help="model_dir of the run, which may be resumed (default: a new run)")
    flag("--export_dir", type=absolute, help="folder or gs:// URI for SavedModels (default: MODEL_DIR/export)")
    flag("--jax_step", metavar="MODULE:FUNCTION", help=_JAX_STEP)
    flag("--compiler", metavar="PYTHON", help=_COMPILER)
    flag("--largest_batch", action="store_true", help=_LARGEST_BATCH)


_JAX_STEP = (
    "function of the devices that returns (step in JAX, its arguments), which is compiled in the place of a run's step "
    "(docs/preflight.md)"
)
_LARGEST_BATCH = (
    "find the largest batch even if this one fits; compiles once or twice more (default: only if it does not fit)"
)
_COMPILER = "Python of the environment with libtpu (default: made by `make preflight`, .venv-preflight/bin/python)"


def _train_flags(flag: AddFlag) -> None:
    add_flags(
        flag,
        TrainConfig,
        (
            *(
                "dataset",
                "record",
                "hold_out",
                "trainer",
                "network",
                "train_batch_size",
                "eval_batch_size",
                "train_steps",
            ),
            *(
                "steps_per_eval",
                "eval",
                "save_steps",
                "save_seconds",
                "profile",
                "keep_exports",
                "wrong_images",
                "early_stop_metric",
            ),
            *("early_stop_patience", "iterations_per_loop", "split"),
        ),
        dataset=Flag(parse=absolute_patterns, required=True),
        record=Flag(metavar="FORMAT"),
        hold_out=Flag(metavar="SPLIT"),
        split=Flag(unset=True, default="validation, or that of --hold_out"),
        train_steps=Flag(unset=True, default="1000"),
        profile=Flag(parse=_steps, unset=True, default="none", metavar="FIRST,LAST"),
    )
    flag("--classes", metavar="NUMBER|FILE", help=_CLASSES)
    flag("--epochs", type=float, help="number of epochs to train, in the place of --train_steps")
    flag("--config", metavar="RECIPE", help=_CONFIG)
    flag("--version", type=int, metavar="N", help=_VERSION)
    add_flags(
        flag,
        InputConfig,
        (
            *("image_size", "resize", "seed", "dtype", "layout", "crop_area", "flip", "eval_crop", "augment", "cache"),
            *("service", "scaled_decode", "sampling"),
        ),
        image_size=Flag(default="the run's, else the images' own, at most 224"),
        crop_area=Flag(parse=_range, metavar="LOW,HIGH", default=_CROP_AREA, unset=True),
        augment=Flag(help=_AUGMENT, metavar="NAME[:STRENGTHS]"),
        flip=Flag(help="do not mirror images at random, for images whose left and right differ, such as digits"),
        scaled_decode=Flag(help="decode every JPEG at its own size, also where a crop is far larger than --image_size"),
        service=Flag(metavar="grpc://ADDRESS:PORT", default="none, this machine; docs/input-service.md"),
    )


def _preflight_train_flags(flag: AddFlag) -> None:
    def optional(name: str, **options: Any) -> argparse.Action:
        return flag(name, **options | ({"required": False} if name == "--dataset" else {}))

    _train_flags(optional)


_CLASSES = "number of classes of --record, or file with their names, one per line in label order (default: 1000)"
_CONFIG = (
    "YAML or JSON file of options, such as another run's config.json, or one of the recipes digits, small_photos and "
    "imagenet_resnet50; flags that are given take precedence"
)
_AUGMENT = (
    "augmentation of training's crops: rand_augment or rand_augment:LAYERS,MAGNITUDE (without numbers 2,9), "
    "color_jitter or color_jitter:BRIGHTNESS,CONTRAST,SATURATION (without numbers 0.4,0.4,0.4), auto (AutoAugment's "
    "policy for ImageNet), or none"
)
_VERSION = "version of a dataset that was extended, from 1 (default: that of the run, else the last)"


def _training_flags(flag: AddFlag) -> None:
    add_flags(
        flag,
        TrainConfig,
        (
            *("optimizer", "learning_rate", "warmup_steps", "decay", "decay_steps", "weight_decay", "label_smoothing"),
            *("class_weights", "mixup", "cutmix", "clip_norm", "ema", "precision", "summary_steps"),
            *("init_from", "freeze"),
        ),
        init_from=Flag(parse=_optional_path, metavar="PATH"),
        freeze=Flag(metavar="PATTERN"),
    )


_CROP_AREA = (
    "the run's, else 0.08,1. In images smaller than 224 pixels, the smallest crop has as many pixels as 0.08 of "
    "224 x 224 has, at most 0.6"
)


def _evaluate_flags(flag: AddFlag) -> None:
    flag("--model_dir", type=absolute, help="folder or gs:// URI of the training run")
    flag(
        "--export_dir",
        type=absolute,
        help="SavedModel to evaluate instead of a run, or a folder of them: the newest is taken",
    )
    flag(
        "--dataset",
        type=absolute_patterns,
        help="folder or gs:// URI of shards (default: the dataset of the training run)",
    )
    flag("--version", type=int, metavar="N", help=_VERSION)
    flag("--split", help="split to evaluate on (default: that of the training run)")
    flag("--eval_batch_size", type=int, help="images per step (default: that of the training run)")
    _checkpoint_flags(flag)


def _export_flags(flag: AddFlag) -> None:
    flag("--model_dir", type=absolute, required=True, help="folder or gs:// URI of the training run")
    flag("--export_dir", type=absolute, help="folder or gs:// URI for SavedModels (default: MODEL_DIR/export)")
    flag("--export_to_tpu", action="store_true", help="add a graph for serving on a TPU, tagged serve and tpu")
    _checkpoint_flags(flag)


def _checkpoint_flags(flag: AddFlag) -> None:
    flag("--step", type=int, help="step of the checkpoint in MODEL_DIR (default: the last)")
    flag(
        "--checkpoint", type=absolute, help="path of any checkpoint of the same network, e.g. OTHER_DIR/model.ckpt-5000"
    )
    flag("--network", help=_OWN_NETWORK)


_OWN_NETWORK = (
    "package.module:function of a run with a custom network; repeat it here, as only a network named here is imported"
)


def _predict_flags(flag: AddFlag) -> None:
    flag("--export_dir", type=absolute, help=_PREDICT_EXPORT_DIR)
    flag("--batch_size", type=int, default=32, help="images per batch (default: %(default)s)")
    flag("--top", type=int, default=1, help="number of most likely classes to print per image (default: %(default)s)")
    flag(
        "files",
        nargs="*",
        metavar="FILE",
        help="image file, folder of JPEG and PNG files, or glob; a path or gs:// URI",
    )
    flag("--dataset", type=absolute, help="folder or gs:// URI of shards to predict, instead of files")
    flag("--version", type=int, metavar="N", help="version of a dataset that was extended, from 1 (default: the last)")
    flag("--split", help="split of --dataset (default: that of the training run)")
    flag("--output", type=absolute, metavar="PARQUET", help=_OUTPUT)
    flag("--model_dir", type=absolute, help="with --dataset, a training run instead of --export_dir")
    flag("--step", type=int, help="step of the checkpoint in MODEL_DIR (default: the last)")
    flag("--features", metavar="LAYER", help=_FEATURES)
    flag("--network", help=_OWN_NETWORK)


_OUTPUT = (
    "file or gs:// URI for the predictions of --dataset, one row per record; the same command resumes after an "
    "interruption"
)
_FEATURES = "layer of --model_dir whose output becomes the column features; a wrong name lists them (default: none)"
_PREDICT_EXPORT_DIR = "SavedModel, or a folder of them, or a model_dir: the newest is taken"


def _tpu_flags(flag: AddFlag) -> None:
    flag("--use_tpu", action="store_true", help=_USE_TPU)
    flag("--tpu", help="name or grpc:// address of the TPU (default: the environment's)")
    flag("--tpu_zone", help="zone of the TPU (default: this machine's)")
    flag("--gcp_project", help="Google Cloud project of the TPU (default: this machine's)")


_USE_TPU = "run on a Cloud TPU; dataset and model_dir must be gs:// URIs, but not those of predict"


def _optional_path(text: str) -> str:
    return absolute(text) if text else ""  # argparse parses defaults that are text, too


def _range(text: str) -> tuple[float, float]:
    return _pair(text, float, "two numbers, LOW,HIGH")


def _steps(text: str) -> tuple[int, int]:
    return _pair(text, int, "two steps, FIRST,LAST")


_Number = TypeVar("_Number", int, float)


def _pair(text: str, kind: Callable[[str], _Number], what: str) -> tuple[_Number, _Number]:
    try:
        first, second = map(kind, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}") from None
    return first, second


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
        arguments = make_parser(_recipe(arguments)).parse_args(argv)
    arguments.argv = argv
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    commands.check(arguments)
    if importlib.util.find_spec("tensorflow"):  # without it, that it is missing is what a user needs to know
        commands.check_existence(arguments)
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
    """Returns the options of --config; those that say how long to train only if no flag does."""
    recipe = read_recipe(arguments.config)
    is_told = arguments.epochs is not None or arguments.train_steps is not None
    return {name: value for name, value in recipe.items() if not (is_told and name in ("epochs", "train_steps"))}


if __name__ == "__main__":
    sys.exit(main())
