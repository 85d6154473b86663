"""Command line of tpu_input: jpeg2tpu benchmark|idx|tfds DATASET, jpeg2tpu dispatcher, jpeg2tpu worker.

This is the only module of the package that parses flags. TensorFlow is imported after the flags are parsed, so that
--help and errors in the flags are printed at once, and so that TensorFlow's log messages can be turned off.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import warnings
from collections.abc import Sequence

from tpu_input.command_line import Parser, activity, print_line, to_json
from tpu_input.command_line.dataclass_options import Flag, add_flags
from tpu_input.command_line.distribution import which_extra
from tpu_input.command_line.error_lines import one_line
from tpu_input.command_line.jpeg2tpu import add_command
from tpu_input.command_line.paths import absolute
from tpu_input.command_line.program import place_of, run_program
from tpu_input.config import INPUT_FLAGS, InputConfig, check_service, fitting_input
from tpu_input.dataset_format.manifest import Split
from tpu_input.storage import gcs_filesystem

_AUGMENTS = ("none", "color_jitter", "rand_augment")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code, one of command_line.EXIT_CODES; user errors print no traceback."""
    return run_program(
        sys.argv[1:] if argv is None else argv,
        lambda words: make_parser().parse_args(words),
        _run,
        describe=_described,
    )


def _run(flags: argparse.Namespace) -> int:
    warnings.simplefilter("ignore", FutureWarning)  # TensorFlow imports Google's libraries, which warn of old Pythons
    if not flags.verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is imported, below
    gcs_filesystem.set_up()
    flags.run(flags)
    return 0


def _described(error: Exception, flags: argparse.Namespace) -> str:
    """Returns the line of an error; "" for a fault of the program."""
    if isinstance(error, (ValueError, OSError)) or (isinstance(error, ImportError) and which_extra(error)):
        return one_line(error, place_of(flags))
    # TensorFlow's errors, e.g. for a record that cannot be read. They are recognized by the module's name, because
    # TensorFlow is not imported for --help.
    is_of_tensorflow = type(error).__module__.startswith("tensorflow.")
    return gcs_filesystem.in_words(str(error)).splitlines()[0] if is_of_tensorflow else ""


