"""Which TPU, if any; TensorFlow-free until it is asked."""

from __future__ import annotations

import dataclasses
import os
import socket
import urllib.parse
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

LOCAL = "local"  # TPUClusterResolver's name for a TPU in this machine
_CONNECT_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class Tpu:
    """A Cloud TPU.

    Attributes:
      name: Its name, or grpc://address:port, or "local"; None leaves it to the environment (TPU_NAME, TPU_CONFIG,
        KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS).
      zone: E.g. "us-central1-b"; None is the zone of the machine that asks.
      project: None is the project of the machine that asks.
    """

    name: str | None = None
    zone: str | None = None
    project: str | None = None

    @property
    def is_remote(self) -> bool:
        """Whether its hosts are other machines, which cannot open this one's files."""
        return (self.name or os.environ.get("TPU_NAME")) != LOCAL

    def resolver(self) -> Any:
        """Returns the TPUClusterResolver, which has asked Google Cloud for the address.

        Raises:
          ValueError: Google Cloud knows no such TPU, or cannot be asked.
          Unreachable: It is not ready.
        """
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
                self.name if self.is_remote else LOCAL, zone=self.zone, project=self.project
            )
            resolver.master()  # asks Google Cloud, unless the name is an address
        except (RuntimeError, OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            if "is not yet ready" in reason:
                raise Unreachable(reason) from error
            if "Google API client" in reason:
                reason = "its address is asked of Google Cloud, which takes: pip install 'jpeg2tpu[tpu]'"
            raise ValueError(f"cannot find the TPU {self.name!r}: {reason}") from error
        return resolver

    def connect(self) -> Any:
        """Returns the same, of a TPU that answers: TensorFlow itself would wait for one for a day.

        Raises:
          ValueError: As above.
          Unreachable: It is not ready, or its address is silent.
        """
        resolver = self.resolver()
        address = urllib.parse.urlsplit(resolver.master())
        if address.hostname:
            try:
                socket.create_connection((address.hostname, address.port), _CONNECT_SECONDS).close()
            except OSError as error:
                raise Unreachable(f"{address.netloc} does not answer: {error}") from error
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


class Unreachable(ConnectionError):
    """A TPU that is known but not there now."""
