"""python -m tpu_input benchmark|idx DATASET"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence

_EXAMPLE = """example:
  python -m tpu_input benchmark gs://bucket/flowers --image_size=224 --need=3000
  python -m tpu_input idx gs://bucket/flowers
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status: 2 for a mistake of the user's, which is said without a traceback."""
    parser = argparse.ArgumentParser(
        prog="python -m tpu_input", epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    idx = commands.add_parser("idx", help="write DALI's index files, DATASET/index/*.idx")
    idx.add_argument("dataset", metavar="DATASET", help="folder or URI of a converted dataset")
    benchmark = commands.add_parser("benchmark", help="images/s, where the time goes, what to change")
    benchmark.add_argument("dataset", metavar="DATASET", help="folder or URI of a converted dataset")
    benchmark.add_argument("--split", default="train", help="(default: %(default)s)")
    benchmark.add_argument("--image_size", type=int, default=224, help="pixels (default: %(default)s)")
    benchmark.add_argument("--images", type=int, default=2000, help="to measure a stage with (default: %(default)s)")
    benchmark.add_argument("--need", type=float, help="images/s that the accelerator takes")
    benchmark.add_argument("--json", action="store_true", help="print numbers rather than words")
    flags = parser.parse_args(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # read when TensorFlow is imported, below
    try:
        return _idx(flags.dataset) if flags.command == "idx" else _benchmark(flags)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _idx(dataset: str) -> int:
    from tpu_input.reading import read_manifest
    from tpu_input.record_source import write_dali_index

    written = write_dali_index(read_manifest(dataset))
    print(f"{len(written)} index files in {dataset.rstrip('/')}/index")
    return 0


def _benchmark(flags: argparse.Namespace) -> int:
    from tpu_input.benchmark import measure
    from tpu_input.config import InputConfig
    from tpu_input.reading import read_manifest

    if flags.images < 1:
        raise ValueError(f"--images must be at least 1, got {flags.images}")
    measured = measure(read_manifest(flags.dataset), flags.split, InputConfig(flags.image_size), flags.images)
    if flags.json:
        needed = {"cores_needed": measured.cores_for(flags.need)} if flags.need else {}
        print(json.dumps(dataclasses.asdict(measured) | needed))
        return 0
    print("CPU ms an image, each with what comes before:")
    for name, cpu_ms in measured.cpu_ms.items():
        print(f"  {name:12} {cpu_ms:8.3f}")
    print(f"peak memory {measured.peak_bytes / 1e6:.0f} MB")
    print(measured.verdict(flags.need))
    return 0


if __name__ == "__main__":
    sys.exit(main())
