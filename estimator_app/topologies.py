"""Which hosts and cores a slice of TPUs has, and what a core can do; TensorFlow-free.

"v5e:4x4" ──find_topology()──▶ 4 hosts × 4 cores of 197 TFLOP/s, 819 GB/s

A core is what TensorFlow takes for a device and TPUEstimator for a replica: half a chip of v2 and v3, a chip of others,
whose two TensorCores (v4, v5p) work as one: https://cloud.google.com/tpu/docs/system-architecture-tpu-vm
"""

from __future__ import annotations

import dataclasses
import math
import re

from estimator_app.choices import check_choice


@dataclasses.dataclass(frozen=True)
class Chip:
    """A generation of TPUs.

    Attributes:
      dimensions: In which its chips are wired.
      cores: That TensorFlow sees of a chip.
      flops: Most floating-point operations of a chip a second, in bfloat16.
      bytes_per_second: Most that a chip's memory delivers.
      hosts_up_to: Chips of the largest slice that is one host; of larger ones each host has 4.
    """

    dimensions: int
    cores: int
    flops: float
    bytes_per_second: float
    hosts_up_to: int = 4


# https://cloud.google.com/tpu/docs/v3, v4, v5e, v5p and v6e; v2: Jouppi et al. 2020, "A Domain Specific Supercomputer
# for Training Deep Neural Networks". Hosts: the VMs of those pages, of which one of 8 chips is the largest.
CHIPS = {
    "v2": Chip(2, 2, 46e12, 700e9),
    "v3": Chip(2, 2, 123e12, 900e9),
    "v4": Chip(3, 1, 275e12, 1200e9),
    "v5e": Chip(2, 1, 197e12, 819e9, hosts_up_to=8),
    "v5p": Chip(3, 1, 459e12, 2765e9),
    "v6e": Chip(2, 1, 918e12, 1638e9, hosts_up_to=8),
}
_CHIPS_OF_HOST = 4


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice of TPUs.

    Attributes:
      name: As libtpu knows it, e.g. "v5e:2x2".
      chip: Of which generation.
      num_hosts: Machines that feed it.
      cores_per_host: Replicas that each of them feeds.
    """

    name: str
    chip: Chip
    num_hosts: int
    cores_per_host: int

    @property
    def num_cores(self) -> int:
        return self.num_hosts * self.cores_per_host

    @property
    def hosts(self) -> str:
        """How many, in words."""
        return "1 host" if self.num_hosts == 1 else f"{self.num_hosts} hosts"

    @property
    def flops(self) -> float:
        """Most floating-point operations of a core a second, in bfloat16."""
        return self.chip.flops / self.chip.cores

    @property
    def bytes_per_second(self) -> float:
        """Most that memory delivers to a core."""
        return self.chip.bytes_per_second / self.chip.cores

    def __str__(self) -> str:
        return f"{self.name}, {self.hosts} × {self.cores_per_host} core{'s' * (self.cores_per_host != 1)}"


def find_topology(name: str) -> Topology:
    """Returns the slice of that name: a generation, and its chips along each dimension, as in "v5e:2x2".

    Raises:
      ValueError: There is none.
    """
    generation, _, sides = name.partition(":")
    check_choice("the topology's generation", generation, CHIPS)
    chip = CHIPS[generation]
    example = f"{generation}:{'x'.join('221'[: chip.dimensions])}"
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){%d}" % (chip.dimensions - 1), sides):  # noqa: UP031
        raise ValueError(f"topology must have {chip.dimensions} sides in chips, as in {example!r}, got {name!r}")
    num_chips = math.prod(map(int, sides.split("x")))
    of_host = num_chips if num_chips <= chip.hosts_up_to else _CHIPS_OF_HOST
    if num_chips % of_host:
        raise ValueError(f"topology {name!r} has {num_chips} chips, which hosts of {of_host} cannot share")
    return Topology(name, chip, num_chips // of_host, of_host * chip.cores)
