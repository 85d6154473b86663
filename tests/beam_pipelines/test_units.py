"""Units of rows: how the file of a shard's rows is divided, and what is put together again."""

from __future__ import annotations

import itertools
import json
import random

import google_crc32c
import pytest

from beam_pipelines.conversion import row_lines
from beam_pipelines.conversion.checksums import combined_crc32c
from beam_pipelines.runners.executors import UNIT_BYTES
from beam_pipelines.sources.row_columns import Batch
from beam_pipelines.sources.rows import Row

NAMES = ["plain", "with, comma", 'with "quotes" and \\ud83d', "ä", "\U0001f600", "a\nb"]


def rows(sizes: list[int]) -> list[Row]:
    names = itertools.cycle(NAMES)
    return [Row(f"{number}", next(names), num_bytes=size, version=2**60) for number, size in enumerate(sizes)]


@pytest.mark.parametrize("most_rows", [1, 3, 256])
def test_units_have_all_rows_in_order_and_few_bytes_unless_one_is_large(most_rows):
    generator = random.Random(0)
    sizes = [generator.choice([0, 100, UNIT_BYTES // 5, UNIT_BYTES, 3 * UNIT_BYTES]) for _ in range(600)]
    batch_rows = rows(sizes)
    units = list(row_lines.units(row_lines.lines_of(Batch.from_rows(batch_rows)), most_rows))
    assert [row for unit in units for row in row_lines.rows_of(unit)] == batch_rows
    assert [(unit.num_rows, unit.num_bytes) for unit in units] == [
        (len(unit_rows := row_lines.rows_of(unit)), sum(row.num_bytes for row in unit_rows)) for unit in units
    ]
    assert all(unit.num_rows == 1 or unit.num_bytes <= UNIT_BYTES for unit in units)
    assert max(unit.num_rows for unit in units) <= most_rows
    assert list(row_lines.units(b"")) == []


@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_line_is_the_json_of_a_row(count):
    batch_rows = [
        Row(f"{number} %s", name, f"100 %{name}", num_bytes=number, features='{"a": [1.5]}')
        for number, name in enumerate(itertools.islice(itertools.cycle(NAMES), count))
    ]
    assert row_lines.lines_of(Batch.from_rows(batch_rows)).decode().splitlines() == [
        json.dumps(row[:-1]) for row in batch_rows
    ]


def test_small_sources_fill_their_units():
    units = list(row_lines.units_of(rows([1000] * 600)))
    assert [unit.num_rows for unit in units] == [256, 256, 88]


def changed(place: int, value: object) -> bytes:
    return json.dumps(
        [*row_lines._checked_line(GOOD)[:place], value, *row_lines._checked_line(GOOD)[place + 1 :]]
    ).encode()


GOOD = row_lines.lines_of(Batch.from_rows(rows([5])))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"", "Expecting value"),
        (b"{}", "a row must be a list of 11"),
        (b"[]", "a row must be a list of 11"),
        (GOOD.strip() + b", " + GOOD.strip(), "Extra data"),
        (GOOD.strip()[:-1], "Expecting"),
        (changed(0, 5), "key must be text"),
        (changed(0, "\ud83d"), "key must be text that can be encoded as UTF-8"),
        (changed(5, "5"), "num_bytes must be a whole number"),
        (changed(5, -1), "num_bytes must be a whole number"),
        (changed(5, True), "num_bytes must be a whole number"),
        (changed(9, 2**63 + 1), "version must be a whole number"),
        (changed(10, None), "features must be text"),
    ],
)
def test_a_line_that_is_no_row_is_refused_wherever_it_is(line, fault):
    for before, after in ((0, 0), (2, 3)):
        with pytest.raises(ValueError, match=fault):
            list(row_lines.units(before * GOOD + line + b"\n" + after * GOOD))


def test_checksums_of_parts_are_combined_to_that_of_the_whole():
    generator = random.Random(0)
    parts = [generator.randbytes(size) for size in (0, 1, 7, 4096, 100_003, 1 << 20)]
    for first, second in itertools.product(parts, parts):
        crcs = google_crc32c.value(first), google_crc32c.value(second)
        assert combined_crc32c(*crcs, len(second)) == google_crc32c.value(first + second)
