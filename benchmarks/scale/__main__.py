"""How a conversion grows: formulas, checked against runs, evaluated for sizes that we cannot run.

    python -m benchmarks.scale --folder=/tmp/scale [--counts=2000,20000,200000]

Runs on small images of the benchmarks' corpus, counts what passes the shuffle and every call to storage, and prints
markdown tables: formula beside run, then the formulas at a million images and above. Then a manifest of 100,000 shards
is made up, written and read.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from pathlib import Path
from typing import Any

from benchmarks.corpus import make_corpus
from benchmarks.scale.formulas import formula, predictions
from benchmarks.scale.runs import CONVERSION, CUT, INDEX, MANIFEST, SHUFFLE, child

SMALL = (48, 36)
SMALL_SHARD = 1_000_000


def check(folder: Path, counts: list[int]) -> None:
    """Prints what runs took, and in brackets how that compares with the formulas."""
    columns = []
    for count in counts:
        make_corpus(folder / f"small{count}", count, size=SMALL)
        elements, num_bytes = run(SHUFFLE, folder, count)
        measured = run(CONVERSION, folder, count) | {"shuffled_elements": elements, "shuffled_bytes": num_bytes}
        measured["index_bytes"] = child(INDEX, count, measured["shards"])
        predicted = dataclasses.asdict(formula(count, measured["record_bytes"], SMALL_SHARD))
        columns.append(
            {name: f"{measured[name]:,} ({measured[name] / value:.2f})" for name, value in predicted.items()}
        )
    print("\n| run (run / formula) | " + " | ".join(f"{count:,} images" for count in counts) + " |")
    print("|---|" + "---|" * len(counts))
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")


def run(code: str, folder: Path, count: int) -> Any:
    output = folder / "scale_output"
    shutil.rmtree(output, ignore_errors=True)
    return child(code, folder / f"small{count}", output, SMALL_SHARD)


def manifest_of(folder: Path, count: int) -> None:
    path = folder / f"manifest{count}.json"
    child(MANIFEST, path, count)
    size, seconds, memory = child(MANIFEST, path, count)
    print(
        f"\nA manifest of {count:,} shards has {size / 1e6:.1f} MB and is read in {seconds:.2f} s and {memory:.0f} MB."
    )
    path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/jpeg2tpu_scale"))
    parser.add_argument("--counts", default="2000,20000,200000")
    flags = parser.parse_args()
    flags.folder.mkdir(parents=True, exist_ok=True)
    if flags.counts:
        check(flags.folder, [int(count) for count in flags.counts.split(",")])
    print("", *predictions(), sep="\n")
    manifest_of(flags.folder, 100_000)
    print(f"To cut a range of 25,000 rows takes {child(CUT, 25_000):.0f} bytes per row.")


if __name__ == "__main__":
    main()
