"""What preflight checks of a run under TPUEstimator: the graphs that it builds, and its steps."""

from __future__ import annotations

from typing import Any

from estimator_app.config import TrainConfig
from estimator_app.preflight.findings import Finding
from estimator_app.preflight.graph import all_ops, check_build, check_ops, cluster
from estimator_app.preflight.step import Step, estimator_step
from estimator_app.preflight.tensorflow_checks import Calls, TensorFlowChecks
from estimator_app.trainers.tpu_estimator.model_fn import make_estimator, make_model_fn
from tpu_input import make_eval_input_fn, make_train_input_fn


class EstimatorChecks(TensorFlowChecks):
    """The checks of a run under TPUEstimator."""

    @staticmethod
    def make_step(config: TrainConfig, model_dir: str, spec: Any, mode: str = "training") -> Step:
        return estimator_step(make_model_fn(config), make_estimator(config, model_dir).config, spec, mode)

    def graph(self) -> tuple[list[Finding], Calls]:
        config = self.config
        input_fns = {
            "training": make_train_input_fn(self.manifest, config.input),
            "evaluation": make_eval_input_fn(self.manifest, config.input, config.split),
        }
        findings: list[Finding] = []
        calls: Calls = {}
        for mode, input_fn in input_fns.items():
            estimator = make_estimator(config, self.model_dir, cluster())
            mode_findings, built = check_build(estimator, self.topology, mode, input_fn)
            findings += mode_findings
            calls[mode] = built.calls if built else ()
        if calls["training"] and calls["evaluation"]:
            step = self.step_of("prediction")
            ops = all_ops(step.graph) if step.graph else ()
            # The batch and the variables' handles are arguments of what runs on a TPU.
            findings += check_ops((op for op in ops if op.type not in ("Placeholder", "VarHandleOp")), "prediction")
        return findings, calls
