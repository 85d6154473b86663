"""A dataset that a stranger wrote: nothing outside its folder is read, written or removed, whatever its files name."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from beam_pipelines.__main__ import main as beam_pipelines_main
from beam_pipelines.conversion.plan import Plan
from beam_pipelines.convert import convert
from estimator_app.__main__ import main as estimator_app_main
from support.conversion import options
from support.folders import files
from support.nasty import encoded
from tpu_input import Manifest, RecordSource, manifest_from_shards, read_manifest
from tpu_input.__main__ import main as tpu_input_main

ROOT = Path(__file__).parents[2]
SHARD = "train-00000-of-00009.tfrecord"
FINGERPRINT = "0123456789abcdef" * 4


def refused(capsys, main, *args: object) -> str:
    """Returns the one line with which a command refuses."""
    capsys.readouterr()
    code = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    assert err.startswith("error: ")
    return err


def edit(path: Path, change) -> None:
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def name_a_shard(name: object):
    def change(manifest: dict[str, Any]) -> None:
        manifest["splits"]["train"]["shards"][0]["name"] = name

    return change


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder beside the datasets, with files called as a dataset's are."""
    folder = tmp_path / "victim"
    (folder / "index").mkdir(parents=True)
    for name in (SHARD, f"index/{SHARD[:-9]}.parquet", "plan.json", "lock", "thesis.txt"):
        (folder / name).write_text("mine")
    return folder


@pytest.fixture
def strange(dataset_copy: Path, victim: Path) -> Path:
    """A dataset whose first shard is said to lie in the victim's folder."""
    edit(dataset_copy / "manifest.json", name_a_shard(f"../victim/{SHARD}"))
    return dataset_copy


