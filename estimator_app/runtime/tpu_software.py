"""What runs where: TensorFlow × generation of the TPU × software of the TPU VM × trainer; does not import TensorFlow.

    "2.15.1" on v3:4x4 ──find_software()──▶ tpu-vm-tf-2.15.1-pod-se, both trainers
    ROWS ──table()──▶ the table of docs/preflight.md

A TPU VM comes with software of a name such as tpu-vm-tf-2.15.1-pod-pjrt: "pod" for slices of several VMs; the last part
is the interface to the TPU, the older stream executor (se) or PJRT.

Sources of the rows:
  - https://cloud.google.com/tpu/docs/runtimes: the names; v5e, v5p and v6e need PJRT and TensorFlow 2.15.0 or newer; v4
    is as v2 and v3; versions of TensorFlow that have a libtpu, up to 2.18.0;
    base images for other frameworks.
  - https://pypi.org/project/tensorflow-tpu/: 2.16.1, 2.16.2, 2.17.0, 2.17.1, 2.18.0, 2.19.1 and 2.20.0, each with the
    libtpu that it needs.
  - https://keras.io/keras_rs/examples/distributed_embedding_tf/: tensorflow-tpu 2.19.1 on v5p and v6e, with PJRT.
  - https://github.com/tensorflow/tensorflow/issues/90807: TPUEstimator and PJRT, open.
  - https://github.com/tensorflow/tensorflow/issues/82208: the software of 2.17.1 and 2.18.
"""

from __future__ import annotations

import dataclasses

from estimator_app.runtime.topologies import CHIPS, Topology

_OLDER, _NEWER = ("v2", "v3", "v4"), ("v5e", "v5p", "v6e")


@dataclasses.dataclass(frozen=True)
class Software:
    """What some versions of TensorFlow need on some TPUs.

    Attributes:
      versions: (major, minor) of the TensorFlow versions.
      generations: TPUs, by the names of CHIPS.
      runtime: Name of the TPU VM's software, with {version} and {pod}; "" if there is none.
      trainers: Trainers that run there, as far as is documented.
      package: Python package that is installed there, with {version}; "" if TensorFlow is part of the runtime.
      problem: What is known not to work, in a phrase; "" for nothing.
    """

    versions: tuple[tuple[int, int], ...]
    generations: tuple[str, ...]
    runtime: str
    trainers: tuple[str, ...]
    package: str = ""
    problem: str = ""


_RUNTIME = "tpu-vm-tf-{version}{pod}"
_SE, _PJRT = f"{_RUNTIME}-se", f"{_RUNTIME}-pjrt"
_PACKAGE = "tensorflow-tpu=={version}"
_CRASHES = "with PJRT, TPUEstimator is reported to crash (tensorflow/tensorflow#90807, open)"
_TOO_OLD = "documented, but its libtpu is of the time before v6e: prefer 2.19 or 2.20"
_NO_IMPORT = (
    "2.17.1 and 2.18.0 as preinstalled are reported to crash when imported (tensorflow/tensorflow#82208): install the "
    "package"
)
_UNLISTED = "not in the documentation's list of versions"
ROWS = (
    Software(((2, 15),), _OLDER, _SE, ("tpu_estimator", "tf_distribute")),
    Software(((2, 15),), ("v5e", "v5p"), _PJRT, ("tf_distribute",), problem=_CRASHES),
    Software(((2, 15),), ("v6e",), _PJRT, ("tf_distribute",), problem=f"{_TOO_OLD}; {_CRASHES}"),
    Software(((2, 16),), _OLDER, _SE, ("tf_distribute",)),
    Software(((2, 16),), _NEWER, _PJRT, ("tf_distribute",)),
    Software(((2, 17), (2, 18)), (*_OLDER, *_NEWER), _PJRT, ("tf_distribute",), _PACKAGE, _NO_IMPORT),
    Software(((2, 19), (2, 20)), ("v4",), "tpu-ubuntu2204-base", ("tf_distribute",), _PACKAGE, _UNLISTED),
    Software(((2, 19), (2, 20)), ("v5e",), "v2-alpha-tpuv5-lite", ("tf_distribute",), _PACKAGE, _UNLISTED),
    Software(((2, 19), (2, 20)), ("v5p",), "v2-alpha-tpuv5", ("tf_distribute",), _PACKAGE),
    Software(((2, 19), (2, 20)), ("v6e",), "v2-alpha-tpuv6e", ("tf_distribute",), _PACKAGE),
)


def find_software(version: str, topology: Topology) -> Software | None:
    """Returns the row of a TensorFlow version, such as "2.15.1", on a TPU; None if none is documented.

    The names of its runtime and its package are for this version and this slice.
    """
    numbers = tuple(map(int, version.split(".")[:2]))
    pod = "-pod" if topology.num_hosts > 1 else ""
    for row in ROWS:
        if numbers in row.versions and topology.generation in row.generations:
            runtime, package = (text.format(version=version, pod=pod) for text in (row.runtime, row.package))
            return dataclasses.replace(row, runtime=runtime, package=package)
    return None


def newest() -> str:
    """Returns the newest version of TensorFlow, such as "2.20", that runs on any TPU."""
    return ".".join(map(str, max(version for row in ROWS for version in row.versions)))


def table() -> str:
    """Returns ROWS as a Markdown table."""
    columns = ("TensorFlow", "TPU", "software of the TPU VM", "install there", "trainers", "known")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in ROWS:
        cells = (
            ", ".join(f"{major}.{minor}" for major, minor in row.versions),
            ", ".join(name for name in CHIPS if name in row.generations),
            f"`{row.runtime.format(version='x.y.z', pod='[-pod]')}`",
            f"`{row.package.format(version='x.y.z')}`" if row.package else "nothing",
            ", ".join(row.trainers),
            row.problem,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
