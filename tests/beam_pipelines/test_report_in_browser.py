"""The page in a real browser: it shows what it should, fetches nothing, and is usable by keyboard and screen reader."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from beam_pipelines.convert import convert
from beam_pipelines.options import ConvertOptions, ImageOptions, Source
from beam_pipelines.report import thumbnails
from beam_pipelines.report.page import write_report
from support.browser import Page, browse, find_chromium

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs Chromium: apt-get install chromium")
ROOT = Path(__file__).parents[2]
ROOT_ELEMENT = "document.documentElement"


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Page]:
    chromium = find_chromium()
    assert chromium
    with browse(chromium, tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture(scope="module")
def page(nasty) -> Path:
    return Path(write_report(str(nasty)))


@pytest.fixture
def opened(browser, page) -> Page:
    browser.resize(1200, 800)
    browser.prefer("light")
    browser.open(page)
    return browser


def test_charts_and_pictures_are_there_and_nothing_is_fetched(opened, page):
    assert opened.evaluate("document.title") == "out: 121 records"
    pictures = opened.evaluate("[...document.images].map(image => [image.naturalWidth, image.offsetWidth])")
    assert len(pictures) == page.read_text().count("<img ") > 20
    assert all(
        0 < natural_width <= thumbnails.LARGE_SIDE and offset_width > 0 for natural_width, offset_width in pictures
    )
    assert all(
        offset_width > 150
        for offset_width in opened.evaluate("[...document.querySelectorAll('.pair img')].map(i => i.width)")
    )
    bars = "[...document.querySelectorAll('.track i, .histogram rect, .strip line, .parts i')]"
    sizes = opened.evaluate(
        f"{bars}.map(bar => bar.getBoundingClientRect()).map(box => Math.max(box.width, box.height))"
    )
    assert len(sizes) > 20
    assert sum(size > 0 for size in sizes) > 20
    for section in (
        "#classes .track i",
        "#sizes .histogram rect",
        "#sizes .parts i",
        "#shards .strip line",
        "#fixed .track i",
    ):
        box = f"document.querySelector('{section}').getBoundingClientRect()"
        assert opened.evaluate(f"Math.max({box}.width, {box}.height)") > 0, section
    for width in (1200, 360):
        opened.resize(width, 800)
        assert opened.evaluate(f"{ROOT_ELEMENT}.scrollWidth - {ROOT_ELEMENT}.clientWidth") == 0, f"{width} px"
    colours = set()
    for scheme in ("light", "dark"):
        opened.prefer(scheme)
        colours.add(opened.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours == {"rgb(251, 250, 247)", "rgb(23, 25, 28)"}
    assert {url.split(":")[0] for url in opened.requests} <= {"file", "data"}
    assert {url for url in opened.requests if url.startswith("file:")} == {page.as_uri()}
    assert opened.complaints == []


def visible(page: Page, selector: str) -> int:
    return int(page.evaluate(f"[...document.querySelectorAll('{selector}')].filter(e => e.checkVisibility()).length"))


def search(page: Page, text: str) -> str:
    """Types a text into the field; returns what a screen reader is told."""
    page.evaluate(
        f"(() => {{ const field = document.getElementById('class-filter'); field.value = {json.dumps(text)};"
        " field.dispatchEvent(new Event('input')); })()"
    )
    return str(page.evaluate("document.getElementById('status').textContent"))


def test_classes_are_searched_and_filtered(opened):
    everything = {"tr[data-kind=class]": 3, ".group[data-kind=group]": 3, ".examples > div": 3}
    assert {selector: visible(opened, selector) for selector in everything} == everything
    assert search(opened, "CHIN") == "1 class, 2 groups of look-alikes"
    assert {selector: visible(opened, selector) for selector in everything} == {
        "tr[data-kind=class]": 1,
        ".group[data-kind=group]": 2,
        ".examples > div": 1,
    }
    assert search(opened, "onerror=alert") == "1 class, 0 groups of look-alikes"
    assert search(opened, "no such class") == "0 classes, 0 groups of look-alikes"
    opened.evaluate("document.getElementById('clear').click()")
    assert {selector: visible(opened, selector) for selector in everything} == everything


def test_a_class_that_is_not_in_the_chart_is_found(browser, tmp_path):
    for label in range(60):
        folder = tmp_path / "in" / f"n{label:02d}"
        folder.mkdir(parents=True)
        Image.new("L", (16, 16), 4 * label).save(folder / "1.jpg")
    splits = (("train", 1.0),)
    convert(ConvertOptions((Source(str(tmp_path / "in")),), str(tmp_path / "out"), splits=splits))
    browser.open(Path(write_report(str(tmp_path / "out"))))
    assert visible(browser, "tr[data-kind=class]") == 50
    assert search(browser, "n30") == "1 class, 0 groups of look-alikes"
    assert visible(browser, "tr[data-kind=class]") == 1


def test_a_path_is_copied(opened, nasty):
    opened.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    paths = opened.evaluate("[...document.querySelectorAll('.pair [data-copy]')].map(button => button.dataset.copy)")
    assert len(paths) == 6
    assert all(Path(path).is_file() and Path(path).is_relative_to(nasty.parent / "in") for path in paths)
    opened.evaluate("document.querySelector('.pair [data-copy]').focus()")
    press(opened, "Enter")  # a user's own action, which browsers want to see before they copy
    announcement = (
        "new Promise(done => new MutationObserver(() => done(status.textContent)).observe(status, {childList: true}))"
    )
    opened.evaluate(f"(status => status.textContent || {announcement})(document.getElementById('status'))")
    assert opened.evaluate("document.getElementById('status').textContent") == f"Copied: {paths[0]}"
    assert opened.evaluate("navigator.clipboard.readText()") == paths[0]


def press(page: Page, key: str) -> None:
    code = {"Tab": 9, "Enter": 13}[key]
    text = {"text": "\r"} if key == "Enter" else {}
    for kind in ("keyDown", "keyUp"):
        page.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)


def test_everything_is_reached_by_the_keyboard_alone(opened):
    num_focusable = opened.evaluate(
        "[...document.querySelectorAll('a, button, input, summary, [tabindex]')]"
        ".filter(element => element.checkVisibility()).length"
    )
    reached: list[Any] = []
    current = (
        "(() => { const e = document.activeElement; const b = e.getBoundingClientRect(); const s = getComputedStyle(e);"
        "return [e.tagName, (e.getAttribute('aria-label') || e.textContent || e.id).trim(), s.outlineStyle,"
        "b.width > 0 && b.top < innerHeight && b.bottom > 0]; })()"
    )
    for _ in range(num_focusable + 1):
        press(opened, "Tab")
        reached.append(opened.evaluate(current))
        if reached[-1][0] == "BODY":
            break
    stops = [stop for stop in reached if stop[0] != "BODY"]
    assert stops[0][:2] == ["A", "Skip to the content"]
    assert len(stops) >= num_focusable
    assert all(name and outline != "none" and on_screen for _, name, outline, on_screen in stops), stops


def test_the_page_is_whole_without_scripts(browser, page):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        assert visible(browser, ".group[data-kind=group]") == 3
        assert visible(browser, "button, input") == 0  # none that does nothing
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)


def test_no_other_script_may_run(opened):
    """As one that a flaw in the escaping would let in."""
    opened.evaluate(
        "(() => { const script = document.createElement('script'); script.textContent = 'window.ran = true';"
        "document.body.append(script); document.body.insertAdjacentHTML('beforeend',"
        '\'<img src=x onerror="window.ran = true"><button id=evil onclick="window.ran = true">x</button>\');'
        "document.getElementById('evil').click(); })()"
    )
    assert opened.evaluate("window.ran === undefined")


def test_it_prints_on_a_few_pages(opened):
    pdf = base64.b64decode(opened.send("Page.printToPDF", printBackground=False)["data"])
    assert pdf.startswith(b"%PDF")
    pages = pdf.count(b"/Type /Page\n") or pdf.count(b"/Type /Page ")
    assert 2 <= pages <= 8


AXE = Path(os.environ.get("AXE_CORE", "") or "axe.min.js")
AXE = AXE if AXE.is_absolute() else ROOT / AXE


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: make test fetches it with npm")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(opened, scheme):
    """The rules of WCAG 2.2 A and AA, and axe's own good practice: https://github.com/dequelabs/axe-core."""
    opened.prefer(scheme)
    opened.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    opened.evaluate(AXE.read_text() + "; 0")
    result = json.loads(
        opened.evaluate("axe.run().then(found => JSON.stringify([found.violations, found.passes.length]))")
    )
    violations = [(violation["id"], [node["html"][:200] for node in violation["nodes"]]) for violation in result[0]]
    assert violations == []
    assert result[1] > 20


