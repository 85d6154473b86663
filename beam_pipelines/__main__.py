"""The command line: sample, convert, verify. Flags live here and nowhere else."""

from __future__ import annotations

import argparse
import difflib
import logging
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

# Before the Google clients are imported, which warn of the age of the Python that runs them.
warnings.simplefilter("ignore", FutureWarning)

from apache_beam.io.filesystem import BeamIOError  # noqa: E402
from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402

from beam_pipelines import storage  # noqa: E402
from beam_pipelines.commit import REJECTED_NAME  # noqa: E402
from beam_pipelines.convert import convert  # noqa: E402
from beam_pipelines.options import ConvertOptions  # noqa: E402
from beam_pipelines.sample import write_sample  # noqa: E402
from beam_pipelines.verify import verify  # noqa: E402
from tpu_input.schema import MANIFEST_NAME, Manifest  # noqa: E402

_UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_LOCAL_RUNNER = "FnApiRunner"  # DirectRunner would first try to download another one


class _Parser(argparse.ArgumentParser):
    """Says which flag a mistyped one may have meant, before argparse misses the one that was meant."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        flags = [arg.partition("=")[0] for arg in args or () if arg.startswith("--")]
        known = [name for action in self._actions for name in action.option_strings]
        # What other runners take, Beam knows; at the top level the command has not been read yet.
        if self._subparsers is None and "--runner" not in flags:
            for flag in flags:
                if flag not in known:
                    close = difflib.get_close_matches(flag, known, n=1)
                    self.error(f"unknown flag {flag}" + (f"; did you mean {close[0]}?" if close else ""))
        return super().parse_known_args(args, namespace)


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0, 1 when verify finds something, 2 for a mistake of the caller's."""
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    # Beam logs the traceback of an error that it raises as well; the line below says it.
    logging.getLogger("apache_beam.runners.common").setLevel(logging.CRITICAL)
    flags, beam_flags = _parser().parse_known_args(sys.argv[1:] if argv is None else argv)
    try:
        if beam_flags and not getattr(flags, "runner", None):
            raise ValueError(f"unknown argument {beam_flags[0]!r}; see --help")
        return int(flags.run(flags, beam_flags))
    except (ValueError, OSError, BeamIOError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m beam_pipelines", description="Images and labels -> TFRecord shards + manifest.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    sample = _command(commands, "sample", _sample, "write 1,797 real handwritten digits as class folders of JPEGs")
    sample.add_argument("output", metavar="OUTPUT", help="folder or URI")

    command = _command(commands, "convert", _convert, "convert images to sharded TFRecords", _CONVERT_EPILOG)
    command.add_argument("--input", required=True, help=_INPUT_HELP)
    command.add_argument("--output", required=True, help="the dataset's folder or URI: new, or this conversion's own")
    command.add_argument(
        "--splits",
        default="train=90%,validation=10%",
        type=_splits,
        metavar="NAME=N%,…",
        help="share of each split, chosen by hash of the key (default: train=90%%,validation=10%%)",
    )
    command.add_argument(
        "--shard_size",
        default="100MB",
        type=_bytes,
        metavar="SIZE",
        help="bytes a shard: 500KB, 100MB, 1GB (default: %(default)s)",
    )
    command.add_argument(
        "--labels",
        default=(),
        type=_names,
        metavar="FILE",
        help="text file with a class name a line, in label order (default: those found, sorted)",
    )
    command.add_argument(
        "--first_label",
        default=0,
        type=int,
        metavar="0|1",
        help="label on disk of the first class; tensorflow/tpu's trainers expect 1 (default: 0)",
    )
    command.add_argument(
        "--seed",
        default=0,
        type=int,
        metavar="N",
        help="of the order of examples and of the choice of splits (default: 0)",
    )
    command.add_argument("--runner", help="a Beam runner (default: this machine, all its cores)")

    command = _command(commands, "verify", _verify, "re-read everything that a dataset's manifest promises")
    command.add_argument("dataset", metavar="DATASET", help="folder or URI")
    return parser


_INPUT_HELP = (
    "folder of class folders (CLASS/IMAGE.jpg), or a .csv or .jsonl of image,label[,split][,group] with paths relative "
    "to the list; local or a URI such as gs://bucket/images"
)
_CONVERT_EPILOG = """\
example:
  python -m beam_pipelines convert --input=flowers --output=flowers_tfrecords --shard_size=100MB

With --runner, all flags of that Beam runner may follow, such as --project and --region."""


def _command(commands: Any, name: str, run: Callable[..., int], help_text: str, epilog: str = "") -> _Parser:
    description = help_text[0].upper() + help_text[1:] + "."
    raw = argparse.RawDescriptionHelpFormatter
    parser: _Parser = commands.add_parser(
        name, help=help_text, description=description, epilog=epilog, formatter_class=raw, allow_abbrev=False
    )
    parser.set_defaults(run=run)
    return parser


def _sample(flags: argparse.Namespace, _: list[str]) -> int:
    output = storage.absolute(flags.output)
    written, total = write_sample(output)
    print(f"{output}: {total:,} digits in 10 class folders, {written:,} of them written now")
    return 0


def _convert(flags: argparse.Namespace, beam_flags: list[str]) -> int:
    options = ConvertOptions(
        input=storage.absolute(flags.input),
        output=storage.absolute(flags.output),
        splits=flags.splits,
        shard_bytes=flags.shard_size,
        labels=flags.labels,
        first_label=flags.first_label,
        seed=flags.seed,
    )
    runner = flags.runner or _LOCAL_RUNNER
    manifest, written = convert(options, PipelineOptions([f"--runner={runner}", *beam_flags]))
    _print_summary(manifest)
    print(f"{'complete' if written else 'already complete, nothing to do'}: {manifest.path}/{MANIFEST_NAME}")
    return 0


def _verify(flags: argparse.Namespace, _: list[str]) -> int:
    manifest, problems = verify(storage.absolute(flags.dataset))
    for problem in problems:
        print(problem)
    if problems:
        print(f"{manifest.path}: {len(problems)} problems")
        return 1
    _print_summary(manifest)
    print(f"{manifest.path}: all as the manifest says; every record read, every image decoded")
    return 0


def _print_summary(manifest: Manifest) -> None:
    for name, split in manifest.splits.items():
        sizes = [shard.num_bytes for shard in split.shards]
        print(
            f"{name}: {split.num_examples:,} examples of {len(manifest.classes)} classes in {len(sizes)} shards, "
            f"{_size(min(sizes))} to {_size(max(sizes))} each"
        )
    rejected = sum(manifest.num_rejected.values())
    reasons = ", ".join(f"{reason} {count}" for reason, count in manifest.num_rejected.items())
    print(
        f"rejected: {rejected:,} of {manifest.num_inputs:,} inputs"
        + (f" ({reasons}), each in {manifest.path}/{REJECTED_NAME}" if rejected else "")
    )


def _size(num_bytes: int) -> str:
    for unit, size in (("GB", 1000**3), ("MB", 1000**2), ("KB", 1000)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes} bytes"


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?B?)", text.strip().upper())
    if not match or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 500KB, 100MB or 1GB")
    return int(float(match[1]) * _UNITS[match[2]])


def _splits(text: str) -> tuple[tuple[str, float], ...]:
    parts = [re.fullmatch(r"(\w+)=(\d+(?:\.\d+)?)%", part.strip()) for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of splits; write train=90%,validation=10%")
    return tuple((part[1], float(part[2]) / 100) for part in parts if part)


def _names(path: str) -> tuple[str, ...]:
    try:
        return tuple(storage.read_bytes(path).decode().splitlines())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {path!r}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
