"""Damaged shards made again from their source."""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import tensorflow as tf
from PIL import Image

import beam_pipelines.__main__
from beam_pipelines.conversion.receipts import Receipt
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.convert import convert
from beam_pipelines.repair import repair
from beam_pipelines.verify import verify
from support.conversion import convert_module, local, options
from support.folders import files
from support.pipelines_commands import run
from tpu_input import InputConfig, eval_steps, make_eval_input_fn
from tpu_input.dataset_format.index import IndexRow, read_index, write_index
from tpu_input.dataset_format.lengths import parse_lengths, write_lengths


@pytest.mark.parametrize("damage", ["shard", "index", "both"])
def test_repair_makes_damaged_shards_again_from_their_source(few_digits, tmp_path, damage):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    before = files(tmp_path / "out")
    shard = manifest.split("train").shards[1].name
    if damage != "index":
        (tmp_path / "out" / shard).write_bytes(b"noise")
    if damage != "shard":
        (tmp_path / "out" / "index" / shard.replace(".tfrecord", ".parquet")).unlink()
    findings = verify(manifest.path)
    assert findings.damaged == [shard]
    assert repair(findings) == [shard]
    assert files(tmp_path / "out") == before


@pytest.mark.parametrize("damage", ["missing", "damaged", "of other records", "with a shard"])
def test_repair_writes_the_lengths_again_without_the_sources(few_digits, tmp_path, damage, capsys):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    before, path = files(tmp_path / "out"), tmp_path / "out" / "lengths.parquet"
    lengths = parse_lengths(path.read_bytes()).by_shard()
    if damage == "missing":
        path.unlink()
    elif damage == "damaged":
        path.write_bytes(b"noise")
    else:  # numbers and sums are right, so the order of the lengths is only compared where the shard is whole
        with path.open("wb") as file:
            write_lengths(file, {name: shard_lengths[::-1] for name, shard_lengths in lengths.items()})
    if damage == "with a shard":
        (tmp_path / "out" / manifest.split("train").shards[0].name).write_bytes(b"noise")
    else:
        shutil.rmtree(few_digits)
    assert beam_pipelines.__main__.main(["repair", manifest.path]) == 0
    assert files(tmp_path / "out") == before
    assert f"{manifest.path}: re-created from the index: lengths.parquet" in capsys.readouterr().out


def test_a_repaired_shard_has_the_right_lengths_again(few_digits, tmp_path):
    """The lengths of a damaged shard cannot be compared; they are written again with it."""
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    before, path = files(tmp_path / "out"), tmp_path / "out" / "lengths.parquet"
    shard = manifest.split("train").shards[0].name
    lengths = parse_lengths(path.read_bytes()).by_shard()
    with path.open("wb") as file:
        write_lengths(file, lengths | {shard: lengths[shard][::-1]})
    (tmp_path / "out" / shard).write_bytes(b"noise")
    findings = verify(manifest.path)
    assert (findings.damaged, findings.lengths_damaged) == ([shard], False)
    assert repair(findings) == [shard]
    assert files(tmp_path / "out") == before


def test_the_command_that_the_error_of_training_input_names_repairs_the_shard(few_digits, tmp_path, capsys):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
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
    command = re.search(r"jpeg2tpu (verify \S+ \S+)", caught.value.message)
    assert command
    assert beam_pipelines.__main__.main(command[1].split()) == 0
    assert total() == manifest.split("train").num_examples


def test_the_command_repair_finds_damage_and_mends_it_and_verify_only_finds_it(few_digits, tmp_path, capsys):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    before, shard = files(tmp_path / "out"), manifest.split("train").shards[0].name
    (tmp_path / "out" / shard).write_bytes(b"noise")
    assert beam_pipelines.__main__.main(["verify", manifest.path]) == 1
    assert (tmp_path / "out" / shard).read_bytes() == b"noise"
    assert beam_pipelines.__main__.main(["repair", manifest.path]) == 0
    assert files(tmp_path / "out") == before
    assert f"re-created from the sources: {shard}" in capsys.readouterr().out


def rows_of(dataset: Path, shard: str) -> list[IndexRow]:
    return read_index((dataset / "index" / shard.replace(".tfrecord", ".parquet")).read_bytes())


def write_other_image(path: str) -> None:
    Image.new("L", (32, 32)).save(path, "JPEG")


RUNNERS = pytest.mark.parametrize("beam_options", [None, local()], ids=["here", "workers"])


