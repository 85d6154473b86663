"""Notes at the top of the report: findings to check before training on the dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from beam_pipelines.report.likely_wrong import LikelyWrong
from beam_pipelines.report.look_alikes import LookAlikes
from tpu_input.command_line.wording import enumerated
from tpu_input.dataset_format.records import Manifest, Split

_IMBALANCE = 10  # ratio of the largest to the smallest class, in examples, from which there is a note


class Note(NamedTuple):
    """One note.

    Attributes:
      text: The finding.
      section: Section of the page with the details.
      grave: Whether the finding makes results wrong; otherwise it is only information.
    """

    text: str
    section: str
    grave: bool = False


def notes(
    manifest: Manifest, splits: Mapping[str, Split], look_alikes: LookAlikes, likely_wrong: LikelyWrong | None = None
) -> list[Note]:
    """Returns the notes on a dataset, the grave ones first.

    Args:
      manifest: Manifest of the dataset.
      splits: Splits that are shown.
      look_alikes: Look-alikes of the dataset.
      likely_wrong: Labels that are likely wrong; None if there are no predictions.
    """
    findings = [
        *_label_notes(likely_wrong),
        *_look_alike_notes(look_alikes),
        *_class_notes(manifest, splits),
        *_rejection_notes(manifest),
    ]
    return sorted(findings, key=lambda note: not note.grave)


def shortened(text: str, limit: int = 60) -> str:
    """Returns the text, shortened in the middle if it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 3]}…{text[len(text) - (limit - limit // 3 - 1) :]}"


def share(part: int, total: int) -> str:
    """Returns `part` in percent of `total` as readable text, e.g. "under 0.1 %"."""
    percent = 100 * part / max(total, 1)
    if 0 < percent < 0.1:
        return "under 0.1 %"
    if 99.9 < percent < 100:
        return "over 99.9 %"
    return f"{percent:.3g} %"


def _label_notes(likely_wrong: LikelyWrong | None) -> Iterator[Note]:
    if likely_wrong and (count := len(likely_wrong.records)):
        records = "1 record has" if count == 1 else f"{count:,} records have"
        yield Note(
            f"{records} another predicted class than label, {share(count, likely_wrong.num_compared)} of those with a "
            "prediction: look at the first ones, whose labels are likely wrong.",
            "likely-wrong",
            True,
        )


def _look_alike_notes(look_alikes: LookAlikes) -> Iterator[Note]:
    if count := look_alikes.all.across_splits:
        yield Note(
            f"{_groups(count)} in more than one split: the model would be tested on images that it was trained on.",
            "look-alikes",
            True,
        )
    if count := look_alikes.all.conflicting:
        yield Note(
            f"{_groups(count)} under different labels, so at least one label is probably wrong.", "look-alikes", True
        )
    if look_alikes.all.groups and not look_alikes.all.across_splits + look_alikes.all.conflicting:
        yield Note(
            f"{_groups(look_alikes.all.groups)} within one split and one class: these images count more than once.",
            "look-alikes",
        )
    if count := look_alikes.num_near - look_alikes.num_compared:
        yield Note(
            f"{count:,} of {look_alikes.num_near:,} pairs of images that may look alike were not compared by their "
            "pixels, so there may be more look-alikes than were found.",
            "look-alikes",
        )
    if count := look_alikes.num_crowded:
        yield Note(
            f"{count:,} images resemble so many others that they were not compared with all of them.",
            "look-alikes",
        )
    if count := look_alikes.num_common:
        yield Note(
            f"{count:,} images each look like a great many others: check whether they are blank pages or placeholders "
            "for missing pictures.",
            "look-alikes",
        )


def _groups(count: int) -> str:
    return "1 group of look-alikes is" if count == 1 else f"{count:,} groups of look-alikes are"


def _class_notes(manifest: Manifest, splits: Mapping[str, Split]) -> Iterator[Note]:
    if manifest.num_labels:
        yield Note("Images may have several classes or none; an image counts for each of its classes.", "classes")
    for name, split in splits.items():
        if absent := [manifest.classes[label] for label, count in enumerate(split.class_counts) if not count]:
            names = enumerated([f"“{shortened(class_name, 30)}”" for class_name in absent], 3)
            classes = "1 class has" if len(absent) == 1 else f"{len(absent):,} classes have"
            yield Note(f"{classes} no example in {name}: {names}.", "classes", True)
    totals = np.sum([split.class_counts for split in manifest.splits.values()], axis=0)
    if totals.size and totals.min() and totals.max() >= _IMBALANCE * totals.min():
        yield Note(
            f"The largest class has {totals.max() / totals.min():,.0f} times as many examples as the smallest.",
            "classes",
        )


def _rejection_notes(manifest: Manifest) -> Iterator[Note]:
    if count := sum(manifest.num_rejected.values()):
        inputs = "1 input was" if count == 1 else f"{count:,} inputs were"
        yield Note(
            f"{inputs} rejected, {share(count, manifest.num_inputs)} of all: "
            + ", ".join(f"{reason} {number:,}" for reason, number in manifest.num_rejected.items())
            + ".",
            "rejected",
        )
