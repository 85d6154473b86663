"""benchmarks/results/*.json, as the parts left them ──▶ Markdown tables between the marks of the pages.

    <!-- table conversion_speed -->   rows, goals, command and machine of that part   <!-- end -->

python -m benchmarks.tables [--results=benchmarks/results] [PAGE …]; what has not been measured stays as it is. README
has a part of one table, between <!-- peers --> and <!-- end -->, which is taken from docs/benchmarks.md. docs/scale.md
has what the formulas of benchmarks/scale/formulas.py give, between <!-- formulas --> and <!-- end -->.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from benchmarks import measure
from benchmarks.scale.formulas import predictions

BENCHMARKS, README = Path("docs/benchmarks.md"), Path("README.md")
PAGES = tuple(
    Path(f"docs/{name}.md") for name in ("benchmarks", "input", "train", "preflight", "scale", "explanation/frameworks")
)
_MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_KINDS = ("decoded", "looked at by its header", "copied")  # what is done with an image, in README's table
_PEERS = re.compile(r"(<!-- peers -->\n).*?(<!-- end -->)", re.DOTALL)
_FORMULAS = re.compile(r"(<!-- formulas -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=measure.RESULTS)
    parser.add_argument("pages", type=Path, nargs="*", default=PAGES)
    flags = parser.parse_args()
    for page in flags.pages:
        page.write_text(with_formulas(filled(page.read_text(), flags.results)))
        print(page)
    README.write_text(with_peers(README.read_text(), BENCHMARKS.read_text()))
    print(README)


def with_peers(readme: str, benchmarks: str) -> str:
    """Returns README with the speed of converters: those that decode each image first, those that copy it last."""
    (table,) = (marked[0] for marked in _MARKED.finditer(benchmarks) if marked[2] == "conversion_peers")
    lines = [line.strip("|").split("|") for line in table.split("\n") if line.startswith("| ")]
    header, *rows = ([cell.strip() for cell in line] for line in lines)
    measured = [dict(zip(header, row, strict=True)) for row in rows]
    output = ["| each image is | by | images/s | CPU s | peak MB |", "|---|---|---|---|---|"]
    for kind in _KINDS:
        for row in measured:
            if _kind(row["looks at"]) == kind:
                name = f"**{row['way']}**" if row["way"].startswith("convert") else row["way"]
                values = [row[column] for column in ("images/s", "CPU s", "peak MB")]
                output.append("| " + " | ".join([kind, name, *values]) + " |")
    source = table[table.rindex("(`") :].partition(" <!--")[0].removesuffix("<!-- end -->").strip()
    return _PEERS.sub(lambda marked: f"{marked[1]}\n" + "\n".join(output) + f"\n\n{source}\n\n{marked[2]}", readme)


def with_formulas(page: str) -> str:
    """Returns the page with what the formulas give for sizes that cannot be run."""
    table = "\n".join(predictions())
    return _FORMULAS.sub(lambda marked: f"{marked[1]}\n{table}\n\n{marked[2]}", page)


def _kind(looks_at: str) -> str:
    """Returns the one of _KINDS that the column "looks at" tells."""
    decoded, by_header, copied = _KINDS
    if looks_at.startswith("headers"):
        return by_header
    return decoded if "decoded" in looks_at else copied


def filled(page: str, results: Path) -> str:
    """Returns the page with the table of each part that has been measured."""

    def fill(marked: re.Match[str]) -> str:
        begin, part, end = marked.groups()
        path = results / f"{part}.json"
        if not path.exists():
            print(f"left as it is: {part}, as {path} is missing")
            return marked[0]
        result = json.loads(path.read_text())
        source = f"(`{result['command']}`; {measure.in_words(result['machine'])}.)"
        return f"{begin}\n{measure.markdown(result)}\n{source}\n\n{end}"

    return _MARKED.sub(fill, page)


if __name__ == "__main__":
    main()
