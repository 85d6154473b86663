"""Estimate of whether the CPUs of the TPU VMs can deliver images as fast as the TPU cores consume them.

FLOPs and bytes of a step, peaks of the chip ──▶ minimum seconds per step ──▶ images/s ──▶ CPU cores like this machine's
"""

from __future__ import annotations

import dataclasses
import math

from estimator_app.preflight.findings import COSTS, GOOD, Finding
from estimator_app.runtime.topologies import Topology
from tpu_input.benchmark.cost import Cost


@dataclasses.dataclass(frozen=True)
class Pace:
    """Upper bound of the training speed.

    Attributes:
      compute_seconds: Minimum time of a step's arithmetic.
      memory_seconds: Minimum time of a step's memory traffic.
      images_per_second: Maximum number of images that all cores together consume per second.
    """

    compute_seconds: float
    memory_seconds: float
    images_per_second: float

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.memory_seconds)


def pace(flops: float, bytes_accessed: float, topology: Topology, train_batch_size: int) -> Pace:
    """Returns the upper bound of the training speed by the roofline model (Williams et al. 2009).

    Args:
      flops: Floating-point operations per step and core.
      bytes_accessed: Bytes of memory traffic per step and core.
      topology: The TPU.
      train_batch_size: Images per step over all cores.
    """
    compute, memory = flops / topology.flops, bytes_accessed / topology.bytes_per_second
    return Pace(compute, memory, train_batch_size / max(compute, memory))


LESS_INPUT = "store smaller images (convert --resize_shorter), or use a smaller slice"


def check_feeding(
    speed: Pace, topology: Topology, cost: Cost, batched: float | None, less: str = LESS_INPUT
) -> list[Finding]:
    """Returns findings about the training speed, and about the input of TPU VMs with CPUs like this machine's.

    Args:
      speed: Upper bound of the training speed.
      topology: The TPU.
      cost: Cost per image of the training input, measured on this machine.
      batched: Images per second that one thread puts into batches on this machine; None if several threads do.
      less: Advice for an input that is too slow.
    """
    bound = "arithmetic" if speed.compute_seconds >= speed.memory_seconds else "memory bandwidth"
    vm_rate, per_core = speed.images_per_second / topology.num_hosts, 1000 / cost.cpu_ms
    steps = f"at most {1 / speed.seconds:,.1f} steps/s, limited by {bound}"
    return [
        Finding(GOOD, f"{steps}: {speed.images_per_second:,.0f} images/s"),
        _feeding(vm_rate, per_core, batched, topology, less),
    ]


def _feeding(vm_rate: float, per_core: float, batched: float | None, topology: Topology, less: str) -> Finding:
    """Returns a finding about the cores that a TPU VM needs for `vm_rate` images/s; here, a core gives `per_core`."""
    cores = math.ceil(vm_rate / per_core)
    vms = topology.vms if topology.num_hosts == 1 else f"each of {topology.vms}"
    needs = f"the TPU needs {vm_rate:,.0f} images/s from {vms}"
    takes = f"{cores:,} core{'s' * (cores != 1)} at this machine's {per_core:,.0f} images/s per core"
    if cores > topology.vcpus:
        return Finding(COSTS, f"{needs}: that takes {takes}, but a VM has {topology.vcpus} vCPUs", less)
    good = f"{needs}: that takes {takes}, and a VM has {topology.vcpus} vCPUs"
    if batched is None:
        return Finding(GOOD, good)
    if vm_rate > batched:
        one = f"batches are put together in one thread, at most {batched:,.0f} images/s on this machine"
        return Finding(COSTS, f"{needs}: {takes} can decode that, but {one}", less)
    one = f"one thread puts up to {batched:,.0f} images/s into batches on this machine"
    return Finding(GOOD, f"{good}; {one}")
