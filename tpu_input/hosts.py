"""Which examples an input host reads: pure arithmetic over shards and hosts; TensorFlow-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_input.schema import Shard


@dataclasses.dataclass(frozen=True)
class Host:
    """One input machine.

    Attributes:
      index: 0-based.
      num_hosts: How many there are.
      batches_per_step: How many batches a training or evaluation step takes from this host.
    """

    index: int = 0
    num_hosts: int = 1
    batches_per_step: int = 1

    @classmethod
    def from_params(cls, params: Mapping[str, Any], run_config: Any = None) -> Host:
        """Returns the host that TPUEstimator calls an input_fn for.

        Args:
          params: The input_fn's; "context" is there on a TPU alone.
          run_config: The tpu.RunConfig, which tells whether every replica takes a batch of its own (PER_HOST_V2) or
            the host's one batch is divided (PER_HOST_V1). None means PER_HOST_V2.
        """
        if "context" not in params:
            return cls()
        _, index, num_hosts, replicas = params["context"].current_input_fn_deployment()
        if run_config is None:
            return cls(index, num_hosts, replicas)
        mode = run_config.tpu_config.per_host_input_for_training  # an enum; also True or False for V1 and PER_SHARD
        divided = mode is True or getattr(mode, "name", "") in ("PER_HOST_V1", "BROADCAST")
        return cls(index, num_hosts, 1 if divided else replicas)

    def shards(self, shards: Sequence[Shard]) -> list[Shard]:
        """Returns the shards that this host opens: its own, or all where there are fewer shards than hosts."""
        return list(shards) if self.reads_by_record(shards) else list(shards[self.index :: self.num_hosts])

    def reads_by_record(self, shards: Sequence[Shard]) -> bool:
        """Returns whether this host takes every num_hosts-th record of all shards."""
        return len(shards) < self.num_hosts

    def num_examples(self, shards: Sequence[Shard]) -> int:
        """Returns how many examples of `shards` are this host's."""
        total = sum(shard.num_examples for shard in self.shards(shards))
        if self.reads_by_record(shards):
            return (total - self.index + self.num_hosts - 1) // self.num_hosts
        return total
