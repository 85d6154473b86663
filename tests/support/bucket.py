"""A bucket on this machine: `make bucket` starts it and prints what other terminals need to use it as gs://bucket.

It is the emulator of cloud.py behind the proxy of gs.py, so that Google's client and TensorFlow both get there.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import tempfile
from pathlib import Path

from support.cloud import running_cloud
from support.gs import running_gs


def main() -> None:
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the emulator is to end with this process
        signal.signal(ending, signal.default_int_handler)
    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory() as folder,
        running_cloud(os.environ["FAKE_GCS_SERVER"], Path(folder)) as cloud,
        running_gs(cloud, Path(folder)) as gs,
    ):
        cloud.client().create_bucket("bucket")
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in gs.variables().items()))
        print("# Paste these lines into other terminals. gs://bucket is empty; Ctrl-C ends it.")
        print(
            "# All HTTPS then goes to this bucket: run pip and other downloads in a terminal without them.", flush=True
        )
        signal.pause()


if __name__ == "__main__":
    main()
