"""Images that a model gets wrong, the surest mistakes first.

split ──some of its records──▶ Classifier ──predicted class is not the label──▶ WrongImage, most probable first
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from estimator_app.model.keras_library import on_jax
from estimator_app.predictions.record_batches import read_batches
from estimator_app.saved_model.classifier import Classifier
from tpu_input import Manifest

# Records that are classified to find some; this machine's processor does it, so that not all of a large split can be.
MOST_EXAMINED = 512
_BATCH = 32


class WrongImage(NamedTuple):
    """A record whose most likely class is not its label.

    Attributes:
      key: Key of the record; "record N" if it has none.
      label: Name of its class in the dataset.
      predicted: Name of the most likely class.
      probability: Probability of that class.
      encoded: The image, a JPEG or PNG file.
    """

    key: str
    label: str
    predicted: str
    probability: float
    encoded: bytes


def find_wrong(classifier: Classifier, manifest: Manifest, split: str, most: int) -> list[WrongImage]:
    """Returns up to `most` images of a split that are classified wrongly, the most probable first.

    Of a split of more than MOST_EXAMINED records, that many are examined, in groups from all over it. Records that
    cannot be decoded are left out.

    Args:
      classifier: The model, of the dataset's classes, with one label an image.
      manifest: The dataset.
      split: Name of the split.
      most: Largest number of images that are returned.
    """
    total = manifest.split(split).num_examples
    starts = np.linspace(0, max(0, total - _BATCH), min(MOST_EXAMINED, total) // _BATCH + 1, dtype=int)
    ranges = [range(start, min(start + _BATCH, total)) for start in sorted({*starts.tolist()})]
    by_key = {wrong.key: wrong for wrong in _wrong(classifier, manifest, split, ranges)}
    return sorted(by_key.values(), key=lambda wrong: -wrong.probability)[:most]


def _wrong(classifier: Classifier, manifest: Manifest, split: str, ranges: list[range]) -> Iterator[WrongImage]:
    for batch in read_batches(manifest, split, _BATCH, ranges, with_tensorflow=not on_jax()):
        for number, _, key, encoded, label, result in zip(*batch, classifier(list(batch.encoded)), strict=True):
            if isinstance(result, ValueError) or not 0 <= label < len(classifier.classes):
                continue
            best = int(result.argmax())
            if best != label:
                name = key.decode(errors="replace") or f"record {number}"
                labels = classifier.classes[label], classifier.classes[best]
                yield WrongImage(name, *labels, float(result[best]), encoded)
