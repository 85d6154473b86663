"""docs/jax.md does what it says; needs JAX."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "jax.md"


@pytest.mark.skipif(not importlib.util.find_spec("flax"), reason="JAX is beside the newest TensorFlow alone")
def test_every_block_of_the_guide_runs(digits_dataset):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 7
    names: dict[str, Any] = {"DATASET": digits_dataset.path}
    for block in blocks:
        exec(block, names)
