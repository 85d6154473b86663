"""Which TPU, if any; TensorFlow-free until it is asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Tpu:
    """A Cloud TPU.

    Attributes:
      name: Its name, or grpc://address:port; None leaves it to the environment (TPU_NAME).
      zone: E.g. "us-central1-b"; None is the zone of the machine that asks.
      project: None is the project of the machine that asks.
    """

    name: str | None = None
    zone: str | None = None
    project: str | None = None

    def resolver(self) -> Any:
        """Returns the TPUClusterResolver, which has asked Google Cloud for the address.

        Raises:
          ValueError: Google Cloud knows no such TPU, or cannot be asked.
        """
        import tensorflow as tf

        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
                self.name, zone=self.zone, project=self.project
            )
            resolver.master()  # asks Google Cloud, unless the name is an address
        except (RuntimeError, OSError) as error:
            raise ValueError(f"cannot find the TPU {self.name!r}: {error}") from error
        return resolver


def check_paths(paths: Mapping[str, str]) -> None:
    """Checks what a TPU's hosts, which are other machines, will open.

    Args:
      paths: By what the message should call them.

    Raises:
      ValueError: One is no gs:// URI.
    """
    for name, path in paths.items():
        if not path.startswith("gs://"):
            raise ValueError(
                f"{name} is {path!r}, which a TPU's hosts cannot open; copy it to a bucket and give gs://BUCKET/…"
            )
