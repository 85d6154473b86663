"""docs/input.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def test_every_block_of_the_input_guide_runs(dataset_copy):
    text = (Path(__file__).parents[2] / "docs" / "input.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 17
    names: dict[str, Any] = {"DATASET": str(dataset_copy)}
    for block in blocks:
        exec(block, names)
    names.pop("worker")._stop()  # before the dispatcher, for whose answers it would wait
