"""The command line: train, evaluate, export, predict, preflight. The only place that knows flags.

    train: dataset ──▶ MODEL_DIR (config.json, checkpoints, metrics.json) ──▶ EXPORT_DIR/… ──▶ predict: files → classes

TensorFlow is imported after the flags are read: --help and mistakes answer at once, and its noise can be turned off.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from estimator_app import commands
from estimator_app.commands import warn
from estimator_app.runtime.tensorflow_startup import import_tensorflow, one_line, user_error_types
from tpu_input.command_line import Parser, exit_code, sigterm_raises, unread
from tpu_input.command_line.jpeg2tpu import add_command
from tpu_input.config import InputConfig

EXAMPLES = {
    "train": "--dataset=shards --model_dir=model --image_size=224 --train_steps=5000",
    "evaluate": "--model_dir=model --split=train",
    "export": "--model_dir=model",
    "predict": "--export_dir=model/export photo.jpg",
    "preflight": "--dataset=shards --topology=v5e:2x2 --network=resnet50 --train_batch_size=1024",
}


def make_parser() -> Parser:
    """Returns the parser of all commands; each sets `command` to the function that runs it."""
    parser = Parser(prog="python -m estimator_app", description="Trains and serves an image classifier.")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)

    def add(run: Any, *groups: Any) -> None:
        command = add_command(subparsers, run.__name__, EXAMPLES[run.__name__])
        command.set_defaults(command=run)
        for group in groups:
            group(command.add_argument)
        command.add_argument("--verbose", action="store_true", help="show TensorFlow's messages, and all of an error")

    add(commands.train, _model_dir_flags, _train_flags, _training_flags, _tpu_flags)
    add(commands.evaluate, _evaluate_flags, _tpu_flags)
    add(commands.export, _export_flags)
    add(commands.predict, _predict_flags)
    add(commands.preflight, _preflight_flags, _train_flags, _training_flags)
    return parser


def _model_dir_flags(flag: Any) -> None:
    flag("--model_dir", type=_folder, required=True, help="folder or gs:// URI for checkpoints, config and metrics")
    flag("--export_dir", type=_folder, help="folder or gs:// URI for SavedModels (default: MODEL_DIR/export)")


def _preflight_flags(flag: Any) -> None:
    flag("--topology", required=True, help="generation and sides of the slice in chips: v2:2x2, v5e:4x4, v4:2x2x1, …")
    flag("--model_dir", type=_folder, help="of the run that would go on (default: a new one)")
    flag("--compiler", metavar="PYTHON", help=_COMPILER)
    flag("--largest_batch", action="store_true", help=_LARGEST_BATCH)
    flag("--json", action="store_true", help="print JSON rather than a page")


_LARGEST_BATCH = "look for it even if this one fits; compiles once or twice more (default: only if it does not fit)"
_COMPILER = "of the environment with libtpu (default: what make preflight makes here, .venv-preflight/bin/python)"


def _train_flags(flag: Any) -> None:
    flag("--dataset", type=_folder, required=True, help="folder or gs:// URI of shards with their manifest.json")
    flag("--loop", help=_LOOP)
    flag("--network", default="cnn", help=_NETWORK)
    flag("--image_size", type=int, help=_IMAGE_SIZE)
    flag("--train_batch_size", type=int, default=128, help="images a step, over all TPU cores (default: %(default)s)")
    flag("--eval_batch_size", type=int, default=128, help="images a step of evaluation (default: %(default)s)")
    flag(
        "--train_steps",
        type=int,
        default=1000,
        help="steps in all, which may change between runs (default: %(default)s)",
    )
    flag("--steps_per_eval", type=int, default=500, help="steps between evaluations (default: %(default)s)")
    flag("--save_steps", type=int, default=0, help="steps between checkpoints besides one a minute (default: none)")
    flag("--keep_exports", type=int, default=2, help="exports that stay, of last steps and best (default: %(default)s)")
    flag("--early_stop_metric", default="accuracy", help=_EARLY_STOP_METRIC)
    flag("--early_stop_patience", type=int, default=0, help=_EARLY_STOP_PATIENCE)
    flag("--iterations_per_loop", type=int, default=100, help="steps a TPU takes at a time (default: %(default)s)")
    flag("--seed", type=int, default=0, help="of first weights, order and crops (default: %(default)s)")
    flag("--dtype", default="uint8", help="of pixels fed: uint8, bfloat16 or float32 (default: %(default)s)")
    flag("--layout", default="NHWC", help=_LAYOUT)
    flag("--crop_area", type=_range, metavar="LOW,HIGH", help=_CROP_AREA)
    flag("--no_flip", dest="flip", action="store_false", help="mirror no images: left and right differ, as in digits")
    flag("--eval_crop", type=float, default=0.875, help=_EVAL_CROP)
    flag("--shuffle_records", type=int, default=InputConfig.shuffle_records, help=_SHUFFLE_RECORDS)
    flag("--cache", choices=("records", "decoded"), help=_CACHE)
    flag("--split", default="validation", help="what evaluation reads (default: %(default)s)")
    flag("--service", metavar="grpc://ADDRESS:PORT", help=_SERVICE)


def _training_flags(flag: Any) -> None:
    flag("--optimizer", default="momentum", help="momentum, lars (batches of thousands) or adamw (default: momentum)")
    flag("--learning_rate", type=float, help=_LEARNING_RATE)
    flag("--warmup_steps", type=int, help=_WARMUP_STEPS)
    flag("--decay", help=_DECAY)
    flag("--decay_steps", type=int, help="step by which it has fallen (default: the first --train_steps of the run)")
    flag("--weight_decay", type=float, help="of kernels (default: 0.0001; adamw: 0.05, not in the gradient)")
    flag("--label_smoothing", type=float, default=0.0, help="share of the target spread over all classes (default: 0)")
    flag("--class_weights", default="equal", help="equal, or balanced: rare classes count more (default: equal)")
    flag("--precision", default="float32", help="of the network: float32 or bfloat16 (default: float32)")
    flag("--summary_steps", type=int, default=100, help="steps between points of TensorBoard's curves (default: 100)")


_LOOP = "what trains: estimator, or strategy: tf.distribute (default: the run's, else what this TensorFlow has)"
_NETWORK = "cnn, resnet18, resnet50, or package.module:function of your own (default: %(default)s)"
_LEARNING_RATE = "at its peak (default, for every 256 images of the batch: 0.1; adamw: 0.00025; lars: 25 in all)"
_WARMUP_STEPS = "step at which the rate has climbed to its peak (default: 1/18 of --decay_steps)"
_DECAY = "fall of the rate: cosine, polynomial (a square), steps: a tenth at 3/9, 6/9, 8/9 (default: the optimizer's)"
_LAYOUT = "of batches on their way to the TPU: NHWC, HWCN, HWNC or auto (default: %(default)s)"
_EARLY_STOP_METRIC = "what best means: accuracy, loss, mean_recall or top_5_accuracy (default: %(default)s)"
_EARLY_STOP_PATIENCE = "evaluations without a new best that end the run (default: none do)"
_SHUFFLE_RECORDS = "encoded images to shuffle among, all in memory (default: %(default)s)"
_CACHE = "what of a small dataset stays in memory after its first epoch: encoded or decoded images (default: none)"
_SERVICE = "dispatcher of a tf.data service that does training's input: docs/input-service.md (default: this machine)"
_EVAL_CROP = "side of evaluation's centred crop, as a share of the image's shorter side (default: %(default)s)"
_IMAGE_SIZE = "height and width in pixels that the network sees (default: the run's, else the images' own, up to 224)"
_CROP_AREA = (
    "smallest and largest share of an image in a training crop (default: the run's, else 0.08,1; images of less"
)
_CROP_AREA += " than 224 pixels: as many pixels at the least as 0.08 of those, up to 0.6,1)"


def _evaluate_flags(flag: Any) -> None:
    flag("--model_dir", type=_folder, help="what train was given")
    flag("--export_dir", type=_folder, help="a SavedModel instead, or a folder of them: the newest is taken")
    flag("--dataset", type=_folder, help="folder or gs:// URI of shards (default: what the model was trained on)")
    flag("--split", help="(default: what train was given)")
    flag("--eval_batch_size", type=int, help="images a step (default: what train was given)")
    flag("--json", action="store_true", help="print JSON rather than a sentence")
    _checkpoint_flags(flag)


def _export_flags(flag: Any) -> None:
    flag("--model_dir", type=_folder, required=True, help="what train was given")
    flag("--export_dir", type=_folder, help="folder or gs:// URI for SavedModels (default: MODEL_DIR/export)")
    flag("--export_to_tpu", action="store_true", help="add a graph for serving on a TPU, tagged serve and tpu")
    _checkpoint_flags(flag)


def _checkpoint_flags(flag: Any) -> None:
    flag("--step", type=int, help="the checkpoint of this step of MODEL_DIR (default: the last)")
    flag("--checkpoint", type=_folder, help="any checkpoint of the same network, e.g. OTHER_DIR/model.ckpt-5000")
    flag("--network", help=_OWN_NETWORK)


_OWN_NETWORK = "of a run with a network of its own: package.module:function again, for only what you name is imported"


def _predict_flags(flag: Any) -> None:
    flag("--export_dir", type=_folder, required=True, help=_PREDICT_EXPORT_DIR)
    flag("--batch_size", type=int, default=32, help="images to classify at a time (default: %(default)s)")
    flag("--top", type=int, default=1, help="likeliest classes to print of each (default: %(default)s)")
    flag(
        "files",
        nargs="+",
        metavar="FILE",
        help="image file, folder of JPEG and PNG files, or glob; a path or gs:// URI",
    )


_PREDICT_EXPORT_DIR = "a SavedModel, or a folder of them or a model_dir: the newest is taken"


def _tpu_flags(flag: Any) -> None:
    flag("--use_tpu", action="store_true", help="run on a Cloud TPU; dataset and model_dir must be gs:// URIs")
    flag("--tpu", help="its name or grpc:// address (default: the environment's)")
    flag("--tpu_zone", help="its zone (default: this machine's)")
    flag("--gcp_project", help="its project (default: this machine's)")


def _folder(text: str) -> str:
    """Returns a folder's path from anywhere, so that a later command finds it; or a URI."""
    return text.rstrip("/") if "://" in text else os.path.abspath(os.path.expanduser(text))


def _range(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs two numbers, LOW,HIGH, got {text!r}") from None
    return low, high


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code, one of command_line.EXIT_CODES; a user's mistake is one line."""
    arguments = make_parser().parse_args(argv)
    arguments.argv = sys.argv[1:] if argv is None else argv
    try:
        commands.check(arguments)
        with sigterm_raises():
            import_tensorflow(arguments.verbose)
            return int(arguments.command(arguments))
    except KeyboardInterrupt as interrupt:
        warn(
            "stopped" + ("; the same command goes on from the last checkpoint" * (arguments.command is commands.train))
        )
        return exit_code(interrupt)
    except BrokenPipeError:
        code = unread()
        return _unread() if arguments.command is commands.train else code
    except user_error_types() as error:
        if arguments.verbose:
            raise
        warn(f"error: {one_line(error)}")
        return 2


def _unread() -> int:
    """Says that a training has ended before its end, for what it prints is not what it is for; returns its status."""
    with contextlib.suppress(BrokenPipeError):  # stderr may go to the same reader
        warn("error: nobody reads the output any more, so training ended; the same command goes on; write to a file")
    return 2


if __name__ == "__main__":
    sys.exit(main())