@RUNNERS
@pytest.mark.parametrize("damage", ["shard", "index"])
def test_a_shard_is_repaired_without_other_inputs_and_other_shards(few_digits, tmp_path, damage, beam_options):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    before, shard = files(tmp_path / "out"), manifest.split("train").shards[1].name
    uris = {row.uri for row in rows_of(tmp_path / "out", shard)}
    index = shard.replace(".tfrecord", ".parquet")
    (tmp_path / "out" / (shard if damage == "shard" else f"index/{index}")).write_bytes(b"noise")
    findings = verify(manifest.path)
    for path in few_digits.rglob("*.*"):
        if str(path) not in uris:
            path.unlink()
    for path in [*(tmp_path / "out").glob("*.tfrecord"), *(tmp_path / "out").glob("*/*.parquet")]:
        if path.name not in (shard, index):
            path.unlink()
    assert repair(findings, beam_options) == [shard]
    after = files(tmp_path / "out")
    assert (after[shard], after[f"index/{index}"]) == (before[shard], before[f"index/{index}"])
    assert not (tmp_path / "out" / ".jpeg2tpu").exists()


def test_the_command_repairs_one_shard_and_opens_no_file_of_another(few_digits, tmp_path):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    before, shard = files(tmp_path / "out"), manifest.split("train").shards[1].name
    uris = {row.uri for row in rows_of(tmp_path / "out", shard)}
    (tmp_path / "out" / shard).write_bytes(b"noise")
    code = f"""
import sys
import beam_pipelines.__main__ as command
sys.addaudithook(lambda event, args: print("OPENED", args[0], file=sys.stderr) if event == "open" else None)
sys.exit(command.main(["repair", {manifest.path!r}, "--shard={shard}"]))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert f"no problems found in {shard}; every record was read" in result.stdout
    opened = {line.removeprefix("OPENED ") for line in result.stderr.splitlines() if line.startswith("OPENED ")}
    assert {path for path in opened if path.startswith(f"{few_digits}/")} == uris
    shards = {Path(path).name for path in opened if re.search(r"-of-\d+\.(tfrecord|parquet)$", path)}
    assert shards == {shard, shard.replace(".tfrecord", ".parquet")}
    assert files(tmp_path / "out") == before


@pytest.mark.parametrize("kind", ["tar", "list"])
def test_a_shard_of_an_archive_or_a_list_is_repaired_from_what_its_index_names(few_digits, tmp_path, kind):
    if kind == "tar":
        source = tmp_path / "few.tar"
        with tarfile.open(source, "w") as tar:
            tar.add(few_digits, "few")
    else:  # with images that are not in the folder of the list
        (tmp_path / "lists").mkdir()
        source = tmp_path / "lists" / "few.csv"
        lines = [f"../few/{path.relative_to(few_digits)},{path.parent.name}" for path in few_digits.rglob("*.*")]
        source.write_text("image,label\n" + "\n".join(lines) + "\n")
    manifest, *_ = convert(options(source, tmp_path / "out"))
    before, shard = files(tmp_path / "out"), manifest.split("train").shards[1].name
    (tmp_path / "out" / shard).unlink()
    findings = verify(manifest.path)
    if kind == "list":
        uris = {posixpath.normpath(row.uri) for row in rows_of(tmp_path / "out", shard)}
        for path in few_digits.rglob("*.*"):
            if str(path) not in uris:
                path.unlink()
    assert repair(findings) == [shard]
    assert files(tmp_path / "out") == before


@RUNNERS
@pytest.mark.parametrize("change", ["changed", "missing"])
def test_inputs_of_a_damaged_shard_that_have_changed_are_named_and_nothing_is_changed(
    few_digits, tmp_path, change, beam_options
):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    shard = manifest.split("train").shards[1].name
    row = rows_of(tmp_path / "out", shard)[0]
    (tmp_path / "out" / shard).write_bytes(b"noise")
    before = files(tmp_path / "out")
    if change == "changed":
        write_other_image(row.uri)
        message = f"inputs of {shard} have changed since the conversion: {row.key!r}; restore"
    else:
        Path(row.uri).unlink()
        message = f"inputs of {shard} are missing: {row.uri!r} (no such file); restore"
    with pytest.raises(ValueError, match=re.escape(message)):
        repair(verify(manifest.path), beam_options)
    assert files(tmp_path / "out") == before
    assert not (tmp_path / "out" / ".jpeg2tpu").exists()


def test_a_changed_input_of_another_shard_is_no_matter(few_digits, tmp_path):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    one, other = (shard.name for shard in manifest.split("train").shards[:2])
    before = files(tmp_path / "out")
    write_other_image(rows_of(tmp_path / "out", other)[0].uri)
    (tmp_path / "out" / one).write_bytes(b"noise")
    assert repair(verify(manifest.path)) == [one]
    assert files(tmp_path / "out") == before


def test_repair_of_sources_that_have_changed_is_refused_if_the_index_is_lost_too(few_digits, tmp_path):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    shard = manifest.split("train").shards[1].name
    (tmp_path / "out" / shard).write_bytes(b"noise")
    (tmp_path / "out" / "index" / shard.replace(".tfrecord", ".parquet")).unlink()
    before = files(tmp_path / "out")
    write_other_image(str(next((few_digits / "0").iterdir())))
    with pytest.raises(ValueError, match="no longer contain the inputs that"):
        repair(verify(manifest.path))
    assert files(tmp_path / "out") == before


def test_an_index_that_names_a_file_outside_the_sources_is_not_followed(few_digits, tmp_path, capsys):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    shard = manifest.split("train").shards[1].name
    rows = rows_of(tmp_path / "out", shard)
    (tmp_path / "out" / shard).write_bytes(b"noise")
    for uri in ("/etc/hostname", f"{few_digits}/../out/manifest.json"):
        with (tmp_path / "out" / "index" / shard.replace(".tfrecord", ".parquet")).open("wb") as file:
            write_index(file, [rows[0]._replace(uri=uri), *rows[1:]])
        code, _, err = run(capsys, "repair", manifest.path)
        assert (code, err.count("\n")) == (2, 1)
        assert f"the index of {shard} names the input {uri!r}, which is not in the sources of the dataset; " in err


def test_what_a_repair_that_was_killed_has_left_is_not_taken_for_the_shard(few_digits, tmp_path):
    """A receipt of a shard that is in its place, where it was damaged since."""
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    before, shard = files(tmp_path / "out"), manifest.split("train").shards[1]
    folder = WorkingFolder(manifest.path, manifest.fingerprint[:16])
    folder.write_receipt(Receipt(shard.name, shard.num_examples, shard.num_bytes, shard.sha256, attempt=32 * "0"))
    (tmp_path / "out" / shard.name).write_bytes(bytes(shard.num_bytes))
    assert repair(verify(manifest.path)) == [shard.name]
    assert files(tmp_path / "out") == before


def test_the_command_repairs_on_workers_too(few_digits, tmp_path, capsys):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    before, shard = files(tmp_path / "out"), manifest.split("train").shards[1].name
    (tmp_path / "out" / shard).write_bytes(b"noise")
    code, out, _ = run(
        capsys, "repair", manifest.path, "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"
    )
    assert code == 0
    assert f"re-created from the sources: {shard}" in out
    assert files(tmp_path / "out") == before


def test_a_manifest_with_other_classes_than_its_inputs_is_refused_and_nothing_changes(few_digits, tmp_path):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    path = tmp_path / "out" / "manifest.json"
    fields = json.loads(path.read_text())
    fields["classes"][-1] = "somebody else's"
    path.write_text(json.dumps(fields))
    (tmp_path / "out" / manifest.split("train").shards[1].name).write_bytes(b"noise")
    before = files(tmp_path / "out")
    with pytest.raises(ValueError, match=r"or manifest\.json has other classes or options than the conversion"):
        repair(verify(manifest.path))
    assert files(tmp_path / "out") == before


def test_a_repair_leaves_what_an_unfinished_replacement_has_written(few_digits, tmp_path, monkeypatch):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    replacement = options(few_digits, tmp_path / "out", seed=5, overwrite=True)
    with monkeypatch.context() as failing:
        failing.setattr(convert_module, "commit", fail)
        with pytest.raises(OSError, match="the disk is full"):
            convert(replacement)
    (tmp_path / "out" / manifest.split("train").shards[0].name).write_bytes(b"noise")
    repair(verify(str(tmp_path / "out")))
    assert verify(str(tmp_path / "out")).problems == []
    replaced, is_new, num_resumed, *_ = convert(replacement)
    assert is_new
    assert num_resumed == sum(len(split.shards) for split in replaced.splits.values())
    assert not (tmp_path / "out" / ".jpeg2tpu").exists()
