"""Sizes of records, estimated before an image is stored: the bytes of its source, times a ratio that its kind has.

    Batch ──sample──▶ {kind: first rows in the order of the dataset} ──measure──▶ {kind: ratio} ──size_rows──▶ Batch

The kind of an image is its file extension and size class. Sizes within a factor of 1.4 are in the same class. Ratios
depend on both: a small PNG and a large JPEG that are resized to the same side have little in common except the result.
Images behind URLs are not read for it: their records have the size that --url_image_size states.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from beam_pipelines.conversion.plan import HASH_BITS, hash_position, in_order, row_positions, row_splits
from beam_pipelines.options import ConvertOptions, ImageOptions, Source
from beam_pipelines.runners import phases
from beam_pipelines.sources.read_ahead import map_images
from beam_pipelines.sources.row_columns import Batch
from beam_pipelines.sources.rows import IMAGE_ENDINGS, Row, check_names, locate
from beam_pipelines.sources.url_names import is_url
from tpu_input.command_line.cores import num_cores
from tpu_input.dataset_format.label_kinds import LabelKind
from tpu_input.dataset_format.records import FRAME_BYTES, Record, encode, valid_split
from tpu_input.stored_images.check import Rejected, stored_bytes

_URL_KIND = -2  # number of the kind of what is behind URLs
_SAMPLE = 64  # images read per kind to estimate the ratio of stored bytes to source bytes
_CLASSES = 1 << 16  # of sizes: more than there are


def first_rows(rows: Iterable[Row], seed: int) -> list[Row]:
    """Returns the first rows in the order of the dataset, as many as a sample has."""
    return heapq.nsmallest(_SAMPLE, rows, key=functools.partial(in_order, seed=seed))


class Samples:
    """The sample of each kind of image: the first of the rows that were added, in the order of the dataset."""

    def __init__(self, seed: int) -> None:
        """Begins without rows; `seed` is the conversion's."""
        self._seed = seed
        self._rows = defaultdict[str, list[Row]](list)  # a sample, and the rows added since
        self._last = dict[str, int]()  # position of the last row that may still be one of the first

    def add(self, batch: Batch) -> None:
        places, codes = row_positions(batch, self._seed), _kind_codes(batch)
        codes[_is_rejected(batch)] = -1
        for code in np.unique(codes[codes >= 0]).tolist():
            name = _kind_name(code)
            last = self._last.get(name, (1 << HASH_BITS) - 1)
            selected = np.flatnonzero((codes == code) & (places <= np.uint64(last)))
            if len(selected):
                rows = self._rows[name]
                rows += batch.take(selected.tolist()).rows()
                if len(rows) >= 4 * _SAMPLE:
                    self._rows[name] = first_rows(rows, self._seed)
                    self._last[name] = hash_position(self._seed, self._rows[name][-1].key)

    def by_kind(self) -> dict[str, list[Row]]:
        """Returns the rows of the sample of each kind."""
        return {name: first_rows(rows, self._seed) for name, rows in self._rows.items()}


def measure(rows: list[Row], sources: Sequence[Source], images: ImageOptions) -> float:
    """Returns the ratio of stored bytes to source bytes of a sample; files that are not images count as 0 stored."""
    phases.advance("planning", 0)  # all is listed
    located = [locate(row, sources) for row in rows]
    sizes = map_images(located, lambda _row, data: stored_bytes(data, images), num_cores())
    stored = [size for _, size in sizes if not isinstance(size, Rejected)]
    return sum(stored) / max(sum(row.num_bytes for row in rows), 1)


def size_rows(batch: Batch, ratios: Mapping[str, float], options: ConvertOptions) -> Batch:
    """Returns rows that have a label with their estimated record sizes, or with a reason for a wrong name or size.

    Args:
      batch: Labeled rows.
      ratios: Stored bytes per byte of the source, by kind.
      options: Options of the conversion.
    """
    batch = _check_names(batch, options)
    codes, is_rejected = _kind_codes(batch), _is_rejected(batch)
    kinds, places = np.unique(codes, return_inverse=True)
    is_url_kind = codes == _URL_KIND
    ratio_by_kind = [1.0 if code == _URL_KIND else ratios.get(_kind_name(code), 0.0) for code in kinds.tolist()]
    ratio = np.array(ratio_by_kind)[places]
    stored = np.rint(_floats(batch.column("num_bytes")) * ratio).astype(np.int64)
    sizes = stored + np.fromiter(_bytes_around(batch, options.label_kind), np.int64, batch.num_rows)
    sizes[is_rejected] = 0
    limit: npt.NDArray[np.int64] = np.array(options.shard_bytes)
    if options.num_shards:  # a split of so many shards has shards of any size
        counted = [bool(options.shards_of(split)) for split in row_splits(batch, options)]
        limit = np.where(counted, np.iinfo(np.int64).max, limit)
    sizes[is_url_kind] = np.minimum(sizes, limit)[is_url_kind]  # an estimate, for which no input is rejected
    sized = batch.replace(record_bytes=sizes.tolist())
    too_large = np.flatnonzero(sizes > limit).tolist()
    return sized.with_rows(
        {
            number: batch.row(number).reject("too_large", f"about {sizes[number]} bytes, more than --shard_size")
            for number in too_large
        }
    )


