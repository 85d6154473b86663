"""Inputs as rows: what a row knows, and what is known of it before its image is read.

Every input becomes one Row. One that cannot become a record is a Row with a reason, and goes the same way as all
others to the writer, who accounts for it: nothing is dropped on the way.
"""

from __future__ import annotations

import functools
import math
import posixpath
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from beam_pipelines import storage
from beam_pipelines.options import ConvertOptions
from tpu_input.dataset_format.decode_limits import too_many_bytes
from tpu_input.dataset_format.records import FRAME_BYTES, Record, encode, valid_split

_REQUESTS_IN_FLIGHT = 64


class Row(NamedTuple):
    """One input.

    Attributes:
      key: Path within the input, or the image as the list names it.
      uri: Where its bytes are; "" for a file of a folder, which locate() finds by its key.
      label: Class name.
      split: "" to choose by hash.
      group: Inputs of one group share a split; "" stands for the key.
      num_bytes: Size of the source.
      record_bytes: Size of its TFRecord, as planned; 0 for a rejected input.
      reason: Why it is rejected before it is read; "" if it is not.
      detail: What was seen.
      version: Of the file at `uri` when it was listed, as storage.look() tells it; 0 if none is known.
      number: Which of several with one key counts: the smallest, so the first line of a list, and the last member of
        an archive, where appending replaces. 0 in a folder, where names are unique.
    """

    key: str
    uri: str = ""
    label: str = ""
    split: str = ""
    group: str = ""
    num_bytes: int = 0
    record_bytes: int = 0
    reason: str = ""
    detail: str = ""
    version: int = 0
    number: int = 0

    def reject(self, reason: str, detail: str) -> Row:
        """Returns the row with a reason and without a record."""
        return self._replace(reason=reason, detail=detail, record_bytes=0)


def locate(row: Row, options: ConvertOptions) -> Row:
    """Returns the row with its URI, which rows of folders pass through the shuffle without, at half the size."""
    if row.uri:
        return row
    if len(options.sources) == 1:
        return row._replace(uri=f"{options.sources[0].path}/{row.key}")
    split, _, path = row.key.partition("/")
    source = next(source for source in options.sources if source.split == split)
    return row._replace(uri=f"{source.path}/{path}")


def find(row: Row) -> Row:
    """Returns `row` with its size, and with a reason if there is no such file or no image is so large."""
    if row.reason:
        return row
    if row.uri and not row.num_bytes:
        num_bytes, version = storage.look(row.uri)
        row = row._replace(num_bytes=num_bytes, version=version)
    if why := too_many_bytes(row.num_bytes):
        return row.reject("too_large", why)
    if row.num_bytes >= 0:
        return row
    foreign = storage.is_uri(row.uri) and not row.uri.startswith("gs://")
    detail = "no such file, or nothing installed reads such URIs" if foreign else "no such file"
    detail = "no such file, or it has no such bytes" if "#bytes=" in row.uri else detail
    return row._replace(num_bytes=0).reject("missing", detail)


def find_each(rows: list[Row]) -> Iterator[Row]:
    """Yields find(row) for each of some rows; those behind URIs take a request each, many at the same time.

    One row of each bucket goes first: a bucket that cannot be reached is said after one wait, not after one for each.
    """
    first_of: dict[str, int] = {}
    for at, row in enumerate(rows):
        if storage.is_uri(row.uri):
            first_of.setdefault("/".join(row.uri.split("/", 3)[:3]), at)
    if not first_of:
        yield from map(find, rows)
        return
    first = set(first_of.values())
    yield from (find(rows[at]) for at in sorted(first))
    with ThreadPoolExecutor(_REQUESTS_IN_FLIGHT) as pool:
        yield from pool.map(find, (row for at, row in enumerate(rows) if at not in first))


def check_names(row: Row, options: ConvertOptions) -> Row:
    """Returns `row`, with a reason if its label or split is none."""
    if row.split and not valid_split(row.split):
        # Of a rejected input too, whose shard is called so.
        split, row = row.split, row._replace(split="")
        row = row if row.reason else row.reject("bad_split", f"{split!r} is not 1 to 64 letters, digits and _")
    if not row.reason and options.labels and row.label not in options.labels:
        row = row.reject("unknown_label", f"{row.label!r} is not in --labels")
    return row


_IMAGE_ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}


def kind(row: Row) -> str:
    """Returns what images are alike enough to shrink alike: the ending of the name and the size to a factor of 1.4.

    A small PNG and a large JPEG that are resized to the same side have little in common but the outcome.
    """
    ending = posixpath.splitext(row.key)[1].lower()
    ending = ending if ending in _IMAGE_ENDINGS else ""  # or else img.1, img.2 and so on were a kind each
    return f"{ending}/{round(2 * math.log2(max(row.num_bytes, 1)))}"


def size_row(row: Row, ratios: Mapping[str, float], limit: int) -> Row:
    """Returns `row` with the size its record will have, and with a reason if no shard can hold it.

    Args:
      row: One input.
      ratios: Bytes stored for a byte of the source, by kind().
      limit: The most bytes that a shard of its split holds; 0 where the number of shards is given instead.
    """
    if row.reason:
        return row
    around = _bytes_around(len(row.key.encode()), len(posixpath.basename(row.key).encode()), row.label)
    size = around + round(row.num_bytes * ratios[kind(row)])
    if limit and size > limit:
        return row.reject("too_large", f"about {size} bytes do not fit --shard_size")
    return row._replace(record_bytes=size)


@functools.lru_cache(maxsize=1 << 16)
def _bytes_around(key_bytes: int, name_bytes: int, label: str) -> int:
    """Returns the size of a TFRecord without its image; many rows ask for the same."""
    key = "x" * (key_bytes - name_bytes - 1) + "/" * (key_bytes > name_bytes) + "x" * name_bytes
    return len(encode(Record(key, b"", 1 << 12, 1 << 12, 3, 0, label, "0" * 64))) + FRAME_BYTES
