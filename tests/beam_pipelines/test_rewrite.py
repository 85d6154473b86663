"""Datasets made of datasets: what changes is what was asked for, and images keep their bytes."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_pipelines.options import Source
from beam_pipelines.rewrite import rewriting
from support.conversion import convert_module
from support.folders import files
from support.pipelines_commands import refused, run
from tpu_input import read_manifest
from tpu_input.dataset_format.records import Record, decode, read_frames

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def dataset(digits_dataset, tmp_path) -> Path:
    """A copy of the digits' dataset, which may be changed."""
    return Path(shutil.copytree(digits_dataset.path, tmp_path / "digits_dataset"))


def manifest_of(path: Path) -> dict:
    return json.loads((path / "manifest.json").read_text())


def records(path: Path) -> dict[str, tuple[str, Record]]:
    """(split, record) by key, of all shards; of a key that is there twice, the test fails."""
    contents: dict[str, tuple[str, Record]] = {}
    for split, content in manifest_of(path)["splits"].items():
        for shard in content["shards"]:
            with open(path / shard["name"], "rb") as file:
                for _, payload in read_frames(file):
                    record = decode(payload)
                    assert record.key not in contents
                    contents[record.key] = split, record
    return contents


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def run_command(capsys, *args: object) -> str:
    code, out, err = run(capsys, *args)
    others = [line for line in err.splitlines() if not line.startswith("duplicates left out: ")]
    assert (code, others) == (0, []), err
    return out


def is_sound(capsys, path: Path) -> bool:
    return "no problems found" in run_command(capsys, "verify", path)


def test_relabel_changes_the_named_labels_and_nothing_else(capsys, dataset, tmp_path):
    before, output = records(dataset), tmp_path / "out"
    keys = sorted(key for key in before if key.startswith("1/"))[:7]
    labels = write(tmp_path / "l.csv", "key,label", *(f"{key},7" for key in keys))
    run_command(capsys, "relabel", dataset, f"--labels={labels}", f"--output={output}")
    expected = {
        key: (split, record._replace(label=7, class_name="7") if key in keys else record)
        for key, (split, record) in before.items()
    }
    assert records(output) == expected
    assert list(records(output)) == list(before)  # the order of the seed
    assert manifest_of(output)["classes"] == manifest_of(dataset)["classes"]
    assert manifest_of(output)["num_fixed"] == {}
    assert is_sound(capsys, output)


def test_a_label_that_is_no_class_is_refused_unless_it_is_added(capsys, dataset, tmp_path):
    key, output = next(iter(records(dataset))), tmp_path / "out"
    labels = write(tmp_path / "l.csv", "key,label", f"{key},A")
    message = refused(capsys, "relabel", dataset, f"--labels={labels}", f"--output={output}")
    assert f"'A' is none of the 10 classes of '{dataset}'" in message
    run_command(capsys, "relabel", dataset, f"--labels={labels}", "--add_classes", f"--output={output}")
    assert manifest_of(output)["classes"] == [*"0123456789", "A"]
    assert records(output)[key][1].label == 10


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["image,label", "0/0000.jpg,3"], "begins with 'image,label', but must have the header key,label"),
        (["key,label", "0/0000.jpg,3", "0/0000.jpg,4"], "line 3: '0/0000.jpg' has a label already"),
        (["key,label"], "has no label after its header"),
        (["key,label", "0/0000.jpg,"], "line 2: '0/0000.jpg,' must be a key and a label"),
        (["key,label", "0/0000.jpg"], "line 2: '0/0000.jpg' must be a key and a label"),
        (["key,label", "9/none.jpg,3", "8/none.jpg,3"], "has 2 keys that"),
        (["key,label", '"9/none'], "is no .csv: line 2"),
    ],
)
def test_a_list_of_labels_that_cannot_be_meant_is_refused_and_nothing_is_written(
    capsys, dataset, tmp_path, lines, message
):
    labels, output = write(tmp_path / "l.csv", *lines), tmp_path / "out"
    assert message in refused(capsys, "relabel", dataset, f"--labels={labels}", f"--output={output}")
    assert not output.exists()


def test_an_output_with_another_dataset_advises_only_options_that_the_command_has(capsys, dataset, tmp_path):
    args = ("relabel", dataset, f"--output={tmp_path / 'out'}")
    first, second = sorted(records(dataset))[:2]
    run_command(capsys, *args, f"--labels={write(tmp_path / 'a.csv', 'key,label', f'{first},3')}")
    message = refused(capsys, *args, f"--labels={write(tmp_path / 'b.csv', 'key,label', f'{second},3')}")
    assert "holds another dataset" in message
    assert "--overwrite" in message
    assert "--extend" not in message


