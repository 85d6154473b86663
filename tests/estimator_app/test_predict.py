"""Prediction: what a user names, in order, a line each; what is no image is named, and the rest is done."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
from collections import Counter
from typing import cast

import numpy as np
import pytest
from PIL import Image

from estimator_app.predict import Prediction, image_files, predict, read, write
from estimator_app.saved_model.classifier import Classifier, load_classifier
from support.app_fixtures import keras_warns
from tpu_input.command_line.jpeg2tpu import main

pytestmark = keras_warns


@pytest.fixture(scope="module")
def classifier(finished) -> Classifier:
    return load_classifier(finished.export)


def a_png() -> bytes:
    png = io.BytesIO()
    Image.new("RGB", (8, 8)).save(png, "PNG")
    return png.getvalue()


def test_digits_are_told_apart_whatever_the_batch(classifier, digits):
    files = [path for label in "0123456789" for path in sorted((digits / label).iterdir())[:5]]
    small_batches, large_batches = (
        cast(list[Prediction], list(predict(classifier, map(str, files), size, top=3))) for size in (7, 50)
    )
    assert [prediction.file for prediction in small_batches] == [str(path) for path in files]
    right = [prediction.top[0][1] == path.parent.name for prediction, path in zip(small_batches, files, strict=True)]
    assert sum(right) > 40
    for one, other in zip(small_batches, large_batches, strict=True):
        assert [label for label, _, _ in one.top] == [label for label, _, _ in other.top]
        likely = [probability for _, _, probability in one.top]
        assert likely == sorted(likely, reverse=True)
        np.testing.assert_allclose(likely, [probability for _, _, probability in other.top], atol=1e-5)


def test_a_run_is_named_by_its_model_dir_as_in_other_commands(finished, digits, capsys):
    file = str(digits / "3" / "0003.jpg")
    model_dir = finished.export.rpartition("/export/")[0]
    lines = []
    for model in (f"--model_dir={model_dir}", f"--export_dir={finished.export}"):
        assert main(["predict", model, file, "--json"]) == 0
        lines.append(capsys.readouterr().out)
    assert lines[0] == lines[1]
    assert json.loads(lines[0])["file"] == file


def test_a_png_is_classified_as_the_jpeg_of_its_pixels(classifier, digits):
    jpeg = min((digits / "3").iterdir()).read_bytes()
    png = io.BytesIO()
    Image.open(io.BytesIO(jpeg)).save(png, "PNG")
    png_probabilities, jpeg_probabilities = classifier([png.getvalue(), jpeg])
    np.testing.assert_allclose(png_probabilities, jpeg_probabilities, atol=0.02)  # Pillow's decoder rounds differently


def test_what_is_no_image_is_named_and_the_rest_of_its_batch_is_done(classifier, digits, tmp_path, capfd):
    jpeg = min((digits / "3").iterdir()).read_bytes()
    contents = {
        "whole.jpg": (jpeg, ""),
        "empty.jpg": (b"", "empty: 0 bytes"),
        "text.jpg": (b"hello", "not an image: begins with b'hello'"),
        "half.jpg": (
            jpeg[: len(jpeg) // 2],
            "truncated: JPEG: libjpeg warns: Corrupt JPEG data: premature end of data segment",
        ),
        "header.jpg": (jpeg[:20], "corrupt: JPEG: index out of range"),
        "zeros.jpg": (jpeg[:100] + bytes(len(jpeg) - 100), "corrupt: JPEG: index out of range"),
        "half.png": (a_png()[:30], "corrupt: PNG: broken PNG file (incomplete checksum in b'IHDR')"),
        "whole.png": (a_png(), ""),
    }
    for name, (data, _) in contents.items():
        (tmp_path / name).write_bytes(data)
    expected = {str(tmp_path / name): reason for name, (_, reason) in contents.items()}
    expected |= {f"{tmp_path}/nowhere.jpg": "No such file or directory", str(tmp_path): "Is a directory"}
    os.mkfifo(tmp_path / "pipe.jpg")
    with (tmp_path / "holes.jpg").open("wb") as file:
        file.truncate(3 << 30)
    expected[f"{tmp_path}/pipe.jpg"] = "it is a pipe or a device; save it as a file"
    expected[f"{tmp_path}/holes.jpg"] = "the file has 3,221,225,472 bytes, but at most 2,147,483,648 are read"
    results = list(predict(classifier, expected, 32, top=1))
    assert "read error" not in capfd.readouterr().err  # which TensorFlow's JPEG decoder prints beside raising it
    assert {
        r.file if isinstance(r, Prediction) else r[0]: "" if isinstance(r, Prediction) else r[1] for r in results
    } == (expected)


def test_files_are_read_a_batch_at_a_time(classifier, digits):
    requests = []
    path = str(min((digits / "3").iterdir()))

    def endless():
        for number in itertools.count():
            requests.append(number)
            yield path

    results = predict(classifier, endless(), 4, top=1)
    assert len(list(itertools.islice(results, 5))) == 5
    assert len(requests) == 8


def test_folders_and_globs_give_the_images_below_and_count_what_they_leave_out(digits, tmp_path):
    source = min((digits / "3").iterdir())
    for name in ("b/2.JPG", "b/1.png", "a.jpeg", "b/c/3.jpg", "b/notes.txt", "b/._1.png", ".hidden/4.jpg", "[x].jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, tmp_path / name)

    def list_images(*names: str) -> tuple[list[str], dict[str, int]]:
        skipped = Counter[str]()
        paths = list(image_files([f"{tmp_path}/{name}" for name in names], skipped))
        return [path.removeprefix(f"{tmp_path}/") for path in paths], dict(skipped)

    assert list_images("b/notes.txt", "a.jpeg", "nowhere.jpg") == (["b/notes.txt", "a.jpeg", "nowhere.jpg"], {})
    assert list_images("b/") == (["b/1.png", "b/2.JPG", "b/c/3.jpg"], {".txt": 1})
    assert list_images("") == (["[x].jpg", "a.jpeg", "b/1.png", "b/2.JPG", "b/c/3.jpg"], {".txt": 1})
    assert list_images("?.jpeg", "b/[0-9].*") == (["a.jpeg", "b/1.png", "b/2.JPG"], {})
    assert list_images("[x].jpg", "*.tif") == (["[x].jpg", "*.tif"], {})
    assert isinstance(read(f"{tmp_path}/*.tif"), ValueError)


def test_a_pipe_in_a_folder_is_left_out_and_not_waited_for(digits, tmp_path):
    (tmp_path / "good.jpg").write_bytes((digits / "0" / "0000.jpg").read_bytes())
    os.mkfifo(tmp_path / "pipe.jpg")
    skipped = Counter[str]()
    assert list(image_files([str(tmp_path)], skipped)) == [f"{tmp_path}/good.jpg"]
    assert skipped == {".jpg": 1}


def test_a_name_that_is_not_utf_8_loses_no_other(digits, tmp_path):
    source = min((digits / "3").iterdir())
    for name in (b"a.jpg", b"caf\xe9.jpg", b"caf\xe9.txt", b"caf\xe9/b.jpg", b"z/c.jpg"):
        path = os.path.join(os.fsencode(tmp_path), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copy(source, path)
    skipped = Counter[str]()
    invalid = [os.fsdecode(os.fsencode(tmp_path) + name) for name in (b"/caf\xe9.jpg", b"/caf\xe9/b.jpg")]
    paths = list(image_files([str(tmp_path), f"{tmp_path}/*.jpg", invalid[0]], skipped))
    good = [f"{tmp_path}/a.jpg", f"{tmp_path}/z/c.jpg"]
    assert sorted(paths) == sorted([*good, *invalid, good[0], invalid[0], invalid[0]])
    assert skipped == {".txt": 1}
    assert {path for path in paths if isinstance(read(path), ValueError)} == set(invalid)
    assert str(read(invalid[0])) == "the name is not UTF-8; rename the file"


def test_lines_are_json_for_programs_and_a_table_for_people():
    results: list[Prediction | tuple[str, str]] = [
        Prediction("a.jpg", ((1, "daisy", 0.75), (0, "rose", 0.25))),
        ("b.jpg", "the file is empty"),
        Prediction("photos/c.jpg", ((0, "rose", 1.0), (1, "daisy", 0.0))),
    ]
    lines, warned = list[str](), list[str]()
    assert write(results, ("rose", "daisy"), False, lines.append, warned.append) == (2, 1)
    assert json.loads(lines[0])["top"] == [
        {"label": 1, "class": "daisy", "probability": 0.75},
        {"label": 0, "class": "rose", "probability": 0.25},
    ]
    assert json.loads(lines[1])["file"] == "photos/c.jpg"
    assert json.loads(Prediction("a.jpg", ((1, "daisy", 0.75),)).as_json()) == {
        "file": "a.jpg",
        "label": 1,
        "class": "daisy",
        "probability": 0.75,
    }
    assert warned == ["b.jpg: the file is empty"]
    lines.clear()
    write(results, ("rose", "daisy"), True, lines.append, warned.append)
    assert lines == [
        " 75.0 %  daisy   25.0 %  rose   a.jpg",
        "100.0 %  rose     0.0 %  daisy  photos/c.jpg",
    ]
