"""Names are nouns, and verbs with nouns: no variable, parameter or attribute is a pronoun, a participle or "of"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (".ci", "beam_pipelines", "tpu_input", "estimator_app", "benchmarks", "documentation", "examples", "tests")
WORDS = (
    "asked at begun chosen done drawn each found given gone held here its kept known left lost made meant named of own "
    "plain said seen shown taken there told took wanted what who whole whom written"
)
ALONE = re.compile(rf"_*({WORDS.replace(' ', '|')})_*", re.IGNORECASE)
IN_COMPOUND = re.compile(r"_*(each|found|kept|left|told|took|its|of)_\w+|\w+_(each|kept|told|took|of)", re.IGNORECASE)
# Public names, and fields that are on disk or printed as JSON.
EXCEPTIONS = {
    "InputConfig.of",
    "Order.of",
    "TrainConfig.of",
    "Metrics.of",
    "Metrics.found",
    "Finding.seen",
}
# Next to these, `left` is an edge of a box.
COORDINATES = {"top", "right"}


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yields (name, line) of what a file binds; of a function whose name ends in _of, what is before."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.FunctionDef(name=name) if not name.startswith("test_"):
                yield re.sub(r"(?<=\w)_of$", "", name), node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno


def exceptions(tree: ast.Module) -> set[tuple[str, int]]:
    """Returns the names, of a file, of the attributes and methods in EXCEPTIONS."""
    return {
        binding
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for binding in bound_names(node)
        if f"{node.name}.{binding[0]}" in EXCEPTIONS
    }


def wrong_names(text: str) -> list[tuple[str, int]]:
    tree = ast.parse(text)
    names = set(bound_names(tree)) - exceptions(tree)
    edges = {name for name, _ in names} & COORDINATES
    return [
        (name, line)
        for name, line in sorted(names)
        if (ALONE.fullmatch(name) or IN_COMPOUND.fullmatch(name)) and not (name == "left" and edges)
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_are_nouns_and_verbs_of_the_field(folder):
    files = [path for path in (ROOT / folder).rglob("*.py") if "node_modules" not in path.parts]
    wrong = {
        f"{path.relative_to(ROOT)}:{line}: {name}" for path in files for name, line in wrong_names(path.read_text())
    }
    assert not wrong


def test_a_wrong_name_is_seen():
    text = "def of(each): found, left, top = 1\nself.kept = rows_of = 2\nimport a as told\ndef rows_of(is_kept): pass"
    assert {name for name, _ in wrong_names(text)} == {"of", "each", "found", "kept", "rows_of", "told", "is_kept"}
