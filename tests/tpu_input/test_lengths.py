"""lengths.parquet: the lengths of the records of a dataset, written, read, and refused where it is not that."""

from __future__ import annotations

import dataclasses
import io
import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.numbered_dataset import write_numbered
from tpu_input import RecordSource, read_manifest
from tpu_input.dataset_format import lengths as lengths_format
from tpu_input.dataset_format.lengths import LENGTHS_NAME, max_bytes, parse_lengths, write_lengths
from tpu_input.dataset_format.manifest import Manifest, Shard
from tpu_input.dataset_format.records import read_frames
from tpu_input.storage import byte_ranges, positions
from tpu_input.storage.positions import split_offsets, split_positions


def content_of(lengths: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    write_lengths(file, lengths)
    return file.getvalue()


def framed_lengths(manifest: Manifest) -> dict[str, np.ndarray]:
    """Returns the lengths by shard as its bytes are framed, by another reader than the one that is tested."""
    lengths = {}
    for split in manifest.splits.values():
        for shard in split.shards:
            with (Path(manifest.path) / shard.name).open("rb") as file:
                lengths[shard.name] = np.array([len(payload) + 16 for _, payload in read_frames(file)])
    return lengths


def offsets_in(manifest: Manifest, split: str) -> list[int]:
    offsets = []
    for shard in manifest.split(split).shards:
        with (Path(manifest.path) / shard.name).open("rb") as file:
            offsets += [offset for offset, _ in read_frames(file)]
    return offsets


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """The names of the files that are read, as they are read."""
    read, names = byte_ranges.read_bytes, list[str]()

    def noted(path, *args):
        names.append(path.rsplit("/", 1)[-1])
        return read(path, *args)

    monkeypatch.setattr(byte_ranges, "read_bytes", noted)
    monkeypatch.setattr(positions, "read_bytes", noted)
    return names


def test_what_is_written_is_read_in_the_order_of_the_shards():
    lengths = {"b": np.array([40, 16]), "a": np.array([99]), "c": np.array([2**40, 17, 18])}
    parsed = parse_lengths(content_of(lengths), 6)
    assert (parsed.names, parsed.begins.tolist()) == (["b", "a", "c"], [0, 2, 3, 6])
    assert {name: values.tolist() for name, values in parsed.by_shard().items()} == {
        name: values.tolist() for name, values in lengths.items()
    }
    shards = [Shard("c", 3, 2**40 + 35, ""), Shard("b", 2, 56, "")]
    assert parsed.shard_lengths(shards).tolist() == [2**40, 17, 18, 40, 16]
    assert parse_lengths(content_of({})).by_shard() == {}
    assert parse_lengths(content_of({})).shard_lengths([]).tolist() == []


def test_the_same_lengths_are_the_same_bytes_in_the_columns_that_the_format_promises():
    lengths = {"b": np.array([40, 16]), "a": np.array([99])}
    assert content_of(lengths) == content_of(lengths)
    table = pq.read_table(io.BytesIO(content_of(lengths)))
    assert table.schema.types == [pa.dictionary(pa.int32(), pa.string()), pa.int64()]
    assert table.to_pydict() == {"shard": ["b", "b", "a"], "length": [40, 16, 99]}


def test_a_shard_that_goes_on_in_the_next_group_of_rows_is_one():
    table = pa.table({"shard": pa.array([*"aaabbbbccc"]).dictionary_encode(), "length": pa.array(range(20, 30))})
    for rows in range(1, 11):
        file = io.BytesIO()
        pq.write_table(table, file, row_group_size=rows)
        parsed = parse_lengths(file.getvalue(), 10)
        assert (parsed.names, parsed.begins.tolist()) == ([*"abc"], [0, 3, 7, 10])
        assert parsed.lengths.tolist() == [*range(20, 30)]


def test_offsets_are_those_of_the_records_with_the_file_and_without(digits_dataset, dataset_copy):
    (dataset_copy / LENGTHS_NAME).unlink()
    for manifest in (digits_dataset, read_manifest(dataset_copy)):
        for split in manifest.splits:
            expected = offsets_in(manifest, split)
            assert split_offsets(manifest, split).tolist() == expected
            offsets, lengths = split_positions(manifest, split)
            assert offsets.tolist() == expected
            by_shard = framed_lengths(manifest)
            shards = manifest.split(split).shards
            assert lengths.tolist() == np.concatenate([by_shard[shard.name] for shard in shards]).tolist()


def test_many_shards_take_one_read(tmp_path, reads):
    manifest = write_numbered(tmp_path / "numbered", [3] * 400)
    (tmp_path / "numbered" / LENGTHS_NAME).write_bytes(content_of(framed_lengths(manifest)))
    expected = offsets_in(manifest, "train")
    assert split_offsets(manifest, "train").tolist() == expected
    assert reads == [LENGTHS_NAME]
    assert len(RecordSource(manifest, "train")) == 1200
    assert reads == [LENGTHS_NAME] * 2
    (tmp_path / "numbered" / LENGTHS_NAME).unlink()
    reads.clear()
    assert split_offsets(manifest, "train").tolist() == expected
    assert sorted(set(reads) - {LENGTHS_NAME}) == sorted(
        shard.name.replace(".tfrecord", ".parquet") for shard in manifest.split("train").shards
    )


def test_a_manifest_of_many_shards_takes_no_status_of_each(tmp_path, monkeypatch):
    manifest = write_numbered(tmp_path / "numbered", [1] * 300)
    (tmp_path / "numbered" / "manifest.json").write_text(
        dataclasses.replace(
            manifest,
            classes=("a", "b"),
            splits={"train": dataclasses.replace(manifest.split("train"), class_counts=(300, 0))},
        ).to_json()
    )
    paths, stat = list[str](), os.stat

    def noted(path, **options):
        paths.append(str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", noted)
    read_manifest(tmp_path / "numbered")
    assert not [path for path in paths if path.endswith(".tfrecord")]


def _table(**columns) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "."),
        (b"PAR1 not really", "."),
        (_table(shard=["a"]), "it has the columns shard"),
        (_table(shard=["a"], length=[40], more=[1]), "it has the columns shard"),
        (_table(shard=["a"], length=[40.0]), "it has the columns shard"),
        (_table(shard=[7], length=[40]), "its column shard has the type int64"),
        (_table(shard=["a", None], length=[40, 40]), "a row has no value"),
        (_table(shard=["a", "a"], length=[40, None]), "a row has no value"),
        (_table(shard=["a"], length=[15]), "a record of 15 bytes is too short"),
        (_table(shard=["a"], length=[-(2**62)]), "a record of -"),
        (_table(shard=["a", "b"], length=[2**62, 2**62]), "more bytes than a dataset can have"),
        (_table(shard=["a", "b", "a"], length=[40, 40, 40]), "the records of a shard are not together"),
    ],
)
def test_what_is_no_file_of_lengths_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        parse_lengths(content)


