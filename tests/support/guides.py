"""Running of a guide's code blocks, one after another and with the same names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_blocks(guide: Path, names: dict[str, Any], is_selected: Callable[[str], bool] = lambda block: True) -> int:
    """Runs the Python blocks of a guide that are selected; returns how many it ran."""
    blocks = [block for block in re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL) if is_selected(block)]
    for block in blocks:
        exec(block, names)
    return len(blocks)
