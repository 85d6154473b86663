"""The page in a real browser: what it should show has a size, and nothing is fetched from anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_pipelines.report import thumbnails
from beam_pipelines.report.page import write_report
from support.browser import browse, find_chromium


@pytest.mark.skipif(find_chromium() is None, reason="needs Chromium: apt-get install chromium")
def test_in_a_real_browser_charts_and_pictures_are_there_and_nothing_is_fetched(nasty, tmp_path):
    page = Path(write_report(str(nasty)))
    chromium = find_chromium()
    assert chromium
    with browse(chromium, tmp_path / "profile") as browser:
        browser.resize(1200, 800)
        browser.open(page)
        assert browser.evaluate("document.title") == "out: 121 records"
        pictures = browser.evaluate("[...document.images].map(image => [image.naturalWidth, image.offsetWidth])")
        assert len(pictures) == page.read_text().count("<img ") > 20
        assert all(0 < natural <= thumbnails.SIDE and shown > 0 for natural, shown in pictures)
        bars = "[...document.querySelectorAll('.track i, .histogram rect, .strip line, .parts i')]"
        sizes = browser.evaluate(
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
            assert browser.evaluate(f"Math.max({box}.width, {box}.height)") > 0, section
        for width in (1200, 360):
            browser.resize(width, 800)
            root = "document.documentElement"
            assert browser.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0, f"{width} px scroll sideways"
        colours = set()
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            colours.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert colours == {"rgb(251, 250, 247)", "rgb(23, 25, 28)"}
        assert {url.split(":")[0] for url in browser.requests} <= {"file", "data"}
        assert [url for url in browser.requests if url.startswith("file:")] == [page.as_uri()]
        assert browser.complaints == []