COMMANDS = {
    "verify": (beam_pipelines_main, "verify DATASET"),
    "repair": (beam_pipelines_main, "verify --repair DATASET"),
    "report": (beam_pipelines_main, "report DATASET"),
    "convert": (beam_pipelines_main, "convert --input=IMAGES --output=DATASET"),
    "overwrite": (beam_pipelines_main, "convert --input=IMAGES --output=DATASET --overwrite"),
    "idx": (tpu_input_main, "idx DATASET"),
    "tfds": (tpu_input_main, "tfds DATASET"),
    "benchmark": (tpu_input_main, "benchmark DATASET"),
    "train": (estimator_app_main, "train --dataset=DATASET --model_dir=MODEL --image_size=16"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_follows_a_manifest_out_of_its_folder(command, strange, few_digits, tmp_path, capsys):
    before = files(tmp_path)
    main, line = COMMANDS[command]
    places = {"DATASET": strange, "IMAGES": few_digits, "MODEL": tmp_path / "model"}
    words = [re.sub("DATASET|IMAGES|MODEL", lambda match: str(places[match[0]]), word) for word in line.split()]
    message = refused(capsys, main, *words)
    assert f"{strange}/manifest.json is not a manifest: shards of split 'train' must have names like" in message
    assert f"'../victim/{SHARD}'" in message
    assert files(tmp_path) == before


def test_nor_does_a_record_source(strange):
    with pytest.raises(ValueError, match=r"is not a manifest: .*'\.\./victim"):
        RecordSource(read_manifest(strange), "train")


def test_what_an_interrupted_overwriting_left_names_nothing_outside(dataset_copy, victim, few_digits, tmp_path, capsys):
    work = dataset_copy / ".jpeg2tpu"
    work.mkdir()
    (dataset_copy / "manifest.json").rename(work / "replaced.json")
    edit(work / "replaced.json", name_a_shard(f"../victim/{SHARD}"))
    before = files(tmp_path)
    for flags in ([], ["--overwrite"]):
        message = refused(
            capsys, beam_pipelines_main, "convert", f"--input={few_digits}", f"--output={dataset_copy}", *flags
        )
        assert f"{work}/replaced.json" in message
        assert files(tmp_path) | {"dataset/.jpeg2tpu/lock": ""} == before | {"dataset/.jpeg2tpu/lock": ""}


def test_an_unfinished_plan_names_nothing_outside(victim, few_digits, tmp_path, capsys):
    output = tmp_path / "out"
    folder = output / ".jpeg2tpu" / FINGERPRINT[:16]
    folder.mkdir(parents=True)
    plan = json.loads(Plan(("a", "b"), 1, {}, {}, FINGERPRINT, {"train": {0: 1}}, 100_000, {}).to_json())
    plan["buckets"] = {"../victim/train": {"0": 1}}
    (folder / "plan.json").write_text(json.dumps(plan))
    (victim / "train-00000-of-00001.tfrecord").write_text("mine")
    before = files(victim)
    command = ("convert", f"--input={few_digits}", f"--output={output}", "--overwrite")
    message = refused(capsys, beam_pipelines_main, *command)
    assert f"'{folder}/plan.json' is damaged" in message
    assert "'../victim/train'" in message
    assert files(victim) == before


@pytest.mark.parametrize(
    ("link", "target"),
    [(".jpeg2tpu", "."), ("index", "index"), (f".jpeg2tpu/{FINGERPRINT[:16]}", "."), (".jpeg2tpu/lock", "new_file")],
)
@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_links_in_an_output_lead_nowhere(link, target, flags, victim, few_digits, tmp_path, capsys):
    output = tmp_path / "out"
    (output / link).parent.mkdir(parents=True)
    (output / link).symlink_to(victim / target)
    before = files(victim)
    # More is rejected than may be, so that a conversion which began would tidy up after itself.
    (few_digits / "0" / "page.jpg").write_text("<html>")
    command = ("convert", f"--input={few_digits}", f"--output={output}", "--max_rejected=0%", *flags)
    refused(capsys, beam_pipelines_main, *command)
    assert files(victim) == before
    assert (output / link).is_symlink()


def test_a_linked_index_is_not_written_into(dataset_copy, victim, capsys):
    shutil.copytree(dataset_copy / "index", victim / "index", dirs_exist_ok=True)
    shutil.rmtree(dataset_copy / "index")
    (dataset_copy / "index").symlink_to(victim / "index")
    before = files(victim)
    assert "is a symlink" in refused(capsys, tpu_input_main, "idx", dataset_copy)
    assert beam_pipelines_main(["verify", str(dataset_copy)]) == 1
    assert "index is not part of the dataset" in capsys.readouterr().out
    assert "is a symlink" in refused(capsys, beam_pipelines_main, "report", dataset_copy)
    assert files(victim) == before


def test_files_of_others_among_the_working_files_stay(few_digits, tmp_path, capsys):
    output = tmp_path / "out"
    (output / ".jpeg2tpu" / "letters").mkdir(parents=True)
    for path in (".jpeg2tpu/thesis.txt", ".jpeg2tpu/letters/plan.json"):
        (output / path).write_text("mine")
    before = files(output)
    for flags in ([], ["--overwrite"]):
        refused(capsys, beam_pipelines_main, "convert", f"--input={few_digits}", f"--output={output}", *flags)
        assert files(output) == before
    convert(options(few_digits, tmp_path / "other"))
    shutil.copytree(output / ".jpeg2tpu", tmp_path / "other" / ".jpeg2tpu")
    before = files(tmp_path / "other")
    for flags in ([], ["--overwrite", "--seed=1"]):
        command = ("convert", f"--input={few_digits}", f"--output={tmp_path / 'other'}", *flags)
        assert "'.jpeg2tpu/letters/plan.json'" in refused(capsys, beam_pipelines_main, *command)
        assert files(tmp_path / "other") == before
    assert beam_pipelines_main(["verify", str(tmp_path / "other")]) == 1
    assert ".jpeg2tpu/thesis.txt is not part of the dataset" in capsys.readouterr().out


def make_tuple(*values: Any) -> tuple[Any, ...]:
    return values


def update_train(**changes):
    return lambda manifest: manifest["splits"]["train"].update(changes)


def update_shard(**changes):
    return lambda manifest: manifest["splits"]["train"]["shards"][0].update(changes)


def exchanged(manifest):
    manifest["splits"]["train"]["shards"].reverse()


@pytest.mark.parametrize(
    "change",
    [
        *map(name_a_shard, [f"/etc/{SHARD}", f"x/{SHARD}", SHARD.replace("train", "test"), "", 7, f"{SHARD}\n"]),
        *map(name_a_shard, ["train-00000-of-00010.tfrecord", "train-9-of-9.tfrecord", "train-00009-of-00009.tfrecord"]),
        lambda manifest: manifest["splits"].update({"../train": manifest["splits"].pop("train")}),
        lambda manifest: manifest["splits"]["train"]["shards"].append(manifest["splits"]["train"]["shards"][0]),
        exchanged,
        *(update_shard(num_examples=value) for value in (-1, True, "1", 1e3, 10**18)),
        *(update_shard(num_bytes=value) for value in (-1, 0, None)),
        *(update_shard(sha256=value) for value in ("", "x" * 64, 64 * "0" + "\n")),
        update_shard(more=1),
        *(update_train(shards=value) for value in make_tuple([], {}, None)),
        *(update_train(class_counts=value) for value in ([1], ["1"] * 10, [-1, 2] * 5, [0] * 10)),
        *(
            update_train(height=value)
            for value in ([32, float("nan"), 32], [33, 32, 32], [32, 40, 32], [0, 1, 2], [32])
        ),
        *(update_train(channel_mean=value) for value in ([1, 2], [1, 2, 256], [1, 2, float("inf")], ["1", 2, 3])),
        *(lambda manifest, value=value: manifest.update(classes=value) for value in ([], "0123456789", ["0"] * 10)),
        *(lambda manifest, value=value: manifest.update(first_label=value) for value in (2, True, "0")),
        *(lambda manifest, value=value: manifest.update(num_inputs=value) for value in (1, 1798, 1797.0)),
        *(lambda manifest, value=value: manifest.update(num_rejected=value) for value in make_tuple([], {"empty": 1})),
        *(lambda manifest, value=value: manifest.update(fingerprint=value) for value in ("../..", "", 1)),
        *(
            lambda manifest, value=value: manifest.update(options=value)
            for value in make_tuple([], {"shard_bytes": "1"})
        ),
        *(
            lambda manifest, value=value: manifest.update(sources=value)
            for value in make_tuple({}, ["x"], [{"path": 1}])
        ),
        lambda manifest: manifest.pop("options"),
        lambda manifest: manifest.update(more=1),
    ],
)
def test_a_manifest_of_odd_names_types_or_numbers_is_refused(change, digits_dataset):
    fields = json.loads(digits_dataset.to_json())
    change(fields)
    with pytest.raises(ValueError, match=r"^out/manifest\.json is not a manifest: ") as refusal:
        Manifest.from_json(json.dumps(fields), "out")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"[]", b"null", b"9" * 5000, b""])
