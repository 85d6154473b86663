"""A shard as it is written: what its receipt, its records and its index say of the images that went in."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
from pathlib import Path
from typing import Literal

import google_crc32c
import pyarrow.parquet
import pytest
from PIL import Image

from beam_pipelines.conversion import row_lines
from beam_pipelines.conversion.plan import is_measured
from beam_pipelines.conversion.receipts import Receipt
from beam_pipelines.conversion.shard_writing import Unwanted, write_shard
from beam_pipelines.options import Check, ConvertOptions, ImageOptions, Source
from beam_pipelines.runners.executors import Inline
from beam_pipelines.sources.row_columns import Batch
from beam_pipelines.sources.rows import Row
from support.pages import unwrapped
from tpu_input.dataset_format import index as index_format
from tpu_input.dataset_format.index import index_path
from tpu_input.dataset_format.records import decode, read_frames

SHARD = "train-00000-of-00001.tfrecord"
SHADES = [3 + 7 * number for number in range(33)]  # of grey; no two sums of some of them are equal by chance


def shade(number: int) -> bytes:
    """An image of one shade of grey, as no rounding changes it, of a size of its own."""
    buffer = io.BytesIO()
    Image.new("L", (16 + number, 40 - number), SHADES[number]).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def write(
    folder: Path,
    files: list[bytes],
    num_images: int = 33,
    first_label: Literal[0, 1] = 0,
    check: Check = "decode",
    most_rows: int = row_lines.MOST_ROWS,
    **more,
) -> Receipt:
    (folder / "in").mkdir()
    rows = []
    for number, data in enumerate(files):
        (folder / "in" / f"{number}.jpg").write_bytes(data)
        rows.append(Row(f"{number}.jpg", f"{folder}/in/{number}.jpg", "ab"[number % 2], num_bytes=len(data)))
    options = ConvertOptions(
        (Source(f"{folder}/in"),), f"{folder}/out", first_label=first_label, images=ImageOptions(check=check)
    )
    units = row_lines.units(row_lines.lines_of(Batch.from_rows(rows)), most_rows)
    return write_shard(SHARD, SHARD, index_path(SHARD), units, num_images, options, ("a", "b"), Inline(), **more)


def statistics(shades: list[int]) -> tuple[int, list[int], list[int]]:
    """Number of images, and over 64 x 64 pixels of each the sums of red, green and blue, and of their squares."""
    sums, squares = 64 * 64 * sum(shades), 64 * 64 * sum(shade**2 for shade in shades)
    return len(shades), [sums] * 3, [squares] * 3


@pytest.mark.parametrize(("num_images", "most"), [(33, 33), (1000, 33), (2000, 26), (5000, 15)])
def test_pixel_statistics_are_of_every_image_and_of_a_large_split_of_a_sample(tmp_path, num_images, most):
    receipt = write(tmp_path, [shade(number) for number in range(33)], num_images)
    sampled = [SHADES[number] for number in range(33) if is_measured(f"{number}.jpg", 0, num_images)]
    assert receipt.num_examples == 33
    assert (receipt.num_measured, receipt.sums, receipt.squares) == statistics(sampled)
    assert 0 < len(sampled) <= most
    assert (len(sampled) == 33) == (num_images <= 1000)


def test_of_a_very_large_split_a_sixteenth_is_measured_and_hardly_any_if_the_others_are_not_decoded(tmp_path):
    counts = {}
    for check in ("decode", "header"):
        (tmp_path / check).mkdir()
        files = [shade(number % 33) for number in range(400)]
        counts[check] = write(tmp_path / check, files, 10**9, check=check).num_measured
    assert 8 < counts["decode"] < 50  # 25 of 400, within 4 standard deviations
    assert counts["header"] == 0  # of 400, a thousand in a billion


def test_records_and_index_hold_what_went_in_and_the_receipt_adds_up(tmp_path):
    files = [shade(number) for number in range(5)]
    receipt = write(tmp_path, files, first_label=1)
    content = (tmp_path / "out" / SHARD).read_bytes()
    frames = list(read_frames(io.BytesIO(content)))
    records = [decode(frame, first_label=1) for _, frame in frames]
    assert [record.encoded for record in records] == files
    assert [(record.width, record.height) for record in records] == [(16 + n, 40 - n) for n in range(5)]
    assert [(record.label, record.class_name) for record in records] == [(n % 2, "ab"[n % 2]) for n in range(5)]
    assert [record.sha256 for record in records] == [hashlib.sha256(data).hexdigest() for data in files]
    (index,) = (tmp_path / "out").glob("index/*")
    columns = pyarrow.parquet.read_table(index).to_pydict()
    ends = [*(offset for offset, _ in frames[1:]), len(content)]
    assert columns["offset"] == [offset for offset, _ in frames]
    assert columns["length"] == [end - begin for end, (begin, _) in zip(ends, frames, strict=True)]
    assert (receipt.num_bytes, receipt.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    crc = google_crc32c.value(index.read_bytes()).to_bytes(4, "big")
    assert (receipt.index_bytes, base64.b64decode(receipt.index_crc32c)) == (index.stat().st_size, crc)
    assert receipt.class_counts == {0: 3, 1: 2}
    assert (receipt.widths, receipt.heights) == ([16, 90, 20], [36, 190, 40])


def test_the_bytes_do_not_depend_on_how_many_records_are_written_at_once(tmp_path):
    outputs = []
    for name, rows in (("all", 256), ("few", 3), ("each", 1)):
        (tmp_path / name).mkdir()
        receipt = write(tmp_path / name, [*map(shade, range(5)), b"no image", *map(shade, range(5, 9))], most_rows=rows)
        file = (tmp_path / name / "out" / SHARD).read_bytes()
        index = pyarrow.parquet.ParquetFile(tmp_path / name / "out" / index_path(SHARD))
        receipt.index_bytes, receipt.index_crc32c, receipt.rejected = 0, "", []  # which have the path of the input
        outputs.append((receipt, file, index.read().drop_columns("uri")))
        assert (index.num_row_groups, index.metadata.num_rows) == (1, 9)
        assert receipt.crc32c == base64.b64encode(google_crc32c.value(file).to_bytes(4, "big")).decode()
    assert outputs[0] == outputs[1] == outputs[2]


def test_an_index_is_written_a_row_group_at_a_time_and_has_the_same_rows(tmp_path, monkeypatch):
    def rows_of(folder: str, most_rows: int = 256) -> tuple[pyarrow.Table, list[int]]:
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, [shade(number) for number in range(10)], most_rows=most_rows)
        data = (tmp_path / folder / "out" / index_path(SHARD)).read_bytes()
        metadata = pyarrow.parquet.read_metadata(io.BytesIO(data))
        groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        return index_format.read_columns(data, 10).drop_columns("uri"), groups

    phrase = f"in row groups of {index_format._GROUP_ROWS:,} rows"
    assert phrase in unwrapped("docs/reference/dataset.md")
    table, groups = rows_of("whole")
    assert groups == [10]
    monkeypatch.setattr(index_format, "_GROUP_ROWS", 4)
    for rows in (256, 4, 3):
        assert rows_of(f"groups_{rows}", rows) == (table, [4, 4, 2])


def test_rows_of_an_index_are_in_its_file_as_soon_as_a_row_group_is_complete(monkeypatch):
    monkeypatch.setattr(index_format, "_GROUP_ROWS", 4)
    file, sizes = io.BytesIO(), []
    writer = index_format.IndexWriter(file)
    for number in range(9):
        sizes.append(file.tell())
        row = index_format.IndexRow(f"{number}", f"{number}.jpg", 0, number, 1, 1, 1, "", None)
        writer.add([[value] for value in row])
    assert [larger > smaller for smaller, larger in itertools.pairwise(sizes)] == [
        number % 4 == 3 for number in range(8)
    ]


def test_what_is_no_image_is_rejected_and_counted_and_the_next_is_written(tmp_path):
    updates: list[tuple[int, int, int]] = []
    images = [shade(0), b"no image", shade(2)]
    receipt = write(tmp_path, images, most_rows=2, progress=lambda *update: updates.append(update))
    assert [(rejection.key, rejection.reason) for rejection in receipt.rejected] == [("1.jpg", "not_an_image")]
    assert receipt.num_examples == 2
    assert [(num_inputs, num_rejected) for num_inputs, _, num_rejected in updates] == [(2, 1), (1, 0)]
    assert updates[0][1] + updates[1][1] == receipt.num_bytes > updates[0][1] > 0


def test_without_an_image_no_file_is_written(tmp_path):
    receipt = write(tmp_path, [b"no image"])
    assert (receipt.num_examples, receipt.num_bytes, receipt.sha256) == (0, 0, "")
    assert not list((tmp_path / "out").glob("**/*.*"))


def test_a_shard_that_is_not_needed_any_more_is_not_written(tmp_path):
    with pytest.raises(Unwanted):
        write(tmp_path, [shade(0)], is_wanted=lambda: False)
    assert not list((tmp_path / "out").glob("**/*.tfrecord"))
