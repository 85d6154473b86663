"""The site of the docs, built and searched in a real browser."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator

import pytest

from support.browser import Page, browse, find_chromium
from support.pages import ROOT

PYTHON = ROOT / os.environ.get("VENV_DOCS", ".venv-docs") / "bin" / "python"
pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="needs MkDocs: make docs or make site installs it"),
    pytest.mark.skipif(not find_chromium(), reason="needs Chromium: apt-get install chromium"),
]

# Types a query into the search; the pages of its results, once the search has answered.
_SEARCH = """((query) => new Promise((resolve) => {
  const results = document.querySelector(".md-search-result");
  const answer = () => {
    const links = [...results.querySelectorAll("li > a")];
    const matching = /matching/.test(results.querySelector(".md-search-result__meta").textContent);
    const answered = query ? matching && (links.length || /No matching/.test(results.textContent)) : !links.length;
    if (answered) resolve(links.map((link) => new URL(link.href).pathname.slice(1)));
  };
  new MutationObserver(answer).observe(results, {childList: true, subtree: true, characterData: true});
  const input = document.querySelector(".md-search__input");
  input.value = query;
  input.dispatchEvent(new Event("keyup"));
  if (!query) answer();
}))"""


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Page]]:
    """The address of the site, served on this machine, and a browser's page."""
    folder = tmp_path_factory.mktemp("site")
    command = [str(PYTHON), "-m", "mkdocs", "build", "--quiet", f"--site-dir={folder}/site"]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    handler = functools.partial(_Silent, directory=f"{folder}/site")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browse(str(find_chromium()), folder / "browser") as page:
            yield f"http://127.0.0.1:{server.server_port}/", page
        server.shutdown()


# Query → a page that answers it.
_ANSWERS = {
    "zip": "conversion.html",
    "csv": "conversion.html",
    "jsonl": "conversion.html",
    "pretrained": "train.html",
    "--resize_shorter": "reference/commands.html",
    "--resize_shorter=256": "conversion.html",
    "multi-label": "conversion.html",
    "S3": "cloud.html",
    "s3://": "cloud.html",
    "GPU": "install.html",
    '"class folder"': "glossary.html",
}


def test_the_search_finds_a_page_that_answers(site):
    url, page = site
    results = {}
    page.open(f"{url}index.html")
    for query in _ANSWERS:
        page.evaluate(f"{_SEARCH}('')")  # so that no answer to the query before it is taken for its own
        results[query] = list(dict.fromkeys(page.evaluate(f"{_SEARCH}({json.dumps(query)})")))[:5]
    assert {query: results[query] for query, answer in _ANSWERS.items() if answer not in results[query]} == {}


def test_the_front_page_shows_what_the_product_does_and_asks_no_other_host(site):
    url, page = site
    page.open(url)
    text = page.evaluate("document.querySelector('article').innerText")
    assert all(f"jpeg2tpu {command} " in text for command in ("convert", "report", "train"))
    assert "complete: photos_tfrecords/manifest.json" in text
    widths = page.evaluate("[...document.querySelectorAll('article img')].map((image) => image.naturalWidth)")
    assert len(widths) == 2
    assert min(widths) > 500
    assert [request for request in page.requests if not request.startswith((url, "data:"))] == []


def test_queries_are_split_into_words_as_pages_are():
    (pages,) = re.findall(r"separator: '\[(.+)\]\+'", (ROOT / "mkdocs.yml").read_text())
    (queries,) = re.findall(r"replace\(/\[(.+)\]\+/g", (ROOT / "docs" / "search.js").read_text())
    assert pages.replace('"', "") == queries  # quotation marks make a phrase of a query's words