def test_no_bytes_in_the_manifest_s_place_end_in_a_traceback(content, dataset_copy, capsys):
    (dataset_copy / "manifest.json").write_bytes(content)
    for main, words in ((beam_pipelines_main, "verify"), (tpu_input_main, "idx")):
        assert "manifest.json is not a manifest" in refused(capsys, main, *words.split(), dataset_copy)


def secrets_of(folder: Path) -> list[str]:
    """Makes a picture beside the inputs, and returns the ways of naming it that a stranger may think of."""
    secret = folder / "secret.png"
    secret.write_bytes(encoded(Image.new("RGB", (64, 48), (200, 30, 30)), "PNG"))
    (folder / "in" / "link.png").symlink_to(secret)
    (folder / "in" / "linked").symlink_to(folder)
    os.makedirs(folder / "in2")
    shutil.copy(secret, folder / "in2")
    return [
        str(secret),
        f"{folder}/in/../secret.png",
        f"{folder}/in/link.png",
        f"{folder}/in/linked/secret.png",
        f"{folder}/in2/secret.png",
        f"{secret}#bytes=0-{secret.stat().st_size}",
        f"{folder}/in/link.png#bytes=0-{secret.stat().st_size}",
        os.path.relpath(secret),
    ]


def pictures(page: Path) -> int:
    text = page.read_text()
    return text[text.index('id="rejected"') : text.index('id="look-alikes"')].count("<img")


