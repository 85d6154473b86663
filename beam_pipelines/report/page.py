"""DATASET/report.html: contents of a dataset on one self-contained page.

manifest ─────────────▶ counts, classes, shards, reasons for re-encoding
indexes ──Columns─────▶ image sizes, look-alikes, which examples to show ──shards──▶ thumbnails      ──template──▶ page
rejected.jsonl ───────▶ rejected inputs ──those below `sources`──▶ thumbnails
predictions ──────────▶ labels that are likely wrong

The page shows some 800 thumbnails at most, of 3 KB each (6 KB if they are noise), 80 of them larger, 14 KB each, for
a dataset of any size. Indexes of ten million records take some 170 s and up to 1.4 GB of memory, as the sum of
measurements of the parts; most of both is spent on the search for look-alikes. The same dataset gives the same page,
except for the date, which SOURCE_DATE_EPOCH sets, and for pictures of rejected inputs that no longer exist.

The page is one file that fetches nothing. Its policy for content allows no script but template/report.js, by its hash,
which filters by class and copies paths; without scripts, all of the page is there but these two.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import importlib.resources
import io
import os
import shlex
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
from beam_pipelines.images.near_duplicates import ALIKE, DISTANCE, MAX_SHARED
from beam_pipelines.report import charts
from beam_pipelines.report.examples import Example, read_examples
from beam_pipelines.report.index_columns import SIZE_UNIT, Columns, read_all
from beam_pipelines.report.likely_wrong import LikelyWrong, find_likely_wrong
from beam_pipelines.report.look_alikes import MAX_READ, all_pairs, find_look_alikes
from beam_pipelines.report.notes import notes, share, shortened
from beam_pipelines.report.rejections import MAX_SHOWN, read_rejected
from beam_pipelines.report.summary import NOTED, command_of, formats, reasons_once, size
from beam_pipelines.runners import phases
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.command_line.distribution import __version__
from tpu_input.dataset_format.records import Manifest, Split
from tpu_input.dataset_format.split_names import keeping_rank
from tpu_input.stored_images.check import NOT_DECODED

MAX_CLASSES = 50  # classes in the chart; if the dataset has more, half are the largest and half the smallest
MAX_EXAMPLE_CLASSES = 24  # classes with examples; chosen likewise
MAX_EXAMPLES = 12  # examples per class, in all splits that are shown
MAX_SPLITS = 6  # splits with a column and a row of their own
MAX_LISTED_CLASSES = 2000  # classes that are not in the chart, but can be found by their names
_MAX_FIXES = 20
_LIMITS = {  # limits that the page mentions
    "fixes": _MAX_FIXES,
    "rejected": MAX_SHOWN,
    "bits": DISTANCE,
    "read": MAX_READ,
    "alike": ALIKE,
    "shared": MAX_SHARED,
}


@checks_arguments
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
        page = render(manifest, columns, sources, likely_wrong, _command(dataset, sources, predictions))
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
    differ), identical (whether the bytes are the same), and `kept`: the key of the one image of its group to keep. As
    with --dedup, it is in a split for evaluation if one of the group is; among splits of other names in the smallest,
    and there the first by key.

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

    def rank(number: int) -> tuple[int, int, str]:
        example = examples[number]
        return keeping_rank(example.split), manifest.splits[example.split].num_examples, example.key

    groups = near_duplicates.group(pair[:2] for pair in pairs)
    keys_to_keep = {number: examples[min(members, key=rank)].key for members in groups for number in members}
    rows = []
    for first, second, distance, is_identical in pairs:
        a, b = examples[first], examples[second]
        names = (a.key, b.key, a.split, b.split, a.class_name, b.class_name)
        row = (*names, distance, is_identical, keys_to_keep[first])
        rows.append(dict(zip(_PAIRS.names, row, strict=True)))
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
    manifest: Manifest,
    columns: Columns,
    sources: Sequence[str] = (),
    likely_wrong: LikelyWrong | None = None,
    command: str = "",
) -> str:
    """Returns the page as HTML; see write_report() for `sources`. `command` is the one that writes it."""
    # Names of files and classes come from untrusted sources: everything is escaped, so that no script can run.
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"count": "{:,}".format, "size": size, "short": shortened, "share": share}
    splits = dict(sorted(manifest.splits.items(), key=lambda item: -item[1].num_examples)[:MAX_SPLITS])
    totals = np.sum([split.class_counts for split in manifest.splits.values()], axis=0).tolist()
    look_alikes = find_look_alikes(manifest, columns)
    phases.advance("reporting")
    rejected = read_rejected(manifest, sources)
    phases.advance("reporting")
    examples = _class_examples(manifest, columns, splits, totals)
    phases.advance("reporting")
    script = _read("report.js")
    return environment.from_string(_read("report.html.j2")).render(
        style=_read("report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        manifest=manifest,
        name=manifest.path.rsplit("/", 1)[-1],
        num_records=int(columns.starts[-1]),
        splits=splits,
        notes=notes(manifest, splits, look_alikes, likely_wrong),
        likely_wrong=likely_wrong,
        likely_wrong_name=LIKELY_WRONG_NAME,
        classes=_class_rows(manifest, splits, totals),
        more_classes=_more_classes(manifest, splits, totals),
        totals=totals,
        class_curve=charts.curve(totals),
        shards=_shard_rows(manifest, splits),
        sides=columns.shorter_sides,
        histograms=_histograms(columns),
        num_sources=int(columns.source_sides.sum()),
        bytes_histogram=_bytes_histogram(columns),
        shapes=columns.shapes,
        is_lossless=_is_lossless(manifest),
        formats=formats(manifest.num_fixed, int(columns.starts[-1])),
        fixed=reasons_once(manifest.num_fixed),
        noted=NOTED,
        rejected=rejected,
        has_sources=bool(sources),
        look_alikes=look_alikes,
        examples=examples,
        charts=charts,
        limits=_LIMITS,
        date=_date(),
        version=f"jpeg2tpu {__version__}",
        command=command,
        conversion=command_of(manifest),
        pairs_commands=_pairs_commands(manifest.path),
        size_unit=SIZE_UNIT,
    )


def _read(name: str) -> str:
    """Returns a file of the folder `template`."""
    return importlib.resources.files("beam_pipelines.report").joinpath("template", name).read_text(encoding="utf-8")


def _command(dataset: str, sources: Sequence[str], predictions: Sequence[str]) -> str:
    flags = [f"--sources={path}" for path in sources] + [f"--predictions={path}" for path in predictions]
    return shlex.join(["jpeg2tpu", "report", storage.absolute(dataset), *flags])


def _is_lossless(manifest: Manifest) -> bool:
    images = manifest.options.get("images")
    return isinstance(images, dict) and images.get("lossless") is True


def _pairs_commands(dataset: str) -> list[str]:
    """Returns the commands that write all pairs of look-alikes, and a dataset without them."""
    pairs = "pairs.parquet"
    return [
        shlex.join(["jpeg2tpu", "report", dataset, f"--pairs={pairs}"]),
        shlex.join(["jpeg2tpu", "filter", dataset, f"--near_duplicates={pairs}", "--output=OUTPUT"]),
    ]


def _date() -> datetime.datetime:
    """Returns the present in UTC, or what SOURCE_DATE_EPOCH says: https://reproducible-builds.org/specs/."""
    set_to = os.environ.get("SOURCE_DATE_EPOCH", "")
    if set_to.isdecimal():
        return datetime.datetime.fromtimestamp(int(set_to), datetime.UTC)
    return datetime.datetime.now(datetime.UTC)


