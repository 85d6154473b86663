"""TPUEstimator for a run: on a TPU, or the same on this machine's processor.

TrainConfig + model_dir + Tpu ──make_estimator()──▶ TPUEstimator
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.trainers.tpu_estimator.model_fn import make_model_fn

tpu = tf.compat.v1.estimator.tpu


def make_estimator(config: TrainConfig, model_dir: str, cluster: Any = None) -> Any:
    """Returns the TPUEstimator that trains, evaluates and exports the run in `model_dir`.

    Args:
      config: What to train.
      model_dir: Where checkpoints are.
      cluster: TPUClusterResolver; None runs on this machine's processor.
    """
    tpu_config = tpu.TPUConfig(
        iterations_per_loop=config.iterations_per_loop,
        per_host_input_for_training=tpu.InputPipelineConfig.PER_HOST_V2,
    )
    run_config = tpu.RunConfig(
        cluster=cluster,
        model_dir=model_dir,
        tf_random_seed=config.input.seed,
        tpu_config=tpu_config,
        save_checkpoints_secs=60,  # what a killed run loses at the most
        log_step_count_steps=config.summary_steps,  # "examples/sec", beside what summaries.py writes
    )
    return tpu.TPUEstimator(
        make_model_fn(config),
        config=run_config,
        use_tpu=cluster is not None,
        train_batch_size=config.train_batch_size,
        eval_batch_size=config.eval_batch_size,
        export_to_tpu=False,  # a second meta graph, and tf.saved_model.load asks which one
    )
