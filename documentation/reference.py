"""The code ──▶ the parts of docs/reference that follow from it.

    commands.md   the help of every command with all options, in 80 columns
    python.md     the public names of each package, for mkdocstrings
    dataset.md    the fields of manifest.json and of the other files, from docstrings and schemas, between marks:

                  <!-- fields of Manifest -->   table   <!-- end -->

python -m documentation.reference writes them. A test compares the pages with what this module makes.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import typing
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from beam_pipelines.conversion.receipts import Rejection
from tpu_input.command_line import EXIT_CODES
from tpu_input.command_line.dataclass_options import attributes, field_types
from tpu_input.command_line.jpeg2tpu import COMMANDS, main
from tpu_input.dataset_format.index import SCHEMA, IndexRow
from tpu_input.dataset_format.manifest import Manifest, Shard, Split

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference"
PACKAGES = {
    "beam_pipelines": "images and labels to shards",
    "tpu_input": "shards to batches",
    "estimator_app": "batches to a trained classifier",
}
_MARKED = re.compile(r"(<!-- fields of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_COLUMNS = "80"


def commands_page() -> str:
    """Returns the page of all commands."""
    lines = [
        "# Commands",
        "",
        "This page has all options of every command, as `jpeg2tpu COMMAND --help-all` prints them; `--help` shows the",
        "everyday ones. Every command ends with one of the [exit codes](messages.md#exit-codes).",
        "`python -m documentation.reference` makes the page.",
    ]
    for package, summary in PACKAGES.items():
        lines += ["", f"## {package}: {summary}"]
        for name, command in COMMANDS.items():
            if command.package == package:
                text = terminal_output([name, "--help-all"]).removesuffix(EXIT_CODES).rstrip()
                lines += ["", f"### {name}", "", "```text", *text.split("\n"), "```"]
    return "\n".join(lines) + "\n"


def terminal_output(argv: list[str]) -> str:
    """Returns what a command prints on a terminal of 80 columns before it ends."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _COLUMNS
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            main(argv)
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return out.getvalue()


def python_page() -> str:
    """Returns the page of all public names, whose docstrings mkdocstrings puts in."""
    lines = [
        "# Python",
        "",
        "All public names of the three packages. What is not on this page may change in any version.",
    ]
    for package, summary in PACKAGES.items():
        lines += ["", f"## {package}: {summary}"]
        for name, module in sorted(public_names(package).items(), key=lambda item: item[0].lower()):
            lines += ["", f"::: {module}.{name}", "    options:", f"      heading: {package}.{name}"]
    return "\n".join(lines) + "\n"


def public_names(package: str) -> dict[str, str]:
    """Returns {name: module that defines it} of the public names of a package."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    return {
        alias.name: node.module or ""
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def fields_of(kind: Any) -> str:
    """Returns a table of the fields of a class: name, type as in JSON, and description in the docstring."""
    described, types = attributes(kind), field_types(kind)
    rows = [(name, json_type(types[name]), described[name]) for name in described]
    return _table(("field", "type", "content"), [row for row in rows if "not part of the file" not in row[2]])


def json_type(hint: Any) -> str:
    """Returns what a type is in JSON, in words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, UnionType):
        return " or ".join("null" if member is NoneType else json_type(member) for member in inner)
    if origin is tuple and inner[-1] is not ...:
        return f"list of {len(inner)} numbers"
    if origin in (tuple, list):
        return f"list of {json_type(inner[0]).partition(' ')[0]}s"
    if origin is dict:
        return "object" if inner[1] is Any else f"object of {json_type(inner[1])}s by name"
    return {int: "integer", float: "number", str: "text", Any: "value"}.get(hint, getattr(hint, "__name__", "").lower())


def columns_of_index() -> str:
    """Returns a table of the columns of an index."""
    described = attributes(IndexRow)
    rows = [(field.name, str(field.type), described[field.name]) for field in SCHEMA]
    return _table(("column", "type", "content"), [*rows, ("features", "string", described["features"])])


def _table(header: tuple[str, ...], rows: list[tuple[str, str, str]]) -> str:
    lines = [f"| {' | '.join(header)} |", "|---|---|---|"]
    return "\n".join(lines + [f"| `{name}` | {kind} | {text} |" for name, kind, text in rows])


TABLES: dict[str, Callable[[], str]] = {
    "Manifest": lambda: fields_of(Manifest),
    "Split": lambda: fields_of(Split),
    "Shard": lambda: fields_of(Shard),
    "IndexRow": columns_of_index,
    "Rejection": lambda: fields_of(Rejection),
}


def filled(page: str) -> str:
    """Returns a page with the table between each pair of marks."""
    return _MARKED.sub(lambda marked: f"{marked[1]}\n{TABLES[marked[2]]()}\n\n{marked[3]}", page)


def pages() -> dict[Path, str]:
    """Returns the pages that this module makes, and those that it fills in."""
    dataset = FOLDER / "dataset.md"
    return {
        FOLDER / "commands.md": commands_page(),
        FOLDER / "python.md": python_page(),
        dataset: filled(dataset.read_text()),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
        print(path.relative_to(ROOT))
