"""What training chooses for images of a size, where no flag says it, and what it says of flags that do not fit them."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from PIL import Image

from beam_pipelines.convert import convert
from beam_pipelines.options import ConvertOptions, Source
from estimator_app.config import TrainConfig, chosen_input, surprises
from estimator_app.saved_model.find import read_origin
from estimator_app.train import run as run_training
from support.app_commands import run
from support.app_fixtures import OPTIONS, keras_warns
from tpu_input import InputConfig
from tpu_input.pipeline.images import decode_for_training

pytestmark = keras_warns
SMALL, PHOTOGRAPHS = ((28, 28),), ((375, 500), (500, 375), (400, 400))


def make_dataset(folder, sizes, train=15):
    """Writes images of these (width, height) in turn, and converts them."""
    random, splits = np.random.default_rng(1), {"train": train, "validation": 6}
    for split, count in splits.items():
        for number in range(count):
            path = folder / "images" / split / "ab"[number % 2] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            width, height = sizes[number % len(sizes)]
            coarse = Image.fromarray(random.integers(0, 256, [4, 4, 3], np.uint8))
            coarse.resize((width, height), Image.Resampling.BICUBIC).save(path, quality=90)
    manifest, *_ = convert(ConvertOptions((Source(str(folder / "images")),), str(folder / "dataset")))
    return manifest


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("small"), SMALL)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("photographs"), PHOTOGRAPHS)


def describe_input(manifest, earlier=None, **options):
    """Returns the config of what a command line says, and what is said of it; 15 images are no batch of 16."""
    arguments = {name: value for name, value in OPTIONS.items() if name not in ("image_size", "crop_area")}
    arguments |= {"dataset": manifest.path, "train_batch_size": 8} | options
    config = TrainConfig.of(manifest, arguments, earlier)
    return config.input, chosen_input(config, arguments, manifest), list(surprises(config, manifest))


def pixels_of_crops(side, config, count=300):
    """Returns how many of an image's own pixels each training crop looks at, seen by an image whose pixels differ."""
    rows, columns = np.mgrid[0:side, 0:side]
    image = np.stack([rows, columns, 0 * rows], -1).astype(np.uint8)  # as long as side <= 256
    areas = []
    for seed in range(count):
        crop = decode_for_training(image, [3, seed], dataclasses.replace(config, dtype="float32", flip=False)).numpy()
        height, width = (np.ptp(crop[..., axis]) + 1 for axis in (0, 1))
        areas.append(height * width)
    return np.array(areas)


def test_training_images_of_a_single_class_are_noted(small):
    train = small.split("train")
    counts = [train.num_examples] + [0] * (len(small.classes) - 1)
    splits = {**small.splits, "train": dataclasses.replace(train, class_counts=tuple(counts))}
    _, _, notes = describe_input(dataclasses.replace(small, splits=splits))
    line = (
        f"all training images have one class, {small.classes[0]!r}, so there is nothing to tell apart; convert images"
    )
    assert [note for note in notes if note.startswith(line)]
    assert not [note for note in describe_input(small)[2] if note.startswith("all training images")]


@pytest.mark.long
def test_small_images_are_fed_as_they_are_and_crops_keep_most_of_them(small):
    fed, line, notes = describe_input(small)
    assert fed.image_size == 28
    assert line == "chosen: --image_size=28 --crop_area=0.6,1 for images of 28 x 28 pixels"
    assert notes == []
    assert pixels_of_crops(28, fed).min() > 0.45 * 28**2  # half a pixel is lost at each edge
    assert pixels_of_crops(28, dataclasses.replace(fed, crop_area=(0.08, 1.0))).min() < 0.2 * 28**2


def test_photographs_are_fed_and_cropped_as_imagenet_s_recipes_do(photographs):
    sizes = [PHOTOGRAPHS[number % 3] for number in range(15)]
    width, height = (math.fsum(size[axis] for size in sizes) / 15 for axis in (0, 1))
    fed, line, notes = describe_input(photographs)
    assert (fed.image_size, fed.crop_area) == (224, (0.08, 1.0))
    assert line == f"chosen: --image_size=224 --crop_area=0.08,1 for images of {height:.0f} x {width:.0f} pixels"
    assert notes == []


@pytest.mark.parametrize("side", [40, 82, 112, 160, 200, 224, 1000])
def test_the_smallest_crop_has_as_many_pixels_as_that_of_imagenet_or_most_of_the_image(photographs, side):
    mean = (side, float(side), side)
    split = dataclasses.replace(photographs.split("train"), height=mean, width=mean)
    fed, _, _ = describe_input(dataclasses.replace(photographs, splits=photographs.splits | {"train": split}))
    assert fed.image_size == min(side, 224)
    least = fed.crop_area[0] * side**2
    assert least == pytest.approx(0.6 * side**2) if side < 82 else least >= 0.98 * 0.08 * 224**2
    assert fed.crop_area[0] == pytest.approx(0.08) if side >= 224 else fed.crop_area[0] > 0.08


def test_options_that_contradict_each_other_are_told(small):
    _, _, notes = describe_input(small, sampling="balanced", class_weights="balanced", resize="pad", eval_crop=1.0)
    assert notes == [
        "--sampling=balanced and --class_weights=balanced both make up for rare classes, which then count more than "
        "common ones; use one of them",
        "--eval_crop=1 has no effect with --resize=pad, which keeps all of an image; leave it out",
    ]
    assert describe_input(small, sampling="balanced", resize="squash")[2] == []


