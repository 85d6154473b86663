"""The mutants of a module: for each, its source with one operator, number or keyword changed.

The operators are cosmic-ray's. Left out are mutants that no test can kill, and those that every test kills:

- annotations, and blocks under `if TYPE_CHECKING:`, which are never evaluated
- the messages of errors, `__repr__` and `__str__`, which are words
- `is` instead of `==`, which does the same for CPython's small integers
- `strict` of zip(), which no right program needs
- bitwise operators instead of arithmetic ones, and others for the `|` of dictionaries, which raise TypeError
- what is no Python, as `+` instead of `**` in {**fields}
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

_ARITHMETIC = "(Add|Sub|Mul|Div|FloorDiv|Mod|Pow)"
_ORDER = "(Eq|NotEq|Lt|LtE|Gt|GtE)"
_EXCLUDED_OPERATORS = re.compile(
    rf"ReplaceBinaryOperator_(?!{_ARITHMETIC}_{_ARITHMETIC}$|[LR]Shift_[LR]Shift$)"
    rf"|ReplaceComparisonOperator_(?!{_ORDER}_{_ORDER}$|Is_IsNot$|IsNot_Is$)"
    "|ReplaceUnaryOperator_.*Invert"
)

Position = tuple[int, int]  # line from 1, column from 0


class Mutant(NamedTuple):
    """A changed source.

    Attributes:
      source: The complete source of the mutant.
      line: Number of the line in the file that is changed, from 1.
      diff: The lines that differ, as by diff.
    """

    source: str
    line: int
    diff: str


def mutants(path: Path, only: tuple[str, ...] = ()) -> Iterator[Mutant]:
    """Yields the mutants of a file: of all of it, or of the top-level functions, classes and variables in `only`."""
    source = path.read_text()
    tree = ast.parse(source)
    included = [_extent(node) for node in tree.body if not only or _names(node) & {*only}]
    excluded = [_extent(node) for node in _no_arithmetic(tree)]
    nodes, operators = list(ast_nodes(get_ast(source))), OperatorProvider()
    for name in operators:
        if _EXCLUDED_OPERATORS.match(name) or operators[name].arguments():
            continue
        operator = operators[name]()
        positions = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(positions):
            if _is_within(start, included) and not _is_within(start, excluded):
                try:
                    changed = mutate_code(source, operator, occurrence)
                except AttributeError:  # cosmic-ray cannot replace a dotted name in `except (a.B, C)`
                    continue
                if _is_python(changed):
                    yield Mutant(changed, start[0], _diff(source, changed))


def _is_python(source: str) -> bool:
    with contextlib.suppress(SyntaxError):
        ast.parse(source)
        return True
    return False


def _diff(source: str, changed: str) -> str:
    lines = difflib.ndiff(source.splitlines(), changed.splitlines())
    return "\n".join(line for line in lines if line.startswith(("- ", "+ ")) and line[2:].strip())


def _names(node: ast.stmt) -> set[str]:
    """Returns the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}


def _no_arithmetic(tree: ast.Module) -> Iterator[ast.stmt | ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield node.annotation
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            yield node.value
        elif isinstance(node, ast.FunctionDef):
            yield from [node] if node.name in ("__repr__", "__str__") else [node.returns] if node.returns else []


def _extent(node: ast.stmt | ast.expr) -> tuple[Position, Position]:
    """Returns the begin and the end of a node, of a definition with its decorators."""
    begin = min((part.lineno, 0) for part in [node, *getattr(node, "decorator_list", ())])
    if isinstance(node, ast.expr):
        begin = (node.lineno, node.col_offset)
    return begin, (node.end_lineno or 0, node.end_col_offset or 0)


def _is_within(position: Position, extents: list[tuple[Position, Position]]) -> bool:
    return any(begin <= position < end for begin, end in extents)
