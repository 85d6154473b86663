"""Whether a batch fits into this machine's memory, asked before TensorFlow takes it all or aborts the process.

batch size, image size ──▶ bytes that a step takes at the least ──compared with what is available──▶ an error, or none
"""

from __future__ import annotations

from tpu_input.pipeline.caching import available_bytes

_PIXEL_BYTES = 3 * 4  # three channels of float32
# Memory that a step takes, in that of its images as float32. Measured at evaluations by the smallest network, cnn: each
# took from 7.8 times (100,000 images of 32 px) to 15 times as much (one of 3,000 px), and training takes more.
_STEP = 7


def check_batch(flag: str, batch_size: int, image_size: int, available: int | None = None) -> None:
    """Checks that a step fits into this machine's memory; the sizes may come from a stranger's config.json.

    Args:
      flag: The flag that gives the batch size.
      batch_size: Images of a step.
      image_size: Their height and width in pixels.
      available: In bytes; None asks the system.

    Raises:
      ValueError: It does not.
    """
    available = available_bytes() if available is None else available
    one = _STEP * _PIXEL_BYTES * image_size**2
    if batch_size * one > available:
        fitting = available // one
        advice = f"give {flag}={fitting} or less" if fitting else "a smaller --image_size is another model's"
        raise ValueError(
            f"{flag}={batch_size} images of {image_size} x {image_size} pixels would take at least "
            f"{batch_size * one / 1e9:,.1f} GB of memory, of which {available / 1e9:,.1f} GB are available; {advice}"
        )