def test_the_rows_are_counted_before_they_are_loaded(monkeypatch):
    content = content_of({"a": np.full(100_000, 40)})  # which takes few bytes, as all lengths are equal
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", None)
    with pytest.raises(ValueError, match="it has 100000 rows for 3 records"):
        parse_lengths(content, 3)
    monkeypatch.setattr(lengths_format, "_MAX_ROWS", 99_999)
    with pytest.raises(ValueError, match="it has 100000 rows for 99999 records"):
        parse_lengths(content)


def test_a_flipped_bit_is_found_or_changes_nothing():
    lengths = {name: np.random.default_rng(ord(name)).integers(16, 10**5, 50) for name in "abcdef"}
    content, num_refused = content_of(lengths), 0
    for place in range(0, len(content), 5):
        flipped = content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]
        try:
            parsed = parse_lengths(flipped, 300)
        except ValueError:
            num_refused += 1
            continue
        assert parsed.lengths.tolist() == np.concatenate([*lengths.values()]).tolist(), place
        assert (parsed.names, parsed.begins.tolist()) == ([*lengths], [*range(0, 301, 50)]), place
    assert num_refused > len(content) // 10


def _cut(dataset: Path) -> None:
    path = dataset / LENGTHS_NAME
    path.write_bytes(path.read_bytes()[:-9])


