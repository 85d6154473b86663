"""benchmarks/results/*.json, as the parts left them ──▶ Markdown tables between the marks of the pages.

    <!-- table conversion_speed -->   rows, goals, command and machine of that part   <!-- end -->

python -m benchmarks.tables [--results=benchmarks/results] [PAGE …]; what has not been measured stays as it is.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from benchmarks import measure

_DOCS = ("docs/benchmarks.md", "docs/input.md", "docs/train.md", "docs/preflight.md")
PAGES = (*map(Path, _DOCS), Path("README.md"))
_MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=measure.RESULTS)
    parser.add_argument("pages", type=Path, nargs="*", default=PAGES)
    flags = parser.parse_args()
    for page in flags.pages:
        page.write_text(filled(page.read_text(), flags.results))
        print(page)


def filled(page: str, results: Path) -> str:
    """Returns the page with the table of each part that has been measured."""

    def fill(marked: re.Match[str]) -> str:
        begin, part, end = marked.groups()
        found = results / f"{part}.json"
        if not found.exists():
            print(f"left as it is: {part}, as {found} is missing")
            return marked[0]
        result = json.loads(found.read_text())
        source = f"(`{result['command']}`; {measure.in_words(result['machine'])}.)"
        return f"{begin}\n{measure.markdown(result)}\n{source}\n\n{end}"

    return _MARKED.sub(fill, page)


if __name__ == "__main__":
    main()
