"""Checks of a training run for a TPU, without a TPU: runs the parts in the order of their dependencies.

manifest + TrainConfig + Topology
    ──graph──▶ calls of input_fn ──input──▶ which host sees which examples
    ──xla──▶ HLO ──compile──▶ FLOPs, bytes, memory ──feeding──▶ images/s that the VMs must deliver
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig, surprises
from estimator_app.preflight.compile import check_compile
from estimator_app.preflight.compiler import Compiler, Program
from estimator_app.preflight.feeding import check_feeding, pace
from estimator_app.preflight.findings import COSTS, FAILS, GOOD, UNKNOWN, Finding, Part
from estimator_app.preflight.input import Feed, check_evaluation, check_order, check_training, unaugmented
from estimator_app.preflight.specs import described, misfits
from estimator_app.preflight.step import Step, estimator_step, strategy_step
from estimator_app.preflight.xla import Hlo, check_hlo, lower
from estimator_app.runtime.record_errors import named
from estimator_app.runtime.tensorflow_startup import one_line
from estimator_app.runtime.topologies import Topology
from tpu_input import Manifest, Order, eval_steps, make_eval_input_fn, make_train_input_fn, params_from_context
from tpu_input.benchmark.measure import batching_rate, whole_cost
from tpu_input.pipeline.device import resolved_layout

Calls = dict[str, Sequence[tuple[Any, Any]]]  # (params, config) of an input_fn for each host, by mode


def preflight(
    manifest: Manifest, config: TrainConfig, topology: Topology, compiler: Compiler | None, search: bool = False
) -> Iterator[Part]:
    """Yields the findings about a run on a TPU, each part as soon as it is complete.

    Args:
      manifest: Manifest of the dataset.
      config: Options of the run.
      topology: The TPU.
      compiler: Compiler for the topology; None skips the checks that need it.
      search: Whether to search for the largest batch size that fits even if the configured one fits.
    """
    # Cache and service use memory and CPUs of the TPU's hosts and of the service's machines, not of this one; a core is
    # fed the same elements without them.
    config = dataclasses.replace(config, input=dataclasses.replace(config.input, cache=None, service=None))
    undivided = list(_undivided(config, topology))
    if undivided:
        yield Part("graph", tuple(undivided))
        return
    with tempfile.TemporaryDirectory() as model_dir:
        look = _by_estimator if config.trainer == "tpu_estimator" else _by_strategy
        found, calls = look(manifest, config, topology, model_dir)
        yield Part("graph", tuple(found))
        yield Part("input", tuple(_input(manifest, config, topology, calls)))
        spec = functools.partial(_spec, manifest, config)
        per_core = config.train_batch_size // topology.num_cores
        found, hlo = check_hlo(lambda: make_step(config, model_dir, spec(per_core)))
        yield Part("xla", tuple(found))
        if compiler and hlo:
            layout = resolved_layout(config.input.layout, per_core)
            compiled, program = check_compile(
                compiler,
                hlo.serialized,
                per_core,
                topology,
                layout,
                lambda batch: lowered(config, model_dir, spec(batch)),
                search,
            )
            compiled = dataclasses.replace(
                compiled, findings=(*compiled.findings, *_evaluation_memory(config, topology))
            )
        else:
            compiled, program = _not_compiled(hlo), None
        yield compiled
        yield _feeding(program, manifest, config, topology)


def _undivided(config: TrainConfig, topology: Topology) -> Iterator[Finding]:
    for name in ("train_batch_size", "eval_batch_size"):
        size, cores = getattr(config, name), topology.num_cores
        if size % cores:
            near = " or ".join(str(size // cores * cores + more) for more in (0, cores) if size // cores * cores + more)
            yield Finding(FAILS, f"--{name}={size} cannot be divided evenly among {cores} cores", f"use {near}")


def _by_estimator(
    manifest: Manifest, config: TrainConfig, topology: Topology, model_dir: str
) -> tuple[list[Finding], Calls]:
    """Returns the findings about TPUEstimator's graphs, and the arguments of its input_fn calls by mode."""
    from estimator_app.preflight.graph import check_build, cluster
    from estimator_app.trainers.tpu_estimator.model_fn import make_estimator

    input_fns = {
        "training": make_train_input_fn(manifest, config.input),
        "evaluation": make_eval_input_fn(manifest, config.input, config.split),
    }
    findings: list[Finding] = []
    calls: Calls = {}
    for mode, input_fn in input_fns.items():
        estimator = make_estimator(config, model_dir, cluster())
        found, built = check_build(estimator, topology, mode, input_fn)
        findings += found
        calls[mode] = built.calls if built else ()
    return findings, calls


