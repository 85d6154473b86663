"""The commands of docs/train_jax.md run one after another on a CPU, where TensorFlow cannot be imported."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from support.jax_runs import command, command_in_two
from support.pages import ROOT
from support.trainers import needs_jax

PAGE = "docs/train_jax.md"
SMALL = ["--image_size=16", "--network=cnn", "--train_batch_size=8", "--train_steps=2", "--eval_batch_size=100"]


@needs_jax
@pytest.mark.long
@pytest.mark.core
def test_the_commands_of_the_guide(digits, digits_dataset, tmp_path):
    shutil.copy(min((digits / "3").iterdir()), tmp_path / "photo.jpg")
    places = {"DATASET": digits_dataset.path, "photo.jpg": f"{tmp_path}/photo.jpg"}
    places |= {name: f"{tmp_path}/{name}" for name in ("MODEL", "MODEL2", "MODEL3", "TUNED", "EXPORTS")}
    lines = re.findall(r"^    (XLA_FLAGS=\S+ )?jpeg2tpu (.*)$", (ROOT / PAGE).read_text(), re.MULTILINE)
    assert len(lines) == 8
    for flags, line in lines:
        line, _, process_flags = line.partition(" --coordinator_address=")
        words = [re.sub(r"[^=]+$", lambda match: places.get(match[0], match[0]), word) for word in line.split()]
        words += SMALL if words[0] == "train" else []
        if not process_flags:
            results = [command(*words, devices=int(flags.rpartition("=")[2]) if flags else 1)]
        elif process_flags == "10.0.0.1:1234 --num_processes=2 --process_id=0":
            results = command_in_two(*words)
        else:
            assert process_flags == "10.0.0.1:1234 --num_processes=2 --process_id=1"
            continue  # it ran with the line before
        for result in results:
            assert result.returncode == 0, (words, result.stderr)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / PAGE).read_text(), re.DOTALL)
    (export,) = Path(places["EXPORTS"]).iterdir()
    exec(block, {"EXPORT": str(export)})