def make_parser() -> Parser:
    """Returns the parser of all commands; each sets `run` to the function that runs it."""
    parser = Parser(prog="jpeg2tpu", description="Tools for the input pipeline, which turns shards into batches.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    idx = add_command(commands, "idx", "gs://bucket/flowers")
    tfds = add_command(commands, "tfds", "gs://bucket/flowers")
    benchmark = add_command(commands, "benchmark", "gs://bucket/flowers --need=3000", everyday=_EVERYDAY)
    for command, run in ((idx, _idx), (tfds, _tfds), (benchmark, _benchmark)):
        command.set_defaults(run=run)
        command.add_argument("dataset", type=absolute, metavar="DATASET", help="folder or URI of a converted dataset")
    _benchmark_flags(benchmark)
    _service_commands(commands)
    return parser


_EVERYDAY = ("--need", "--split", "--image_size", "--batch_size", "--images", "--rounds", "--augment", "--cache")


def _benchmark_flags(command: Parser) -> None:
    flag = command.add_argument_group("measurement").add_argument
    flag("--split", metavar="NAME", default="train", help="split to read (default: %(default)s)")
    flag("--images", type=int, metavar="N", default=2000, help=_IMAGES)
    flag(
        "--rounds",
        type=int,
        metavar="N",
        default=3,
        help="rounds of timing. Medians are printed (default: %(default)s)",
    )
    flag("--need", type=float, metavar="RATE", help="images/s that the accelerator needs (default: none)")
    flag("--batch_size", type=int, metavar="N", default=64, help="images per batch of this host (default: %(default)s)")
    flag = command.add_argument_group("input").add_argument
    flag("--augment", choices=_AUGMENTS, default="none", help="augmentation of training's crops (default: %(default)s)")
    add_flags(
        flag,
        InputConfig,
        ("image_size", *_AS_GIVEN),
        **INPUT_FLAGS
        | {
            "image_size": Flag(metavar="PIXELS", default="the images' own, at most 224, as for train"),
            "deterministic": Flag(help="yield records as they arrive, in an order that varies"),
        },
    )


_IMAGES = "images to time each variant with, per round (default: %(default)s)"


def _service_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    dispatcher = add_command(commands, "dispatcher", "--port=5050")
    dispatcher.set_defaults(run=_dispatcher)
    flag = dispatcher.add_argument_group("server").add_argument
    flag("--port", type=int, metavar="N", default=5050, help=_PORT)
    flag("--work_dir", metavar="FOLDER", help=_WORK_DIR)
    worker = add_command(commands, "worker", "--dispatcher=grpc://10.0.0.2:5050")
    worker.set_defaults(run=_worker)
    flag = worker.add_argument_group("server").add_argument
    flag("--dispatcher", required=True, metavar="grpc://ADDRESS:PORT", help="address that the dispatcher has printed")
    flag("--port", type=int, metavar="N", default=0, help=_PORT)
    flag("--host", metavar="NAME", help=_HOST)


_PORT = "port to listen on, or 0 for any free port (default: %(default)s)"
_WORK_DIR = "folder or URI of the journal that a restarted dispatcher resumes from (default: none)"
_HOST = "name or address by which the training's hosts reach this machine (default: its host name)"


# Fields of InputConfig whose flags have the same default.
_AS_GIVEN = ("resize", "sampling", "dtype", "layout", "echo", "cache", "deterministic")


def _idx(flags: argparse.Namespace) -> None:
    from tpu_input.datasets import read_manifest
    from tpu_input.record_source import write_dali_index

    paths = write_dali_index(read_manifest(flags.dataset))
    folder = f"{flags.dataset}/index"
    summary = {"folder": folder, "num_files": len(paths)}
    print_line(to_json(summary) if flags.json else f"{len(paths)} index files in {folder}")


def _tfds(flags: argparse.Namespace) -> None:
    from tpu_input.datasets import read_manifest
    from tpu_input.record_source import write_tfds_metadata

    paths = write_tfds_metadata(read_manifest(flags.dataset))
    if flags.json:
        print_line(to_json({"folder": flags.dataset, "files": [os.path.basename(path) for path in paths]}))
        return
    print_line(f"{', '.join(os.path.basename(path) for path in paths)} in {flags.dataset}")
    print_line(f"open it with: tfds.builder_from_directory({flags.dataset!r}).as_dataset('train', as_supervised=True)")


def _benchmark(flags: argparse.Namespace) -> None:
    for name in ("images", "rounds", "batch_size"):
        if getattr(flags, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(flags, name)}")
    if flags.need is not None and flags.need <= 0:
        raise ValueError(f"--need must be above 0, got {flags.need:g}")
    from tpu_input.datasets import read_manifest

    manifest, sizes = read_manifest(flags.dataset), (flags.images, flags.rounds, flags.batch_size)
    with activity("starting TensorFlow"):
        from tpu_input.benchmark.measure import measure
        from tpu_input.benchmark.report import bottleneck, describe

    config = _config(flags, manifest.split(flags.split))
    with activity("measuring"):
        measured = measure(manifest, flags.split, config, *sizes)
    if flags.json:
        needed = {"cores_needed": measured.cores_for(flags.need)} if flags.need else {}
        print_line(to_json(dataclasses.asdict(measured) | {"bound": bottleneck(measured)} | needed))
    else:
        for line in describe(measured, flags.need):
            print_line(line)


def _dispatcher(flags: argparse.Namespace) -> None:
    _check_port(flags.port)
    from tpu_input.service import run_dispatcher

    run_dispatcher(flags.port, flags.work_dir, print_line)


def _worker(flags: argparse.Namespace) -> None:
    check_service(flags.dispatcher)
    _check_port(flags.port)
    from tpu_input.service import run_worker

    run_worker(flags.dispatcher, flags.port, flags.host, print_line)


def _check_port(port: int) -> None:
    if not 0 <= port < 1 << 16:
        raise ValueError(f"--port must be from 0 to 65535, got {port}")


def _config(flags: argparse.Namespace, split: Split) -> InputConfig:
    from tpu_input import augment

    fitting = fitting_input(split)
    return InputConfig(
        fitting["image_size"] if flags.image_size is None else flags.image_size,
        crop_area=fitting["crop_area"],
        augment=None if flags.augment == "none" else getattr(augment, flags.augment)(),
        **{name: getattr(flags, name) for name in _AS_GIVEN},
    )


if __name__ == "__main__":
    sys.exit(main())
