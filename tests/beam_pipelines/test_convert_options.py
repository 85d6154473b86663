"""What the options of a conversion promise."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from beam_pipelines.conversion import output_folder as lock
from beam_pipelines.convert import build_conversion, convert
from beam_pipelines.options import ImageOptions
from beam_pipelines.verify import verify
from support.conversion import local, options
from support.folders import without_edition
from support.pipelines_commands import refused
from tpu_input.dataset_format import records as record_format


def records(manifest, split: str) -> list[record_format.Record]:
    paths = [f"{manifest.path}/{shard.name}" for shard in manifest.split(split).shards]
    return [record_format.decode(record.numpy()) for record in tf.data.TFRecordDataset(paths)]


def rejected(folder: Path) -> dict[str, str]:
    lines = [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]
    return {line["key"]: line["reason"] for line in lines}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """400 noisy photographs of 60 to 400 pixels in two classes, every fifth a PNG."""
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(400):
        side = int(random.integers(60, 400))
        noise = Image.fromarray(random.integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8))
        path = folder / "ab"[number % 2] / f"{number}.{'png' if number % 5 == 0 else 'jpg'}"
        path.parent.mkdir(exist_ok=True)
        noise.resize((side, side + 20), Image.Resampling.BICUBIC).save(path)
    return folder


@pytest.mark.parametrize("images", [ImageOptions(), ImageOptions(resize_shorter=64, quality=80)])
def test_shards_are_of_their_size_also_when_images_are_resized(photos, tmp_path, images):
    size = 150_000 if images.resize_shorter else 800_000
    manifest, *_ = convert(options(photos, tmp_path / "out", shard_bytes=size, images=images))
    shards = manifest.split("train").shards
    assert len(shards) > 5
    largest = max(len(record.encoded) for record in records(manifest, "train"))
    for shard in shards[:-1]:
        assert abs(shard.num_bytes - size) <= max(0.05 * size, largest)


def test_a_number_of_shards_is_met(photos, tmp_path):
    manifest, *_ = convert(options(photos, tmp_path / "out", num_shards=(("train", 16), ("validation", 4))))
    assert {name: len(split.shards) for name, split in manifest.splits.items()} == {"train": 16, "validation": 4}
    counts = [shard.num_examples for shard in manifest.split("train").shards]
    assert max(counts) - min(counts) <= 1


def test_images_that_no_shard_holds_are_rejected_where_shards_are_cut_by_size(few_digits, tmp_path):
    noise = Image.effect_noise((256, 256), 100)
    lines = [f"{path.relative_to(few_digits)},{path.parent.name},train" for path in sorted(few_digits.rglob("*.jpg"))]
    for number in range(4):
        noise.save(few_digits / f"large{number}.jpg", quality=95)
        lines.append(f"large{number}.jpg,0,{('train', 'validation')[number % 2]}")
    (few_digits / "list.csv").write_text("\n".join(["image,label,split", *lines]))
    manifest, *_ = convert(options(few_digits / "list.csv", tmp_path / "out", num_shards=(("train", 2),)))
    assert rejected(tmp_path / "out") == {"large1.jpg": "too_large", "large3.jpg": "too_large"}
    assert manifest.split("train").num_examples == 38


@pytest.mark.long
def test_larger_images_are_stored_with_the_shorter_side_asked_for(photos, tmp_path):
    images = ImageOptions(resize_shorter=100)
    manifest, *_ = convert(options(photos, tmp_path / "out", images=images))
    num_larger = 0
    for record in [record for split in manifest.splits for record in records(manifest, split)]:
        with Image.open(photos / record.key) as source:
            width, height = source.size
        is_unchanged = record.key.endswith(".jpg") and min(width, height) <= 110
        assert min(record.height, record.width) == (min(width, height) if is_unchanged else min(100, width, height))
        num_larger += is_unchanged and min(width, height) > 100
        assert record.width / record.height == pytest.approx(width / height, abs=0.02)
    assert manifest.num_noted == {"slightly larger than --resize_shorter": num_larger}
    assert num_larger
    assert verify(manifest.path).problems == []


def test_reencoding_all_keeps_nothing_of_a_file_but_its_pixels(few_digits, tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "a secret"
    Image.new("L", (32, 32), 90).save(few_digits / "0" / "secret.jpg", exif=exif, comment=b"a secret")
    default, *_ = convert(options(few_digits, tmp_path / "kept"))
    clean, *_ = convert(options(few_digits, tmp_path / "clean", images=ImageOptions(reencode="all")))

    def secrets(manifest) -> int:
        return sum(b"a secret" in record.encoded for name in manifest.splits for record in records(manifest, name))

    assert (secrets(default), secrets(clean)) == (1, 0)
    assert clean.num_fixed == {"--reencode=all": 37}


def test_images_that_are_too_small_are_rejected(few_digits, tmp_path):
    Image.new("L", (32, 7)).save(few_digits / "0" / "small.jpg")
    convert(options(few_digits, tmp_path / "out", images=ImageOptions(min_side=8)))
    assert rejected(tmp_path / "out") == {"0/small.jpg": "too_small"}


def test_of_identical_images_one_is_kept_and_none_under_two_labels(few_digits, tmp_path):
    one, other = sorted((few_digits / "0").iterdir())[:2]
    for number in range(5):
        shutil.copy(one, few_digits / "0" / f"copy{number}.jpg")
    shutil.copy(other, few_digits / "1" / "wrong.jpg")
    manifest, *_ = convert(options(few_digits, tmp_path / "out", dedup="exact", max_rejected=0.05))
    assert manifest.num_rejected == {"conflicting_label": 2, "duplicate": 5}
    hashes = [record.sha256 for name in manifest.splits for record in records(manifest, name)]
    assert len(hashes) == len(set(hashes)) == 35
    reasons = rejected(tmp_path / "out")
    assert {key for key, reason in reasons.items() if reason == "conflicting_label"} == {
        "1/wrong.jpg",
        f"0/{other.name}",
    }


def test_without_dedup_every_copy_is_kept(few_digits, tmp_path):
    shutil.copy(next((few_digits / "0").iterdir()), few_digits / "0" / "copy.jpg")
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    assert manifest.num_inputs == 37
    assert manifest.num_rejected == {}


def test_more_rejected_than_the_budget_leaves_no_manifest_and_a_larger_budget_goes_on(few_digits, tmp_path):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    with pytest.raises(
        ValueError, match=r"1 of 37 inputs were rejected \(2\.7 %\), more than --max_rejected=1%: not_an"
    ):
        convert(options(few_digits, tmp_path / "out", max_rejected=0.01))
    assert rejected(tmp_path / "out") == {"0/page.jpg": "not_an_image"}
    assert not (tmp_path / "out" / "manifest.json").exists()
    shards = {path: os.stat(path).st_mtime_ns for path in (tmp_path / "out").glob("*.tfrecord")}
    convert(options(few_digits, tmp_path / "out", max_rejected=0.03))
    assert {path: os.stat(path).st_mtime_ns for path in shards} == shards
    assert verify(str(tmp_path / "out")).problems == []


def test_files_that_file_managers_leave_do_not_count_against_the_budget(few_digits, tmp_path):
    for label in "012":
        (few_digits / label / ".DS_Store").write_bytes(b"Bud1")
    manifest, *_ = convert(options(few_digits, tmp_path / "out", max_rejected=0.0))
    assert manifest.num_rejected == {"system_file": 3}


def test_a_budget_that_the_list_alone_exceeds_is_said_before_an_image_is_read(few_digits, tmp_path):
    lines = [f"{path.relative_to(few_digits)},{path.parent.name}" for path in sorted(few_digits.rglob("*.jpg"))]
    (few_digits / "list.csv").write_text("\n".join(["image,label", *lines, "gone.jpg,0"]))
    with pytest.raises(ValueError, match=r"missing 1 \('gone\.jpg': no such file\)"):
        convert(options(few_digits / "list.csv", tmp_path / "out", max_rejected=0.0))
    assert not (tmp_path / "out").exists()


def test_a_source_that_cannot_be_read_leaves_nothing_behind(few_digits, tmp_path):
    (tmp_path / "in.tar").write_bytes(b"no archive" * 1000)
    with pytest.raises(ValueError, match="is not a complete, uncompressed tar archive"):
        convert(options(tmp_path / "in.tar", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_split_folders_and_archives_convert_to_the_same_records(few_digits, tmp_path):
    for split in ("train", "val"):
        shutil.copytree(few_digits, tmp_path / "in" / split)
    with tarfile.open(tmp_path / "in.tar", "w") as archive:
        archive.add(tmp_path / "in", "in")
    folder, *_ = convert(options(tmp_path / "in", tmp_path / "a"))
    packed, *_ = convert(options(tmp_path / "in.tar", tmp_path / "b"))
    assert list(folder.splits) == ["train", "validation"]
    assert folder.splits == packed.splits
    assert folder.split("train").class_counts == folder.split("validation").class_counts == (12, 12, 12)


def test_overwrite_replaces_a_dataset_and_touches_nothing_else(few_digits, tmp_path):
    convert(options(few_digits, tmp_path / "out", shard_bytes=10_000))
    changed = options(few_digits, tmp_path / "out", shard_bytes=20_000, seed=3, overwrite=True)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"contains files that are not part of this dataset: 'notes\.txt'"):
        convert(changed)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    (tmp_path / "out" / "notes.txt").unlink()
    convert(changed)
    convert(options(few_digits, tmp_path / "new", shard_bytes=20_000, seed=3))
    assert without_edition(tmp_path / "out") == without_edition(tmp_path / "new")


def test_overwrite_replaces_an_unfinished_conversion(few_digits, tmp_path):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    with pytest.raises(ValueError, match="more than --max_rejected"):
        convert(options(few_digits, tmp_path / "out", max_rejected=0.0))
    manifest, *_ = convert(options(few_digits, tmp_path / "out", seed=1, overwrite=True))
    assert verify(manifest.path).problems == []


def test_stale_shards_are_refused_with_the_list(few_digits, tmp_path):
    convert(options(few_digits, tmp_path / "out"))
    (tmp_path / "out" / "train-00000-of-00099.tfrecord").write_bytes(b"")
    with pytest.raises(ValueError, match=r"this dataset: 'train-00000-of-00099\.tfrecord'"):
        convert(options(few_digits, tmp_path / "out"))


def test_of_two_conversions_into_one_output_the_second_is_told(few_digits, tmp_path):
    with lock.locked(str(tmp_path / "out")), pytest.raises(ValueError, match="another conversion is writing"):
        convert(options(few_digits, tmp_path / "out"))


def test_a_shard_that_is_gone_although_its_receipt_is_there_is_written_again(few_digits, tmp_path):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    with pytest.raises(ValueError, match="more than --max_rejected"):
        convert(options(few_digits, tmp_path / "out", max_rejected=0.0))
    next((tmp_path / "out" / ".jpeg2tpu").glob("*/train-*.data-*")).unlink()
    convert(options(few_digits, tmp_path / "out"))
    assert verify(str(tmp_path / "out")).problems == []


def test_the_job_graph_is_as_small_for_a_million_lines_as_for_one(tmp_path):
    sizes = []
    for count in (1, 1_000_000):
        path = tmp_path / f"{count}.csv"
        path.write_text("image,label\n" + "a/b.jpg,c\n" * count)
        opts, pipeline = options(path, tmp_path / "out"), beam.Pipeline(options=local())
        build_conversion(pipeline, opts)
        sizes.append(pipeline.to_runner_api().ByteSize())
    assert abs(sizes[1] - sizes[0]) < 1000
    assert max(sizes) < 1_000_000


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "a path is empty"),
        ("gs:/bucket/x", "'gs:/bucket/x' is not a URI; write gs://, or for a local folder ./gs:/bucket/x"),
        ("/", "overlap: one contains the other"),
    ],
)
def test_an_output_that_nobody_means_is_refused(capsys, few_digits, tmp_path, monkeypatch, output, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, "convert", f"--input={few_digits}", f"--output={output}")
    assert [path.name for path in tmp_path.iterdir()] == [few_digits.name]
