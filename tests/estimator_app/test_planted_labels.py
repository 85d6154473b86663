"""Wrong labels that were planted among real images are found by the commands of docs/train.md, and can be corrected."""

from __future__ import annotations

import csv
import random
import re
import shutil
from pathlib import Path

import pytest

from support.app_fixtures import keras_warns
from tpu_input import read_manifest
from tpu_input.command_line.jpeg2tpu import main
from tpu_input.dataset_format.index import index_path, read_index

PAGE = Path(__file__).parents[2] / "docs" / "train.md"
SHARE = 0.02  # of the labels are wrong
CLASSES = [str(label) for label in range(10)]


def plant(folder: Path) -> dict[str, str]:
    """Moves some images to folders of other classes; returns the true class by the key that they have then."""
    rng, planted = random.Random(0), {}
    paths = sorted(folder.glob("*/*.jpg"))
    for path in rng.sample(paths, round(SHARE * len(paths))):
        wrong = rng.choice([name for name in CLASSES if name != path.parent.name])
        path.rename(folder / wrong / path.name)
        planted[f"{wrong}/{path.name}"] = path.parent.name
    return planted


@pytest.mark.long
@keras_warns
def test_planted_labels_are_the_first_of_the_list(digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    planted = plant(Path(shutil.copytree(digits, tmp_path / "digits")))
    assert len(planted) == 36
    assert main(["convert", "--input=digits", "--output=dataset", "--shard_size=100KB"]) == 0
    section = PAGE.read_text().partition("### Labels that are likely wrong\n")[2].partition("\n### ")[0]
    commands = re.findall(r"^    jpeg2tpu (.*?)(?: &&)?$", section.replace("\\\n", ""), re.MULTILINE)
    assert [line.split()[0] for line in commands] == ["split", "folds", "report", "relabel"]
    for line in commands:
        words = line.split() + ["--trainer=tf_distribute"] * (line.split()[0] == "folds")
        assert main(words) == 0, (line, capsys.readouterr())

    with open("dataset/likely_wrong_labels.csv", newline="") as file:
        listed = list(csv.reader(file))[1:]
    num_records = 1797
    first = dict(listed[: round(0.03 * num_records)])
    matches = planted.keys() & first.keys()
    print(f"{len(matches)} of {len(planted)} planted labels in the first {len(first)} of {len(listed)} listed")
    assert len(matches) >= 0.9 * len(planted)
    assert sum(first[key] == planted[key] for key in matches) >= 0.9 * len(matches)
    section = Path("dataset/report.html").read_text().partition('id="likely-wrong"')[2].partition('id="classes"')[0]
    assert sum(f"<bdi>{key}</bdi>" in section for key in matches) == len(matches)
    # The models together have predicted each record once.
    assert f"{len(listed)} of {num_records:,} records with a prediction" in section

    corrected = read_manifest("corrected")
    shards = [shard for split in corrected.splits.values() for shard in split.shards]
    rows = [row for shard in shards for row in read_index(Path("corrected", index_path(shard.name)).read_bytes())]
    labels = {row.key: corrected.classes[row.label] for row in rows}
    assert len(labels) == num_records
    assert sum(labels[key] == true for key, true in planted.items()) >= 0.8 * len(planted)
