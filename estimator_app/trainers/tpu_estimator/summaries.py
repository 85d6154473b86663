"""TensorBoard's curves of training, which a TPU's host writes:

    step, loss, learning rate of every replica ──outfeed──▶ host_call ──every summary_steps──▶ model_dir's events

Images a second cannot be known inside a graph; TPUEstimator's own hook measures them between steps and writes
"examples/sec" beside these (RunConfig.log_step_count_steps).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig


def make_host_call(
    step: tf.Tensor, loss: tf.Tensor, rate: tf.Tensor, config: TrainConfig, model_dir: str
) -> tuple[Callable[..., Any], list[tf.Tensor]]:
    """Returns a TPUEstimatorSpec's host_call: the function that runs on the host, and what it is sent.

    Args:
      step: 0-based, of this step.
      loss: Scalar of this replica; the curve is the mean over the replicas.
      rate: Scalar.
      config: For how often, and what an epoch is.
      model_dir: Where the events go.
    """
    epochs_per_step = config.train_batch_size / config.train_examples

    def host_call(step: tf.Tensor, loss: tf.Tensor, rate: tf.Tensor) -> list[tf.Operation]:
        done = step[0] + 1
        # A loop's steps come in one go, and nothing is written before they are done.
        writer = tf.summary.create_file_writer(model_dir, max_queue=config.iterations_per_loop)
        with writer.as_default(), tf.summary.record_if(tf.equal(done % config.summary_steps, 0)):
            tf.summary.scalar("train/loss", tf.reduce_mean(loss), done)
            tf.summary.scalar("train/learning_rate", rate[0], done)
            tf.summary.scalar("train/epoch", tf.cast(done, tf.float32) * epochs_per_step, done)
        return list(tf.compat.v1.summary.all_v2_summary_ops())

    # Every tensor gets an axis along which those of all replicas are put together.
    return host_call, [tf.reshape(tensor, [1]) for tensor in (step, loss, rate)]
