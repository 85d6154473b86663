"""Checks of a training run for a TPU, without a TPU: runs the parts in the order of their dependencies.

TrainerChecks ──its own parts──▶ findings; ──steps──compile──▶ FLOPs, bytes, memory
                                                  ──feeding──▶ images/s that the VMs must deliver
"""

from __future__ import annotations

from collections.abc import Iterator

from estimator_app.config import TrainConfig
from estimator_app.preflight.compile import check_compile, check_fits
from estimator_app.preflight.compiler import Compiler, Program
from estimator_app.preflight.feeding import check_feeding, pace
from estimator_app.preflight.findings import FAILS, GOOD, NO_COMPILER, UNKNOWN, Finding, Part
from estimator_app.preflight.trainer_checks import TrainerChecks
from estimator_app.runtime import files
from estimator_app.runtime.topologies import Topology
from estimator_app.runtime.tpu import LOCAL, Tpu, check_paths


def preflight(checks: TrainerChecks, compiler: Compiler | None, search: bool = False) -> Iterator[Part]:
    """Yields the findings about a run on a TPU, each part as soon as it is complete.

    Args:
      checks: The run, as its trainer hands it over.
      compiler: Compiler for the topology; None skips the checks that need it.
      search: Whether to search for the largest batch size that fits even if the configured one fits.
    """
    undivided = list(_undivided(checks.config, checks.topology))
    if undivided:
        yield Part("graph", tuple(undivided))
        return
    yield from checks.parts()
    part, program = _compile(checks, compiler, search)
    yield part
    yield _feeding(program, checks)


def _compile(checks: TrainerChecks, compiler: Compiler | None, search: bool) -> tuple[Part, Program | None]:
    """Returns the findings about the compiled steps, and training's Program; None without one."""
    steps = dict(checks.steps())
    training = steps.pop("training", None)
    if training is None:
        return Part("compile", (Finding(UNKNOWN, "there is no step to compile"),)), None
    if compiler is None:
        return Part("compile", (NO_COMPILER,)), None
    topology = checks.topology
    step = training.make_step(training.batch)
    part, program = check_compile(compiler, step, training.batch, topology, checks.layout, training.make_step, search)
    others = [
        check_fits(compiler, other.make_step(other.batch), mode, other.batch, topology, other.make_step)
        for mode, other in steps.items()
    ]
    return Part(part.name, (*part.findings, *others), part.numbers), program


def check_runtime(
    checks: TrainerChecks, tpu: Tpu | None, dataset: str, model_dir: str | None, export_dir: str | None
) -> Part:
    """Returns the findings about the software of the TPU VMs, and about the paths of the run.

    Args:
      checks: The run, as its trainer hands it over.
      tpu: Address of the TPU; None if --use_tpu is not given.
      dataset: Path or URI of the dataset.
      model_dir: Folder or URI of the run, if it is given.
      export_dir: Folder or URI of the exports, if it is given.
    """
    topology, findings = checks.topology, [checks.software()]
    if tpu and tpu.is_remote:
        for name, path in {"--dataset": dataset, "--model_dir": model_dir}.items():
            try:
                check_paths({name: path} if path else {})
            except ValueError as error:
                findings.append(Finding(FAILS, *str(error).split("; ", 1)))
    elif tpu and topology.num_hosts > 1:
        problem = f"--tpu={LOCAL} is the TPU of a single VM, but {topology.name} has {topology.vms}"
        findings.append(Finding(FAILS, problem, "name the TPU"))
    for name, path in {"--model_dir": model_dir, "--export_dir": export_dir}.items():
        if path and (why := files.why_not_writable(path)):
            problem = f"{name} {path!r} cannot be written: {why}"
            findings.append(Finding(FAILS, problem, "use another folder, or get access to it"))
        elif path:
            findings.append(Finding(GOOD, f"{name} can be written"))
            try:
                files.check_no_pattern(path)
            except ValueError as error:
                findings.append(Finding(FAILS, *str(error).split("; ", 1)))
    return Part("runtime", tuple(findings))


def _undivided(config: TrainConfig, topology: Topology) -> Iterator[Finding]:
    for name in ("train_batch_size", "eval_batch_size"):
        size, cores = getattr(config, name), topology.num_cores
        if size % cores:
            near = " or ".join(str(size // cores * cores + more) for more in (0, cores) if size // cores * cores + more)
            yield Finding(FAILS, f"--{name}={size} cannot be divided evenly among {cores} cores", f"use {near}")


def _feeding(program: Program | None, checks: TrainerChecks) -> Part:
    if program is None:
        return Part("feeding", (Finding(UNKNOWN, "the speed of a step can be estimated only if it is compiled"),))
    if program.has_loops:
        return Part("feeding", (Finding(UNKNOWN, "the compiler cannot estimate the speed of a step with loops"),))
    speed = pace(program.flops, program.bytes_accessed, checks.topology, checks.config.train_batch_size)
    cost, batched = checks.input_cost()
    numbers = {"steps_per_second": 1 / speed.seconds, "images_per_second": speed.images_per_second}
    local_numbers = {"images_per_second_here": cost.images_per_second, "cpu_ms_an_image_here": cost.cpu_ms}
    local_numbers |= {} if batched is None else {"images_per_second_batched_here": batched}
    findings = check_feeding(speed, checks.topology, cost, batched, checks.less_input)
    return Part("feeding", tuple(findings), numbers | local_numbers)
