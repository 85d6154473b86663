"""Checks of a training run for a TPU, without a TPU: runs the parts in the order of their dependencies.

manifest + TrainConfig + Topology
    ──graph──▶ calls of input_fn ──input──▶ which host sees which examples
    ──xla──▶ HLO of training, evaluation, prediction ──compile──▶ FLOPs, bytes, memory
                                                     ──feeding──▶ images/s that the VMs must deliver
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig, surprises
from estimator_app.preflight.compile import check_compile, check_fits
from estimator_app.preflight.compiler import Compiler, Program
from estimator_app.preflight.feeding import check_feeding, pace
from estimator_app.preflight.findings import COSTS, FAILS, GOOD, NO_COMPILER, UNKNOWN, Finding, Part
from estimator_app.preflight.input import Feed, check_evaluation, check_order, check_training, unaugmented
from estimator_app.preflight.specs import described, misfits
from estimator_app.preflight.step import MODES, Step, estimator_step, strategy_step
from estimator_app.preflight.xla import Hlo, check_hlo, lower
from estimator_app.runtime import files
from estimator_app.runtime.record_errors import named
from estimator_app.runtime.tensorflow_startup import one_line
from estimator_app.runtime.topologies import Topology
from estimator_app.runtime.tpu import LOCAL, Tpu, check_paths
from estimator_app.runtime.tpu_software import find_software, newest
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
        steps = {mode: step_maker(manifest, config, topology, model_dir, mode) for mode in MODES}
        found, hlos = _hlos(steps)
        yield Part("xla", tuple(found))
        hlo = hlos["training"]
        if compiler and hlo:
            of_training = steps["training"]
            layout = resolved_layout(config.input.layout, of_training.batch)
            compiled, program = check_compile(
                compiler, hlo.serialized, of_training.batch, topology, layout, of_training.lowered, search
            )
            others = [
                check_fits(compiler, other.serialized, mode, steps[mode].batch, topology, steps[mode].lowered)
                for mode, other in hlos.items()
                if other and mode != "training"
            ]
            yield dataclasses.replace(compiled, findings=(*compiled.findings, *others))
        else:
            program = None
            yield _not_compiled(hlo)
        yield _feeding(program, manifest, config, topology)


def check_runtime(
    config: TrainConfig,
    topology: Topology,
    tpu: Tpu | None,
    dataset: str,
    model_dir: str | None,
    export_dir: str | None,
) -> Part:
    """Returns the findings about the software of the TPU VMs, and about the paths of the run.

    Args:
      config: Options of the run.
      topology: The TPU.
      tpu: Address of the TPU; None if --use_tpu is not given.
      dataset: Path or URI of the dataset.
      model_dir: Folder or URI of the run, if it is given.
      export_dir: Folder or URI of the exports, if it is given.
    """
    return Part("runtime", (_software(config, topology), *_places(topology, tpu, dataset, model_dir, export_dir)))


def _software(config: TrainConfig, topology: Topology) -> Finding:
    generation = topology.name.partition(":")[0]
    row = find_software(tf.__version__, topology)
    if row is None:
        return Finding(
            UNKNOWN,
            f"no software for TensorFlow {tf.__version__} on {generation} is documented",
            f"use a version that docs/preflight.md lists; {newest()} is the newest",
        )
    install = f", where you pip install {row.package}" if row.package else ""
    needs = f"TensorFlow {tf.__version__} on {topology.name} needs TPU VMs with {row.runtime}{install}"
    if not row.known and config.trainer in row.trainers:
        return Finding(GOOD, f"{needs}; {config.trainer} runs there")
    advice = "" if config.trainer in row.trainers else "use --trainer=tf_distribute"
    return Finding(UNKNOWN, f"{needs}; {row.known or f'{config.trainer} is not known to run there'}", advice)


def _places(
    topology: Topology, tpu: Tpu | None, dataset: str, model_dir: str | None, export_dir: str | None
) -> Iterator[Finding]:
    if tpu and tpu.is_remote:
        for name, path in {"--dataset": dataset, "--model_dir": model_dir}.items():
            try:
                check_paths({name: path} if path else {})
            except ValueError as error:
                yield Finding(FAILS, *str(error).split("; ", 1))
    elif tpu and topology.num_hosts > 1:
        yield Finding(
            FAILS, f"--tpu={LOCAL} is the TPU of a single VM, but {topology.name} has {topology.vms}", "name the TPU"
        )
    for name, path in {"--model_dir": model_dir, "--export_dir": export_dir}.items():
        if path and (why := files.why_not_writable(path)):
            yield Finding(FAILS, f"{name} {path!r} cannot be written: {why}", "use another folder, or get access to it")
        elif path:
            yield Finding(GOOD, f"{name} can be written")
            try:
                files.check_no_pattern(path)
            except ValueError as error:
                yield Finding(FAILS, *str(error).split("; ", 1))


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
    from estimator_app.preflight.graph import all_ops, check_build, check_ops, cluster
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
    if calls["training"] and calls["evaluation"]:
        step = step_maker(manifest, config, topology, model_dir, "prediction").make()
        ops = all_ops(step.graph) if step.graph else ()
        # The batch and the variables' handles are arguments of what runs on a TPU.
        findings += check_ops((op for op in ops if op.type not in ("Placeholder", "VarHandleOp")), "prediction")
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


def _spec(manifest: Manifest, config: TrainConfig, batch_size: int, mode: str = "training") -> Any:
    """Returns the spec of a step's arguments for a core with a given batch size."""
    if mode == "training":
        return make_train_input_fn(manifest, config.input)({"batch_size": batch_size}).element_spec
    layout = config.input.layout if mode == "evaluation" else "NHWC"  # in which files are decoded
    arrived = dataclasses.replace(config.input, layout=layout)
    features, label = make_eval_input_fn(manifest, arrived, config.split)({"batch_size": batch_size}).element_spec
    return (features, label) if mode == "evaluation" else ({"image": features["image"]},)


