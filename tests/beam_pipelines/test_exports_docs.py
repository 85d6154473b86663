"""docs/exports.md: its commands one after another, and each row of its table, read by the library that it names."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from beam_pipelines.shard_formats.all_formats import EXPORTS
from support.app_fixtures import records_of
from support.pages import ROOT, commands, run_ours
from tpu_input.dataset_format.manifest import Manifest

PAGE = (ROOT / "docs" / "exports.md").read_text()
# For each format, the library of its block in the page, and what of an example in it is (key, label, image).
LIBRARIES = {
    "webdataset": (
        "webdataset",
        "[(json.loads(fields)['key'], int(label), image) for image, label, fields in examples]",
    ),
    "parquet": ("datasets", "[(row['key'], row['label'], row['image']['bytes']) for row in images]"),
    "array_record": ("grain", "[(record.key, record.label, record.encoded) for record in examples]"),
    "mds": ("streaming", "[(row['key'], int(row['label']), row['image']) for row in examples]"),
}
SHOW = """
import hashlib, json
print(json.dumps([[key, label, hashlib.sha256(image).hexdigest()] for key, label, image in {examples}]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the page's commands were run."""
    folder = tmp_path_factory.mktemp("exports")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in commands("docs/exports.md"):
            assert run_ours(words, {}) == 0
    return folder


def read(path: Path) -> Manifest:
    return Manifest.from_json((path / "manifest.json").read_text(), str(path), allow_export=True)


def test_the_table_has_every_format(folder):
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.M) == list(EXPORTS) == list(LIBRARIES)
    for name in EXPORTS:
        assert read(folder / f"digits_{name}").format == name


def test_a_dataset_made_again_has_the_same_shards(folder):
    assert read(folder / "dataset_again").splits == read(folder / "dataset").splits


def printed(environment: str, code: str, folder: Path) -> list[str]:
    """Returns the lines that Python code prints in another environment, where nothing is loaded from a hub."""
    command = [str(Path(environment, "bin/python").absolute()), "-c", code]
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=folder, env=offline)
    return result.stdout.splitlines()


@pytest.mark.peers
@pytest.mark.parametrize("name", LIBRARIES)
def test_its_own_library_reads_the_same_keys_labels_and_images(folder, name):
    library, examples = LIBRARIES[name]
    variable = {"streaming": "VENV_PEERS_TORCH"}.get(library, "VENV_PEERS")
    if not (environment := os.environ.get(variable)):
        pytest.skip(f"{variable} does not name an environment with {library}; run: make test-peers")
    (block,) = re.findall(rf"```python\n(# needs {library}\n.*?)```", PAGE, re.DOTALL)
    rows = json.loads(printed(environment, block + SHOW.format(examples=examples), folder)[-1])
    expected = [[record.key, record.label, record.sha256] for record in records_of(read(folder / "dataset"), "train")]
    assert rows == expected


VALIDATE = """
import json
import mlcroissant

dataset = mlcroissant.Dataset(jsonld="digits_parquet/croissant.json")
assert not dataset.metadata.ctx.issues.errors
fields = ("key", "label", "sha256")
rows = [{name.rpartition("/")[2]: value for name, value in row.items()} for row in dataset.records("train")]
assert {row["image"].size for row in rows} == {(32, 32)}
text = lambda value: value.decode() if isinstance(value, bytes) else value
print(json.dumps([[text(row["key"]), int(row["label"]), text(row["sha256"])] for row in rows]))
"""


@pytest.mark.peers
def test_mlcroissant_validates_the_metadata_of_parquet_and_reads_by_it(folder):
    if not (environment := os.environ.get("VENV_PEERS")):
        pytest.skip("VENV_PEERS does not name an environment with mlcroissant; run: make test-peers")
    rows = json.loads(printed(environment, VALIDATE, folder)[-1])
    expected = [[record.key, record.label, record.sha256] for record in records_of(read(folder / "dataset"), "train")]
    assert sorted(rows) == sorted(expected)
