"""What preflight checks of a run under JAX: the input of each TPU VM, and the functions that train.py calls.

TrainConfig, batch ──JaxStep──▶ another process: make_step(devices of the slice, …) ──▶ JaxRun.train_step, its arguments
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh

from estimator_app.config import TrainConfig, surprises
from estimator_app.preflight.compiler import JaxStep
from estimator_app.preflight.findings import COSTS, GOOD, UNKNOWN, Finding, Part
from estimator_app.preflight.input import Feed, check_evaluation, check_order, check_training, reading, unaugmented
from estimator_app.preflight.trainer_checks import StepMaker, TrainerChecks
from estimator_app.runtime.topologies import Topology
from estimator_app.trainers.jax.batches import NAMES, BatchReader, check_divisible, divided_over, whole_on
from estimator_app.trainers.jax.mixing import draw_mixing
from estimator_app.trainers.jax.state import JaxRun, fed_input, make_run
from tpu_input import EvalSource, Manifest, Order, TrainSource, eval_steps
from tpu_input.benchmark.cost import Cost
from tpu_input.config import InputConfig

_MODES = ("training", "evaluation")
Example = Mapping[str, tuple[Sequence[int], str]]  # shape and dtype of each part of an example, by its name


class JaxChecks(TrainerChecks):
    """The checks of a run under JAX, whose steps are compiled for all cores of the slice together."""

    def __init__(self, manifest: Manifest, config: TrainConfig, topology: Topology, model_dir: str) -> None:
        """Checks the batches, and that the network can be trained, on a device of this machine.

        Raises:
          ValueError: `train` would refuse the run with the same message.
        """
        config = dataclasses.replace(config, input=fed_input(config.input))
        super().__init__(manifest, config, topology, model_dir)
        devices = AbstractMesh((topology.num_cores,), ("data",))
        check_divisible("--train_batch_size", config.train_batch_size, devices)
        check_divisible("--eval_batch_size", config.eval_batch_size, devices)
        jax.config.update("jax_platforms", "cpu")  # a TPU or GPU of this machine is not needed, and may be in use
        run = make_run(config, model_dir, devices=jax.devices()[:1])
        jax.eval_shape(run.train_step, *_arguments(run, "training", run.mesh.size, self._example))

    @staticmethod
    def compiler_python() -> str | None:
        if importlib.util.find_spec("libtpu") is None:
            raise ValueError(
                "preflight --trainer=jax needs the TPU's compiler, but libtpu is not installed; use "
                "pip install 'jpeg2tpu[preflight]', or name a Python that has it with --compiler"
            )
        return sys.executable

    def software(self) -> Finding:
        return Finding(
            UNKNOWN,
            f"JAX {jax.__version__} on {self.topology.name}: this trainer has not run on a TPU yet; memory and speed "
            "are what the TPU's compiler says",
        )

    def parts(self) -> Iterator[Part]:
        yield Part("input", tuple(self._input()))

    def steps(self) -> Mapping[str, StepMaker]:
        config, cores = self.config, self.topology.num_cores
        sizes = dict(zip(_MODES, (config.train_batch_size, config.eval_batch_size), strict=True))
        text = config.to_json({})

        def source(mode: str, batch: int) -> JaxStep:
            return JaxStep(f"{__name__}:{make_step.__name__}", (text, mode, batch, self._example))

        return {mode: StepMaker(size // cores, functools.partial(source, mode)) for mode, size in sizes.items()}

    def input_cost(self) -> tuple[Cost, float | None]:
        rounds = [self._input_round() for _ in range(_ROUNDS)]
        return Cost(*map(statistics.median, zip(*rounds, strict=True))), None

    @functools.cached_property
    def _example(self) -> Example:
        source = TrainSource(self.manifest, self.config.input, self.config.train_batch_size)
        arrays = {name: np.asarray(source[0][name]) for name in NAMES}
        return {name: (array.shape, array.dtype.name) for name, array in arrays.items()}

    def _input(self) -> Iterator[Finding]:
        manifest, config, hosts = self.manifest, self.config, self.topology.num_hosts
        options, input_config = config.input, unaugmented(config.input)
        batch = config.train_batch_size // self.topology.num_cores
        parts = ", ".join(f"{name} {[batch, *shape]} {dtype}" for name, (shape, dtype) in self._example.items())
        yield Finding(GOOD, f"input per core: {parts}")
        with reading(manifest, "train") as failed:
            host_batch = config.train_batch_size // hosts
            sources = [
                TrainSource(manifest, input_config, host_batch, host=host, num_hosts=hosts) for host in range(hosts)
            ]
            yield check_training(
                [self._feed(source, host_batch) for source in sources], manifest.split("train").num_examples
            )
            order = Order.of(
                manifest, "train", config.train_batch_size, options.seed, options.block_records, options.sampling
            )
            yield check_order(order, hosts)
        yield from failed
        with reading(manifest, config.split) as failed:
            feeds = [self._eval_feed(input_config, host, hosts) for host in range(hosts)]
            steps = eval_steps(manifest, config.split, config.eval_batch_size, hosts)
            alone = self._eval_feed(input_config, 0, 1).make
            yield check_evaluation(feeds, steps, manifest.split(config.split).num_examples, alone)
        yield from failed
        for surprise in surprises(config, manifest):
            yield Finding(COSTS, *surprise.split("; ", 1))

    def _eval_feed(self, input_config: InputConfig, host: int, hosts: int) -> Feed:
        host_batch = self.config.eval_batch_size // hosts
        source = EvalSource(self.manifest, input_config, host_batch, self.config.split, host, hosts)
        return self._feed(source, host_batch)

    def _feed(self, source: Any, host_batch: int) -> Feed:
        """Returns the input of a host that feeds `host_batch` examples per step, in parts, to take little memory."""
        part = math.gcd(host_batch, _BATCH)
        return Feed(functools.partial(self._batches, source, part, len(source) // part), host_batch // part)

    def _batches(self, source: Any, batch_size: int, num_batches: int) -> Iterator[Any]:
        """Yields batches (features, label)."""
        with contextlib.closing(BatchReader(source, batch_size, num_batches, self.manifest.path)) as reader:
            for batch in reader:
                features = dict(batch.arrays)
                yield features, features.pop("label")

    def _input_round(self) -> tuple[float, float]:
        """Returns (images per second, CPU milliseconds per image) of training's input without the first batch."""
        batches = -(-_IMAGES // _BATCH)
        source = TrainSource(self.manifest, self.config.input, _BATCH)
        reader = self._batches(source, _BATCH, batches + 1)
        next(reader)
        cpu, start = time.process_time(), time.perf_counter()
        images = _BATCH * sum(1 for _ in reader)
        return images / (time.perf_counter() - start), (time.process_time() - cpu) / images * 1000


# Same values as in jpeg2tpu benchmark.
_IMAGES, _ROUNDS, _BATCH = 2000, 3, 64


def make_step(
    devices: Sequence[Any], config: str, mode: str, batch: int, example: Example
) -> tuple[Any, tuple[Any, ...]]:
    """Returns a function that train.py calls in each step, and the shapes of its arguments, over devices.

    Called in the process of the TPU's compiler, see libtpu_program.py.

    Args:
      devices: Devices of a slice.
      config: The run's TrainConfig as JSON.
      mode: "training" or "evaluation".
      batch: Images per device.
      example: Shapes and dtypes of an example.
    """
    from estimator_app.model.keras_library import require_backend

    require_backend("jax")
    run = make_run(TrainConfig.from_json(config, "the run's options"), "", devices=devices)
    step = run.train_step if mode == "training" else run.eval_step
    return step, _arguments(run, mode, batch * len(devices), example)


def _arguments(run: JaxRun, mode: str, batch_size: int, example: Example) -> tuple[Any, ...]:
    """Returns the shapes of the arguments of a run's train_step or eval_step, over its devices."""
    replicated, divided = whole_on(run.mesh), divided_over(run.mesh)

    def everywhere(values: Any) -> Any:
        return jax.tree.map(
            lambda value: jax.ShapeDtypeStruct(np.shape(value), value.dtype, sharding=replicated), values
        )

    state = run.initial()
    batch = {
        name: jax.ShapeDtypeStruct((batch_size, *shape), dtype, sharding=divided)
        for name, (shape, dtype) in example.items()
    }
    if mode == "evaluation":
        return everywhere(state.evaluated), batch
    return everywhere(state), batch, everywhere(draw_mixing(run.config, 0))
