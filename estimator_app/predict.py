"""Image files → predictions → lines: a table for people, JSON for programs.

    photo.jpg, photos/, gs://bucket/*.png ──image_files()──▶ paths ──batches──▶ read(), normalize_image()
        ──Classifier──▶ Prediction or reason ──▶ a line each, in the order of the paths

normalize_image() gives an image file as a conversion would have stored it, which is what evaluation sees: an upright
JPEG, RGB or greyscale, in sRGB, keeps its bytes; anything else that is read is turned as EXIF says, converted to sRGB,
put on white, and encoded as a JPEG. beam_pipelines.images.check decides so with its default options. It cannot be
imported: it belongs to another program, whose dependencies are not installed where a model serves; a test compares the
two.
"""

from __future__ import annotations

import dataclasses
import glob
import io
import itertools
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf
from PIL import Image

from estimator_app.runtime.files import is_in_bucket, reason
from estimator_app.saved_model.classifier import Array, Classifier
from tpu_input.command_line import to_json
from tpu_input.dataset_format import color_profiles
from tpu_input.dataset_format.decode_limits import MAX_PIXELS, too_large, too_many_bytes, too_slow
from tpu_input.dataset_format.orientation import (
    FORMATS,
    KEPT_MODES,
    apply_orientation,
    has_unknown_range,
    orientation_transpose,
)

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
    return normalize_image(content) if isinstance(content, bytes) else content


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


_ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png")


def image_files(named: Sequence[str], left_out: Counter[str]) -> Iterator[str]:
    """Yields paths: of files as they are named, of folders all images in them and below, of globs what matches.

    No more than the names in one folder are held in memory.

    Args:
      named: Paths, folders, globs; also URIs.
      left_out: Counts what in folders has the name of no image, or is neither a file nor a folder, by endings.
    """
    for name in named:
        matches = [name]
        if any(sign in name for sign in "*?[") and not (tf.io.gfile if _is_uri(name) else os.path).exists(name):
            matches = sorted((tf.io.gfile if _is_uri(name) else glob).glob(name)) or [name]
        for path in matches:
            # In a bucket isdir takes two requests, before any is made for the next file.
            if not (is_in_bucket(path) and _is_image(path)) and _is_folder(path):
                yield from _below(path.rstrip("/"), left_out)
            else:
                yield path


def _below(folder: str, left_out: Counter[str]) -> Iterator[str]:
    for name in sorted((tf.io.gfile if _is_uri(folder) else os).listdir(folder)):
        path = f"{folder}/{name.rstrip('/')}"
        if name.startswith("."):  # what file managers leave behind
            continue
        if not _is_uri(folder) and _is_special(path):
            left_out[os.path.splitext(name)[1]] += 1
        elif _is_image(name):  # asked first, for the same reason
            yield path
        elif name.endswith("/") or _is_folder(path):
            yield from _below(path, left_out)
        else:
            left_out[os.path.splitext(name)[1]] += 1


def _is_uri(path: str) -> bool:
    """Returns whether a path is left to TensorFlow, which loses all of a local folder that has a name not in UTF-8."""
    return "://" in path


def _is_folder(path: str) -> bool:
    return bool((tf.io.gfile if _is_uri(path) else os.path).isdir(path))


def _is_special(path: str) -> bool:
    """Returns whether a path is that of a pipe or a device, which would be waited for."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _is_image(name: str) -> bool:
    return name.lower().endswith(_ENDINGS)


def read(path: str) -> bytes | ValueError:
    """Returns a file's bytes, or why it cannot be read."""
    try:
        path.encode()
    except UnicodeEncodeError:  # neither TensorFlow nor a line of JSON can have it
        return ValueError("the name is not UTF-8; rename the file")
    if not _is_uri(path) and _is_special(path):
        return ValueError("it is a pipe or a device; save it as a file")
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            if why := too_many_bytes(file.size()):
                return ValueError(why)
            content: bytes = file.read()
            return content
    except (OSError, tf.errors.OpError) as error:
        return ValueError(reason(error) if isinstance(error, tf.errors.OpError) else str(error))


_QUALITY = 90  # what a conversion encodes with unless told otherwise


def normalize_image(encoded: bytes) -> bytes | ValueError:
    """Returns the file that a conversion would have stored, or why it would have stored none.

    A file that cannot be opened is returned as it is: whoever decodes it says what it is.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, and sizes that are checked below
            image = Image.open(io.BytesIO(encoded), formats=FORMATS)
    except Image.DecompressionBombError as error:
        return ValueError(f"{error}; make the image smaller")
    except Exception:  # UnidentifiedImageError, and whatever else damaged headers provoke
        return encoded
    if why := too_large(image, MAX_PIXELS):
        return ValueError(f"{why}; make the image smaller")
    if why := too_slow(image, encoded, MAX_PIXELS):
        return ValueError(f"{why}; save it again as a baseline JPEG")
    is_srgb = color_profiles.effect(image) != "converted"
    if (
        image.format in ("JPEG", "MPO")
        and image.mode in KEPT_MODES
        and orientation_transpose(image) is None
        and is_srgb
    ):
        return encoded
    try:
        if image.format != "MPO" and getattr(image, "is_animated", False):  # MPO: a preview behind the photograph
            return ValueError(f"{image.format} of {getattr(image, 'n_frames', 0)} frames; give one of them as a file")
        if has_unknown_range(image):
            return ValueError(
                f"{image.format} of mode {image.mode}, whose black and white are unknown; scale it to 8 bits"
            )
        buffer = io.BytesIO()
        apply_orientation(image).save(buffer, "JPEG", quality=_QUALITY, comment=b"")
        return buffer.getvalue()
    except Exception:  # Pillow's decoders raise OSError, SyntaxError, IndexError, struct.error, …
        return ValueError(f"a damaged {image.format} file")
