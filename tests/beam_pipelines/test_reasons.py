"""Every reason code that the package gives is explained, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from beam_pipelines.images.rejection_reasons import HTTP_STATUS, REASONS, explain
from beam_pipelines.sources import not_images

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "beam_pipelines", ROOT / "tpu_input" / "stored_images"


def given_codes(source: str) -> set[str]:
    """Returns the codes in Rejected("…", …), row.reject("…", …) and the like, also from a variable of that function."""
    codes = set()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        assignments = {
            target.id: assigned.value
            for assigned in ast.walk(function)
            if isinstance(assigned, ast.Assign)
            for target in assigned.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and _name(call.func) in ("Rejected", "reject", "TryAgain"):
                codes |= _strings(assignments.get(_name(call.args[0]), call.args[0]))
    return codes


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _strings(node: ast.expr) -> set[str]:
    """Returns what an expression can be, if it is a text or a choice between texts."""
    if isinstance(node, ast.IfExp):
        return _strings(node.body) | _strings(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def test_the_table_holds_the_codes_that_the_package_gives_and_no_other():
    codes = set().union(*(given_codes(path.read_text()) for package in PACKAGES for path in package.glob("**/*.py")))
    assert codes | set(not_images.REASONS) | {HTTP_STATUS} == REASONS.keys()


def test_every_status_of_http_is_explained():
    assert explain("http_404") == explain("http_503") == REASONS[HTTP_STATUS]
    assert explain("timeout") == REASONS["timeout"]
    assert explain("http_4044") == explain("no such code") not in REASONS.values()


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ("def f(): raise Rejected('empty', '')", {"empty"}),
        ("def f(row): return row.reject('bad_line', '')", {"bad_line"}),
        ("def f(row): return row._replace(uri='').reject('missing', '')", {"missing"}),
        ("def f(e):\n reason = 'a' if e else 'b'\n raise images.Rejected(reason, '')", {"a", "b"}),
        ("def f(row): return Rejected(row.reason, row.detail)", set()),
    ],
)
def test_codes_are_found_however_they_are_given(source, codes):
    assert given_codes(source) == codes


@pytest.mark.parametrize("code", REASONS)
def test_every_code_is_explained_in_sentences(code):
    reason = REASONS[code]
    assert all(text[0].isupper() and text.endswith(".") for text in (reason.meaning, reason.advice))
    assert reason.counts != bool(re.search("[Ii]t does not count|they do not count", reason.meaning + reason.advice))


def test_the_guide_explains_every_code_in_the_same_words():
    guide = (ROOT / "docs" / "conversion.md").read_text()
    for code, reason in REASONS.items():
        assert f"| `{code}` | {reason.meaning} | {reason.advice} |" in guide
