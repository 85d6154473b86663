"""TPU topologies: TPU VMs and cores of a slice, and the peak performance of a core; does not import TensorFlow.

"v5e:4x4" ──find_topology()──▶ 4 TPU VMs × 4 cores of 197 TFLOP/s, 819 GB/s, on 2 hosts

A core is a device of TensorFlow and of JAX, and a replica of TPUEstimator: half a chip of v2, v3 and TPU7x, one chip of
other generations, whose two TensorCores (v4, v5p) work as one:
https://cloud.google.com/tpu/docs/system-architecture-tpu-vm

A TPU VM is what TensorFlow calls a host: a separate machine with its own process, which calls the input_fn and feeds
its chips. Hosts in Google's tables are physical machines: a host of v5e and v6e has 8 chips. A slice of one host can
have all of them in one VM; in every larger slice, two VMs of 4 chips share a host. So v5e:4x4 is 2 hosts and 4 TPU VMs.
"""

from __future__ import annotations

import dataclasses
import fractions
import math
import re

from tpu_input.command_line.dataclass_options import check_choice


@dataclasses.dataclass(frozen=True)
class Chip:
    """A generation of TPUs.

    Attributes:
      cores: Cores per chip, as TensorFlow and JAX count them.
      hbm_gib: Main memory of a chip, which its cores share equally, in GiB.
      flops: Peak floating-point operations per second of a chip, in bfloat16.
      bytes_per_second: Peak memory bandwidth of a chip.
      vcpus: vCPUs of a TPU VM by its number of chips. A slice that fits into one VM is one VM, larger ones consist of
        VMs of 4 chips.
      chips_per_host: Chips per host, as Google's tables count hosts.
      slices: Available slices, as sides in chips, smallest first.
      pod: Chips of the largest slice, for generations that also have slices whose sides are multiples of 4 in ascending
        order; 0 for others.
    """

    cores: int
    hbm_gib: int
    flops: float
    bytes_per_second: float
    vcpus: dict[int, int]
    chips_per_host: int
    slices: tuple[str, ...]
    pod: int = 0

    @property
    def dimensions(self) -> int:
        """Number of dimensions of the interconnect of its chips."""
        return self.slices[0].count("x") + 1

    def has_slice(self, sides: tuple[int, ...]) -> bool:
        """Returns whether there is a slice with these sides, in chips."""
        cubes = all(side % 4 == 0 for side in sides) and list(sides) == sorted(sides) and math.prod(sides) <= self.pod
        return "x".join(map(str, sides)) in self.slices or (len(sides) == self.dimensions and cubes)


