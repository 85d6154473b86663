"""Address of a Cloud TPU: finding it, checking that it answers, and checking the paths that its hosts open."""

from __future__ import annotations

import dataclasses
import os
import socket
import urllib.parse
from collections.abc import Mapping
from typing import Any

LOCAL = "local"  # TPUClusterResolver's name for a TPU in this machine
_CONNECT_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class Tpu:
    """A Cloud TPU.

    Attributes:
      name: Its name, or grpc://address:port, or "local"; None leaves it to the environment (TPU_NAME, TPU_CONFIG,
        KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS).
      zone: Zone, e.g. "us-central1-b"; None for the zone of this machine.
      project: Google Cloud project; None for the project of this machine.
    """

    name: str | None = None
    zone: str | None = None
    project: str | None = None

    @property
    def is_remote(self) -> bool:
        """Whether its hosts are other machines, which cannot open local files of this one."""
        return (self.name or os.environ.get("TPU_NAME")) != LOCAL

    def resolver(self) -> Any:
        """Returns a TPUClusterResolver that has resolved the TPU's address, by a query to Google Cloud if needed.

        Raises:
          ValueError: Google Cloud knows no such TPU, or cannot be queried.
          Unreachable: The TPU is not ready.
        """
        import tensorflow as tf

        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
                self.name if self.is_remote else LOCAL, zone=self.zone, project=self.project
            )
            resolver.master()  # queries Google Cloud, unless the name is an address
        except (RuntimeError, OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            if "is not yet ready" in reason:
                raise Unreachable(reason) from error
            if "Google API client" in reason:
                reason = (
                    "looking up its address needs the Google API client; install it with: pip install 'jpeg2tpu[tpu]'"
                )
            raise ValueError(f"cannot find the TPU {self.name!r}: {reason}") from error
        return resolver

    def connect(self) -> Any:
        """Returns the TPUClusterResolver of a TPU that accepts connections; TensorFlow would wait for a day for one.

        Raises:
          ValueError: See resolver().
          Unreachable: The TPU is not ready, or does not accept a connection within 20 s.
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
    """Checks the paths that a TPU's hosts, which are other machines, will open.

    Args:
      paths: Paths by the names that error messages use for them.

    Raises:
      ValueError: A path is not a gs:// URI.
    """
    for name, path in paths.items():
        if not path.startswith("gs://"):
            raise ValueError(
                f"{name} is {path!r}, which a TPU's hosts cannot open; copy it to a bucket and use gs://BUCKET/…"
            )


class Unreachable(ConnectionError):
    """Error of a TPU that exists but is not ready or does not answer."""
