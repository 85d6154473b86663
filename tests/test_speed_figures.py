"""Every speed that README, docs/ and the help show is one of docs/benchmarks.md, which commands make."""

from __future__ import annotations

import importlib
import inspect
import math
import re

import pytest

from beam_pipelines import dry_run
from benchmarks import tables
from benchmarks.scale.formulas import SIZES
from documentation import prose
from support.pages import ROOT, unwrapped

BENCHMARKS = ROOT / "docs" / "benchmarks.md"
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md") if path != BENCHMARKS)]

_NUMBER = r"(?<![\w.,/-])\d[\d,]*(?:\.\d+)?(?![\d,]*\d)"
_SPEED = re.compile(
    rf"""({_NUMBER})\ ?(?:
      (?:of\ {_NUMBER}\ |[^\s\d…][^\s.,;:|()…]*\ ){{0,6}}?(?:[A-Za-z]*/s\b|per\ (?:second|minute|hour)\b|a\ second\b)
    | times\ (?:as\ fast|as\ slow|faster|slower|the\ (?:CPU\ )?time)\b
    | %\ (?:faster|slower|(?:more|less|of\ the)\ (?:CPU\ )?time)\b
    | (?:CPU\ )?(?:ms|µs)\b
    )
    | \b(?:takes?|took|saves?|saved)\b[^.;:|()\d]{{0,40}}({_NUMBER})\ ?(?:s|min|h|seconds|minutes|hours|days)\b""",
    re.VERBOSE,
)
_GENERATED = re.compile(r"<!-- (?:table \w+|peers|formulas) -->.*?<!-- end -->", re.DOTALL)
_LINK = re.compile(r"benchmarks\.md#([\w-]+)")

# What has the form of a speed and is none of this program: page → number → what it is.
OTHERS = {
    "docs/cloud.md": {"50": "what object stores take for a request"},
    "docs/input.md": {"3,000": "what --need asks for"},
    "docs/input-service.md": {"3,000": "an accelerator's need", "3.6": "its bytes, by arithmetic"},
    "docs/preflight.md": {
        "48.5": "a bound of the TPU's compiler",
        **dict.fromkeys(["24,831", "2,009.4", "2,057,596"], "likewise"),
    },
    "docs/scale.md": {
        "100,000": "a rate for example",
        "50": "what object stores take for a request",
    },
}


def sections(page: str) -> dict[str, str]:
    """Returns the text of each section of a page by its anchor, with the sections below it."""
    headings = [(match.start(), len(match[1]), match[2]) for match in re.finditer(r"^(#+) (.+)$", page, re.MULTILINE)]
    texts = {}
    for number, (start, level, title) in enumerate(headings):
        ends = (begin for begin, other, _ in headings[number + 1 :] if other <= level)
        anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        texts[anchor] = page[start : next(ends, len(page))]
    return texts


def paragraphs(page: str) -> list[str]:
    """Returns paragraphs, list items and rows, each in one line; an indented block belongs to what is above it."""
    parts = re.split(r"\n\n(?! {4})|\n(?=[|] )|\n(?=- )|\n\n(?= {4}- )|\n(?= {2}-)", page)
    return [" ".join(part.split()) for part in parts]


def without_source(page: str, text: str, benchmarks: str) -> list[str]:
    """Returns each speed of a page's text whose number is not in the section of the benchmarks that it links to.

    The tables that benchmarks write into the page itself need no link, nor does what OTHERS has.
    """
    by_anchor = sections(benchmarks)
    blocks = "".join(_GENERATED.findall(text))
    unsourced = []
    for paragraph in paragraphs(_GENERATED.sub("", text)):
        sources = blocks + "".join(by_anchor[anchor] for anchor in _LINK.findall(paragraph))
        for match in _SPEED.finditer(paragraph):
            number = match[1] or match[2]
            if number not in OTHERS.get(page, ()) and not re.search(rf"(?<![\d.,]){number}(?![\d,.]*\d)", sources):
                unsourced.append(f"{match[0]} in: {paragraph[:200]}")
    return unsourced


@pytest.mark.parametrize("page", PAGES)
def test_every_speed_of_a_page_is_in_the_section_of_the_benchmarks_that_it_links_to(page):
    assert without_source(page, (ROOT / page).read_text(), BENCHMARKS.read_text()) == []