def test_filter_accounts_for_what_it_leaves_out(capsys, dataset, tmp_path):
    before, output = records(dataset), tmp_path / "out"
    classes, keys = write(tmp_path / "c.txt", "7", "2"), [key for key in before if key.startswith("7/")][:3]
    write(tmp_path / "k.txt", *keys)
    out = run_command(
        capsys,
        *("filter", dataset, f"--only_classes={classes}", f"--without_keys={tmp_path}/k.txt", f"--output={output}"),
    )
    remaining = {key: example for key, example in before.items() if key[0] in "27" and key not in keys}
    label = {"2": 0, "7": 1}
    assert records(output) == {
        key: (split, record._replace(label=label[key[0]])) for key, (split, record) in remaining.items()
    }
    assert manifest_of(output)["classes"] == ["2", "7"]
    assert manifest_of(output)["num_rejected"] == {"left_out": len(before) - len(remaining)}
    lines = [json.loads(line) for line in (output / "rejected.jsonl").read_text().splitlines()]
    assert {line["key"] for line in lines} == before.keys() - remaining.keys()
    assert f"left_out {len(before) - len(remaining)}" in out
    assert is_sound(capsys, output)


def test_only_keys_and_without_classes(capsys, dataset, tmp_path):
    keys = write(tmp_path / "k.txt", *list(records(dataset))[:200])
    classes = write(tmp_path / "c.txt", "0")
    run_command(
        capsys,
        *("filter", dataset, f"--only_keys={keys}", f"--without_classes={classes}", f"--output={tmp_path}/out"),
    )
    expected = {key for key in list(records(dataset))[:200] if not key.startswith("0/")}
    assert records(tmp_path / "out").keys() == expected


def test_split_assigns_every_example_again(capsys, dataset, tmp_path):
    before, output = records(dataset), tmp_path / "out"
    run_command(capsys, "split", dataset, "--splits=train=50%,test=50%", f"--output={output}")
    after = records(output)
    assert {key: record for key, (_, record) in after.items()} == {key: record for key, (_, record) in before.items()}
    counts = Counter(split for split, _ in after.values())
    assert counts.keys() == {"train", "test"}
    assert abs(counts["train"] - len(before) / 2) < 4 * (len(before) / 4) ** 0.5  # four standard deviations
    # With another seed, the splits are drawn independently of those before.
    run_command(capsys, "split", dataset, "--splits=train=50%,test=50%", "--seed=1", f"--output={tmp_path}/seed")
    again = records(tmp_path / "seed")
    validation = [key for key, (split, _) in before.items() if split == "validation"]
    num_train = sum(again[key][0] == "train" for key in validation)
    assert abs(num_train - len(validation) / 2) < 4 * (len(validation) / 4) ** 0.5


def test_reshard_keeps_every_record_byte_for_byte_in_its_order(capsys, dataset, tmp_path):
    output = tmp_path / "out"
    run_command(capsys, "reshard", dataset, "--shard_size=500KB", f"--output={output}")
    for split in ("train", "validation"):
        assert b"".join(path.read_bytes() for path in sorted(output.glob(f"{split}-*"))) == b"".join(
            path.read_bytes() for path in sorted(dataset.glob(f"{split}-*"))
        )
    assert len(list(output.glob("train-*"))) < len(list(dataset.glob("train-*")))
    run_command(capsys, "reshard", dataset, "--num_shards=train=4,validation=1", f"--output={tmp_path}/counted")
    assert len(list((tmp_path / "counted").glob("train-*"))) == 4


def test_merge_unites_classes_by_name_and_keeps_one_of_each_image(capsys, dataset, tmp_path):
    before = records(dataset)
    for name, digits in (("a", "012"), ("b", "210987")):
        classes = write(tmp_path / f"{name}.txt", *digits)
        run_command(capsys, "filter", dataset, f"--only_classes={classes}", f"--output={tmp_path}/{name}")
    out = run_command(capsys, "merge", f"old={tmp_path}/a", tmp_path / "b", f"--output={tmp_path}/both")
    merged = records(tmp_path / "both")
    assert manifest_of(tmp_path / "both")["classes"] == [*"012", *"789"]
    expected = Counter(record.sha256 for _, record in before.values() if record.class_name in "012789")
    assert Counter(record.sha256 for _, record in merged.values()) == dict.fromkeys(expected, 1)
    assert {key.partition("/")[0] for key in merged} == {"old", "b"}
    for key, (_, record) in merged.items():
        old = before[key.partition("/")[2]][1]
        assert (record.encoded, record.class_name) == (old.encoded, old.class_name)
    assert "(duplicate " in out
    assert is_sound(capsys, tmp_path / "both")
    run_command(capsys, "merge", tmp_path / "a", tmp_path / "b", f"--output={tmp_path}/all", "--dedup=none")
    assert len(records(tmp_path / "all")) == len(records(tmp_path / "a")) + len(records(tmp_path / "b"))