def test_a_report_reads_nothing_outside_the_dataset_but_below_the_sources_that_are_named(tmp_path, capsys):
    for label in "ab":
        (tmp_path / "in" / label).mkdir(parents=True)
        for number in range(4):
            color = (40 * number, 90, 160)
            (tmp_path / "in" / label / f"{number}.jpg").write_bytes(encoded(Image.new("RGB", (32, 32), color)))
    (tmp_path / "in" / "stray.jpg").write_bytes(encoded(Image.new("RGB", (64, 48))))
    dataset = tmp_path / "out"
    convert(options(tmp_path / "in", dataset, max_rejected=1.0))
    report = ("report", str(dataset))
    assert beam_pipelines_main([*report]) == 0
    assert pictures(dataset / "report.html") == 0
    assert beam_pipelines_main([*report, f"--sources={tmp_path}/in"]) == 0
    assert pictures(dataset / "report.html") == 1  # stray.jpg
    for uri in secrets_of(tmp_path):
        line = {"key": "stray.jpg", "uri": uri, "reason": "no_label", "detail": "is not in a class folder"}
        (dataset / "rejected.jsonl").write_text(json.dumps(line) + "\n")
        edit(dataset / "manifest.json", lambda manifest: manifest.update(sources=[{"path": str(tmp_path)}]))
        for flags in ([], [f"--sources={tmp_path}/in"]):
            assert beam_pipelines_main([*report, *flags]) == 0
            assert pictures(dataset / "report.html") == 0, uri
    capsys.readouterr()
    for bad in ("no JSON", '{"key": 1, "uri": "", "reason": "", "detail": ""}', '{"uri": "x"}', "[" * 100_000):
        (dataset / "rejected.jsonl").write_text(bad + "\n")
        assert f"'{dataset}/rejected.jsonl', line 1: " in refused(capsys, beam_pipelines_main, *report)
        assert beam_pipelines_main(["verify", str(dataset)]) == 1
        assert "rejected.jsonl cannot be read" in capsys.readouterr().out


def test_a_repair_by_options_that_no_conversion_has_is_refused(dataset_copy, capsys):
    (dataset_copy / SHARD).unlink()
    original = (dataset_copy / "manifest.json").read_text()
    for change in make_tuple(
        {"seed": "0"}, {"images": {}}, {"splits": {"train": float("nan")}}, {"labels": [1]}, {"more": 1}
    ):
        (dataset_copy / "manifest.json").write_text(original)
        edit(dataset_copy / "manifest.json", lambda manifest, change=change: manifest["options"].update(change))
        code = beam_pipelines_main(["verify", "--quick", "--repair", str(dataset_copy)])
        err = capsys.readouterr().err
        assert (code, err.count("\n")) == (2, 1), err
        assert "manifest.json" in err


def test_an_index_that_points_elsewhere_is_refused(dataset_copy, capsys):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (dataset_copy / "lengths.parquet").unlink()  # as in a dataset of an earlier build
    path = dataset_copy / "index" / f"{SHARD[:-9]}.parquet"
    table = pq.read_table(path)
    for column, value in (("offset", -5), ("length", 2**62), ("length", 1), ("offset", 2**40)):
        values = table[column].to_pylist()
        values[3] = value
        place = table.column_names.index(column)
        pq.write_table(table.set_column(place, column, pa.array(values, pa.int64())), path)
        with pytest.raises(ValueError, match=r"does not match shard '.*', which has \d+ records in"):
            RecordSource(read_manifest(dataset_copy), "train")
        assert "does not match its shard" in refused(capsys, beam_pipelines_main, "report", dataset_copy)
        assert "does not match shard" in refused(capsys, tpu_input_main, "idx", dataset_copy)


