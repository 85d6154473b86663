"""Whether hosts can feed what the cores take.

FLOPs and bytes of a step, peaks of the chip ──▶ least seconds a step ──▶ images/s ──▶ host cores like this machine's
"""

from __future__ import annotations

import dataclasses
import math

from estimator_app.findings import COSTS, GOOD, Finding
from estimator_app.topologies import Topology
from tpu_input.benchmark import Cost


@dataclasses.dataclass(frozen=True)
class Pace:
    """How fast a step can be at the most.

    Attributes:
      compute_seconds: A step's arithmetic takes at the least.
      memory_seconds: Its traffic with memory takes at the least.
      images_per_second: That all cores take then.
    """

    compute_seconds: float
    memory_seconds: float
    images_per_second: float

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.memory_seconds)


def pace(flops: float, bytes_accessed: float, topology: Topology, train_batch_size: int) -> Pace:
    """Returns how fast a step can be at the most, by the roofline model (Williams et al. 2009).

    Args:
      flops: Of a core's step.
      bytes_accessed: Of a core's step.
      topology: The TPU.
      train_batch_size: Images of a step over all cores.
    """
    compute, memory = flops / topology.flops, bytes_accessed / topology.bytes_per_second
    return Pace(compute, memory, train_batch_size / max(compute, memory))


def check_feeding(found: Pace, topology: Topology, cost: Cost) -> list[Finding]:
    """Returns what is to be said of the pace and of hosts like this machine.

    Args:
      found: The pace.
      topology: The TPU.
      cost: Of an image of training's input, on this machine.
    """
    bound = "its arithmetic" if found.compute_seconds >= found.memory_seconds else "its memory"
    hosts = "1 host" if topology.num_hosts == 1 else f"each of {topology.num_hosts} hosts"
    of_host, per_core = found.images_per_second / topology.num_hosts, 1000 / cost.cpu_ms
    cores = math.ceil(of_host / per_core)
    needs = f"needs {of_host:,.0f} images/s on {hosts}"
    enough = f"{cores:,} core{'s' * (cores != 1)} at your {per_core:,.0f} images/s a core are enough"
    if cores <= _MOST_VCPUS:
        feeding = Finding(GOOD, f"{needs}: {enough}")
    else:
        more = f"store smaller images (convert --resize_shorter), or take a smaller slice: only {enough}"
        feeding = Finding(COSTS, f"{needs}, more than any host decodes", more)
    steps = f"at most {1 / found.seconds:,.1f} steps/s, as {bound} allows no more"
    return [Finding(GOOD, f"{steps}: {found.images_per_second:,.0f} images/s"), feeding]


# Of the largest host, ct5lp-hightpu-8t: https://cloud.google.com/tpu/docs/v5e
_MOST_VCPUS = 224
