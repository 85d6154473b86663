"""Vale's check of the prose of README, docs/, the help of commands and the code; the rules are in documentation/vale.

python -m documentation.prose --vale=.servers/vale-v3.21.0/vale, as `make docs` runs it. It prints a line for each place
that breaks a rule, and ends with 1 if there are any.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path

from documentation.reference import PACKAGES, ROOT, terminal_output
from tpu_input.command_line import EXIT_CODES
from tpu_input.command_line.jpeg2tpu import COMMANDS

CONFIG = Path(__file__).with_name("vale") / ".vale.ini"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("**/*.md"))]
_LETTERS = re.compile(r"[A-Za-z]+,? [A-Za-z]+")  # two words: a text that is read, not a name or a pattern


def check(vale: str, files: list[Path]) -> tuple[int, str]:
    """Returns vale's exit code, 0 if no rule is broken, and its lines: FILE:LINE:COLUMN:RULE:MESSAGE."""
    command = [vale, f"--config={CONFIG}", "--output=line", *map(str, files)]
    process = subprocess.run(command, capture_output=True, text=True)
    return process.returncode, process.stdout + process.stderr


def help_texts(folder: Path) -> list[Path]:
    """Writes the help of every command into a file of its own and returns the files."""
    files = []
    for name in COMMANDS:
        files.append(folder / f"{name}.txt")
        text = terminal_output([name, "--help-all"]).removesuffix(EXIT_CODES)
        prose = [part for part in text.split("\n\n") if not part.startswith(("usage:", "example"))]
        untitled = [re.sub(r"^\S[^\n]*:\n", "", part) for part in prose]  # without the titles of groups
        options = re.split(r"\n+(?=  ?\S)", "\n\n".join(untitled))  # a paragraph for each option
        files[-1].write_text("\n\n".join(" ".join(option.split()).rstrip(".") + "." for option in options))
    return files


def code_texts(folder: Path) -> list[Path]:
    """Writes docstrings, comments and messages of every module into a file of its own and returns the files.

    The files have the modules' paths below `folder`, and every text is on its line of the module.
    """
    files = []
    for module in sorted(path for package in PACKAGES for path in (ROOT / package).glob("**/*.py")):
        name = str(module.relative_to(ROOT))
        files.append(folder / f"{name}.md")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        files[-1].write_text(prose_of(module))
    return files


def prose_of(module: Path) -> str:
    """Returns a module without all that is not prose; what is left is on the line where it was."""
    source = module.read_text()
    lines = [""] * (source.count("\n") + 2)
    with module.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                lines[token.start[0]] += " " + token.string.lstrip("#: ")
    nodes = list(ast.walk(ast.parse(source)))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if id(node) in parts:
            continue
        for number, text in enumerate(_text(node).split("\n")):
            lines[getattr(node, "lineno", 0) + number] += " " + text.strip()
    return "\n".join(line.strip() for line in lines[1:])


def _text(node: ast.AST) -> str:
    """Returns a literal text, with … for the values of an f-string; nothing if it has no words."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(
        part.value if isinstance(part.value, str) else "…" if isinstance(part, ast.FormattedValue) else ""
        for part in parts
        if isinstance(part, ast.Constant | ast.FormattedValue)
    )
    return text if _LETTERS.search(text) else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vale", required=True, help="vale's program")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        help_files, code_files = help_texts(Path(folder)), code_texts(Path(folder))
        code, lines = check(flags.vale, [*PAGES, *help_files, *code_files])
    lines = re.sub(rf"^{re.escape(folder)}/(.+\.py)\.md:", r"\1:", lines, flags=re.MULTILINE)
    print(lines.replace(f"{ROOT}/", ""), end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
