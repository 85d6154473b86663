"""Vale's check of the prose of README, docs/ and the help of every command; the rules are in documentation/vale.

python -m documentation.prose --vale=.servers/vale-v3.21.0/vale, as `make docs` runs it. It prints a line for each place
that breaks a rule, and ends with 1 if there are any.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from documentation.reference import ROOT, shown
from tpu_input.command_line import EXIT_CODES
from tpu_input.command_line.jpeg2tpu import COMMANDS

CONFIG = Path(__file__).with_name("vale") / ".vale.ini"


def check(vale: str, files: list[Path]) -> tuple[int, str]:
    """Returns vale's exit code, 0 if no rule is broken, and its lines: FILE:LINE:COLUMN:RULE:MESSAGE."""
    command = [vale, f"--config={CONFIG}", "--output=line", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def help_texts(folder: Path) -> list[Path]:
    """Writes the help of every command into a file of its own and returns the files."""
    files = []
    for name in COMMANDS:
        files.append(folder / f"{name}.txt")
        text = shown([name, "--help-all"]).removesuffix(EXIT_CODES)
        prose = [part for part in text.split("\n\n") if not part.startswith(("usage:", "example"))]
        untitled = [re.sub(r"^\S[^\n]*:\n", "", part) for part in prose]  # without the titles of groups
        options = re.split(r"\n+(?=  ?\S)", "\n\n".join(untitled))  # a paragraph for each option
        files[-1].write_text("\n\n".join(" ".join(option.split()).rstrip(".") + "." for option in options))
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vale", required=True, help="vale's program")
    flags = parser.parse_args()
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    with tempfile.TemporaryDirectory() as folder:
        code, lines = check(flags.vale, [*pages, *help_texts(Path(folder))])
    print(lines.replace(f"{ROOT}/", ""), end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