@pytest.mark.parametrize(
    "columns",
    [
        {"shard": ["a"]},
        {"shard": ["a"], "length": [-1]},
        {"shard": ["a"], "length": [15]},
        {"shard": ["a"], "length": [40.0]},
        {"shard": [7], "length": [40]},
        {"shard": ["a", None], "length": [40, 40]},
        {"shard": ["a", "a"], "length": [40, None]},
    ],
)
def test_kept_lengths_that_cannot_be_are_refused(columns, dataset_copy):
    pq.write_table(pa.table(columns), dataset_copy / ".tpu_input_records.parquet")
    with pytest.raises(
        ValueError, match=r"tpu_input_records\.parquet' does not contain valid lengths of records: .*; remove it"
    ):
        manifest_from_shards(f"{dataset_copy}/train-*", classes=10)


@pytest.mark.parametrize("folder", ["repair", FINGERPRINT[:16]])
def test_a_repair_writes_through_no_linked_folder(folder, victim, dataset_copy, capsys):
    manifest = read_manifest(dataset_copy)
    (victim / f"{SHARD}.rows").write_text("mine")
    work = dataset_copy / ".jpeg2tpu"
    work.mkdir()
    name = folder if folder == "repair" else manifest.fingerprint[:16]
    (work / name).symlink_to(victim)
    damaged = bytearray((dataset_copy / SHARD).read_bytes())
    damaged[100] ^= 255
    (dataset_copy / SHARD).write_bytes(damaged)
    before = files(victim)
    capsys.readouterr()
    assert beam_pipelines_main(["verify", "--repair", str(dataset_copy)]) == 2
    assert f"error: {work}/{name} is a symlink" in capsys.readouterr().err
    assert files(victim) == before


def test_a_pipe_in_the_lock_s_place_is_not_waited_for(few_digits, tmp_path, capsys):
    lock = tmp_path / "out" / ".jpeg2tpu" / "lock"
    lock.parent.mkdir(parents=True)
    os.mkfifo(lock)
    command = ("convert", f"--input={few_digits}", f"--output={tmp_path / 'out'}")
    assert refused(capsys, beam_pipelines_main, *command) == f"error: '{lock}' is not a regular file; remove it\n"
    reader = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
    assert refused(capsys, beam_pipelines_main, *command) == f"error: '{lock}' is not a regular file; remove it\n"
    os.close(reader)


@pytest.mark.parametrize("name", ["manifest.json", SHARD])
@pytest.mark.parametrize("command", ["verify", "idx", "benchmark", "train"])
def test_a_pipe_in_a_file_s_place_is_not_waited_for(name, command, dataset_copy, tmp_path, capsys):
    (dataset_copy / name).unlink()
    os.mkfifo(dataset_copy / name)
    main, line = COMMANDS[command]
    places = {"DATASET": dataset_copy, "MODEL": tmp_path / "model"}
    words = [re.sub("DATASET|MODEL", lambda match: str(places[match[0]]), word) for word in line.split()]
    assert str(dataset_copy / name) in refused(capsys, main, *words)


ESCAPE = "\x1b]0;owned\x07\x1b[31m"


