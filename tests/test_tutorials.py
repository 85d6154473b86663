"""README and the tutorials: their commands run one after another, on small images in the layouts of the pages."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from documentation.photographs import CLASSES, write_photographs
from support.app_fixtures import keras_warns
from support.pages import ROOT, commands, ours, run_ours, unwrapped

SMALL = ["--image_size=16", "--train_batch_size=8", "--train_steps=2", "--steps_per_eval=2"]


@keras_warns
@pytest.mark.long
@pytest.mark.core
def test_readme_s_commands_run_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_photographs(tmp_path / "photos", per_class=4)
    for flaw in ("coffee/download.jpg", "rocket/not_found.jpg"):
        (tmp_path / "photos" / flaw).unlink()
    examples = [words for words in commands("README.md") if ours(words)]
    assert [words[1] for words in examples] == ["sample", "convert", "train", "predict", "convert", "report", "train"]
    for words in examples:
        assert run_ours(words, {"train": SMALL}) == 0, words
    assert (tmp_path / "photos_tfrecords" / "report.html").exists()


def test_the_front_page_of_the_site_shows_commands_and_output_of_pages_that_run():
    examples = commands("docs/index.md")
    assert [words[1] for words in examples] == ["convert", "report", "train"]
    assert [words for words in commands("README.md") if words in examples] == examples
    page, tutorial = ((ROOT / "docs" / name).read_text() for name in ("index.md", "tutorials/photographs.md"))
    output = re.search(r"\n( {4}train: 164 .*?manifest\.json\n)", page, re.DOTALL)
    assert output
    assert output[1] in tutorial


@keras_warns
@pytest.mark.long
def test_the_photographs_tutorial(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_photographs(tmp_path / "photos")
    first, remove, *rest = commands("docs/tutorials/photographs.md")
    assert run_ours(first, {}) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    page = unwrapped("docs/tutorials/photographs.md")
    assert " ".join(message.replace(f"{tmp_path}/", "").split()) in page
    rejected = (tmp_path / "photos_tfrecords" / "rejected.jsonl").read_text()
    assert '"reason": "truncated"' in rejected
    assert '"reason": "not_an_image", "detail": "begins with b' in rejected
    assert remove[0] == "rm"
    for path in remove[1:]:
        (tmp_path / path).unlink()
    assert [words[1] for words in rest] == ["convert", "report", "train", "predict"]
    for words in rest:
        assert run_ours(words, {"train": SMALL}) == 0, words
        stdout = capsys.readouterr().out
        if words[1] == "convert":
            assert "train: 164 examples of 6 classes in 1 shard" in stdout
            assert "train: 164 examples of 6 classes in 1 shard" in page
    assert [line.split('"')[3] for line in stdout.splitlines()] == ["photos/cat/000.jpg", "photos/rocket/029.jpg"]


def write_imagenet(folder: Path, photographs: Path) -> None:
    """Writes ImageNet's two tars, and the list of the validation images' classes, with a few photographs in them."""

    def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))

    synsets = {name: f"n0000000{number}" for number, name in enumerate(CLASSES)}
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as train:
        for name, synset in synsets.items():
            with tarfile.open(fileobj=(inner := io.BytesIO()), mode="w") as images:
                for number in range(4):
                    add(images, f"{synset}_{number}.JPEG", (photographs / name / f"{number:03d}.jpg").read_bytes())
            add(train, f"{synset}.tar", inner.getvalue())
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as validation:
        for number, name in enumerate(synsets, 1):
            content = (photographs / name / "004.jpg").read_bytes()
            add(validation, f"ILSVRC2012_val_{number:08d}.JPEG", content)
    labels = "".join(f"{synset}\n" for synset in synsets.values())
    (folder / "imagenet_2012_validation_synset_labels.txt").write_text(labels)


@keras_warns
@pytest.mark.long
def test_the_imagenet_tutorial(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_photographs(tmp_path / "photos", per_class=5)
    write_imagenet(tmp_path, tmp_path / "photos")
    (tmp_path / "photos" / "cat" / "000.jpg").rename(tmp_path / "photo.jpg")
    small = ["--network=cnn", "--image_size=32", "--train_batch_size=8", "--eval_batch_size=8"]
    added = {
        "convert": ["--num_shards=train=2,validation=1"],
        "preflight": small,
        "train": [*small, "--train_steps=2"],
    }
    examples = [words for words in commands("docs/tutorials/imagenet.md") if ours(words)]
    assert [words[1] for words in examples] == [
        *("convert", "verify", "report", "preflight", "train", "evaluate", "evaluate", "predict")
    ]
    for words in examples:
        assert run_ours(words, added) == 0, (words, capsys.readouterr())
    assert '"file": "photo.jpg"' in capsys.readouterr().out
    script = (ROOT / "docs" / "tutorials" / "imagenet.md").read_text().partition("```sh\n")[2].partition("```")[0]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    served = subprocess.run(["bash", "-ec", script], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert served.returncode == 0, served.stderr
    assert "probabilities" in served.stdout
