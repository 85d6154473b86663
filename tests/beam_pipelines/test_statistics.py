"""Counts and statistics of a dataset: the receipts of its shards, what is refused of a damaged one, and their sums."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from beam_pipelines.conversion.commit import commit
from beam_pipelines.conversion.plan import Plan
from beam_pipelines.conversion.receipts import Receipt, Rejection
from beam_pipelines.options import ConvertOptions, ImageOptions, Source
from tpu_input.dataset_format.records import Manifest, Record, encode, frame
from tpu_input.stored_images.check import CheckedImage

SIDE = 64  # of the sample of each image, in pixels
SHA256 = "0a" * 32


def sample(number: int) -> npt.NDArray[np.int64]:
    """The sample of an image, [64, 64, 3], with colors of its own."""
    return np.random.default_rng(number).integers(0, 80 + 50 * np.arange(3), [SIDE, SIDE, 3])


def image(number: int, measured: bool = True, fixed: str = "", noted: tuple[str, ...] = ()) -> CheckedImage:
    pixels = sample(number)
    sums = [int(total) for total in pixels.sum((0, 1))] if measured else None
    squares = [int(total) for total in (pixels**2).sum((0, 1))] if measured else None
    return CheckedImage(b"", 100 - 7 * number, 50 + 3 * number, 3, sums, squares, 0, fixed, noted)


def receipt(name: str, numbers: Sequence[int], labels: Sequence[int], measured: Sequence[int]) -> Receipt:
    result = Receipt(name, sha256=SHA256, crc32c="AAAAAA==", index_bytes=9, attempt="0c" * 16)
    for number, label in zip(numbers, labels, strict=True):
        fixed, noted = ("format PNG", ()) if number % 3 == 1 else ("", ("GPS position",))
        result.add(image(number, number in measured, fixed, noted), label, 1000 + number)
    return result


FIRST = receipt("train-00000-of-00002.tfrecord", [1, 2, 3], [0, 2, 2], measured=[1, 3])
SECOND = receipt("train-00001-of-00002.tfrecord", [4, 5], [2, 0], measured=[4])


def test_a_receipt_has_the_sums_of_its_images():
    assert (FIRST.num_examples, FIRST.num_bytes, FIRST.num_measured) == (3, 3006, 2)
    assert FIRST.class_counts == {0: 1, 2: 2}
    assert (FIRST.heights, FIRST.widths) == ([79, 79 + 86 + 93, 93], [53, 53 + 56 + 59, 59])
    assert FIRST.sums == (sample(1) + sample(3)).sum((0, 1)).tolist()
    assert FIRST.squares == (sample(1) ** 2 + sample(3) ** 2).sum((0, 1)).tolist()
    assert (FIRST.fixed, FIRST.noted) == ({"format PNG": 1}, {"GPS position": 2})


def test_a_receipt_of_no_image_has_no_sums():
    empty = Receipt("a")
    assert (empty.num_examples, empty.num_bytes, empty.num_measured) == (0, 0, 0)
    assert (empty.sums, empty.squares) == ([0, 0, 0], [0, 0, 0])
    assert (empty.heights, empty.widths) == ([2**62, 0, 0], [2**62, 0, 0])
    assert (empty.index_bytes, empty.several) == (0, False)


def test_receipts_of_units_add_up_to_that_of_their_shard():
    shard, parts = Receipt("a"), [Receipt("a"), Receipt("a")]
    for number in range(1, 6):
        labels = (0, number)
        for sums in (shard, parts[number > 2]):
            sums.add(image(number, number % 2 == 0, "format PNG" * (number == 1), ("GPS position",)), labels, 100)
    parts[0].rejected = shard.rejected = [Rejection("a.jpg", "/a.jpg", "corrupt", "damaged")]
    summed = Receipt("a")
    for part in parts:
        summed.extend(part)
    assert summed == shard
    assert summed.several
    summed.extend(receipt("a", [1], [0], measured=[]))  # a unit all of whose images are of one class
    assert summed.several


def test_a_receipt_comes_back_as_it_was_written():
    for one in (FIRST, SECOND, Receipt(FIRST.name, rejected=[Rejection("a.jpg", "/a.jpg", "corrupt", "damaged")])):
        assert Receipt.from_json(one.to_json().encode(), one.name, 3) == one


def test_a_receipt_may_be_of_the_smallest_and_the_brightest_images():
    brightest = 255 * SIDE**2
    fields = json.loads(Receipt("a").to_json()) | {
        "num_examples": 2,
        "num_bytes": 32,
        "sha256": SHA256,
        "attempt": "0c" * 16,
        "class_counts": {"0": 1, "1": 1},
        "heights": [1, 2, 1],
        "widths": [3, 6, 3],
        "num_measured": 2,
        "sums": [0, 0, 2 * brightest],
        "squares": [0, 0, 2 * 255 * brightest],
        "fixed": {"format PNG": 1, "animation": 1},
        "noted": {"GPS position": 1},
    }
    assert Receipt.from_json(json.dumps(fields).encode(), "a", 2).sums == [0, 0, 2 * brightest]
    one = {"num_examples": 1, "class_counts": {"0": 1}, "heights": [1, 1, 1], "widths": [1, 1, 1], "num_measured": 1}
    one |= {"sums": [0, 0, brightest], "squares": [0, 0, 255 * brightest], "fixed": {}}
    assert Receipt.from_json(json.dumps(fields | one).encode(), "a", 2).num_examples == 1
    darkest = fields | {"num_measured": 0, "sums": [0, 0, 0], "squares": [0, 0, 0]}
    assert Receipt.from_json(json.dumps(darkest).encode(), "a", 2).num_measured == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "train-00001-of-00002.tfrecord"}, "it is the receipt of another shard, 'train-00001"),
        ({"name": "a"}, "it is the receipt of another shard, 'a'"),
        ({"num_bytes": 47}, "num_bytes must be a whole number from 48"),
        ({"sha256": ""}, "sha256 must be 64 hexadecimal digits"),
        ({"attempt": "../../../../tmp/of-somebody-else/x"}, "attempt must be 32 hexadecimal digits, got '../"),
        ({"index_bytes": -1}, "index_bytes must be a whole number from 0"),
        ({"crc32c": 7}, "crc32c must be text"),
        ({"class_counts": {"0": 3, "1": 0}}, "class_counts of '1' must be a whole number from 1"),
        ({"class_counts": {"0": 1, "3": 2}}, "unknown class '3'"),
        ({"class_counts": {"0": 1, "2": 1}}, "its class counts do not add up to 3 examples"),
        ({"class_counts": {"0": 1, "2": 3}}, "its class counts do not add up to 3 examples"),
        ({"fixed": {"format PNG": 2, "animation": 2}}, "or its counts of re-encoded images exceed them"),
        ({"fixed": {"format PNG": 0}}, "fixed of 'format PNG' must be a whole number from 1"),
        ({"noted": {"GPS position": 0}}, "noted of 'GPS position' must be a whole number from 1"),
        ({"num_measured": 4}, "num_measured must be a whole number from 0 to 3"),
        ({"num_measured": -1}, "num_measured must be a whole number from 0 to 3"),
        ({"heights": [0, 6, 6]}, "image sizes from 0 to 6 pixels contradict their sum, 6 pixels"),
        ({"heights": [3, 8, 4]}, "image sizes from 3 to 4 pixels contradict their sum, 8 pixels"),
        ({"heights": [3, 13, 4]}, "image sizes from 3 to 4 pixels contradict their sum, 13 pixels"),
        ({"heights": [1, 2**62 + 1, 2**62]}, "heights must be a whole number from 0 to 4611686018427387904"),
        ({"widths": [3, 8, 4]}, "image sizes from 3 to 4 pixels contradict their sum, 8 pixels"),
        ({"sums": [0, 0, 2 * 255 * SIDE**2 + 1]}, "its sums of pixel values are larger than possible"),
        ({"squares": [0, 2 * 255**2 * SIDE**2 + 1, 0]}, "its sums of pixel values are larger than possible"),
    ],
)
def test_a_receipt_that_contradicts_itself_is_refused(changes, message):
    fields = json.loads(FIRST.to_json()) | changes
    with pytest.raises(ValueError, match=message):
        Receipt.from_json(json.dumps(fields).encode(), FIRST.name, 3)


def planned(num_inputs: int) -> Plan:
    return Plan(("a", "b", "c"), num_inputs, {}, {}, "0b" * 32, {}, 10**6, {})


@pytest.fixture(autouse=True)
def no_shards(monkeypatch):
    """There are receipts here, but no shards that could be moved, with an index whose lengths could be written."""
    monkeypatch.setattr("beam_pipelines.conversion.commit._publish", lambda *_: None)
    monkeypatch.setattr("beam_pipelines.conversion.commit.write_lengths", lambda manifest: None)


def options(folder: Path, max_rejected: float = 0.5, **images: Any) -> ConvertOptions:
    return ConvertOptions((Source("/images"),), str(folder), max_rejected=max_rejected, images=ImageOptions(**images))


def test_the_statistics_of_a_split_are_those_of_the_measured_images_of_all_its_shards(tmp_path):
    receipts = {"train": [FIRST, Receipt("train-00002"), SECOND], "validation": [Receipt("validation-00000")]}
    manifest = commit(options(tmp_path), planned(5), receipts)
    assert list(manifest.splits) == ["train"]
    split = manifest.split("train")
    assert [(shard.name, shard.num_examples, shard.num_bytes, shard.sha256) for shard in split.shards] == [
        (FIRST.name, 3, 3006, SHA256),
        (SECOND.name, 2, 2009, SHA256),
    ]
    assert split.class_counts == (2, 0, 3)
    assert split.height == (65, 79.0, 93)
    assert split.width == (53, 59.0, 65)
    pixels = np.stack([sample(1), sample(3), sample(4)]).reshape(-1, 3)
    assert split.channel_mean == tuple(np.round(pixels.mean(0), 3))
    assert split.channel_std == tuple(np.round(pixels.std(0), 3))
    assert (manifest.num_fixed, manifest.num_noted) == ({"format PNG": 2}, {"GPS position": 3})
    assert Manifest.from_json((tmp_path / "manifest.json").read_bytes(), manifest.path) == manifest


def test_mean_sizes_have_one_decimal(tmp_path):
    one = receipt(FIRST.name, [1, 2, 4], [0, 0, 0], measured=[1])
    assert commit(options(tmp_path), planned(3), {"train": [one]}).split("train").height == (72, 83.7, 93)


def test_a_split_of_a_single_shade_has_no_deviation(tmp_path):
    shade = Receipt("train-00000-of-00001.tfrecord", sha256=SHA256)
    shade.add(CheckedImage(b"", 8, 8, 3, [7 * SIDE**2] * 3, [49 * SIDE**2] * 3, 0, ""), 1, 1000)
    split = commit(options(tmp_path), planned(1), {"train": [shade]}).split("train")
    assert (split.channel_mean, split.channel_std) == ((7, 7, 7), (0, 0, 0))


@pytest.mark.parametrize("sizes", [(1300,), (400, 500, 400), (999, 1, 300), (1, 1299)])
def test_a_split_of_which_no_image_was_measured_has_the_statistics_of_its_first_thousand(tmp_path, sizes):
    """As if all of the sample had been rejected: what is stored is measured then, whatever the shards."""
    shades = [number % 97 for number in range(1300)]
    receipts, number = [], 0
    for index, size in enumerate(sizes):
        unmeasured = receipt(f"train-{index:05d}-of-{len(sizes):05d}.tfrecord", range(size), [0] * size, measured=[])
        receipts.append(unmeasured)
        with (tmp_path / unmeasured.name).open("wb") as file:
            for shade in shades[number : number + size]:
                file.write(frame(encode(Record("a.jpg", grey(shade), 8, 8, 1, 0, "a", SHA256))))
        number += size
    split = commit(options(tmp_path, min_side=9, reencode="all"), planned(1300), {"train": receipts}).split("train")
    assert split.channel_mean == (round(float(np.mean(shades[:1000])), 3),) * 3
    assert split.channel_std == (round(float(np.std(shades[:1000])), 3),) * 3


@functools.cache
def grey(shade: int) -> bytes:
    """A JPEG of one shade of grey, which no rounding changes."""
    buffer = io.BytesIO()
    Image.new("L", (8, 8), shade).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def test_a_deviation_that_rounding_would_make_the_root_of_a_negative_number_is_0(tmp_path):
    """A billion images of shade 200, of which one pixel has 201: the mean's square exceeds the mean of squares."""
    pixels = 10**9 * SIDE**2
    shade = Receipt("train-00000-of-00001.tfrecord", 10**9, 10**11, SHA256, num_measured=10**9)
    shade.class_counts[0] = 10**9
    shade.heights, shade.widths = [8, 8 * 10**9, 8], [8, 8 * 10**9, 8]
    shade.sums, shade.squares = [200 * pixels + 1] * 3, [200**2 * pixels + 401] * 3
    split = commit(options(tmp_path), planned(10**9), {"train": [shade]}).split("train")
    assert (split.channel_mean, split.channel_std) == ((200, 200, 200), (0, 0, 0))