def test_a_terminal_is_told_nothing_by_what_a_dataset_says(dataset_copy, few_digits, tmp_path, capsys):
    (dataset_copy / f"stray{ESCAPE}\nno problems found").write_text("")
    assert beam_pipelines_main(["verify", str(dataset_copy)]) == 1
    out, _ = capsys.readouterr()
    stray = next(line for line in out.splitlines() if line.startswith("stray"))
    assert stray == r"stray\x1b]0;owned\x07\x1b[31m\nno problems found is not part of the dataset"
    for path in dataset_copy.glob("stray*"):
        path.unlink()

    def change(manifest: dict[str, Any]) -> None:
        manifest["num_fixed"] = {ESCAPE: 3}
        manifest["options"][ESCAPE] = ESCAPE
        manifest["options"]["splits"] = {ESCAPE: ESCAPE, "train": None}
        manifest["options"]["images"] = {"splits": {"a": None}}
        manifest["fingerprint"] = FINGERPRINT

    edit(dataset_copy / "manifest.json", change)
    beam_pipelines_main(["verify", "--quick", str(dataset_copy)])
    message = refused(capsys, beam_pipelines_main, "convert", f"--input={few_digits}", f"--output={dataset_copy}")
    assert "holds another dataset" in message
    out, err = capsys.readouterr()
    assert "\x1b" not in message + out + err


def test_a_plan_of_more_shards_than_memory_has_names_for_is_refused(few_digits, tmp_path, capsys):
    folder = tmp_path / "out" / ".jpeg2tpu" / FINGERPRINT[:16]
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(Plan(("a", "b"), 1, {}, {}, FINGERPRINT, {"train": {0: 1}}, 1, {}).to_json())
    edit(folder / "plan.json", lambda plan: plan["buckets"].update({f"split{n}": {"0": 999_999} for n in range(60)}))
    command = ("convert", f"--input={few_digits}", f"--output={tmp_path / 'out'}", "--overwrite")
    assert "the plan has more than 1,000,000 shards" in refused(capsys, beam_pipelines_main, *command)


def bomb(index: Path, column: str, mebibytes: int) -> None:
    """Puts one long text into all rows of an index; the file has it once, compressed."""
    table = pq.read_table(index)
    text = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), pa.array(["a" * (mebibytes << 20)]))
    position = table.schema.get_field_index(column)
    table = table.set_column(position, column, text)
    pq.write_table(table, index, compression="zstd", store_schema=False)
    assert index.stat().st_size < 1 << 20


@pytest.mark.parametrize(("column", "mebibytes"), [("sha256", 1), ("key", 40)])
def test_an_index_s_texts_take_no_more_memory_than_its_rows_can(column, mebibytes, dataset_copy, capsys):
    bomb(dataset_copy / "index" / f"{SHARD[:-9]}.parquet", column, mebibytes)
    message = refused(capsys, beam_pipelines_main, "report", dataset_copy)
    too_many = r"(a column has|its columns have) [\d,]+ bytes, but \d+ rows can have at most [\d,]+"
    assert re.search(rf"cannot be read: {too_many}; run: .* --repair", message)
    assert beam_pipelines_main(["verify", str(dataset_copy)]) == 1
    assert f"{SHARD}: its index cannot be read: " in capsys.readouterr().out


# Reads a Parquet file with each byte of its schema set to 0, one after another.
READ_DAMAGED = """
import sys
import pyarrow as pa
from tpu_input.dataset_format.index import read_columns
from tpu_input.dataset_format.lengths import parse_lengths
content, read = open(sys.argv[2], "rb").read(), {"index": read_columns, "lengths": parse_lengths}[sys.argv[1]]
footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
read(content, None)
for at in range(footer, footer + 200):
    try:
        read(content[:at] + bytes(1) + content[at + 1 :], None)
    except (ValueError, pa.ArrowException, OSError, KeyError):
        pass
"""


