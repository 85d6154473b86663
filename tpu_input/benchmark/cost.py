"""Cost of an image in an input pipeline; does not import TensorFlow."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of an image.

    Attributes:
      images_per_second: Images per second on all cores of this machine; with echo, crops per second.
      cpu_ms: CPU milliseconds per image, over all threads.
    """

    images_per_second: float
    cpu_ms: float
