"""Input hosts, and the positions of a step that each of them feeds; TensorFlow-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tpu_input.command_line.dataclass_options import checked


def check_params(params: Any) -> int:
    """Returns the "batch_size" of the params that an input_fn is called with.

    Raises:
      ValueError: params is not a mapping with a positive integer "batch_size".
    """
    if not isinstance(params, Mapping) or "batch_size" not in params:
        raise ValueError(f'params must be a mapping with "batch_size", e.g. {{"batch_size": 128}}, got {params!r}')
    batch_size: int = checked(params["batch_size"], int, "batch_size")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
    return batch_size


def check_steps(start_step: int, end_step: int | None = None) -> None:
    """Raises ValueError if an input cannot train from start_step to before end_step, None being without an end."""
    if start_step < 0 or (end_step is not None and end_step <= start_step):
        raise ValueError(f"start_step must be at least 0 and end_step after it, got {start_step!r} and {end_step!r}")


@dataclasses.dataclass(frozen=True)
class Host:
    """Input host.

    Attributes:
      index: Number of the host, from 0.
      num_hosts: Number of input hosts.
      batches_per_step: Number of batches that a training or evaluation step takes from this host.
      cores_per_batch: Number of replicas that one batch is divided among.
    """

    index: int = 0
    num_hosts: int = 1
    batches_per_step: int = 1
    cores_per_batch: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.num_hosts:
            raise ValueError(f"host must be at least 0 and below num_hosts {self.num_hosts!r}, got {self.index!r}")

    @classmethod
    def from_params(cls, params: Mapping[str, Any], run_config: Any = None) -> Host:
        """Returns the host that an input_fn is called for.

        Args:
          params: The params of the input_fn: "host" and "num_hosts" if the caller sets them, with "batches_per_step" if
            it is not 1; or TPUEstimator's "context", which exists only on a TPU; or neither, for a single host.
          run_config: The tpu.RunConfig, which says whether every replica takes its own batch (PER_HOST_V2), one batch
            per host is divided among the replicas (PER_HOST_V1), or one host's complete batch goes to every replica
            (BROADCAST). None means PER_HOST_V2.

        Raises:
          ValueError: "host" comes without "num_hosts", or the RunConfig asks for PER_SHARD_V1.
        """
        if ("host" in params) != ("num_hosts" in params):
            raise ValueError('params need both "host" and "num_hosts", or neither; got ' + ", ".join(sorted(params)))
        if "host" in params:
            return cls(params["host"], params["num_hosts"], params.get("batches_per_step", 1))
        if "context" not in params:
            return cls()
        mode = _PER_HOST_V2 if run_config is None else run_config.tpu_config.per_host_input_for_training
        if isinstance(mode, bool):  # the older form of the setting
            mode = _PER_HOST_V1 if mode else _PER_SHARD_V1
        if mode == _PER_SHARD_V1:
            raise ValueError(
                "per_host_input_for_training is PER_SHARD_V1, which takes tensors, not a tf.data.Dataset; "
                "set it to tf.compat.v1.estimator.tpu.InputPipelineConfig.PER_HOST_V2"
            )
        _, index, num_hosts, replicas = params["context"].current_input_fn_deployment()
        batches = 1 if mode in (_PER_HOST_V1, _BROADCAST) else replicas
        return cls(index, num_hosts, batches, replicas if mode == _PER_HOST_V1 else 1)

    def lanes(self, batch_size: int) -> int:
        """Returns the number of examples that all hosts together take in a step, with batches of this size."""
        return self.num_hosts * self.batches_per_step * batch_size

    def positions(self, batch_size: int) -> range:
        """Returns the positions of a step's examples that this host feeds, of lanes()."""
        count = self.batches_per_step * batch_size
        return range(self.index * count, (self.index + 1) * count)


def own_share(num_examples: int, host: Host) -> range:
    """Returns the numbers of the records that a host evaluates; two hosts differ by one record at most."""
    return range(num_examples * host.index // host.num_hosts, num_examples * (host.index + 1) // host.num_hosts)


# tf.compat.v1.estimator.tpu.InputPipelineConfig, whose values are plain integers.
_PER_SHARD_V1, _PER_HOST_V1, _PER_HOST_V2, _BROADCAST = 1, 2, 3, 4