@pytest.mark.parametrize("name", ["index", "lengths"])
def test_a_damaged_schema_never_ends_the_process(digits_dataset, name):
    pattern = {"index": f"index/{SHARD[:-9]}.parquet", "lengths": "lengths*.parquet"}[name]
    (path,) = Path(digits_dataset.path).glob(pattern)
    command = [sys.executable, "-W", "ignore", "-c", READ_DAMAGED, name, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("name", "how"),
    [*itertools.product(["key", "sha256", "offset"], ["gone", "nested", "twice", "numbers"]), ("uri", "gone")],
)
def test_an_index_of_other_columns_is_told(name, how, dataset_copy, capsys):
    index = dataset_copy / "index" / f"{SHARD[:-9]}.parquet"
    table = pq.read_table(index)
    column, position = table[name], table.schema.get_field_index(name)
    if how == "gone":
        table = table.remove_column(position)
    elif how == "twice":
        table = table.append_column(name, column)
    else:
        other = pa.array([{"part": 1}] * len(table)) if how == "nested" else pa.array([0.5] * len(table))
        table = table.set_column(position, name, other)
    pq.write_table(table, index)
    assert beam_pipelines_main(["verify", "--quick", str(dataset_copy)]) == 1
    assert f"{SHARD}: its index" in capsys.readouterr().out
    assert beam_pipelines_main(["report", str(dataset_copy)]) in (0, 2)  # which reads not all of the columns


def test_numbers_of_an_index_that_are_texts_are_not_read(dataset_copy):
    (dataset_copy / "lengths.parquet").unlink()
    bomb(dataset_copy / "index" / f"{SHARD[:-9]}.parquet", "offset", 40)
    with pytest.raises(ValueError, match=r"does not match shard .* records"):
        RecordSource(read_manifest(dataset_copy), "train")


def peak_bytes() -> int:
    """Returns the most memory that this process has ever had."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) << 10


@pytest.mark.parametrize("name", ["manifest.json", "lengths.parquet", "rejected.jsonl"])
def test_a_file_with_holes_takes_no_memory(name, dataset_copy, capsys):
    with (dataset_copy / name).open("wb") as file:
        file.truncate(3 << 30)
    before = peak_bytes()
    if name == "lengths.parquet":
        with pytest.raises(ValueError, match="has 3,221,225,472 bytes"):
            RecordSource(read_manifest(dataset_copy), "train")
    else:
        message = refused(capsys, beam_pipelines_main, "report", dataset_copy)
        assert str(dataset_copy / name) in message
    if name == "manifest.json":
        assert "has 3,221,225,472 bytes" in refused(capsys, beam_pipelines_main, "verify", dataset_copy)
        assert "has 3,221,225,472 bytes" in refused(capsys, tpu_input_main, "benchmark", dataset_copy)
    else:
        assert beam_pipelines_main(["verify", str(dataset_copy)]) == 1
        assert re.search(f"{name} cannot be (read|used): ", capsys.readouterr().out)
    assert peak_bytes() - before < 1 << 30


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("list.csv", "line 1 has 1,000,000 characters or more, so the file is not a list"),
        ("list.jsonl", "line 1 has 1,000,000 characters or more, so the file is not a list"),
        ("images.tar", "is empty"),
        ("labels.txt", "has 1,073,741,824 bytes"),
    ],
)
def test_an_input_with_holes_takes_no_memory(name, message, tmp_path, capsys):
    (tmp_path / "images" / "a").mkdir(parents=True)
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 30)
    before = peak_bytes()
    source = tmp_path / ("images" if name == "labels.txt" else name)
    options = [f"--labels={tmp_path}/{name}"] * (name == "labels.txt")
    argv = ["convert", f"--input={source}", f"--output={tmp_path}/out", *options]
    with contextlib.suppress(SystemExit):  # argparse's, of the labels
        assert beam_pipelines_main(argv) == 2
    assert message in capsys.readouterr().err
    assert peak_bytes() - before < 1 << 28


def test_an_image_with_holes_is_rejected_without_being_read(tmp_path, capsys):
    for label in "ab":
        (tmp_path / "images" / label).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / label / "1.jpg")
    with (tmp_path / "images" / "a" / "2.jpg").open("wb") as file:
        file.truncate(3 << 30)
    before = peak_bytes()
    argv = [f"--input={tmp_path}/images", f"--output={tmp_path}/out", "--max_rejected=50%"]
    assert beam_pipelines_main(["convert", *argv]) == 0
    assert peak_bytes() - before < 1 << 29
    (rejected,) = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    assert json.loads(rejected)["reason"] == "too_large"