# Sources of memory, peaks, slices and hosts: https://cloud.google.com/tpu/docs/v3, v4, v5e, v5p and v6e; the page of
# v6e has a column for hosts and one for VMs. VMs of v5e slices: the types for training, v5litepod-16 to -256, consist
# of ct5lp-hightpu-4t VMs. v2: Jouppi et al. 2020, "A Domain Specific Supercomputer for Training Deep Neural Networks".
# TPU7x: https://docs.cloud.google.com/tpu/docs/tpu7x, read 2026-11-28; it has two TensorCores, which libtpu and JAX
# take for two devices, and slices of up to a pod of 9,216 chips, for JAX and not for TensorFlow.
# vCPUs: of the machine types ct3-hightpu-4t (v2 has as many), ct4p-, ct5lp-, ct5p-hightpu-*t and
# ct6e-standard-*t; for a VM of 8 chips of v6e, the smaller of the two numbers that are published:
# https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
_SMALL_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
_LITE = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CHIPS = {
    "v2": Chip(2, 16, 46e12, 700e9, {4: 96}, 4, ("2x2", "4x4", "8x8", "8x16", "16x16")),
    "v3": Chip(2, 32, 123e12, 900e9, {4: 96}, 4, ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32")),
    "v4": Chip(1, 32, 275e12, 1200e9, {4: 240}, 4, _SMALL_CUBES, pod=4096),
    "v5e": Chip(1, 16, 197e12, 819e9, {1: 24, 4: 112, 8: 224}, 8, _LITE),
    "v5p": Chip(1, 95, 459e12, 2765e9, {4: 208}, 4, _SMALL_CUBES, pod=6144),
    "v6e": Chip(1, 32, 918e12, 1638e9, {1: 44, 4: 180, 8: 180}, 8, _LITE),
    "tpu7x": Chip(2, 192, 2307e12, 7380e9, {4: 224}, 4, _SMALL_CUBES, pod=9216),
}
_CHIPS_OF_VM = 4  # in a slice of several VMs


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice of TPUs.

    Attributes:
      name: Name that libtpu uses, e.g. "v5e:2x2".
      chip: Generation of its chips.
      num_hosts: Number of TPU VMs, which TensorFlow calls hosts.
      cores_per_host: Cores (replicas) per TPU VM.
    """

    name: str
    chip: Chip
    num_hosts: int
    cores_per_host: int

    @property
    def generation(self) -> str:
        """Name of its chips' generation, such as "v5e"."""
        return self.name.partition(":")[0]

    @property
    def num_cores(self) -> int:
        return self.num_hosts * self.cores_per_host

    @property
    def machines(self) -> fractions.Fraction:
        """Number of hosts, as Google's tables count them."""
        return fractions.Fraction(self.num_cores // self.chip.cores, self.chip.chips_per_host)

    @property
    def vcpus(self) -> int:
        """Virtual processors of each TPU VM."""
        return self.chip.vcpus[self.cores_per_host // self.chip.cores]

    @property
    def vms(self) -> str:
        """Number of TPU VMs, as text."""
        return "1 TPU VM" if self.num_hosts == 1 else f"{self.num_hosts} TPU VMs"

    @property
    def flops(self) -> float:
        """Peak floating-point operations per second of a core, in bfloat16."""
        return self.chip.flops / self.chip.cores

    @property
    def bytes_per_second(self) -> float:
        """Peak memory bandwidth of a core."""
        return self.chip.bytes_per_second / self.chip.cores

    @property
    def memory_bytes(self) -> int:
        """Main memory of a core."""
        return self.chip.hbm_gib * 2**30 // self.chip.cores

    def __str__(self) -> str:
        cores = f"{self.name}, {self.vms} × {self.cores_per_host} core{'s' * (self.cores_per_host != 1)}"
        return (
            cores if self.machines == self.num_hosts else f"{cores} on {self.machines} host{'s' * (self.machines > 1)}"
        )


# Types of accelerators count these cores per chip, whatever TensorFlow and JAX make of them.
_CORES_OF_TYPES = {"v2": 2, "v3": 2, "v4": 2, "v5p": 2, "v5litepod": 1, "v6e": 1}


def _slice_of_type(name: str) -> str:
    """Returns the topology of a type of accelerator, such as v6e:2x4 of v6e-8; "" if it is none."""
    kind, _, count = name.partition("-")
    generation = "v5e" if kind == "v5litepod" else kind
    if kind not in _CORES_OF_TYPES or not count.isdecimal():
        return ""
    num_chips = int(count) / _CORES_OF_TYPES[kind]
    slices = (sides for sides in CHIPS[generation].slices if math.prod(map(int, sides.split("x"))) == num_chips)
    return next((f"{generation}:{sides}" for sides in slices), "")


def find_topology(name: str) -> Topology:
    """Returns the slice of a name: a generation, and its number of chips along each dimension, as in "v5e:2x2".

    Raises:
      ValueError: There is no such slice.
    """
    generation, _, sides = name.partition(":")
    if slice_name := _slice_of_type(name):
        raise ValueError(f"{name!r} is the type of an accelerator; as a topology it is {slice_name!r}")
    check_choice("the topology's generation", generation, CHIPS)
    chip = CHIPS[generation]
    example = f"{generation}:{'x'.join('221'[: chip.dimensions])}"
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){%d}" % (chip.dimensions - 1), sides):  # noqa: UP031
        raise ValueError(f"topology must have {chip.dimensions} dimensions in chips, as in {example!r}, got {name!r}")
    if not chip.has_slice(tuple(map(int, sides.split("x")))):
        cubes = f", or multiples of 4 in ascending order, up to {chip.pod:,} chips" if chip.pod else ""
        raise ValueError(f"there is no slice {name!r}; {generation} has {', '.join(chip.slices)}{cubes}")
    num_chips = math.prod(map(int, sides.split("x")))
    chips_per_vm = num_chips if num_chips in chip.vcpus else _CHIPS_OF_VM
    return Topology(name, chip, num_chips // chips_per_vm, chips_per_vm * chip.cores)
