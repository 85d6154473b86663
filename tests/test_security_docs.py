"""docs/security.md: the commands that it recommends run, and end as it says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from PIL import Image

from tpu_input.command_line.jpeg2tpu import main
from tpu_input.dataset_format.records import read_frames
from tpu_input.dataset_format.tfrecord import Example

PAGE = Path(__file__).parents[1] / "docs" / "security.md"


def commands() -> list[list[str]]:
    """Every command of the page, word by word."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [shlex.split(line.removesuffix("&&")) for block in blocks for line in block.splitlines()]


def test_the_commands_for_strangers_files_run(few_digits, dataset_copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few_digits.rename("theirs")
    shutil.move(dataset_copy, "their_dataset")
    for label in "012":  # a photographer's words, which no record is to pass on
        first = min(Path("theirs", label).iterdir())
        Image.open(first).save(first, comment=b"taken at home", quality=90)
    fuzz, *ours = commands()
    assert fuzz == ["make", "fuzz", "CASES=20000"]
    assert [words[1] for words in ours] == ["convert", "verify", "report", "verify"]
    for program, *argv in ours:
        assert program == "jpeg2tpu"
        assert main(argv) == 0
    shards = list(Path("dataset").glob("*.tfrecord"))
    assert shards
    for shard in shards:
        with open(shard, "rb") as file:
            images = [Example.FromString(payload).features.feature["image/encoded"] for _, payload in read_frames(file)]
        assert not [image for image in images if b"taken at home" in image.bytes_list.value[0]]
