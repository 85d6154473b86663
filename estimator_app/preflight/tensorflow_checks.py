"""What the trainers of TensorFlow hand over to preflight: graph, inputs of all hosts, and HLO of one core's steps.

manifest + TrainConfig + Topology
    ──graph──▶ calls of input_fn ──input──▶ which host sees which examples
    ──xla──▶ HLO of training, evaluation, prediction
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig, surprises
from estimator_app.preflight.findings import COSTS, GOOD, UNKNOWN, Finding, Part
from estimator_app.preflight.input import Feed, check_evaluation, check_order, check_training, reading, unaugmented
from estimator_app.preflight.step import MODES, Step
from estimator_app.preflight.trainer_checks import StepMaker, TrainerChecks
from estimator_app.preflight.xla import Hlo, check_hlo, lower
from estimator_app.runtime.topologies import Topology
from estimator_app.runtime.tpu_software import find_software, newest
from tpu_input import Manifest, Order, eval_steps, make_eval_input_fn, make_train_input_fn
from tpu_input.benchmark.cost import Cost
from tpu_input.benchmark.measure import batching_rate, whole_cost
from tpu_input.pipeline.device import resolved_layout

Calls = dict[str, Sequence[tuple[Any, Any]]]  # (params, config) of an input_fn for each host, by mode


class TensorFlowChecks(TrainerChecks):
    """The checks of a run under TensorFlow, whose steps are compiled for one core."""

    less_input = (
        "store smaller images (convert --resize_shorter), run the input on other machines (--service), or use a "
        "smaller slice"
    )

    def __init__(self, manifest: Manifest, config: TrainConfig, topology: Topology, model_dir: str) -> None:
        # Cache and service use memory and CPUs of the TPU's hosts and of the service's machines, not of this one; a
        # core is fed the same elements without them.
        config = dataclasses.replace(config, input=dataclasses.replace(config.input, cache=None, service=None))
        super().__init__(manifest, config, topology, model_dir)
        self._hlos: dict[str, Hlo | None] = {}

    @staticmethod
    @abc.abstractmethod
    def make_step(config: TrainConfig, model_dir: str, spec: Any, mode: str = "training") -> Step:
        """Returns the step of a mode, one of MODES, for one core, whose arguments have the spec `spec`."""

    @abc.abstractmethod
    def graph(self) -> tuple[list[Finding], Calls]:
        """Returns the findings about the graph, and the arguments of the input_fn calls of each host by mode."""

    @property
    def layout(self) -> str | None:
        return resolved_layout(self.config.input.layout, self._batch("training"))

    def software(self) -> Finding:
        topology, trainer = self.topology, self.config.trainer
        row = find_software(tf.__version__, topology)
        if row is None:
            return Finding(
                UNKNOWN,
                f"no software for TensorFlow {tf.__version__} on {topology.generation} is documented",
                f"use a version that docs/preflight.md lists ({newest()} is the newest), or --trainer=jax",
            )
        install = f", where you pip install {row.package}" if row.package else ""
        needs = f"TensorFlow {tf.__version__} on {topology.name} needs TPU VMs with {row.runtime}{install}"
        if not row.problem and trainer in row.trainers:
            return Finding(GOOD, f"{needs}; {trainer} runs there")
        advice = "" if trainer in row.trainers else "use --trainer=tf_distribute"
        return Finding(UNKNOWN, f"{needs}; {row.problem or f'{trainer} is not known to run there'}", advice)

    def parts(self) -> Iterator[Part]:
        findings, calls = self.graph()
        yield Part("graph", tuple(findings))
        yield Part("input", tuple(self._input(calls)))
        yield Part("xla", tuple(self._lower_all()))

    def steps(self) -> Mapping[str, StepMaker]:
        return {mode: StepMaker(self._batch(mode), self._source(mode, hlo)) for mode, hlo in self._hlos.items() if hlo}

    def input_cost(self) -> tuple[Cost, float | None]:
        cost = whole_cost(self.manifest, "train", self.config.input, _IMAGES, _ROUNDS, _BATCH)
        return cost, batching_rate(self.config.input, _IMAGES, _ROUNDS, _BATCH)

    def step_of(self, mode: str, batch: int | None = None) -> Step:
        """Returns the step of a mode for so many images per core; None for the run's."""
        spec = self.spec(self._batch(mode) if batch is None else batch, mode)
        return self.make_step(self.config, self.model_dir, spec, mode)

    def spec(self, batch_size: int, mode: str = "training") -> Any:
        """Returns the spec of a step's arguments for a core with a given batch size."""
        config = self.config
        if mode == "training":
            return make_train_input_fn(self.manifest, config.input)({"batch_size": batch_size}).element_spec
        layout = config.input.layout if mode == "evaluation" else "NHWC"  # in which files are decoded
        arrived = dataclasses.replace(config.input, layout=layout)
        dataset = make_eval_input_fn(self.manifest, arrived, config.split)({"batch_size": batch_size})
        features, label = dataset.element_spec
        return (features, label) if mode == "evaluation" else ({"image": features["image"]},)

    def _batch(self, mode: str) -> int:
        size = self.config.train_batch_size if mode == "training" else self.config.eval_batch_size
        return size // self.topology.num_cores

    def _source(self, mode: str, hlo: Hlo) -> Callable[[int], bytes]:
        """Returns the function from a number of images per core to the serialized HLO; `hlo` is for the run's own."""
        run_batch = self._batch(mode)
        return lambda batch: hlo.serialized if batch == run_batch else lower(self.step_of(mode, batch)).serialized

    def _input(self, calls: Calls) -> Iterator[Finding]:
        manifest, config, topology = self.manifest, self.config, self.topology
        input_config = unaugmented(config.input)
        evaluation = make_eval_input_fn(manifest, input_config, config.split)

        def feeds(mode: str, input_fn: Any) -> list[Feed]:
            return [Feed(functools.partial(input_fn, *call), topology.cores_per_host) for call in calls[mode]]

        with reading(manifest, "train") as failed:
            if calls["training"]:
                train = make_train_input_fn(manifest, input_config)
                yield check_training(feeds("training", train), manifest.split("train").num_examples)
                options = config.input
                order = Order.of(
                    manifest, "train", config.train_batch_size, options.seed, options.block_records, options.sampling
                )
                yield check_order(order, topology.num_hosts)
        yield from failed
        with reading(manifest, config.split) as failed:
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

    def _lower_all(self) -> list[Finding]:
        """Lowers the step of each mode; returns the findings; what training has, too, is reported once."""
        findings: list[Finding] = []
        for mode in MODES:
            mode_findings, self._hlos[mode] = check_hlo(functools.partial(self.step_of, mode), mode)
            new = [finding for finding in mode_findings if finding not in findings]
            if mode != "training":
                new = [
                    finding if finding.verdict == GOOD else dataclasses.replace(finding, seen=f"{mode}: {finding.seen}")
                    for finding in new
                ]
            findings += new
        return findings


# Same values as in jpeg2tpu benchmark.
_IMAGES, _ROUNDS, _BATCH = 2000, 3, 64
