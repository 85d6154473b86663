"""Images with the same content, and images that look alike: which of them stay, and which share a split.

    Batch ──read──▶ rows by SHA-256 ──group──▶ keep_first      --dedup=exact
    Batch ──decode──▶ LookAlike ──compare all──▶ {key: key of the first of its group}      --dedup=near, --group_by

The first in the order of the dataset is kept; the others, and all that occur under two labels, are rejected, so that no
content is in two splits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from beam_pipelines.conversion.plan import in_order
from beam_pipelines.conversion.planning.row_batches import Numbered, by_hash
from beam_pipelines.images import near_duplicates
from beam_pipelines.options import ConvertOptions
from beam_pipelines.sources.read_ahead import map_images, read_rows
from beam_pipelines.sources.row_columns import Batch, locate_rows
from beam_pipelines.sources.rows import Row
from tpu_input.dataset_format.split_names import keeping_rank
from tpu_input.stored_images.check import Rejected


def key_by_content(batch: Batch, options: ConvertOptions) -> Numbered:
    """Returns located rows by the SHA-256 of their files."""
    located, keys = list[Row](), list[str]()
    for row, data in read_rows(locate_rows(batch, options.sources).rows()):
        located.append(row)
        # An unreadable file is rejected later, when shards are written; its key serves as a hash of its own until then.
        keys.append(row.key if isinstance(data, Rejected) else hashlib.sha256(data).hexdigest())
    return by_hash(located, keys)


class LookAlike(NamedTuple):
    """An image to be compared with all others: its place in the order of the dataset, its key, and its picture."""

    place: tuple[int, str]
    key: str
    picture: near_duplicates.Picture


def pictures(batch: Batch, options: ConvertOptions, num_decoders: int = 1) -> list[LookAlike]:
    """Returns what is compared of the images that can be decoded, 1.2 kB each; decodes with this number of threads."""
    located = [row for row in locate_rows(batch, options.sources).rows() if not row.reason]
    decoded = map_images(located, lambda _row, data: near_duplicates.picture(data), num_decoders)
    return [
        LookAlike(in_order(row, options.seed)[:2], row.key, picture)
        for row, picture in decoded
        if isinstance(picture, near_duplicates.Picture)
    ]


def first_by_key(images: list[LookAlike]) -> dict[str, str]:
    """Returns {key: key of the first image of its group} of the images that look like others."""
    images = sorted(images, key=lambda image: image.place)
    groups = near_duplicates.groups_of([image.picture for image in images])
    return {images[number].key: images[group[0]].key for group in groups for number in group}


def key_by_look(batch: Batch, firsts: Mapping[str, str]) -> Numbered:
    """Returns rows by the key of the first image that they look like."""
    return by_hash(batch.rows(), [firsts.get(key, key) for key in batch.column("key")])


def group_by_look(rows: list[Row], firsts: Mapping[str, str]) -> list[Row]:
    """Returns rows with a group for those that look alike and have none."""
    return [row._replace(group=row.group or firsts.get(row.key, "")) for row in rows]


def keep_first(rows: Iterable[Row], options: ConvertOptions) -> Iterator[Row]:
    """Yields rows with one content, or that look alike, with those rejected that are not to be in the dataset."""
    resemblance = "it looks like" if options.dedup == "near" else "the same bytes as"
    ordered = sorted(rows, key=lambda row: (keeping_rank(row.split), in_order(row, options.seed)))
    yield from (row for row in ordered if row.reason)
    same = [row for row in ordered if not row.reason]
    labels = sorted({row.label for row in same})
    for row in same:
        if len(labels) > 1:
            names = (repr(options.label_kind.display(label)) for label in labels)
            yield row.reject("conflicting_label", f"the same image is labeled {' and '.join(names)}")
        elif row is not same[0]:
            yield row.reject("duplicate", f"{resemblance} {same[0].key!r}")
        else:
            yield row
