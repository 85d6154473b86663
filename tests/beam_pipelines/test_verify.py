"""verify finds every kind of damage, and nothing in a sound dataset."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from beam_pipelines.conversion import duplicate_keys
from beam_pipelines.verify import verify
from support.conversion import local
from support.damage import damage_in_many_ways
from support.pipelines_commands import refused, run
from tpu_input.dataset_format.index import read_index, write_index
from tpu_input.dataset_format.lengths import parse_lengths, write_lengths

SHARD = "train-00002-of-00009"


def problems(dataset: Path) -> list[str]:
    return verify(str(dataset)).problems


def edit(path: Path, change) -> None:
    path.write_bytes(change(path.read_bytes()))


def flip(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def test_a_sound_dataset_has_no_problems(dataset_copy):
    assert problems(dataset_copy) == []


def test_a_flipped_bit_is_found_and_its_record_named(dataset_copy):
    edit(dataset_copy / f"{SHARD}.tfrecord", lambda data: flip(data, 100_000))
    assert any(
        f"{SHARD}.tfrecord: record" in problem and "corrupt payload" in problem for problem in problems(dataset_copy)
    )


def test_a_truncated_shard_is_found(dataset_copy):
    edit(dataset_copy / f"{SHARD}.tfrecord", lambda data: data[:-1])
    assert any("is truncated" in problem for problem in problems(dataset_copy))


def test_a_shard_cut_between_two_records_is_found(dataset_copy):
    last = read_index((dataset_copy / "index" / f"{SHARD}.parquet").read_bytes())[-1]
    edit(dataset_copy / f"{SHARD}.tfrecord", lambda data: data[: last.offset])
    messages = problems(dataset_copy)
    assert any("contains 175 readable records, but the manifest has 176" in problem for problem in messages)


def test_two_shards_exchanged_are_found(dataset_copy):
    one, other = dataset_copy / f"{SHARD}.tfrecord", dataset_copy / "train-00004-of-00009.tfrecord"
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    messages = problems(dataset_copy)
    assert sum("but the manifest has" in problem for problem in messages) == 2
    assert f"{SHARD}.tfrecord: its index does not match its records" in messages


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{SHARD}.tfrecord", f"{SHARD}.tfrecord: is missing"),
        (f"index/{SHARD}.parquet", f"{SHARD}.tfrecord: its index is missing"),
        ("rejected.jsonl", "rejected.jsonl is missing"),
        ("lengths.parquet", "lengths.parquet is missing"),
    ],
)
def test_a_missing_file_is_found(dataset_copy, name, message):
    (dataset_copy / name).unlink()
    assert message in problems(dataset_copy)


def test_a_file_too_many_is_found(dataset_copy):
    (dataset_copy / "train-00009-of-00009.tfrecord").write_bytes(b"")
    assert problems(dataset_copy) == ["train-00009-of-00009.tfrecord is not part of the dataset"]


def test_a_report_and_dali_s_index_files_are_welcome(dataset_copy):
    (dataset_copy / "report.html").write_text("<p>")
    (dataset_copy / "index" / f"{SHARD}.idx").write_text("0 9")
    assert problems(dataset_copy) == []


def test_a_wrong_index_is_found(dataset_copy):
    path = str(dataset_copy / "index" / f"{SHARD}.parquet")
    index = read_index(Path(path).read_bytes())
    with open(path, "wb") as file:
        write_index(file, [index[0]._replace(offset=1), *index[1:]])
    assert problems(dataset_copy) == [f"{SHARD}.tfrecord: its index does not match its records"]


def test_an_unreadable_index_is_found(dataset_copy):
    (dataset_copy / "index" / f"{SHARD}.parquet").write_bytes(b"PAR1 not really")
    assert any(f"{SHARD}.tfrecord: its index cannot be read" in problem for problem in problems(dataset_copy))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda lengths: lengths | {name: shard_lengths[::-1] for name, shard_lengths in lengths.items()},
            "does not match the records of train",
        ),
        (lambda lengths: dict(reversed(lengths.items())), "lists the shards in another order than the manifest"),
        (lambda lengths: dict([*lengths.items()][1:]), r"cannot be used: it has \d+ rows for 1797 records"),
        (
            lambda lengths: {f"{name}x": shard_lengths for name, shard_lengths in lengths.items()},
            "cannot be used: it lists 0 records in 0 bytes",
        ),
    ],
)
def test_wrong_lengths_are_found(dataset_copy, change, message):
    path = dataset_copy / "lengths.parquet"
    lengths = parse_lengths(path.read_bytes()).by_shard()
    with path.open("wb") as file:
        write_lengths(file, change(lengths))
    findings = verify(str(dataset_copy), decode_images=False)
    assert [bool(re.match(f"lengths.parquet {message}", problem)) for problem in findings.problems] == [True]
    assert (findings.damaged, findings.lengths_damaged) == ([], True)


def test_lengths_that_cannot_be_read_are_found(dataset_copy):
    edit(dataset_copy / "lengths.parquet", lambda data: data[:-1])
    (problem,) = problems(dataset_copy)
    assert problem.startswith("lengths.parquet cannot be used: ")


def _without_a_class(manifest):
    manifest["classes"].pop()
    for split in manifest["splits"].values():
        split["class_counts"][8] += split["class_counts"].pop()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda manifest: manifest["splits"]["train"]["class_counts"].reverse(),
            "split 'train' has .* examples by class",
        ),
        (lambda manifest: manifest["classes"].reverse(), "has the class name '.', which contradicts its label"),
        (_without_a_class, "has label 9, but there are 9 classes"),
        (
            lambda manifest: manifest.update(num_rejected={"empty": 1}, num_inputs=1798),
            "lists {}, but the manifest has {'empty': 1}",
        ),
    ],
)
def test_a_manifest_that_does_not_hold_is_found(dataset_copy, change, message):
    path = dataset_copy / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    messages = problems(dataset_copy)
    assert any(re.search(message, problem) for problem in messages), messages


def test_no_manifest_is_no_dataset(dataset_copy):
    (dataset_copy / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"contains no manifest\.json, so it is not a complete dataset"):
        problems(dataset_copy)


def test_a_quick_look_finds_all_but_what_takes_a_decode(dataset_copy):
    edit(dataset_copy / f"{SHARD}.tfrecord", lambda data: flip(data, 100_000))
    assert any("corrupt payload" in problem for problem in verify(str(dataset_copy), decode_images=False).problems)


# Beam's own runner in this process, by its full name, as Beam 2.54 knows no short one.
RUNNER = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"


def test_workers_of_a_runner_find_what_threads_find_and_say_the_same(dataset_copy, capsys):
    assert run(capsys, "verify", dataset_copy, RUNNER) == run(capsys, "verify", dataset_copy)
    damage_in_many_ways(dataset_copy)
    thread_findings, worker_findings = verify(str(dataset_copy)), verify(str(dataset_copy), beam_options=local())
    assert thread_findings == worker_findings
    for part in (
        "corrupt payload",
        "is missing",
        "its index is missing",
        "its index does not match its records",
        "occurs more than once",
        "is not part of the dataset",
        "lengths.parquet",
        "examples by class",
    ):
        assert any(part in problem for problem in thread_findings.problems), part
    code, out, err = run(capsys, "verify", dataset_copy)
    assert (code, err) == (1, "")
    assert run(capsys, "verify", dataset_copy, RUNNER) == (code, out, err)
    assert not (dataset_copy / ".jpeg2tpu").exists()


def test_verify_on_workers_refuses_what_belongs_to_threads_and_unknown_flags(dataset_copy, capsys):
    assert "--num_threads=2 is for threads on this machine" in refused(
        capsys, "verify", dataset_copy, RUNNER, "--num_threads=2"
    )
    assert "unknown flag --worker_zome" in refused(capsys, "repair", dataset_copy, RUNNER, "--worker_zome=a")


@pytest.mark.parametrize("beam_options", [None, local()], ids=["threads", "workers"])
def test_keys_that_occur_twice_are_named_in_one_shard_and_across_shards(dataset_copy, beam_options):
    index = read_index((dataset_copy / "index" / f"{SHARD}.parquet").read_bytes())
    first, second, last = index[0], index[1], index[-1]
    data = (dataset_copy / f"{SHARD}.tfrecord").read_bytes()
    one, other = (data[row.offset : row.offset + row.length] for row in (first, second))
    edit(dataset_copy / f"{SHARD}.tfrecord", lambda data: data[: last.offset] + one)
    edit(dataset_copy / "train-00004-of-00009.tfrecord", lambda data: data + other + other)
    messages = verify(str(dataset_copy), decode_images=False, beam_options=beam_options).problems
    assert sorted(problem for problem in messages if "more than once" in problem) == sorted(
        [
            f"{SHARD}.tfrecord: key {first.key!r} occurs more than once",
            *2 * [f"train-00004-of-00009.tfrecord: key {second.key!r} occurs more than once"],
        ]
    )


@pytest.mark.parametrize("beam_options", [None, local()], ids=["threads", "workers"])
def test_other_keys_with_the_same_hash_are_not_the_same_key(dataset_copy, monkeypatch, beam_options):
    hash_keys = duplicate_keys.hash_keys
    monkeypatch.setattr(
        "beam_pipelines.conversion.shard_checking.hash_keys", lambda keys: np.sort(hash_keys(keys) >> np.int64(56))
    )
    assert verify(str(dataset_copy), decode_images=False, beam_options=beam_options).problems == []


def test_duplicate_keys_are_found_band_by_band_in_little_more_than_eight_bytes_a_key():
    num_shards, num_keys = 100, 20_000
    bands = duplicate_keys.num_bands(num_shards * num_keys)
    random = np.random.default_rng(5)
    tracemalloc.start()
    shards = [np.sort(random.integers(1 << 62, size=num_keys)) for _ in range(num_shards)]
    shards[3][7] = shards[90][11] = 5
    shards[90].sort()
    shards[3].sort()
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    duplicates = [
        duplicate_keys.repeated(
            (number, duplicate_keys.in_band(hashes, band, 8 * bands)) for number, hashes in enumerate(shards)
        )
        for band in range(8 * bands)
    ]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set().union(*duplicates) == {(3, 5), (90, 5)}
    assert current < 8.1 * num_shards * num_keys
    assert peak < 16 * num_shards * num_keys


@pytest.mark.parametrize("flags", [[], [RUNNER]], ids=["threads", "workers"])
def test_of_one_shard_nothing_else_is_read(dataset_copy, capsys, flags):
    name = f"{SHARD}.tfrecord"
    for path in [*dataset_copy.glob("*.tfrecord"), *dataset_copy.glob("index/*"), dataset_copy / "rejected.jsonl"]:
        if path.stem != SHARD:
            path.unlink()
    code, out, err = run(capsys, "verify", dataset_copy, f"--shard={name}", *flags)
    message = f"{dataset_copy}: no problems found in {name}; every record was read, every image was decoded\n"
    assert (code, out, err) == (0, message, "")
    edit(dataset_copy / name, lambda data: data[:-1])
    code, out, _ = run(capsys, "verify", dataset_copy, f"--shard={name}", *flags)
    assert code == 1
    assert "is truncated" in out
    assert all(line.startswith((name, str(dataset_copy))) for line in out.splitlines())


def test_a_shard_that_the_dataset_does_not_have_is_refused(dataset_copy, capsys):
    assert "has no shard 'train-0'; its shards are 'train-00000-of-00009.tfrecord' to '" in refused(
        capsys, "verify", dataset_copy, "--shard=train-0"
    )
