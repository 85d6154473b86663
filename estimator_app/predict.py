"""Image files → predictions → lines: a table for people, JSON for programs.

paths ──batches──▶ read, stored.py ──Classifier──▶ Prediction or reason ──▶ a line each, in the order of the paths
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from estimator_app.image_files import read
from estimator_app.saved_model.classifier import Array, Classifier
from estimator_app.stored import as_stored
from tpu_input.command_line import to_json

# Reads at the same time: from a bucket each waits for tens of milliseconds.
_READERS = 16
_CLASS_WIDTH = 30


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a classifier says about a file.

    Attributes:
      file: Its path.
      top: (label, class, probability in [0, 1]) of the likeliest classes, the likeliest first.
    """

    file: str
    top: tuple[tuple[int, str, float], ...]

    def as_json(self) -> str:
        """Returns a line of JSON: file, label, class and probability of the likeliest; "top" lists several."""
        first, *others = [{"label": n, "class": name, "probability": round(p, 6)} for n, name, p in self.top]
        fields = {"file": self.file, **first} | ({"top": [first, *others]} if others else {})
        return to_json(fields)

    def as_row(self, class_width: int) -> str:
        """Returns a line of a table; the path, whose length nobody knows in advance, comes last."""
        cells = [f"{100 * p:5.1f} %  {name:{class_width}}" for _, name, p in self.top]
        return "  ".join([*cells, self.file])


def predict(
    classifier: Classifier, files: Iterable[str], batch_size: int, top: int
) -> Iterator[Prediction | tuple[str, str]]:
    """Yields a prediction for each file, in order; or (file, reason) for one that is not readable or no image.

    Memory holds one batch, however many files there are.

    Args:
      classifier: From load_classifier().
      files: Paths or URIs.
      batch_size: Files to classify at a time.
      top: How many of the likeliest classes to give.

    Raises:
      ValueError: batch_size or top is not positive.
    """
    for name, value in (("batch_size", batch_size), ("top", top)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value!r}")
    paths = iter(files)
    with ThreadPoolExecutor(_READERS) as readers:
        while batch := list(itertools.islice(paths, batch_size)):
            contents = list(readers.map(_read_stored, batch))
            found = iter(classifier([content for content in contents if isinstance(content, bytes)]))
            for path, content in zip(batch, contents, strict=True):
                result = next(found) if isinstance(content, bytes) else content
                yield (
                    (path, str(result))
                    if isinstance(result, ValueError)
                    else _prediction(path, result, classifier.classes, top)
                )


def _read_stored(path: str) -> bytes | ValueError:
    """Returns a file as evaluation would see it, or why it cannot be read."""
    content = read(path)
    return as_stored(content) if isinstance(content, bytes) else content


def _prediction(path: str, probabilities: Array, classes: tuple[str, ...], top: int) -> Prediction:
    labels = np.argsort(-probabilities, kind="stable")[:top]
    return Prediction(path, tuple((int(label), classes[label], float(probabilities[label])) for label in labels))


def write(
    results: Iterable[Prediction | tuple[str, str]],
    classes: tuple[str, ...],
    table: bool,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> tuple[int, int]:
    """Says each result in a line, and returns how many files were classified, and how many could not be.

    Args:
      results: From predict().
      classes: From the classifier.
      table: For people; False gives JSON.
      say: Takes a prediction's line.
      warn: Takes the line of a file that could not be classified.
    """
    classified, failed, width = 0, 0, min(max(map(len, classes)), _CLASS_WIDTH)
    for result in results:
        if isinstance(result, Prediction):
            say(result.as_row(width) if table else result.as_json())
            classified += 1
        else:
            warn(f"{result[0]}: {result[1]}")
            failed += 1
    return classified, failed
