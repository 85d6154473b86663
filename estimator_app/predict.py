"""Prediction: image files → predictions → lines of a table for people, or of JSON for programs.

    photo.jpg, photos/, gs://bucket/*.png ──image_files()──▶ paths ──batches──▶ read(), stored_image()
        ──Classifier──▶ Prediction or error ──▶ one line per file, in the order of the paths

stored_image() makes of a file what the conversion of the model's dataset stores, by the same function and with the
options in the export's config, so that prediction and evaluation have the same input.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from estimator_app.runtime import files
from estimator_app.runtime.files import is_in_bucket, reason
from estimator_app.saved_model.classifier import THRESHOLD, Array, Classifier, load_classifier
from estimator_app.saved_model.find import read_origin
from tpu_input.command_line import print_line, to_json
from tpu_input.command_line.dataclass_options import checks_arguments
from tpu_input.dataset_format.decode_limits import too_many_bytes
from tpu_input.dataset_format.orientation import FORMATS
from tpu_input.storage.patterns import SIGNS
from tpu_input.stored_images.check import stored_image
from tpu_input.stored_images.image_options import ImageOptions

# Number of concurrent reads; each read from a bucket has a latency of tens of milliseconds.
_READERS = 16
_CLASS_WIDTH = 30


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The prediction of a classifier for one file.

    Attributes:
      file: Path of the file.
      top: (label, class, probability in [0, 1]) of the most likely classes, in descending order of probability.
      classes: For a model with several labels per image, the names of the classes with a probability of at least 0.5,
        in the same order; else None.
    """

    file: str
    top: tuple[tuple[int, str, float], ...]
    classes: tuple[str, ...] | None = None

    def as_json(self) -> str:
        """Returns one line of JSON: file; label, class and probability of the most likely class; "top" for several.

        With several labels per image, "classes" has the names of the classes with a probability of at least 0.5.
        """
        first, *others = [{"label": n, "class": name, "probability": round(p, 6)} for n, name, p in self.top]
        fields = {"file": self.file, **first} | ({"top": [first, *others]} if others else {})
        fields |= {} if self.classes is None else {"classes": self.classes}
        return to_json(fields)

    def as_row(self, class_width: int) -> str:
        """Returns one line of a table; the path is the last column, as its width is not known in advance."""
        cells = [f"{100 * p:5.1f} %  {name:{class_width}}" for _, name, p in self.top]
        return "  ".join([*cells, self.file])


@checks_arguments
def predict(
    classifier: Classifier | str, files: Iterable[str], batch_size: int = 32, top: int = 1
) -> Iterator[Prediction | tuple[str, str]]:
    """Yields a Prediction for each file, in order; or (file, reason) for a file that is unreadable or not an image.

    Only one batch at a time is in memory.

    Args:
      classifier: From load_classifier(), or the path that it takes.
      files: Paths or URIs.
      batch_size: Files per batch.
      top: Number of most likely classes to return per file.

    Raises:
      ValueError: batch_size or top is not positive.
    """
    for name, value in (("batch_size", batch_size), ("top", top)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value!r}")
    loaded = load_classifier(classifier) if isinstance(classifier, str) else classifier
    read_stored = functools.partial(_read_stored, options=_image_options(loaded.path))
    paths = iter(files)
    with ThreadPoolExecutor(_READERS) as readers:
        while batch := list(itertools.islice(paths, batch_size)):
            contents = list(readers.map(read_stored, batch))
            results = iter(loaded([content for content in contents if isinstance(content, bytes)]))
            for path, content in zip(batch, contents, strict=True):
                result = next(results) if isinstance(content, bytes) else content
                yield (
                    (path, str(result)) if isinstance(result, ValueError) else _prediction(path, result, loaded, top)
                )


def _image_options(export: str) -> ImageOptions:
    try:
        return read_origin(export)[0].images
    except ValueError as error:
        print_line(f"{error}; until then, files are prepared with the default options of convert", sys.stderr)
        return ImageOptions()


def _read_stored(path: str, options: ImageOptions) -> bytes | ValueError:
    content = read(path)
    return stored_image(content, options) if isinstance(content, bytes) else content


def _prediction(path: str, probabilities: Array, classifier: Classifier, top: int) -> Prediction:
    """Returns the most likely classes; with several labels per image, at least all with a probability of 0.5."""
    labels, names = np.argsort(-probabilities, kind="stable"), classifier.classes
    likely = [label for label in labels if probabilities[label] >= THRESHOLD] if classifier.has_several else []
    ranks = tuple((int(label), names[label], float(probabilities[label])) for label in labels[: max(top, len(likely))])
    return Prediction(path, ranks, tuple(names[label] for label in likely) if classifier.has_several else None)


def write(
    results: Iterable[Prediction | tuple[str, str]],
    classes: tuple[str, ...],
    table: bool,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> tuple[int, int]:
    """Outputs one line per result, and returns the number of files that were classified and of those that failed.

    Args:
      results: From predict().
      classes: From the classifier.
      table: True for lines of a table, False for lines of JSON.
      say: Called with the line of each prediction.
      warn: Called with the line of each file that could not be classified.
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


def image_files(names: Sequence[str], skipped: Counter[str]) -> Iterator[str]:
    """Yields paths of image files: named files, all images in named folders (recursively), and the matches of globs.

    No more than the names in one folder are held in memory.

    Args:
      names: Paths, folders, globs; also URIs.
      skipped: Counter, by file name extension, to which the skipped entries of folders are added: those without the
        extension of an image, and those that are neither a file nor a folder.
    """
    for name in names:
        matches = [name]
        if any(sign in name for sign in SIGNS) and not files.exists(name):
            matches = files.matches(name) or [name]
        for path in matches:
            # In a bucket, isdir() makes two blocking requests per path, so paths with an image's extension skip it.
            if not (is_in_bucket(path) and _is_image(path)) and files.is_folder(path):
                yield from _below(path.rstrip("/"), skipped)
            else:
                yield path


def _below(folder: str, skipped: Counter[str]) -> Iterator[str]:
    for name in sorted(files.entries(folder)):
        path = f"{folder}/{name.rstrip('/')}"
        if name.startswith("."):  # hidden files, such as file managers'
            continue
        if _is_image(name) and not _is_special(path):  # checked before is_folder(), which makes requests in a bucket
            yield path
        elif name.endswith("/") or files.is_folder(path):
            yield from _below(path, skipped)
        else:
            skipped[os.path.splitext(name)[1]] += 1


def _is_special(path: str) -> bool:
    """Returns whether a local path is a pipe or a device, on which a read could block forever."""
    return "://" not in path and os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@functools.cache
def _endings() -> frozenset[str]:
    """Returns the endings of the names of files in formats that convert reads, such as .webp."""
    return frozenset(ending for ending, kind in Image.registered_extensions().items() if kind in FORMATS)


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _endings()


def read(path: str) -> bytes | ValueError:
    """Returns the bytes of a file, or a ValueError that says why it cannot be read."""
    try:
        path.encode()
    except UnicodeEncodeError:  # not supported by TensorFlow, nor in JSON output
        return ValueError("the name is not UTF-8; rename the file")
    if _is_special(path):
        return ValueError("it is a pipe or a device; save it as a file")
    try:
        if why := too_many_bytes(files.num_bytes(path)):
            return ValueError(why)
        return files.read_bytes(path)
    except OSError as error:
        return ValueError(reason(error))