def test_a_run_keeps_sampling_and_resize_and_an_older_one_has_neither(small):
    options = {name: value for name, value in OPTIONS.items() if name != "crop_area"} | {"dataset": small.path}
    config = TrainConfig.of(small, options | {"sampling": "balanced", "resize": "pad"})
    restored = TrainConfig.from_json(config.to_json({}), "config.json")
    assert (restored.input.sampling, restored.input.resize) == ("balanced", "pad")
    before = json.loads(config.to_json({}))
    del before["input"]["sampling"], before["input"]["resize"]
    older = TrainConfig.from_json(json.dumps(before), "config.json")
    assert (older.input.sampling, older.input.resize) == ("equal", "crop")
    assert sorted(older.differences(restored)) == [
        "--resize is 'crop', not 'pad'",
        "--sampling is 'equal', not 'balanced'",
    ]


def test_sampling_without_labels_in_an_index_is_refused_before_anything_is_written(small, tmp_path):
    options = {name: value for name, value in OPTIONS.items() if name != "crop_area"} | {"dataset": small.path}
    config = TrainConfig.of(small, options | {"sampling": "balanced"})
    unindexed = dataclasses.replace(small, fingerprint="")
    with pytest.raises(ValueError, match="needs the labels in a dataset's index"):
        run_training(unindexed, config, str(tmp_path / "model"), str(tmp_path / "export"))
    assert not (tmp_path / "model").exists()


def test_flags_win_and_are_said_where_they_surprise(small):
    fed, line, notes = describe_input(small, image_size=224, crop_area=(0.08, 1.0), train_batch_size=128)
    assert (fed.image_size, fed.crop_area, line) == (224, (0.08, 1.0), "")
    assert notes == [
        "--train_batch_size=128 is more than the 15 training images, so a step contains some images "
        "more than once; use "
        "15 or less",
        "--image_size=224 enlarges images of 28 x 28 pixels, which adds work and no detail; use 28",
        "--crop_area=0.08,1 makes crops as small as 8 x 8 pixels from images of 28 x 28; use --crop_area=0.6,1",
    ]
    fed, line, notes = describe_input(small, image_size=32)
    assert (fed.image_size, fed.crop_area, notes) == (32, (0.6, 1.0), [])
    assert line == "chosen: --crop_area=0.6,1 for images of 28 x 28 pixels"


def test_a_dataset_that_does_not_know_its_sizes_is_fed_at_224_and_that_is_said(small):
    unknown = dataclasses.replace(small.split("train"), height=(0, 0.0, 0), width=(0, 0.0, 0))  # manifest_from_shards()
    fed, line, notes = describe_input(dataclasses.replace(small, splits=small.splits | {"train": unknown}))
    assert (fed.image_size, fed.crop_area, notes) == (224, (0.08, 1.0), [])
    assert line == "chosen: --image_size=224 --crop_area=0.08,1, as the image sizes are not known"


@pytest.mark.long
def test_a_run_without_flags_is_told_keeps_its_input_and_exports_it(capsys, small, tmp_path):
    arguments = ["train", f"--dataset={small.path}", f"--model_dir={tmp_path}/model", "--iterations_per_loop=1"]
    code, out, _ = run(capsys, *arguments, "--train_steps=1", "--steps_per_eval=1")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("training cnn at step 0/1: 15 images")
    assert lines[1] == "chosen: --image_size=28 --crop_area=0.6,1 for images of 28 x 28 pixels"
    assert lines[2].startswith("note: --train_batch_size=128 is more than the 15 training images")
    fields = json.loads((tmp_path / "model/config.json").read_text())["input"]
    assert (fields["image_size"], fields["crop_area"]) == (28, [0.6, 1.0])
    origin, _ = read_origin(f"{tmp_path}/model/{json.loads((tmp_path / 'model/metrics.json').read_text())['export']}")
    assert origin.input.image_size == 28

    # The same dataset, but as if its images had been measured otherwise: the run goes on as it began.
    larger = dataclasses.replace(small.split("train"), height=(90, 90.0, 90), width=(90, 90.0, 90))
    manifest = dataclasses.replace(small, splits=small.splits | {"train": larger})
    earlier = TrainConfig.from_json((tmp_path / "model/config.json").read_text(), "config.json")
    fed, _, _ = describe_input(manifest, earlier)
    assert (fed.image_size, fed.crop_area) == (28, (0.6, 1.0))
    assert describe_input(manifest)[0].image_size == 90


def test_a_page_of_preflight_has_what_was_chosen_and_what_surprises(capsys, small, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments = ("preflight", f"--dataset={small.path}", "--topology=v5e:1x1", "--network=support.broken_networks:fine")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "\nchosen: --image_size=28 --crop_area=0.6,1 for images of 28 x 28 pixels\n" in out
    assert "image [128, 28, 28, 3] uint8" in out
    assert (
        "  ! --train_batch_size=128 is more than the 15 training images, so a step contains some images more than "
        in out
    )


def test_without_a_manifest_the_crops_are_imagenet_s():
    assert InputConfig(224).crop_area == (0.08, 1.0)


@pytest.mark.parametrize(
    ("images", "reason"), [({"resiter": 1}, "no option 'resiter'"), ("all", "images"), (None, "images")]
)
def test_a_manifest_whose_image_options_are_not_those_of_a_conversion_is_refused(small, images, reason):
    damaged = dataclasses.replace(small, options={**small.options, "images": images})
    with pytest.raises(ValueError, match=f"manifest.json does not contain the options of a conversion: .*{reason}"):
        TrainConfig.of(damaged, {"train_steps": 1})
