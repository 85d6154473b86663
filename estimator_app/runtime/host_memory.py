"""Check that a batch fits into this machine's memory, before TensorFlow uses it up or aborts the process.

batch size, image size ──▶ minimum number of bytes of a step ──compared with the available memory──▶ an error, or none
"""

from __future__ import annotations

from tpu_input.pipeline import caching

_PIXEL_BYTES = 3 * 4  # three channels of float32
# Minimum memory of a step, as a multiple of the size of its images in float32. Measured in evaluations with the
# smallest network, cnn: 7.8 times (100,000 images of 32 px) to 15 times (one image of 3,000 px); training takes more.
_STEP = 7


def check_batch(flag: str, batch_size: int, image_size: int) -> None:
    """Checks that a step fits into this machine's memory; the sizes may come from an untrusted config.json.

    Args:
      flag: The flag that gives the batch size.
      batch_size: Images per step.
      image_size: Height and width of the images in pixels.

    Raises:
      ValueError: The step does not fit.
    """
    one = _STEP * _PIXEL_BYTES * image_size**2
    caching.check_batch(flag, batch_size, image_size, one, "train another model with a smaller --image_size")
