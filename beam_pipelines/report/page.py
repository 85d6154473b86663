"""DATASET/report.html: contents of a dataset on one self-contained page.

manifest ─────────────▶ counts, classes, shards, reasons for re-encoding
indexes ──Columns─────▶ image sizes, look-alikes, which examples to show ──shards──▶ thumbnails      ──template──▶ page
rejected.jsonl ───────▶ rejected inputs ──those below `sources`──▶ thumbnails
predictions ──────────▶ labels that are likely wrong

The page shows some 600 thumbnails at most, 3 KB each (6 KB if they are noise), for a dataset of any size. Indexes of
ten million records take some 170 s and up to 1.4 GB of memory, as the sum of measurements of the parts; most of both is
spent on the search for look-alikes. The same dataset gives the same page, except for pictures of rejected inputs that
no longer exist.
"""

from __future__ import annotations

import importlib.resources
import io
import itertools
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import jinja2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipelines import storage
from beam_pipelines.conversion.output_folder import LIKELY_WRONG_NAME, REPORT_NAME, complete_manifest, create
from beam_pipelines.images import near_duplicates
from beam_pipelines.images.check import NOT_DECODED
from beam_pipelines.images.near_duplicates import ALIKE, DISTANCE, MAX_SHARED
from beam_pipelines.report import charts
from beam_pipelines.report.examples import Example, read_examples
from beam_pipelines.report.index_columns import Columns, read_all
from beam_pipelines.report.likely_wrong import LikelyWrong, find_likely_wrong
from beam_pipelines.report.look_alikes import MAX_READ, all_pairs, find_look_alikes
from beam_pipelines.report.notes import notes, share, shortened
from beam_pipelines.report.rejections import MAX_SHOWN, read_rejected
from beam_pipelines.report.summary import NOTED, size
from beam_pipelines.runners import phases
from tpu_input.dataset_format.records import Manifest, Split

MAX_CLASSES = 50  # classes in the chart; if the dataset has more, half are the largest and half the smallest
MAX_EXAMPLE_CLASSES = 24  # classes with examples; chosen likewise
MAX_EXAMPLES = 6  # examples per class
MAX_SPLITS = 6  # splits with a column and a row of their own
_MAX_FIXES = 20
_TEMPLATE = "report.html.j2"
_LIMITS = {  # limits that the page mentions
    "fixes": _MAX_FIXES,
    "rejected": MAX_SHOWN,
    "bits": DISTANCE,
    "read": MAX_READ,
    "alike": ALIKE,
    "shared": MAX_SHARED,
}


def write_report(dataset: str, sources: Sequence[str] = (), predictions: Sequence[str] = ()) -> str:
    """Writes DATASET/report.html, and with predictions DATASET/likely_wrong_labels.csv; returns the path of the page.

    Args:
      dataset: Folder or URI.
      sources: Folders, archives or URIs. Rejected inputs below one of them are shown with a picture. No other file
        outside the dataset is read, even if the dataset names it.
      predictions: Parquet files of estimator_app.predict_dataset(), which tell the labels that are likely wrong.

    Raises:
      ValueError: There is no complete dataset, its index is damaged, or a file of predictions cannot be used.
    """
    manifest = complete_manifest(storage.absolute(dataset))
    sources = list(map(storage.absolute, sources))
    phases.begin("reporting", total=4 + bool(predictions))
    columns = read_all(manifest)
    phases.advance("reporting")
    likely_wrong = None
    if predictions:
        likely_wrong = find_likely_wrong(manifest, columns, predictions)
        phases.advance("reporting")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about odd metadata in rejected inputs
        page = render(manifest, columns, sources, likely_wrong)
    if likely_wrong:
        with create(manifest.path, LIKELY_WRONG_NAME) as file:
            file.write(likely_wrong.to_csv().encode("utf-8", "surrogatepass"))
    with create(manifest.path, REPORT_NAME) as file:
        file.write(page.encode("utf-8", "replace"))
    phases.end()
    return f"{manifest.path}/{REPORT_NAME}"


def write_pairs(dataset: str, path: str) -> int:
    """Writes the pairs of images of a dataset that look alike to a Parquet file; returns their number.

    Its columns are key_a, key_b, split_a, split_b, class_a, class_b, distance (bits of the perceptual hashes that
    differ), identical (whether the bytes are the same), and `kept`: the key of the one image of its group to keep. It
    is in the smallest split that the group is in, so that splits for evaluation stay as they are, and there the first
    by key.

    Args:
      dataset: Folder or URI.
      path: File or URI to write; an existing file is replaced.

    Raises:
      ValueError: There is no complete dataset, its index is damaged, or its images were not decoded when it was made.
    """
    manifest = complete_manifest(storage.absolute(dataset))
    if count := manifest.num_noted.get(NOT_DECODED, 0):
        raise ValueError(
            f"{count:,} images of {manifest.path!r} were not decoded when it was made, so that those that look alike "
            "cannot be found; make it with --check=decode"
        )
    columns = read_all(manifest)
    pairs = list(all_pairs(manifest, columns))
    numbers = {number for pair in pairs for number in pair[:2]}
    examples = read_examples(manifest, columns, numbers, pictures=False)

    def rank(number: int) -> tuple[int, str]:
        found = examples[number]
        return manifest.splits[found.split].num_examples, found.key

    groups = near_duplicates.group(pair[:2] for pair in pairs)
    kept = {number: examples[min(members, key=rank)].key for members in groups for number in members}
    rows = [
        {
            "key_a": (a := examples[pair.first]).key,
            "key_b": (b := examples[pair.second]).key,
            "split_a": a.split,
            "split_b": b.split,
            "class_a": a.class_name,
            "class_b": b.class_name,
            "distance": pair.distance,
            "identical": pair.is_identical,
            "kept": kept[pair.first],
        }
        for pair in pairs
    ]
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, _PAIRS), content)
    with storage.create(storage.absolute(path)) as file:
        file.write(content.getbuffer())
    return len(pairs)