def _flip(dataset: Path) -> None:
    data = bytearray((dataset / LENGTHS_NAME).read_bytes())
    data[len(data) // 3] ^= 1
    (dataset / LENGTHS_NAME).write_bytes(data)


def _changed(change):
    def damage(dataset: Path) -> None:
        lengths = parse_lengths((dataset / LENGTHS_NAME).read_bytes()).by_shard()
        (dataset / LENGTHS_NAME).write_bytes(
            content_of(change({name: values.copy() for name, values in lengths.items()}))
        )

    return damage


def _longer(lengths):
    next(iter(lengths.values()))[3] += 1
    return lengths


def _moved(lengths):
    (first, one), (second, other) = [*lengths.items()][:2]
    return lengths | {first: one[:-1], second: np.append(one[-1:], other)}


DAMAGES = {
    "cut": (_cut, "."),
    "flipped": (_flip, "."),
    "empty": (lambda dataset: (dataset / LENGTHS_NAME).write_bytes(b""), "."),
    "a record longer": (_changed(_longer), r"it lists \d+ records in \d+ bytes for shard 'train-00000-of-00009.tfr"),
    "a record moved to the next shard": (_changed(_moved), "for shard 'train-00000-of-00009.tfrecord', which has"),
    "a shard less": (_changed(lambda lengths: dict([*lengths.items()][1:])), r"it has \d+ rows for \d+ records"),
    "a shard of another name": (
        _changed(lambda lengths: {name.replace("00001-of", "00009-of"): values for name, values in lengths.items()}),
        "it lists 0 records in 0 bytes for shard 'train-00001-of-00009.tfrecord'",
    ),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_named_with_the_command_that_repairs_it(how, dataset_copy):
    damage, message = DAMAGES[how]
    damage(dataset_copy)
    manifest = read_manifest(dataset_copy)
    for read in (split_offsets, split_positions, RecordSource):
        with pytest.raises(ValueError, match=message) as caught:
            read(manifest, "train")
        error_text = str(caught.value)
        assert "\n" not in error_text
        assert error_text.startswith(f"'{dataset_copy}/{LENGTHS_NAME}' does not match '{dataset_copy}': ")
        assert error_text.endswith(f"repair it with: jpeg2tpu verify --repair {dataset_copy}")


def test_another_manifest_is_refused(dataset_copy):
    manifest = read_manifest(dataset_copy)
    split = manifest.split("train")
    first = dataclasses.replace(split.shards[0], num_bytes=split.shards[0].num_bytes + 1)
    other = dataclasses.replace(split, shards=(first, *split.shards[1:]))
    with pytest.raises(ValueError, match=re.escape(f"bytes for shard '{first.name}', which has")):
        split_offsets(dataclasses.replace(manifest, splits=manifest.splits | {"train": other}), "train")
    fewer = {name: split for name, split in manifest.splits.items() if name == "train"}
    with pytest.raises(ValueError, match=r"it has \d+ rows for \d+ records"):
        split_offsets(dataclasses.replace(manifest, splits=fewer), "train")


def test_a_file_that_is_too_large_or_a_pipe_is_not_read(dataset_copy):
    manifest, path = read_manifest(dataset_copy), dataset_copy / LENGTHS_NAME
    with path.open("r+b") as file:
        file.truncate(max_bytes(sum(split.num_examples for split in manifest.splits.values())) + 1)
    with pytest.raises(ValueError, match="more than a file of its kind can have"):
        split_offsets(manifest, "train")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="is not a regular file"):
        split_offsets(manifest, "train")


def test_a_file_of_that_name_beside_another_program_s_shards_is_not_read(tmp_path):
    manifest = dataclasses.replace(write_numbered(tmp_path / "numbered", [3, 4]), fingerprint="")
    expected = offsets_in(manifest, "train")
    (tmp_path / "numbered" / LENGTHS_NAME).write_bytes(b"another program's")
    assert split_offsets(manifest, "train").tolist() == expected