def test_sources_are_shown_beside_what_is_stored(browser, tmp_path):
    for name, side in (("a", 100), ("b", 300)):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(4):
            buffer = io.BytesIO()
            Image.new("RGB", (side + 20 * number, side), (number, 0, 0)).save(buffer, "JPEG")
            (tmp_path / "in" / name / f"{number}.jpg").write_bytes(buffer.getvalue())
    images = ImageOptions(resize_shorter=150)
    options = ConvertOptions((Source(str(tmp_path / "in")),), str(tmp_path / "out"), images=images)
    convert(options)
    browser.open(Path(write_report(str(tmp_path / "out"))))
    charts = browser.evaluate(
        "[...document.querySelectorAll('#sizes .chart')].map(chart => [chart.querySelector('.title').textContent,"
        " chart.querySelector('.across').textContent, chart.querySelector('.histogram').getAttribute('aria-label')])"
    )
    axis = "shorter side, pixels"
    words = "5 % are at most {}, half at most {}, 95 % at most {}"
    assert charts[:2] == [
        ["Sources", axis, f"8 sources by {axis}: {words.format(100, 100, 300)}"],
        ["Stored images", axis, f"8 stored images by {axis}: {words.format(100, 100, 150)}"],
    ]
    heights = "[...document.querySelectorAll('.histogram')].slice(0, 2).map(svg => [...svg.querySelectorAll('rect')]"
    low, high = browser.evaluate(f"{heights}.filter(bar => bar.getBBox().height).map(bar => bar.textContent))")
    assert [line.rpartition(": ")[2] for line in low] == [line.rpartition(": ")[2] for line in high] == ["4", "4"]
    assert low[0] == high[0]
    assert low[1] != high[1]
