"""Damaged shards made again from their source."""

from __future__ import annotations

import io
import json
import re
import shutil

import pytest
import tensorflow as tf
from PIL import Image

import beam_pipelines.__main__
from beam_pipelines.convert import convert
from beam_pipelines.repair import repair
from beam_pipelines.verify import verify
from support.conversion import local, options
from support.folders import files
from tpu_input import InputConfig, eval_steps, make_eval_input_fn
from tpu_input.dataset_format.lengths import parse_lengths, write_lengths


@pytest.mark.parametrize("damage", ["shard", "index", "both"])
def test_repair_makes_damaged_shards_again_from_their_source(few_digits, tmp_path, damage):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"), local())
    before = files(tmp_path / "out")
    shard = manifest.split("train").shards[1].name
    if damage != "index":
        (tmp_path / "out" / shard).write_bytes(b"noise")
    if damage != "shard":
        (tmp_path / "out" / "index" / shard.replace(".tfrecord", ".parquet")).unlink()
    findings = verify(manifest.path)
    assert findings.damaged == [shard]
    assert repair(findings, local()) == [shard]
    assert files(tmp_path / "out") == before


@pytest.mark.parametrize("damage", ["missing", "damaged", "of other records", "with a shard"])
def test_repair_writes_the_lengths_again_without_the_sources(few_digits, tmp_path, damage, capsys):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"), local())
    before, path = files(tmp_path / "out"), tmp_path / "out" / "lengths.parquet"
    lengths = parse_lengths(path.read_bytes()).by_shard()
    if damage == "missing":
        path.unlink()
    elif damage == "damaged":
        path.write_bytes(b"noise")
    else:  # numbers and sums are right, so the order of the lengths is only compared where the shard is whole
        with path.open("wb") as file:
            write_lengths(file, {name: of[::-1] for name, of in lengths.items()})
    if damage == "with a shard":
        (tmp_path / "out" / manifest.split("train").shards[0].name).write_bytes(b"noise")
    else:
        shutil.rmtree(few_digits)
    assert beam_pipelines.__main__.main(["repair", manifest.path]) == 0
    assert files(tmp_path / "out") == before
    assert f"{manifest.path}: re-created from the index: lengths.parquet" in capsys.readouterr().out


def test_a_repaired_shard_has_the_right_lengths_again(few_digits, tmp_path):
    """The lengths of a damaged shard cannot be compared; they are written again with it."""
    manifest, *_ = convert(options(few_digits, tmp_path / "out"), local())
    before, path = files(tmp_path / "out"), tmp_path / "out" / "lengths.parquet"
    shard = manifest.split("train").shards[0].name
    lengths = parse_lengths(path.read_bytes()).by_shard()
    with path.open("wb") as file:
        write_lengths(file, lengths | {shard: lengths[shard][::-1]})
    (tmp_path / "out" / shard).write_bytes(b"noise")
    findings = verify(manifest.path)
    assert (findings.damaged, findings.lengths_damaged) == ([shard], False)
    assert repair(findings, local()) == [shard]
    assert files(tmp_path / "out") == before


def test_the_command_that_the_error_of_training_input_names_repairs_the_shard(few_digits, tmp_path, capsys):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"), local())
    path = tmp_path / "out" / manifest.split("train").shards[0].name
    data = bytearray(path.read_bytes())
    data[-100] ^= 0xFF
    path.write_bytes(data)

    def total() -> float:
        batches = make_eval_input_fn(manifest, InputConfig(8), "train")({"batch_size": 4})
        steps = eval_steps(manifest, "train", 4)
        return sum(float(features["weight"].sum()) for features, _ in batches.take(steps).as_numpy_iterator())

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        total()
    command = re.search(r"python -m beam_pipelines (verify \S+ \S+)", caught.value.message)
    assert command
    assert beam_pipelines.__main__.main(command[1].split()) == 0
    assert total() == manifest.split("train").num_examples


def test_the_command_repair_finds_damage_and_mends_it_and_verify_only_finds_it(few_digits, tmp_path, capsys):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"), local())
    before, shard = files(tmp_path / "out"), manifest.split("train").shards[0].name
    (tmp_path / "out" / shard).write_bytes(b"noise")
    assert beam_pipelines.__main__.main(["verify", manifest.path]) == 1
    assert (tmp_path / "out" / shard).read_bytes() == b"noise"
    assert beam_pipelines.__main__.main(["repair", manifest.path]) == 0
    assert files(tmp_path / "out") == before
    assert f"re-created from the sources: {shard}" in capsys.readouterr().out


def test_repair_from_a_source_that_has_changed_is_refused_and_changes_nothing(few_digits, tmp_path):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"), local())
    shard = manifest.split("train").shards[1].name
    (tmp_path / "out" / shard).write_bytes(b"noise")
    before = files(tmp_path / "out")
    buffer = io.BytesIO()
    Image.new("L", (32, 32)).save(buffer, "JPEG")
    next((few_digits / "0").iterdir()).write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match="no longer contain the inputs that"):
        repair(verify(manifest.path), local())
    assert files(tmp_path / "out") == before


def test_a_manifest_with_other_classes_than_its_inputs_is_refused_and_nothing_changes(few_digits, tmp_path):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"), local())
    path = tmp_path / "out" / "manifest.json"
    fields = json.loads(path.read_text())
    fields["classes"][-1] = "somebody else's"
    path.write_text(json.dumps(fields))
    (tmp_path / "out" / manifest.split("train").shards[1].name).write_bytes(b"noise")
    before = files(tmp_path / "out")
    with pytest.raises(ValueError, match="has other classes than its inputs"):
        repair(verify(manifest.path), local())
    assert files(tmp_path / "out") == before