def _histograms(columns: Columns) -> list[charts.Histogram]:
    """Returns the histogram of the images' shorter sides, with one of their sources' before it if that differs."""
    stored, source_sides = columns.shorter_sides, columns.source_sides
    differ = bool(source_sides.any() and (stored != source_sides).any())
    bounds = charts.edges(stored, source_sides) if differ else charts.edges(stored)
    counted = [("sources", source_sides)] * differ + [("stored images", stored)]
    return [charts.named_histogram(title, "shorter side, pixels", counts, bounds) for title, counts in counted]


def _bytes_histogram(columns: Columns) -> charts.Histogram:
    sizes = columns.sizes
    bounds = charts.edges(sizes)
    return charts.named_histogram("records", "size in the shard", sizes, bounds, lambda units: size(units * SIZE_UNIT))


def chosen_classes(totals: Sequence[int], limit: int) -> list[int]:
    """Returns all labels in order; of more than `limit` classes only the largest and the smallest, largest first."""
    if len(totals) <= limit:
        return list(range(len(totals)))
    ordered = sorted(range(len(totals)), key=lambda label: (-totals[label], label))
    return [*ordered[: limit // 2], *ordered[len(ordered) - limit // 2 :]]


def _class_rows(
    manifest: Manifest, splits: dict[str, Split], totals: Sequence[int]
) -> list[tuple[int, str, list[tuple[int, float]]]]:
    """Returns (label, name, (examples, percent of the largest class) in each split) of the classes in the chart."""
    rows = []
    for label in chosen_classes(totals, MAX_CLASSES):
        counts = [(split.class_counts[label], max(split.class_counts)) for split in splits.values()]
        bars = [(count, charts.percent(count, largest)) for count, largest in counts]
        rows.append((label, manifest.classes[label], bars))
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


def _more_classes(
    manifest: Manifest, splits: dict[str, Split], totals: Sequence[int]
) -> list[tuple[int, str, list[int]]]:
    """Returns (label, name, examples in each split) of the classes that are not in the chart, by name."""
    in_chart = set(chosen_classes(totals, MAX_CLASSES))
    others = sorted((name, label) for label, name in enumerate(manifest.classes) if label not in in_chart)
    return [
        (label, name, [split.class_counts[label] for split in splits.values()])
        for name, label in others[:MAX_LISTED_CLASSES]
    ]


def _shard_rows(manifest: Manifest, splits: dict[str, Split]) -> list[ShardRow]:
    sizes = {name: sorted(shard.num_bytes for shard in split.shards) for name, split in splits.items()}
    aim, numbered = manifest.options.get("shard_bytes"), manifest.options.get("num_shards", {})
    aims = {name: None if name in numbered else aim for name in sizes}
    largest = max([*(split[-1] for split in sizes.values()), *(target or 0 for target in aims.values())])
    return [
        ShardRow(name, split, charts.marks(split, largest), target and charts.percent(target, largest))
        for (name, split), target in zip(sizes.items(), aims.values(), strict=True)
    ]


def _class_examples(
    manifest: Manifest, columns: Columns, splits: dict[str, Split], totals: Sequence[int]
) -> list[tuple[str, int, list[tuple[str, list[Example]]]]]:
    """Returns (class, number of its examples, (split, some of them) of each split that has any) of some classes.

    Equally many are of each split, if it has as many.
    """
    positions = {name: list(manifest.splits).index(name) for name in splits}
    per_split = MAX_EXAMPLES // max(len(positions), 1)

    def select_numbers(label: int) -> dict[str, list[int]]:
        numbers = columns.class_records(label)
        record_splits = columns.split_of(numbers)
        # Records are already ordered by a hash.
        return {name: numbers[record_splits == position][:per_split].tolist() for name, position in positions.items()}

    selected = {label: select_numbers(label) for label in chosen_classes(totals, MAX_EXAMPLE_CLASSES)}
    numbers = [number for by_split in selected.values() for group in by_split.values() for number in group]
    examples = read_examples(manifest, columns, numbers)
    return [
        (
            manifest.classes[label],
            totals[label],
            [(name, [examples[number] for number in group]) for name, group in by_split.items() if group],
        )
        for label, by_split in selected.items()
    ]
