"""Conversion end to end: complete, explained, the same every time, and nothing lost."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
import tensorflow as tf

from beam_pipelines.conversion import shard_writing
from beam_pipelines.conversion.shard_writing import write_planned
from beam_pipelines.convert import convert
from beam_pipelines.verify import verify
from support.conversion import options
from support.folders import files
from tpu_input.dataset_format import records as record_format
from tpu_input.dataset_format.index import index_path, read_index
from tpu_input.dataset_format.lengths import parse_lengths

convert_module = importlib.import_module("beam_pipelines.convert")


def test_every_digit_is_in_one_shard_with_its_own_bytes_and_label(digits, digits_dataset):
    keys = Counter[str]()
    for split in digits_dataset.splits.values():
        for shard in split.shards:
            for serialized in tf.data.TFRecordDataset(f"{digits_dataset.path}/{shard.name}"):
                record = record_format.decode(serialized.numpy())
                keys[record.key] += 1
                assert record.encoded == (digits / record.key).read_bytes()
                assert digits_dataset.classes[record.label] == record.class_name == record.key.split("/")[0]
    assert keys == Counter(str(path.relative_to(digits)) for path in digits.rglob("*.jpg"))
    assert digits_dataset.num_inputs == sum(keys.values()) == 1797


def test_the_lengths_of_all_records_are_those_of_the_index(digits_dataset):
    lengths = parse_lengths(Path(digits_dataset.path, "lengths.parquet").read_bytes()).by_shard()
    shards = [shard.name for split in digits_dataset.splits.values() for shard in split.shards]
    assert [*lengths] == shards
    for shard in shards:
        index = read_index(Path(digits_dataset.path, index_path(shard)).read_bytes())
        assert lengths[shard].tolist() == [row.length for row in index]


@pytest.mark.parametrize("damage", ["damaged", "of another shard"])
def test_an_index_that_is_damaged_before_the_commit_stops_it_and_is_written_again(
    few_digits, tmp_path, damage, monkeypatch
):
    convert(options(few_digits, tmp_path / "whole"))
    commit = vars(convert_module)["commit"]

    def after_damage(opts, *args):
        first, second = sorted((tmp_path / "out" / ".jpeg2tpu").glob("*/train-*.index-*"))[:2]
        first.write_bytes(b"noise" if damage == "damaged" else second.read_bytes())
        return commit(opts, *args)

    monkeypatch.setattr(convert_module, "commit", after_damage)
    with pytest.raises(
        ValueError, match=r"'train-00000.*' or its index in .* differs from its receipt; rerun the same"
    ):
        convert(options(few_digits, tmp_path / "out"))
    assert not (tmp_path / "out" / "manifest.json").exists()
    monkeypatch.undo()
    convert(options(few_digits, tmp_path / "out"))
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_the_index_finds_every_record(digits_dataset):
    shard = digits_dataset.split("train").shards[3]
    data = Path(digits_dataset.path, shard.name).read_bytes()
    index = read_index(Path(digits_dataset.path, index_path(shard.name)).read_bytes())
    assert len(index) == shard.num_examples
    for row in index:
        payload = data[row.offset : row.offset + row.length][12:-4]
        assert record_format.decode(payload).key == row.key


def test_the_statistics_are_those_of_the_pixels(digits_dataset):
    split = digits_dataset.split("train")
    files = [f"{digits_dataset.path}/{shard.name}" for shard in split.shards]
    encoded = [record_format.decode(record.numpy()).encoded for record in tf.data.TFRecordDataset(files)]
    pixels = [tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE").numpy() for data in encoded]
    assert split.height == split.width == (32, 32.0, 32)
    assert split.channel_mean == pytest.approx(tf.reduce_mean(tf.cast(pixels, tf.float64), [0, 1, 2]), abs=0.5)
    assert split.channel_std == pytest.approx(tf.math.reduce_std(tf.cast(pixels, tf.float64), [0, 1, 2]), abs=0.5)


def test_two_conversions_give_the_same_bytes(few_digits, tmp_path):
    convert(options(few_digits, tmp_path / "a"))
    convert(options(few_digits, tmp_path / "b"))
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_threads_and_processes_of_beam_give_the_same_bytes(few_digits, tmp_path):
    from apache_beam.options.pipeline_options import PipelineOptions

    flags = ["--runner=FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_threading"]
    convert(options(few_digits, tmp_path / "a"))
    convert(options(few_digits, tmp_path / "b"), PipelineOptions(flags))
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_what_is_no_image_is_in_rejected_jsonl_and_the_rest_is_converted(few_digits, tmp_path):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    (few_digits / "1" / "empty.jpg").write_bytes(b"")
    data = next((few_digits / "2").iterdir()).read_bytes()
    (few_digits / "2" / "half.jpg").write_bytes(data[: len(data) // 2])
    (few_digits / "stray.txt").write_text("hello")
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    lines = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert {line["key"]: line["reason"] for line in lines} == {
        "0/page.jpg": "not_an_image",
        "1/empty.jpg": "empty",
        "2/half.jpg": "truncated",
        "stray.txt": "other_file",
    }
    assert sum(split.num_examples for split in manifest.splits.values()) == 36
    assert verify(str(tmp_path / "out")).problems == []


def test_a_list_gives_labels_splits_and_rejected_rows(few_digits, tmp_path):
    lines = ["image,label,split"]
    lines += [f"{path.relative_to(few_digits)},{path.parent.name},test" for path in sorted(few_digits.rglob("*.jpg"))]
    lines += ["gone.jpg,0,test", "0/0000.jpg,seven,test"]
    (few_digits / "list.csv").write_text("\n".join(lines))
    labels = ("2", "1", "0")
    manifest, *_ = convert(options(few_digits / "list.csv", tmp_path / "out", labels=labels))
    assert manifest.classes == labels
    assert list(manifest.splits) == ["test"]
    assert manifest.split("test").class_counts == (12, 12, 12)
    assert manifest.num_rejected == {"missing": 1, "unknown_label": 1}


def test_one_based_labels_are_written_when_asked_for_and_read_back(few_digits, tmp_path):
    manifest, *_ = convert(options(few_digits, tmp_path / "out", first_label=1))
    raw = set()
    for shard in manifest.split("train").shards:
        for record in tf.data.TFRecordDataset(f"{manifest.path}/{shard.name}"):
            raw.add(
                tf.train.Example.FromString(record.numpy()).features.feature["image/class/label"].int64_list.value[0]
            )
    assert raw == {1, 2, 3}
    assert verify(manifest.path).problems == []


def test_an_interrupted_conversion_goes_on_and_ends_with_the_same_files(few_digits, tmp_path, monkeypatch):
    convert(options(few_digits, tmp_path / "whole"))
    first_shards: list[str] = []

    def write_two(name, *args):
        if len(first_shards) == 2:
            raise OSError("the disk is full")
        first_shards.append(name)
        return write_planned(name, *args)

    monkeypatch.setattr(shard_writing, "write_planned", write_two)
    with pytest.raises(OSError, match="the disk is full"):
        convert(options(few_digits, tmp_path / "out"), num_processes=1)
    assert not (tmp_path / "out" / "manifest.json").exists()
    second_shards = []

    def write_and_remember(name, *args):
        second_shards.append(name)
        return write_planned(name, *args)

    monkeypatch.setattr(shard_writing, "write_planned", write_and_remember)
    convert(options(few_digits, tmp_path / "out"))
    assert not set(second_shards) & set(first_shards)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_rerun_writes_nothing(few_digits, tmp_path):
    assert convert(options(few_digits, tmp_path / "out"))[1]
    before = {path: os.stat(path).st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert not convert(options(few_digits, tmp_path / "out"))[1]
    assert {path: os.stat(path).st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()} == {
        path: time for path, time in before.items() if path.is_file()
    }


@pytest.mark.parametrize("change", ["seed", "inputs"])
def test_an_output_that_holds_another_dataset_is_refused_and_kept(few_digits, tmp_path, change):
    convert(options(few_digits, tmp_path / "out"))
    before = files(tmp_path / "out")
    if change == "inputs":
        shutil.copy(few_digits / "0" / "0000.jpg", few_digits / "0" / "new.jpg")
    difference = (
        "its --seed is 0, not 1"
        if change == "seed"
        else "it was made from 36 inputs, and now there are 37; add what is new with --extend, with --extend --prune "
        "also apply changed labels, splits and files"
    )
    with pytest.raises(ValueError, match=f"holds another dataset: {difference}[;,] choose another output"):
        convert(options(few_digits, tmp_path / "out", seed=int(change == "seed")))
    assert files(tmp_path / "out") == before


def test_an_output_with_an_unfinished_other_conversion_is_refused_and_kept(few_digits, tmp_path, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(convert_module, "commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            convert(options(few_digits, tmp_path / "out"))
    before = files(tmp_path / "out")
    with pytest.raises(ValueError, match="holds an unfinished conversion of other"):
        convert(options(few_digits, tmp_path / "out", seed=1))
    assert files(tmp_path / "out") == before
    convert(options(few_digits, tmp_path / "out"))
    assert verify(str(tmp_path / "out")).problems == []


def test_an_output_with_foreign_files_is_refused_and_kept(few_digits, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"contains other files and no dataset: 'thesis\.txt'; choose"):
        convert(options(few_digits, tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