def test_mistakes_are_answered_with_one_line(capsys, dataset, tmp_path):
    output = f"--output={tmp_path}/out"
    assert "needs a name of its own, as NAME=DATASET" in refused(capsys, "merge", dataset, dataset, output)
    assert "merge needs at least two datasets" in refused(capsys, "merge", dataset, output)
    assert "filter needs at least one of --only_keys" in refused(capsys, "filter", dataset, output)
    assert "contains no manifest.json" in refused(capsys, "reshard", tmp_path, output)
    message = refused(capsys, "filter", dataset, f"--only_keys={tmp_path}/none.txt", output)
    assert f"{str(tmp_path / 'none.txt')!r} of --only_keys does not exist" in message
    message = refused(capsys, "filter", dataset, f"--only_keys={tmp_path}", output)
    assert f"{str(tmp_path)!r} of --only_keys is a folder; it must be a text file with one key per line" in message
    classes = write(tmp_path / "c.txt", "seven")
    assert "not among the classes of" in refused(capsys, "filter", dataset, f"--without_classes={classes}", output)
    assert "overlap" in refused(capsys, "reshard", dataset, f"--output={dataset}/again")


@pytest.mark.parametrize(
    ("command", "flag", "needed"),
    [
        ("relabel", "labels", "a .csv with the header key,label"),
        ("filter", "only_keys", "a text file with one key per line"),
        ("filter", "without_classes", "a text file with one class name per line"),
        ("filter", "near_duplicates", "a Parquet file of pairs; write it with: report --pairs=FILE"),
        ("split", "near_duplicates", "a Parquet file of pairs; write it with: report --pairs=FILE"),
    ],
)
def test_a_file_that_does_not_exist_is_named_with_what_it_must_be(capsys, digits_dataset, command, flag, needed):
    split_flags = ["--splits=train=90%,test=10%"] if command == "split" else []
    message = refused(capsys, command, digits_dataset.path, f"--{flag}=/no/file", "--output=/no/output", *split_flags)
    assert message == f"error: '/no/file' of --{flag} does not exist; it must be {needed}\n"


def test_a_damaged_record_is_rejected_and_a_damaged_index_refused(capsys, dataset, tmp_path):
    shard = sorted(dataset.glob("train-*"))[0]
    index = pq.read_table(dataset / "index" / f"{shard.stem}.parquet").to_pylist()
    data = bytearray(shard.read_bytes())
    data[index[1]["offset"] + 400] ^= 1
    shard.write_bytes(data)
    out = run_command(capsys, "reshard", dataset, "--shard_size=1MB", f"--output={tmp_path}/out")
    assert "unreadable 1" in out
    assert index[1]["key"] not in records(tmp_path / "out")
    [line] = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    assert "corrupt payload" in json.loads(line)["detail"]
    path = dataset / "index" / f"{shard.stem}.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    message = refused(capsys, "reshard", dataset, "--shard_size=1MB", f"--output={tmp_path}/again")
    assert f"verify --repair {dataset}" in message


@pytest.mark.parametrize("change", [{"label": 11}, {"label": -1}, {"offset": 5}, {"length": 2**40}, {"key": ""}])
def test_positions_and_labels_of_an_index_are_not_trusted(capsys, dataset, tmp_path, change):
    path = sorted((dataset / "index").glob("train-*"))[0]
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0] |= change
    pq.write_table(table.from_pylist(rows, table.schema), path)
    message = refused(capsys, "reshard", dataset, "--shard_size=1MB", f"--output={tmp_path}/out")
    assert "cannot be used: it does not match shard" in message


@pytest.mark.long
def test_a_runner_writes_the_same_bytes_and_repair_makes_a_shard_again(capsys, dataset, tmp_path):
    for name, flags in (("a", ()), ("b", ("--runner=DirectRunner",))):
        run_command(capsys, "reshard", dataset, "--shard_size=50KB", f"--output={tmp_path}/{name}", *flags)
    expected = files(tmp_path / "a")
    assert files(tmp_path / "b") == expected
    shard = sorted((tmp_path / "a").glob("train-*"))[3]
    shard.write_bytes(shard.read_bytes()[:-100])
    assert "no problems found" in run(capsys, "repair", tmp_path / "a")[1]
    assert files(tmp_path / "a") == expected
    shard.unlink()
    (tmp_path / "a" / "index" / f"{shard.stem}.parquet").unlink()
    assert "no problems found" in run(capsys, "repair", tmp_path / "a")[1]
    assert files(tmp_path / "a") == expected