_PAIRS = pa.schema(
    [(name, pa.string()) for name in ("key_a", "key_b", "split_a", "split_b", "class_a", "class_b")]
    + [("distance", pa.int32()), ("identical", pa.bool_()), ("kept", pa.string())]
)


def render(
    manifest: Manifest, columns: Columns, sources: Sequence[str] = (), likely_wrong: LikelyWrong | None = None
) -> str:
    """Returns the page as HTML; see write_report() for `sources`."""
    # Names of files and classes come from untrusted sources: everything is escaped, so that no script can run.
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"count": "{:,}".format, "size": size, "short": shortened, "share": share}
    template = environment.from_string(
        importlib.resources.files("beam_pipelines.report").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    )
    shown = dict(sorted(manifest.splits.items(), key=lambda item: -item[1].num_examples)[:MAX_SPLITS])
    totals = np.sum([split.class_counts for split in manifest.splits.values()], axis=0).tolist()
    look_alikes = find_look_alikes(manifest, columns)
    phases.advance("reporting")
    rejected = read_rejected(manifest, sources)
    phases.advance("reporting")
    examples = _class_examples(manifest, columns, totals)
    phases.advance("reporting")
    return template.render(
        manifest=manifest,
        name=manifest.path.rsplit("/", 1)[-1],
        num_records=int(columns.starts[-1]),
        splits=shown,
        notes=notes(manifest, shown, look_alikes, likely_wrong),
        likely_wrong=likely_wrong,
        likely_wrong_name=LIKELY_WRONG_NAME,
        classes=_class_rows(manifest, shown, totals),
        totals=totals,
        class_curve=charts.curve(totals),
        shards=_shard_rows(manifest, shown),
        sides=columns.shorter_sides,
        shapes=columns.shapes,
        fixed=sorted(manifest.num_fixed.items(), key=lambda item: (-item[1], item[0])),
        noted=NOTED,
        rejected=rejected,
        has_sources=bool(sources),
        look_alikes=look_alikes,
        examples=examples,
        charts=charts,
        limits=_LIMITS,
    )


class ClassRow(NamedTuple):
    """One class.

    Attributes:
      label: Class index, 0-based.
      name: Name of the class.
      num_examples: Number of examples in all splits.
      bars: (number of examples, percent of the split's largest class) for each split that is shown.
    """

    label: int
    name: str
    num_examples: int
    bars: list[tuple[int, float]]


def chosen_classes(totals: Sequence[int], limit: int) -> list[int]:
    """Returns all labels in order; of more than `limit` classes only the largest and the smallest, largest first."""
    if len(totals) <= limit:
        return list(range(len(totals)))
    ordered = sorted(range(len(totals)), key=lambda label: (-totals[label], label))
    return [*ordered[: limit // 2], *ordered[len(ordered) - limit // 2 :]]


def _class_rows(manifest: Manifest, shown: dict[str, Split], totals: Sequence[int]) -> list[ClassRow]:
    rows = []
    for label in chosen_classes(totals, MAX_CLASSES):
        counts = [(split.class_counts[label], max(split.class_counts)) for split in shown.values()]
        bars = [(count, charts.percent(count, largest)) for count, largest in counts]
        rows.append(ClassRow(label, manifest.classes[label], totals[label], bars))
    return rows


class ShardRow(NamedTuple):
    """The shards of one split.

    Attributes:
      split: Name of the split.
      sizes: Sizes of the shards in bytes, sorted.
      marks: Positions of these sizes between 0 and the largest shard or aim of all splits, in percent.
      aim: Position of --shard_size, likewise; None if the split was cut into a given number of shards.
    """

    split: str
    sizes: list[int]
    marks: list[float]
    aim: float | None


def _shard_rows(manifest: Manifest, shown: dict[str, Split]) -> list[ShardRow]:
    sizes = {name: sorted(shard.num_bytes for shard in split.shards) for name, split in shown.items()}
    aim, numbered = manifest.options.get("shard_bytes"), manifest.options.get("num_shards", {})
    aims = {name: None if name in numbered else aim for name in sizes}
    largest = max([*(split[-1] for split in sizes.values()), *(each or 0 for each in aims.values())])
    return [
        ShardRow(name, split, charts.marks(split, largest), each and charts.percent(each, largest))
        for (name, split), each in zip(sizes.items(), aims.values(), strict=True)
    ]


def _class_examples(
    manifest: Manifest, columns: Columns, totals: Sequence[int]
) -> list[tuple[str, int, list[Example]]]:
    """Returns (class, number of its examples, some of them) for the classes that are shown."""
    chosen = {
        label: columns.of_class(label)[:MAX_EXAMPLES].tolist()  # records are already ordered by a hash
        for label in chosen_classes(totals, MAX_EXAMPLE_CLASSES)
    }
    examples = read_examples(manifest, columns, itertools.chain.from_iterable(chosen.values()))
    return [
        (manifest.classes[label], totals[label], [examples[number] for number in numbers])
        for label, numbers in chosen.items()
    ]
