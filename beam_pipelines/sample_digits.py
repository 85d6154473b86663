"""Sample dataset without a download: scikit-learn's 1,797 handwritten digits as class folders of JPEGs.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998;
the 8 x 8 test images are included in scikit-learn.
"""

from __future__ import annotations

import io

from PIL import Image

from beam_pipelines import storage
from tpu_input.command_line.distribution import which_extra

_SIDE = 32  # pixels; 8 x 8 images would be a single JPEG block, of poor quality
_QUALITY = 95


def write_sample(output: str) -> tuple[int, int]:
    """Writes the missing files OUTPUT/CLASS/NUMBER.jpg; returns (number of files written, number of all files).

    Raises:
      ValueError: scikit-learn is not installed, or the folder has other files.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError(which_extra(error) or str(error)) from error
    digits = load_digits()
    storage.check_writable(output)
    storage.check(output)
    present = {path for path, _ in storage.list_files(output)}
    images = {f"{label}/{number:04d}.jpg": digits.images[number] for number, label in enumerate(digits.target)}
    missing = sorted(images.keys() - present)
    interrupted = [path for path in present - images.keys() if path.partition(".part-")[0] in images]
    storage.delete([f"{output}/{path}" for path in interrupted])
    if others := sorted(present - images.keys() - set(interrupted)):
        raise ValueError(f"{output!r} contains {others[0]!r}, which is not a file of the sample; choose another folder")
    storage.write_files((f"{output}/{path}", _jpeg(images[path])) for path in missing)
    return len(missing), len(images)


def _jpeg(values: object) -> bytes:
    """Returns an 8 x 8 array of values 0 to 16 as a grayscale JPEG of _SIDE x _SIDE pixels."""
    import numpy as np

    grey = np.round(np.asarray(values) * (255 / 16)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(grey).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()