@pytest.mark.long
def test_a_killed_command_goes_on_and_ends_with_the_same_bytes(dataset, tmp_path):
    def command(output: str) -> list[str]:
        args = ["merge", f"a={dataset}", f"b={dataset}", f"--output={tmp_path}/{output}", "--shard_size=20KB"]
        return [sys.executable, "-W", "ignore", "-m", "beam_pipelines", *args, "--dedup=none", "--num_processes=2"]

    assert subprocess.run(command("whole"), cwd=ROOT, capture_output=True).returncode == 0
    process = subprocess.Popen(command("killed"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not list((tmp_path / "killed").glob(".jpeg2tpu/*/*.receipt")):
        assert process.poll() is None
        time.sleep(0.01)  # for the first shard, until which nothing is to be resumed
    process.kill()
    assert process.wait() == -signal.SIGKILL
    result = subprocess.run(command("killed"), cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0
    assert "resumed: " in result.stdout
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


def test_what_is_unfinished_is_named_with_its_command(capsys, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(convert_module, "commit", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(capsys, "reshard", dataset, "--shard_size=50KB", f"--output={tmp_path}/out")
    monkeypatch.undo()
    message = refused(capsys, "reshard", dataset, "--shard_size=60KB", f"--output={tmp_path}/out")
    assert f"jpeg2tpu reshard {dataset} --shard_size=50KB --output={tmp_path}/out" in message


def test_convert_reads_a_dataset_with_every_check(capsys, dataset, tmp_path):
    run_command(capsys, "convert", f"--input={dataset}", f"--output={tmp_path}/out", "--shard_size=200KB")
    assert records(tmp_path / "out") == records(dataset)
    assert manifest_of(tmp_path / "out")["num_noted"] == {}


def test_options_of_a_dataset_are_kept(digits_dataset, tmp_path):
    options = rewriting([Source(digits_dataset.path)], str(tmp_path / "out"), seed=5)
    assert (options.shard_bytes, options.first_label, options.seed) == (200_000, 0, 5)
    assert dataclasses.asdict(options.images)["check"] == "header"


@pytest.mark.cloud
def test_in_a_bucket_as_on_disk(capsys, cloud, digits_dataset, tmp_path):
    bucket = cloud.make_bucket()
    cloud.upload(digits_dataset.path, f"{bucket}/digits")
    keys = write(tmp_path / "k.txt", *list(records(Path(digits_dataset.path)))[:60])
    flags = (f"--only_keys={keys}", "--shard_size=10KB")
    run_command(capsys, "filter", f"{bucket}/digits", *flags, f"--output={bucket}/out")
    run_command(capsys, "filter", digits_dataset.path, *flags, f"--output={tmp_path}/out")
    shard_digests = {path: digest for path, digest in files(tmp_path / "out").items() if path.endswith(".tfrecord")}
    objects = cloud.files(f"{bucket}/out")
    assert {path: objects[path] for path in shard_digests} == shard_digests
    assert objects.keys() == files(tmp_path / "out").keys()
    assert run_command(capsys, "diff", f"{bucket}/out", tmp_path / "out").startswith("60 examples are the same in")


@pytest.mark.parametrize("name", ["val", "validation"])
def test_the_number_of_shards_is_that_of_an_earlier_datasets_own_split(capsys, dataset_copy, tmp_path, name):
    for path in (*dataset_copy.glob("validation-*"), *dataset_copy.glob("index/validation-*")):
        path.rename(path.with_name(path.name.replace("validation-", "val-")))
    manifest = dataset_copy / "manifest.json"  # as datasets of before had it, converted with --splits=train=80%,val=20%
    manifest.write_text(manifest.read_text().replace("validation", "val"))
    code, _, err = run(
        capsys, "reshard", str(dataset_copy), f"--output={tmp_path}/out", f"--num_shards=train=3,{name}=1"
    )
    assert code == 0, err
    splits = read_manifest(str(tmp_path / "out")).splits
    assert {split: len(value.shards) for split, value in splits.items()} == {"train": 3, "val": 1}


@pytest.mark.parametrize(
    "command",
    [
        ("reshard", "DATASET", "--shard_size=1MB"),
        ("merge", "a=DATASET", "b=DATASET"),
        ("export-dataset", "DATASET", "--format=webdataset"),
        ("convert", "--input=DATASET"),
    ],
)
def test_a_dataset_without_one_of_its_shards_is_refused_with_what_helps(capsys, dataset_copy, tmp_path, command):
    shard = next(dataset_copy.glob("validation-00001-*"))
    shard.unlink()
    words = [word.replace("DATASET", str(dataset_copy)) for word in command]
    message = refused(capsys, *words, f"--output={tmp_path}/out")
    assert f"'{shard.name}' of '{dataset_copy}' is missing; write it again with: jpeg2tpu verify --repair" in message
