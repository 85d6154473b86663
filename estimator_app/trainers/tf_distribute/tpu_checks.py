"""What preflight checks of a run under tf.distribute, whose graph cannot be built without a TPU: input and steps."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.model.losses import probabilities
from estimator_app.model.networks import apply
from estimator_app.preflight.findings import FAILS, GOOD, UNKNOWN, Finding
from estimator_app.preflight.specs import described, misfits
from estimator_app.preflight.step import Step
from estimator_app.preflight.tensorflow_checks import Calls, TensorFlowChecks
from estimator_app.trainers.checks import make_weighted_model
from estimator_app.trainers.tf_distribute.state import make_state
from tpu_input import from_infeed, params_from_context


class StrategyChecks(TensorFlowChecks):
    """The checks of a run under tf.distribute."""

    @staticmethod
    def make_step(config: TrainConfig, model_dir: str, spec: Any, mode: str = "training") -> Step:
        if mode != "prediction":
            state = make_state(config, model_dir)
            return Step(state.step if mode == "training" else state.evaluation_step, spec)
        model, arrived = make_weighted_model(config), dataclasses.replace(config.input, layout="NHWC")

        def predict(features: dict[str, tf.Tensor]) -> tf.Tensor:
            logits = apply(model, from_infeed(features["image"], arrived), training=False)
            return probabilities(logits, config.task)

        return Step(predict, spec)

    def graph(self) -> tuple[list[Finding], Calls]:
        config, topology = self.config, self.topology
        spec = self.spec(config.train_batch_size // topology.num_cores)
        findings = [Finding(FAILS, misfit) for misfit in misfits(spec)] or [
            Finding(GOOD, f"input per core: {described(spec)}"),
            Finding(
                UNKNOWN,
                "tf.distribute builds its graph on the TPU, so only the graph of TPUEstimator can be checked without "
                "one",
            ),
        ]
        hosts = range(topology.num_hosts)
        contexts = [tf.distribute.InputContext(topology.num_hosts, host, topology.num_cores) for host in hosts]
        sizes = {"training": config.train_batch_size, "evaluation": config.eval_batch_size}
        return findings, {
            mode: [(params_from_context(context, size), None) for context in contexts] for mode, size in sizes.items()
        }
