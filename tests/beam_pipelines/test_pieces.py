"""A file that is read in large pieces reads like any other, with few requests."""

from __future__ import annotations

import io
import random

import pytest

from beam_pipelines.storage import pieces as ranged_file

DATA = b"".join(b"line %d\n" % number for number in range(2000))


@pytest.fixture
def fetched(monkeypatch) -> list[tuple[int, int]]:
    monkeypatch.setattr(ranged_file, "PIECE_BYTES", 5000)
    return []


def opened(fetched):
    def fetch(start, end):
        assert 0 <= start < end <= len(DATA)
        fetched.append((start, end))
        return DATA[start:end]

    return ranged_file.in_pieces(len(DATA), fetch)


@pytest.mark.parametrize(
    "read",
    [
        lambda file: file.read(),
        lambda file: b"".join(file),
        lambda file: b"".join(iter(lambda: file.read(12), b"")),
        lambda file: io.TextIOWrapper(file).read().encode(),
    ],
    ids=["whole", "lines", "bytes", "text"],
)
def test_from_front_to_back_every_piece_is_fetched_once(fetched, read):
    assert read(opened(fetched)) == DATA
    assert fetched == [(0, 5000), (5000, 10000), (10000, 15000), (15000, len(DATA))]


def test_reads_anywhere_give_the_same_as_in_memory(fetched):
    generator, ours, theirs = random.Random(0), opened(fetched), io.BytesIO(DATA)
    for _ in range(300):
        whence = generator.randrange(3)
        offset = generator.randrange(len(DATA) + 100) if whence == 0 else -generator.randrange(50)
        if whence != 1 or theirs.tell() + offset >= 0:
            assert ours.seek(offset, whence) == theirs.seek(offset, whence)
        size = generator.choice([0, 1, 40, 6000])
        assert ours.read(size) == theirs.read(size)
        assert ours.tell() == theirs.tell()


def test_an_empty_file_is_read_without_a_request():
    assert ranged_file.in_pieces(0, lambda start, end: pytest.fail("asked")).read() == b""