def rejecting(count: int, reason: str = "corrupt") -> Receipt:
    """A receipt of two records and `count` rejected inputs."""
    result = receipt("train-00000-of-00001.tfrecord", [1, 2], [0, 1], measured=[1])
    result.rejected = [Rejection(f"{number}é.jpg", f"/{number}é.jpg", reason, "damaged") for number in range(count)]
    return result


@pytest.mark.parametrize(("count", "budget"), [(2, 0.5), (1, 1 / 3), (1, 0.34), (6, 0.75)])
def test_as_many_inputs_may_be_rejected_as_allowed(tmp_path, count, budget):
    manifest = commit(options(tmp_path, budget), planned(2 + count), {"train": [rejecting(count)]})
    assert manifest.num_rejected == {"corrupt": count}
    lines = (tmp_path / "rejected.jsonl").read_text().splitlines()
    assert len(lines) == count
    assert lines[0] == '{"key": "0é.jpg", "uri": "/0é.jpg", "reason": "corrupt", "detail": "damaged"}'


@pytest.mark.parametrize(("count", "budget", "percent"), [(1, 0.33, "33.3"), (2, 0.49, "50"), (7, 0.75, "77.8")])
def test_more_inputs_may_not_be_rejected(tmp_path, count, budget, percent):
    examples = ", ".join(f"'{number}é.jpg'" for number in range(min(count, 3)))
    message = (
        rf"{count} of {count + 2} inputs were rejected \({percent} %\), more than .*\(corrupt: {examples}; all are"
    )
    with pytest.raises(ValueError, match=message):
        commit(options(tmp_path, budget), planned(2 + count), {"train": [rejecting(count)]})
    assert not (tmp_path / "manifest.json").exists()


def test_duplicates_do_not_count_as_rejected(tmp_path):
    manifest = commit(options(tmp_path, 0.0), planned(7), {"train": [rejecting(5, "duplicate")]})
    assert manifest.num_rejected == {"duplicate": 5}


@pytest.mark.parametrize("num_inputs", [4, 6])
def test_receipts_that_do_not_add_up_to_the_inputs_are_refused(tmp_path, num_inputs):
    with pytest.raises(ValueError, match=f"{num_inputs} inputs gave 2 records and 3 rejected inputs, which do not add"):
        commit(options(tmp_path, 1.0), planned(num_inputs), {"train": [rejecting(3)]})


def test_a_dataset_without_a_record_is_refused(tmp_path):
    empty = Receipt("a", rejected=[Rejection("a.jpg", "/a.jpg", "corrupt", "damaged")])
    with pytest.raises(ValueError, match="none of the 1 inputs became a record"):
        commit(options(tmp_path, 1.0), planned(1), {"train": [empty]})
