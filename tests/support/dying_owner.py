"""An owner of shards that is killed when it begins its second shard."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future

from beam_pipelines.conversion.shard_owners import Owner, WrittenShard


class DyingOwner(Owner):
    def begin(self, shard: str) -> Future[WrittenShard]:
        if shard.startswith("train-00002"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().begin(shard)
