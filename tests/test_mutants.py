"""`make mutants`: which changes are made, and that a test which fails with one is told from a test which passes."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from mutants.mutation import mutants
from mutants.targets import TARGETS

TESTS = Path(__file__).parent
SOURCE = '''"""A module of 2 + 3 words."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 7

SIDE = 4


def area(width: "int | None" = None, side: int = SIDE) -> "int | None":
    if not width:
        raise ValueError(f"{side + 1} is missing")
    return width * side


def pairs(numbers: list[int]) -> list[tuple[int, ...]]:
    return list(zip(numbers, numbers, strict=True))


def other(number: int) -> int:
    return number + 1
'''


def test_operators_and_numbers_are_changed_but_no_annotation_and_no_message(tmp_path):
    path = tmp_path / "shapes.py"
    path.write_text(SOURCE)
    diffs = [mutant.diff for mutant in mutants(path, ("SIDE", "area"))]
    changes = {diff.splitlines()[1].removeprefix("+ ").strip() for diff in diffs}
    replaced = {f"return width {operator} side" for operator in ("+", "-", "/", "//", "%", "**")}
    assert changes == replaced | {"SIDE = 5", "SIDE = 3", "if  width:", "if not not width:"}
    assert all(ast.parse(mutant.source) for mutant in mutants(path))
    assert not list(mutants(path, ("pairs",)))  # a `strict` guards against programmers
    assert "return number - 1" in "\n".join(mutant.diff for mutant in mutants(path))
    assert path.read_text() == SOURCE


TRIAL = """
import sys
from pathlib import Path
from mutants.mutation import mutants
from mutants.trial import run_tests
path = Path("shapes.py").resolve()
sources = [path.read_text(), *(mutant.source for mutant in mutants(path, ("area",)) if mutant.line == 13)]
print([run_tests(["test_shapes.py"], "shapes", path, source, 60).passed for source in sources])
forever = path.read_text().replace("return width", "while True: pass")
print(run_tests(["test_shapes.py"], "shapes", path, forever, 3).passed)
"""


def test_a_change_survives_where_no_test_fails(tmp_path):
    (tmp_path / "shapes.py").write_text(SOURCE)
    # 2 + 2 and 2 ** 2 are 4 as well.
    (tmp_path / "test_shapes.py").write_text("import shapes\ndef test_area():\n    assert shapes.area(2, 2) == 4\n")
    environment = {"PYTHONPATH": f"{TESTS}:{tmp_path}", "PATH": ""}
    result = subprocess.run(
        [sys.executable, "-c", TRIAL], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    passed, forever = result.stdout.splitlines()
    assert passed == "[True, True, False, False, False, False, True]"
    assert forever == "False"


@pytest.mark.parametrize("module", TARGETS)
def test_what_is_to_be_changed_exists_and_so_do_its_tests(module):
    target = TARGETS[module]
    tree = ast.parse((TESTS.parent / f"{module.replace('.', '/')}.py").read_text())
    names = {
        name
        for node in tree.body
        for name in ([node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else _assigned(node))
    }
    assert {*target.only} <= names
    tests = [test.partition("::") for test in target.tests if ".py" in test]
    assert tests
    for file, _, test in tests:
        assert f"def {test.partition('[')[0]}" in (TESTS / file).read_text()


def _assigned(node: ast.stmt) -> list[str]:
    return [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]
