"""The commands of docs/stores.md: every row of its table is run against a server of its kind."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from test_input_kinds import archive, dataset, parquet, table, tfrecords, webdataset, zipped

from support.pages import ROOT
from support.pipelines_commands import run
from tpu_input.dataset_format.records import Manifest

PAGE = ROOT / "docs" / "stores.md"
ROWS = re.findall(r"^(?:\|.*\n)+", PAGE.read_text(), re.MULTILINE)[0].splitlines()[2:]
COMMANDS = re.findall(r"^\| [^|]+ \| `(convert [^`]+)` \|", "\n".join(ROWS), re.MULTILINE)


# The page's names of a bucket, and the fixtures of their stores.
NAMES = {"s3://bucket": "s3", "az://container": "az", "hf://datasets/OWNER/NAME": "hub"}


@pytest.fixture(scope="module")
def published(tmp_path_factory, digits) -> Path:
    """What the commands of the page read."""
    work = tmp_path_factory.mktemp("published")
    for make, target in (
        (archive, "photos.tar"),
        (zipped, "photos.zip"),
        (parquet, "photos.parquet"),
        (parquet, "data/train-00000-of-00001.parquet"),
        (webdataset, "shards/0.tar"),
        (tfrecords, "records/train-0.tfrecord"),
        (table, "photos.csv"),
        (dataset, "dataset"),
    ):
        (work / "made").mkdir()
        path = Path(make(work / "made", digits)[0])
        (work / target).parent.mkdir(exist_ok=True)
        path.rename(work / target)
        if make is table:
            (work / "made" / "in").rename(work / "photos")
            lines = (work / target).read_text().replace(f"{work}/made/in", "photos")
            (work / target).write_text(lines)
        shutil.rmtree(work / "made")
    return work


def test_every_row_of_the_page_is_a_command():
    assert len(COMMANDS) == len(ROWS) > 10


@pytest.mark.parametrize(
    "command", [pytest.param(line, marks=pytest.mark.cloud if "az://" in line else ()) for line in COMMANDS]
)
def test_every_row_of_the_page_stores_all_images(request, capsys, published, tmp_path, command):
    if uri := next((name for name in NAMES if name in command), ""):
        store = request.getfixturevalue(NAMES[uri])
        bucket = store.make_bucket()
        store.upload(published, bucket)
        command = command.replace(uri, bucket)
    else:
        web = request.getfixturevalue("web")
        web.root = {"published": published}
        command = command.replace("https://example.org", f"{web.url}/published")
    words = shlex.split(command.replace("*", "'*'").replace("--output=out", f"--output={tmp_path}/out"))
    code, _, err = run(capsys, *words)
    assert code == 0, err
    splits = Manifest.from_json((tmp_path / "out" / "manifest.json").read_bytes(), "").splits
    assert sum(split.num_examples for split in splits.values()) == 12