@dataclasses.dataclass(frozen=True)
class StepMaker:
    """How the step of a mode is made.

    Attributes:
      batch: Images per core.
      of_size: Returns the step for a number of images per core.
    """

    batch: int
    of_size: Callable[[int], Step]

    def make(self) -> Step:
        return self.of_size(self.batch)

    def lowered(self, batch: int) -> bytes:
        """Returns the HLO of the step for so many images per core, as a serialized HloModuleProto."""
        return lower(self.of_size(batch)).serialized


def step_maker(manifest: Manifest, config: TrainConfig, topology: Topology, model_dir: str, mode: str) -> StepMaker:
    """Returns what makes the step of a mode for one core of a topology; `mode` is one of MODES."""
    size = config.train_batch_size if mode == "training" else config.eval_batch_size
    return StepMaker(
        size // topology.num_cores,
        lambda batch: make_step(config, model_dir, _spec(manifest, config, batch, mode), mode),
    )


def make_step(config: TrainConfig, model_dir: str, spec: Any, mode: str = "training") -> Step:
    """Returns a step of a run's trainer for one core, whose arguments have the spec `spec`; `mode` is one of MODES."""
    if config.trainer == "tf_distribute":
        return strategy_step(config, model_dir, spec, mode)
    from estimator_app.trainers.tpu_estimator.model_fn import make_estimator, make_model_fn

    return estimator_step(make_model_fn(config), make_estimator(config, model_dir).config, spec, mode)


def lowered(config: TrainConfig, model_dir: str, spec: Any, mode: str = "training") -> bytes:
    """Returns the HLO of the step that make_step() returns, as a serialized HloModuleProto."""
    return lower(make_step(config, model_dir, spec, mode)).serialized


def _hlos(steps: Mapping[str, StepMaker]) -> tuple[list[Finding], dict[str, Hlo | None]]:
    """Returns the findings about the HLO of each mode, and the HLO; what training has, too, is reported once."""
    findings: list[Finding] = []
    hlos: dict[str, Hlo | None] = {}
    for mode, step in steps.items():
        found, hlos[mode] = check_hlo(step.make, mode)
        new = [each for each in found if each not in findings]
        if mode != "training":
            new = [
                each if each.verdict == GOOD else dataclasses.replace(each, seen=f"{mode}: {each.seen}") for each in new
            ]
        findings += new
    return findings, hlos


def _not_compiled(hlo: Hlo | None) -> Part:
    if hlo is None:
        return Part("compile", (Finding(UNKNOWN, "there is no step to compile"),))
    return Part("compile", (NO_COMPILER,))


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


# Same values as in jpeg2tpu benchmark.
_IMAGES, _ROUNDS, _BATCH = 2000, 3, 64
