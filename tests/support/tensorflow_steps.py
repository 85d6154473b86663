"""Steps of the trainers of TensorFlow, as preflight has them from the trainers."""

from __future__ import annotations

from typing import Any

from estimator_app.config import TrainConfig
from estimator_app.preflight.step import Step
from estimator_app.preflight.tensorflow_checks import TensorFlowChecks
from estimator_app.preflight.xla import lower
from estimator_app.runtime.topologies import Topology
from estimator_app.trainers.registry import find_trainer
from tpu_input import Manifest


def checks_of(config: TrainConfig) -> type[TensorFlowChecks]:
    """Returns the class of the checks of a run."""
    checks = find_trainer(config.trainer).checks
    assert issubclass(checks, TensorFlowChecks)
    return checks


def make_checks(manifest: Manifest, config: TrainConfig, topology: Topology) -> TensorFlowChecks:
    return checks_of(config)(manifest, config, topology, "/nonexistent")


def make_step(config: TrainConfig, model_dir: str, spec: Any) -> Step:
    """Returns the step of training of a run's trainer for one core."""
    return checks_of(config).make_step(config, model_dir, spec)


def lowered(config: TrainConfig, spec: Any) -> bytes:
    """Returns the HLO of make_step()."""
    return lower(make_step(config, "/nonexistent", spec)).serialized