def _by_strategy(
    manifest: Manifest, config: TrainConfig, topology: Topology, model_dir: str
) -> tuple[list[Finding], Calls]:
    """Returns the same as _by_estimator() for tf.distribute, whose graph cannot be built without a TPU."""
    spec = _spec(manifest, config, config.train_batch_size // topology.num_cores)
    found = [Finding(FAILS, misfit) for misfit in misfits(spec)] or [
        Finding(GOOD, f"input per core: {described(spec)}"),
        Finding(
            UNKNOWN,
            "tf.distribute builds its graph on the TPU, so only the graph of TPUEstimator can be checked without one",
        ),
    ]
    calls: Calls = {}
    for mode, batch_size in (("training", config.train_batch_size), ("evaluation", config.eval_batch_size)):
        contexts = [
            tf.distribute.InputContext(topology.num_hosts, host, topology.num_cores)
            for host in range(topology.num_hosts)
        ]
        calls[mode] = [(params_from_context(context, batch_size), None) for context in contexts]
    return found, calls


def _input(manifest: Manifest, config: TrainConfig, topology: Topology, calls: Calls) -> Iterator[Finding]:
    plain = unaugmented(config.input)
    evaluation = make_eval_input_fn(manifest, plain, config.split)

    def feeds(mode: str, input_fn: Any) -> list[Feed]:
        return [Feed(functools.partial(input_fn, *call), topology.cores_per_host) for call in calls[mode]]

    with _reading(manifest, "train") as failed:
        if calls["training"]:
            train = make_train_input_fn(manifest, plain)
            yield check_training(feeds("training", train), manifest.split("train").num_examples)
            of = config.input
            order = Order.of(manifest, "train", config.train_batch_size, of.seed, of.block_records, of.sampling)
            yield check_order(order, topology.num_hosts)
    yield from failed
    with _reading(manifest, config.split) as failed:
        if calls["evaluation"]:
            yield check_evaluation(
                feeds("evaluation", evaluation),
                eval_steps(manifest, config.split, config.eval_batch_size, topology.num_hosts),
                manifest.split(config.split).num_examples,
                lambda: evaluation({"batch_size": config.eval_batch_size}),
            )
    yield from failed
    if not all(calls.values()):
        yield Finding(UNKNOWN, "the input was not checked, as there is no graph that it could feed")
    for surprise in surprises(config, manifest):
        yield Finding(COSTS, *surprise.split("; ", 1))


@contextlib.contextmanager
def _reading(manifest: Manifest, split: str) -> Iterator[list[Finding]]:
    """Context manager that turns errors of reading a split into findings; yields the list to which they are added."""
    found: list[Finding] = []
    try:
        with named(manifest, split):
            yield found
    except (ValueError, OSError, tf.errors.OpError) as error:
        found.append(Finding(FAILS, one_line(error)))


def _spec(manifest: Manifest, config: TrainConfig, batch_size: int) -> Any:
    """Returns the element spec of the training input for a core with a given batch size."""
    return make_train_input_fn(manifest, config.input)({"batch_size": batch_size}).element_spec


def make_step(config: TrainConfig, model_dir: str, spec: Any) -> Step:
    """Returns the training step of a run's loop for one core, whose input has the element spec `spec`."""
    if config.trainer == "tf_distribute":
        return strategy_step(config, model_dir, spec)
    from estimator_app.trainers.tpu_estimator.model_fn import make_estimator, make_model_fn

    return estimator_step(make_model_fn(config), make_estimator(config, model_dir).config, spec)


def lowered(config: TrainConfig, model_dir: str, spec: Any) -> bytes:
    """Returns the HLO of the training step that make_step() returns, as a serialized HloModuleProto."""
    return lower(make_step(config, model_dir, spec)).serialized


def _not_compiled(hlo: Hlo | None) -> Part:
    if hlo is None:
        return Part("compile", (Finding(UNKNOWN, "there is no step to compile"),))
    return Part("compile", (Finding(UNKNOWN, "libtpu is not installed", "run make preflight"),))


def _evaluation_memory(config: TrainConfig, topology: Topology) -> Iterator[Finding]:
    train, evaluation = (size // topology.num_cores for size in (config.train_batch_size, config.eval_batch_size))
    if evaluation > train:
        yield Finding(
            UNKNOWN,
            "evaluation may need more memory than the compiled training step, as a core takes "
            f"{evaluation:,} images in evaluation and {train:,} in training",
            f"use --eval_batch_size={config.train_batch_size} or less",
        )


def _feeding(program: Program | None, manifest: Manifest, config: TrainConfig, topology: Topology) -> Part:
    if program is None:
        return Part("feeding", (Finding(UNKNOWN, "the speed of a step can be estimated only if it is compiled"),))
    if program.has_loops:
        return Part("feeding", (Finding(UNKNOWN, "the compiler cannot estimate the speed of a step with loops"),))
    found = pace(program.flops, program.bytes_accessed, topology, config.train_batch_size)
    cost = whole_cost(manifest, "train", config.input, _IMAGES, _ROUNDS, _BATCH)
    batched = batching_rate(config.input, _IMAGES, _ROUNDS, _BATCH)
    numbers = {"steps_per_second": 1 / found.seconds, "images_per_second": found.images_per_second}
    here = {"images_per_second_here": cost.images_per_second, "cpu_ms_an_image_here": cost.cpu_ms}
    here |= {"images_per_second_batched_here": batched}
    return Part("feeding", tuple(check_feeding(found, topology, cost, batched)), numbers | here)


# Same values as in python -m tpu_input benchmark.
_IMAGES, _ROUNDS, _BATCH = 2000, 3, 64
