"""Reads of single records by number: the shard's index gives the offset, so no shard is read completely.

numbers ──index──▶ (shard, offset, length) ──read that part of the shard──▶ Example with its thumbnail, or gray values
"""

from __future__ import annotations

import functools
import io
import itertools
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from beam_pipelines import storage
from beam_pipelines.images.near_duplicates import grey_sample
from beam_pipelines.report.index_columns import Columns, are_classes, read_rows
from beam_pipelines.report.thumbnails import LARGE_SIDE, READS_IN_FLIGHT, SIDE, Thumbnail, thumbnail
from beam_pipelines.runners.executors import map_in_threads
from tpu_input.dataset_format.records import Manifest, decode, read_frames

_NAMES = ["key", "offset", "length", "height", "width", "uri", "label"]
T = TypeVar("T")


class Example(NamedTuple):
    """A record as shown in the report.

    Attributes:
      key: Key of the record.
      offset: Offset of the TFRecord in its shard, in bytes.
      length: Length of the TFRecord with its framing, in bytes.
      height: Height of the stored image, in pixels.
      width: Width of the stored image, in pixels.
      uri: Path or URI of the source; "" if the index does not tell it.
      shard: File name of the shard.
      split: Name of the split.
      class_name: Name of the class.
      thumbnail: None if the record cannot be read, or has not been read yet.
    """

    key: str
    offset: int
    length: int
    height: int
    width: int
    uri: str
    shard: str
    split: str
    class_name: str
    thumbnail: Thumbnail | None


def read_examples(
    manifest: Manifest,
    columns: Columns,
    numbers: Iterable[int],
    pictures: bool = True,
    large: Collection[int] = frozenset(),
) -> dict[int, Example]:
    """Returns {number: record} of these numbers, each read by its offset; without pictures, from the indexes alone.

    Args:
      manifest: Manifest of the dataset.
      columns: Columns of its indexes.
      numbers: Numbers of the records.
      pictures: Whether the examples have thumbnails.
      large: Numbers of the records whose thumbnails are to be large.

    Raises:
      ValueError: An index cannot be read.
    """
    examples = _listed(manifest, columns, numbers)
    if not pictures:
        return examples

    def picture(number: int) -> Example:
        shrink = functools.partial(thumbnail, side=LARGE_SIDE if number in large else SIDE)
        return examples[number]._replace(thumbnail=_read_image(manifest, shrink, examples[number]))

    return dict(zip(examples, map_in_threads(picture, examples, READS_IN_FLIGHT), strict=True))


def read_samples(manifest: Manifest, columns: Columns, numbers: Iterable[int]) -> dict[int, npt.NDArray[np.float32]]:
    """Returns {number: [1024] gray values, see near_duplicates.grey_sample()} of the records that can be read.

    Raises:
      ValueError: An index cannot be read.
    """
    examples = _listed(manifest, columns, numbers)
    read = functools.partial(_read_image, manifest, grey_sample)
    samples = map_in_threads(read, examples.values(), READS_IN_FLIGHT)
    return {number: sample for number, sample in zip(examples, samples, strict=True) if sample is not None}


def _listed(manifest: Manifest, columns: Columns, numbers: Iterable[int]) -> dict[int, Example]:
    """Returns {number: record} as the indexes have it, in ascending order."""
    ordered = sorted(set(numbers))
    by_shard = [(int(shard), list(group)) for shard, group in itertools.groupby(ordered, columns.shard_of)]
    listed = map_in_threads(functools.partial(_examples_of_shard, manifest, columns), by_shard, READS_IN_FLIGHT)
    return dict(zip(ordered, itertools.chain.from_iterable(listed), strict=True))


def _examples_of_shard(manifest: Manifest, columns: Columns, shard_numbers: tuple[int, list[int]]) -> list[Example]:
    position, numbers = shard_numbers
    shard, split = columns.shards[position], list(manifest.splits)[columns.splits[position]]
    table = read_rows(manifest.path, shard, _NAMES, nullable=["uri"])
    offsets, lengths = (table[name].to_numpy() for name in ("offset", "length"))
    if not shard.is_filled_by(offsets, lengths) or not are_classes(table.column(_NAMES.index("label")), manifest):
        raise ValueError(
            f"the index of {shard.name!r} does not match its shard; run: jpeg2tpu verify --repair {manifest.path}"
        )
    table = table.take(np.array(numbers) - columns.starts[position])
    examples = []
    for *values, uri, label in zip(*(column.to_pylist() for column in table.columns), strict=True):
        names = manifest.label_kind.label_names(label, manifest.classes)
        examples.append(Example._make([*values, uri or "", shard.name, split, names or "no class", None]))
    return examples


def _read_image(manifest: Manifest, function: Callable[[bytes], T | None], example: Example) -> T | None:
    """Returns function(file of a record's image), or None if the record is damaged; `verify` reports damage."""
    path = storage.slice_uri(f"{manifest.path}/{example.shard}", example.offset, example.length)
    try:
        payloads = [payload for _, payload in read_frames(io.BytesIO(storage.read_bytes(path)))]
        return function(decode(payloads[0], manifest.first_label).encoded)
    except (OSError, ValueError, IndexError):
        return None
