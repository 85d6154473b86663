"""Images that a model gets wrong, the surest mistakes first.

split ──some of its records──▶ Classifier ──predicted class is not the label──▶ WrongImage, most probable first
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from estimator_app.model.keras_library import on_jax
from estimator_app.saved_model.classifier import Classifier
from tpu_input import Manifest, RecordSource
from tpu_input.dataset_format.records import parse

if TYPE_CHECKING:
    import tensorflow as tf

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
    if on_jax():
        yield from _wrong_by_number(classifier, manifest, split, ranges)
        return
    import tensorflow as tf

    from tpu_input.pipeline.reading import no_autograph, records

    @no_autograph
    def example_of(number: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        example = parse(serialized, manifest.first_label, manifest.record)
        key = tf.io.parse_single_example(serialized, {"image/key": tf.io.FixedLenFeature([], tf.string, "")})
        return number, key["image/key"], example["encoded"], example["label"]

    for batch in records(manifest, split, ranges).map(example_of).batch(_BATCH).as_numpy_iterator():
        results = classifier(list(batch[2]))
        for number, key, encoded, label, result in zip(*batch, results, strict=True):
            if isinstance(result, ValueError) or not 0 <= label < len(classifier.classes):
                continue
            best = int(result.argmax())
            if best != label:
                name = key.decode(errors="replace") or f"record {number}"
                labels = classifier.classes[label], classifier.classes[best]
                yield WrongImage(name, *labels, float(result[best]), encoded)


def _wrong_by_number(
    classifier: Classifier, manifest: Manifest, split: str, ranges: list[range]
) -> Iterator[WrongImage]:
    """Yields the same, of records that are read without TensorFlow."""
    source = RecordSource(manifest, split)
    for numbers in ranges:
        batch = [source[number] for number in numbers]
        for number, record, result in zip(numbers, batch, classifier([one.encoded for one in batch]), strict=True):
            if isinstance(result, ValueError) or not 0 <= record.label < len(classifier.classes):
                continue
            best = int(result.argmax())
            if best != record.label:
                labels = classifier.classes[record.label], classifier.classes[best]
                name = record.key or f"record {number}"
                yield WrongImage(name, *labels, float(result[best]), record.encoded)
