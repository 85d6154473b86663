"""python -m tpu_input benchmark|idx DATASET. The only place of this package that knows flags.

TensorFlow is imported after the flags are read: --help and mistakes answer at once, and its noise can be turned off.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tpu_input.command_line import Parser
from tpu_input.config import CACHES, DTYPES, LAYOUTS, InputConfig

_AUGMENTS = ("none", "color_jitter", "rand_augment")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status: 2 for a mistake of the user's, which is said without a traceback."""
    flags = _parser().parse_args(argv)
    warnings.simplefilter("ignore", FutureWarning)  # Google's libraries warn of Python's age when TensorFlow loads them
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is imported, below
    try:
        return int(flags.run(flags))
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        # TensorFlow's, of a record that cannot be read; its module is not imported for --help.
        if not type(error).__module__.startswith("tensorflow."):
            raise
        print(f"error: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2


def _parser() -> Parser:
    parser = Parser(prog="python -m tpu_input", description="Shards -> batches.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    _command(commands, "idx", _idx, "write DALI's index files, DATASET/index/*.idx", "gs://bucket/flowers")
    words, example = "images/s, where the time goes, what to change", "gs://bucket/flowers --need=3000"
    flag = _command(commands, "benchmark", _benchmark, words, example).add_argument
    flag("--split", default="train", help="(default: %(default)s)")
    flag("--images", type=int, default=2000, help="to time each way with (default: %(default)s)")
    flag("--rounds", type=int, default=3, help="of all ways in turn; medians are shown (default: %(default)s)")
    flag("--need", type=float, metavar="N", help="images/s that the accelerator takes")
    flag("--json", action="store_true", help="print numbers rather than words")
    flag("--batch_size", type=int, default=64, help="images a batch of this host (default: %(default)s)")
    _config_flags(flag)
    return parser


def _command(commands: Any, name: str, run: Callable[..., int], words: str, example: str) -> Parser:
    command: Parser = commands.add_parser(
        name,
        help=words,
        description=f"{words[0].upper()}{words[1:]}.",
        epilog=f"example:\n  python -m tpu_input {name} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("dataset", metavar="DATASET", help="folder or URI of a converted dataset")
    command.set_defaults(run=run)
    return command


def _config_flags(flag: Any) -> None:
    flag("--image_size", type=int, default=224, help="height and width in pixels (default: %(default)s)")
    flag("--dtype", choices=DTYPES, default="uint8", help="of pixels on their way to the TPU (default: %(default)s)")
    flag("--layout", choices=(*LAYOUTS, "auto"), default="NHWC", help="of batches (default: %(default)s)")
    flag("--augment", choices=_AUGMENTS, default="none", help="of tpu_input.augment (default: %(default)s)")
    flag("--echo", type=int, default=1, help="crops of one decoded image (default: %(default)s)")
    flag("--cache", choices=[name or "none" for name in CACHES], default="none", help="(default: %(default)s)")
    flag("--no_deterministic", dest="deterministic", action="store_false", help="records as they come")
    for name, words in (
        ("parallel_shards", "shards read at the same time"),
        ("shuffle_records", "in the shuffle buffer, whose memory is measured"),
    ):
        flag(f"--{name}", type=int, default=getattr(InputConfig, name), help=f"{words} (default: %(default)s)")


def _idx(flags: argparse.Namespace) -> int:
    from tpu_input.reading import read_manifest
    from tpu_input.record_source import write_dali_index

    written = write_dali_index(read_manifest(flags.dataset))
    print(f"{len(written)} index files in {flags.dataset.rstrip('/')}/index")
    return 0


def _benchmark(flags: argparse.Namespace) -> int:
    for name in ("images", "rounds", "batch_size"):
        if getattr(flags, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(flags, name)}")
    if flags.need is not None and flags.need <= 0:
        raise ValueError(f"--need must be above 0, got {flags.need:g}")
    from tpu_input.benchmark import measure
    from tpu_input.reading import read_manifest
    from tpu_input.verdict import bound, describe

    config, sizes = _config(flags), (flags.images, flags.rounds, flags.batch_size)
    measured = measure(read_manifest(flags.dataset), flags.split, config, *sizes)
    if flags.json:
        needed = {"cores_needed": measured.cores_for(flags.need)} if flags.need else {}
        print(json.dumps(dataclasses.asdict(measured) | {"bound": bound(measured)} | needed))
    else:
        print("\n".join(describe(measured, flags.need)))
    return 0


def _config(flags: argparse.Namespace) -> InputConfig:
    from tpu_input import augment

    as_given = ("dtype", "layout", "echo", "deterministic", "parallel_shards", "shuffle_records")
    return InputConfig(
        flags.image_size,
        augment=None if flags.augment == "none" else getattr(augment, flags.augment)(),
        cache=None if flags.cache == "none" else flags.cache,
        **{name: getattr(flags, name) for name in as_given},
    )


if __name__ == "__main__":
    sys.exit(main())
