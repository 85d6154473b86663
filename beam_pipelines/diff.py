"""Differences between two datasets, by the keys of their examples.

Of a dataset, only manifest and indexes are read; of an export, all its records, whose images are hashed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from beam_pipelines.conversion.output_folder import complete_manifest, index_content
from beam_pipelines.runners import phases
from beam_pipelines.shard_formats.all_formats import EXPORTS
from beam_pipelines.sources.exported_shards import examples_of
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.command_line.wording import enumerated
from tpu_input.dataset_format.index import as_labels, index_path, read_columns
from tpu_input.dataset_format.records import Manifest
from tpu_input.stored_images.check import Rejected

_MAX_SHOWN = 10  # keys of each kind in the text
_COLUMNS = ["key", "label", "sha256"]


class Example(NamedTuple):
    """What is compared of one example: its split, the names of its classes, and the SHA-256 of its image."""

    split: str
    class_name: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class Differences:
    """What differs between two datasets, A and B.

    Attributes:
      paths: Folders of A and B.
      num_same: Number of keys with the same split, class and image in both.
      added: Examples of B whose keys A has not, by key.
      removed: Examples of A whose keys B has not, by key.
      relabelled: (class in A, class in B) by key.
      reencoded: Keys whose images have different bytes.
      moved: (split in A, split in B) by key.
      classes: (classes of A that B has not, classes of B that A has not).
    """

    paths: tuple[str, str]
    num_same: int
    added: dict[str, Example]
    removed: dict[str, Example]
    relabelled: dict[str, tuple[str, str]]
    reencoded: tuple[str, ...]
    moved: dict[str, tuple[str, str]]
    classes: tuple[tuple[str, ...], tuple[str, ...]]

    def __bool__(self) -> bool:
        """Returns whether anything differs."""
        return any([self.added, self.removed, self.relabelled, self.reencoded, self.moved, *self.classes])

    def lines(self) -> Iterator[str]:
        """Yields the text for a terminal: a line for each kind of difference, with counts by class and some keys."""
        yield f"{self.num_same:,} examples are the same in {self.paths[0]!r} and {self.paths[1]!r}"
        for name, examples in (("added", self.added), ("removed", self.removed)):
            yield from _lines(name, {key: f"{example.split}/{example.class_name}" for key, example in examples.items()})
        yield from _lines("relabelled", {key: f"{a!r} to {b!r}" for key, (a, b) in self.relabelled.items()})
        yield from _lines("moved", {key: f"{a} to {b}" for key, (a, b) in self.moved.items()})
        yield from _lines("other bytes", dict.fromkeys(self.reencoded, ""))
        for path, names in zip(self.paths, self.classes, strict=True):
            if names:
                yield f"classes only of {path!r}: {enumerated(names, _MAX_SHOWN)}"

    def to_json(self) -> dict[str, Any]:
        """Returns everything, as one object for JSON."""

        def by_key(examples: dict[str, Example]) -> dict[str, dict[str, str]]:
            return {key: {"split": example.split, "class": example.class_name} for key, example in examples.items()}

        return {
            "a": self.paths[0],
            "b": self.paths[1],
            "num_same": self.num_same,
            "added": by_key(self.added),
            "removed": by_key(self.removed),
            "relabelled": {key: {"from": a, "to": b} for key, (a, b) in self.relabelled.items()},
            "moved": {key: {"from": a, "to": b} for key, (a, b) in self.moved.items()},
            "other_bytes": list(self.reencoded),
            "classes_only_of_a": list(self.classes[0]),
            "classes_only_of_b": list(self.classes[1]),
        }


@checks_arguments
def diff(before: str, after: str) -> Differences:
    """Returns the differences between two datasets.

    Args:
      before: Folder or URI of the first dataset or export, A.
      after: Folder or URI of the second one, B.

    Raises:
      ValueError: One of them is not complete, or an index or a shard of an export cannot be read.
    """
    manifests = [complete_manifest(path, allow_export=True) for path in (before, after)]
    a, b = (_exported(manifest) if manifest.format in EXPORTS else _examples(manifest) for manifest in manifests)
    classes_a, classes_b = (manifest.classes for manifest in manifests)
    both = [key for key in a if key in b]
    return Differences(
        paths=(before, after),
        num_same=sum(a[key] == b[key] for key in both),
        added={key: example for key, example in b.items() if key not in a},
        removed={key: example for key, example in a.items() if key not in b},
        relabelled={k: (a[k].class_name, b[k].class_name) for k in both if a[k].class_name != b[k].class_name},
        reencoded=tuple(key for key in both if a[key].sha256 != b[key].sha256),
        moved={key: (a[key].split, b[key].split) for key in both if a[key].split != b[key].split},
        classes=(
            tuple(name for name in classes_a if name not in set(classes_b)),
            tuple(name for name in classes_b if name not in set(classes_a)),
        ),
    )


def _exported(manifest: Manifest) -> dict[str, Example]:
    """Returns the examples of an export by key, in the order of keys, as their records have them."""
    examples, order = dict[str, Example](), {name: label for label, name in enumerate(manifest.classes)}
    phases.begin("listing")
    for shard, rows in examples_of(manifest):
        for row, data in rows:
            if isinstance(data, Rejected):
                raise ValueError(f"{row.key!r} in {shard!r} of {manifest.path!r} cannot be read: {data.detail}")
            if row.key in examples:
                raise ValueError(f"{row.key!r} is in {manifest.path!r} more than once; export the dataset again")
            names = sorted(manifest.label_kind.names(row.label), key=lambda name: order.get(name, len(order)))
            examples[row.key] = Example(row.split, ", ".join(names), hashlib.sha256(data).hexdigest())
            phases.advance("listing", 1)
    return dict(sorted(examples.items()))


def _examples(manifest: Manifest) -> dict[str, Example]:
    """Returns the examples of a dataset by key, in the order of keys."""
    dataset, examples = manifest.path, dict[str, Example]()
    phases.begin("listing")
    for name, split in manifest.splits.items():
        for shard in split.shards:
            path = f"{dataset}/{index_path(shard.name)}"
            try:
                index = read_columns(index_content(path), shard.num_examples, _COLUMNS)
                keys, hashes = index.column(0).to_pylist(), index.column(2).to_pylist()
                labels = [
                    manifest.label_kind.label_names(label, manifest.classes) for label in as_labels(index.column(1))
                ]
                rows = zip(keys, labels, hashes, strict=True)
                examples |= {key: Example(name, label, sha256) for key, label, sha256 in rows}
            except (OSError, ValueError, IndexError, TypeError, pa.ArrowException) as error:
                raise ValueError(
                    f"{path!r} cannot be read: {error}; repair the dataset with: jpeg2tpu verify --repair {dataset}"
                ) from error
            phases.advance("listing", shard.num_examples)
    return dict(sorted(examples.items()))


def _lines(name: str, details: dict[str, str]) -> Iterator[str]:
    if not details:
        return
    counts = Counter(details.values())
    kinds = [f"{count:,} {kind}" for kind, count in counts.most_common() if kind]
    counts_text = f" ({enumerated(kinds, _MAX_SHOWN)})" if kinds else ""
    yield f"{name}: {len(details):,}{counts_text}, such as {', '.join(map(repr, list(details)[:3]))}"