def test_help_and_public_docstrings_have_no_speed(tmp_path):
    texts = {path.stem: path.read_text() for path in prose.help_texts(tmp_path)}
    for name in re.findall(r"^::: (\S+)$", (ROOT / "docs/reference/python.md").read_text(), re.MULTILINE):
        module, _, member = name.rpartition(".")
        texts[name] = inspect.getdoc(getattr(importlib.import_module(module), member)) or ""
    assert len(texts) > 60
    speeds = {name: [match[0] for match in _SPEED.finditer(" ".join(text.split()))] for name, text in texts.items()}
    assert {name: matches for name, matches in speeds.items() if matches} == {}


@pytest.mark.parametrize(
    ("text", "unsourced"),
    [
        ("It reads 1,115 images/s.", ["1,115 images/s"]),
        ("It reads 1,115 images/s ([measured](benchmarks.md#input)).", []),
        ("It reads 1,116 images/s ([measured](benchmarks.md#input)).", ["1,116 images/s"]),
        ("It reads 115 images/s ([measured](benchmarks.md#input)).", ["115 images/s"]),
        ("It reads 1,115 images/s ([measured](benchmarks.md#start)).", ["1,115 images/s"]),
        ("It reads 1,115 images/s.\n\nElsewhere: [measured](benchmarks.md#input)", ["1,115 images/s"]),
        ("It prints ([measured](benchmarks.md#input)):\n\n    1,115 images/s", []),
        ("It reads 40 photographs of 12 megapixels per second.", ["40 photographs of 12 megapixels per second"]),
        ("Here 2 cores decode 40 photographs per second.", ["40 photographs per second"]),
        ("At 224 px, 40 images/s; as in `7 images, … MB/s`.", ["40 images/s"]),
        ("It is 1.6 times as fast.", ["1.6 times as fast"]),
        ("Its sides are at most 1.1 times as long, and it decodes three images per second.", []),
        ("It saves 8 % of the time.", ["8 % of the time"]),
        ("It takes a quarter more, 0.45 ms.", ["0.45 ms"]),
        ("All of them together take about 24 minutes.", ["take about 24 minutes"]),
        ("It waits for 30 seconds, and says so every 5 seconds.", []),
        ("| a | b |\n|---|---|\n| a core | 912 images per second |", ["912 images per second"]),
        ("<!-- table input -->\n| a | 7 images/s |\n<!-- end -->\n\nSo it reads 7 images/s.", []),
    ],
)
def test_speeds_are_noticed_and_compared(text, unsourced):
    benchmarks = "# All\n\n## Input\n\n### 224 px\n\n| images/s |\n| 1,115 |\n\n## Start\n\n| 2.5 |\n"
    assert [line.partition(" in: ")[0] for line in without_source("page", text, benchmarks)] == unsourced


def rows(part: str) -> list[dict[str, str]]:
    """Returns the rows of a table of the benchmarks' page by the names of its columns."""
    table = BENCHMARKS.read_text().partition(f"<!-- table {part} -->")[2].partition("<!-- end -->")[0]
    header, *lines = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\| .+", table, re.M)
    )
    return [dict(zip(header, line, strict=True)) for line in lines]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_a_dry_run_estimates_by_the_measured_speeds():
    (decoded,) = (row for row in rows("conversion_speed") if row["way"] == "convert, 1 core")
    assert number(decoded["images/s"]) == dry_run.IMAGES_A_SECOND
    checked = [row for row in rows("conversion_copying") if row["way"] == "convert --check=header"]
    most = max(checked, key=lambda row: number(row["images"]))
    assert round(number(most["images"]) / number(most["CPU s"])) == dry_run.HEADERS_A_SECOND


def test_scale_has_what_the_formulas_give():
    page = ROOT / "docs" / "scale.md"
    assert tables.with_formulas(page.read_text()) == page.read_text()
    images = SIZES[1][0]
    minutes = round(images / dry_run.IMAGES_A_SECOND / 64 / 60)
    assert page.read_text().count(f"{minutes} minutes") == 2


def test_comparisons_in_words_are_those_of_the_tables():
    speeds = {row["way"].partition(" (")[0]: number(row["images/s"]) for row in rows("conversion_peers")}
    text = unwrapped("README.md")
    assert "which copies images without decoding them, takes about a quarter of the time" in text
    assert math.isclose(speeds["convert"] / speeds["webdataset ShardWriter"], 1 / 4, rel_tol=0.1)
    tutorial = unwrapped("docs/tutorials/imagenet.md")
    assert "the conversion takes eighteen minutes" in tutorial
    (row,) = (row for row in rows("conversion_speed") if row["way"] == "convert")
    assert round((1_281_167 + 50_000) / number(row["images/s"]) / 60) == 18
