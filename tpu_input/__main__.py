"""python -m tpu_input idx DATASET"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

_EXAMPLE = """example:
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
    flags = parser.parse_args(argv)
    try:
        return _idx(flags.dataset)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _idx(dataset: str) -> int:
    from tpu_input.reading import read_manifest
    from tpu_input.record_source import write_dali_index

    written = write_dali_index(read_manifest(dataset))
    print(f"{len(written)} index files in {dataset.rstrip('/')}/index")
    return 0


if __name__ == "__main__":
    sys.exit(main())