def _check_names(batch: Batch, options: ConvertOptions) -> Batch:
    """Returns rows as rows.check_names() does, which looks at each only if there is something wrong."""
    has_features = not options.features or "" not in batch.column("features")
    has_splits = all(not split or valid_split(split) for split in set(batch.column("split")))
    names = {name for label in set(batch.column("label")) for name in options.label_kind.names(label)}
    if has_features and has_splits and (not options.labels or options.known_labels.issuperset(names)):
        return batch
    return batch.map_rows(lambda rows: [check_names(row, options) for row in rows])


def _is_rejected(batch: Batch) -> npt.NDArray[np.bool_]:
    return np.fromiter(map(bool, batch.column("reason")), np.bool_, batch.num_rows)


def _floats(numbers: Iterable[int]) -> npt.NDArray[np.float64]:
    return np.array(numbers, np.float64)


def _kind_codes(batch: Batch) -> npt.NDArray[np.int64]:
    """Returns the number of the kind of each row."""
    classes: npt.NDArray[np.int64] = np.rint(2 * np.log2(np.maximum(_floats(batch.column("num_bytes")), 1))).astype(
        np.int64
    )
    endings: npt.NDArray[np.int64] = np.fromiter(map(_ending_number, batch.column("key")), np.int64, batch.num_rows)
    codes: npt.NDArray[np.int64] = endings * _CLASSES + classes
    uris = batch.columns["uri"]
    if isinstance(uris, list) or is_url(uris):
        codes[np.fromiter(map(is_url, batch.column("uri")), np.bool_, batch.num_rows)] = _URL_KIND
    return codes


def _kind_name(code: int) -> str:
    ending, size_class = divmod(code, _CLASSES)
    return f"{_ENDINGS[ending]}/{size_class}"


_ENDINGS = ("", *sorted(IMAGE_ENDINGS))
_NUMBERS = {ending: number for number, ending in enumerate(_ENDINGS)}


def _ending_number(key: str) -> int:
    """Returns the number of the extension of a file, as posixpath.splitext() has it, if images have it; else 0.

    Otherwise each of img.1, img.2, … would be a kind of its own.
    """
    dot = key.rfind(".")
    number = _NUMBERS.get(key[dot:].lower(), 0)
    if not number or (dot and key[dot - 1] not in "./"):
        return number
    return number if key[key.rfind("/") + 1 : dot].strip(".") else 0  # a name of dots alone has no extension


def _bytes_around(batch: Batch, labels: LabelKind) -> Iterable[int]:
    """Returns the size of the TFRecord of each row without its image."""
    keys = batch.column("key")
    key_bytes = list(map(_num_bytes, keys))
    name_bytes = [_num_bytes(key[key.rfind("/") + 1 :]) for key in keys]
    around = map(_bytes_of_one, key_bytes, name_bytes, batch.column("label"), itertools.repeat(labels))
    if batch.is_all("features", ""):
        return around
    return map(int.__add__, around, map(len, batch.column("features")))


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


@functools.lru_cache(maxsize=1 << 16)
def _bytes_of_one(key_bytes: int, name_bytes: int, label: str, labels: LabelKind) -> int:
    """Returns the size of a TFRecord without its image; cached, as many rows have the same arguments."""
    key = "x" * (key_bytes - name_bytes - 1) + "/" * (key_bytes > name_bytes) + "x" * name_bytes
    names = labels.names(label)
    record = Record(key, b"", 1 << 12, 1 << 12, 3, labels.label(range(len(names))), labels.class_name(names), "0" * 64)
    return len(encode(record)) + FRAME_BYTES
