"""The model_fn: what an input_fn sends, to a TPUEstimatorSpec.

    {"image", "weight"}, label ──from_infeed()──▶ [N, H, W, 3] ──network──▶ logits ──▶ weighted loss ──▶ train_op
                                                                              ├──▶ weighted metrics
                                                                              └──▶ probabilities

On a TPU it runs once for every replica, with the replica's part of the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.losses import added_loss, cross_entropy, training_loss, weighted_mean
from estimator_app.metrics import streaming
from estimator_app.networks import build, find_network
from estimator_app.optimizers import make_optimizer
from estimator_app.summaries import make_host_call
from tpu_input import from_infeed

v1 = tf.compat.v1
ModeKeys = v1.estimator.ModeKeys


def make_model_fn(run: TrainConfig) -> Callable[..., Any]:
    """Returns the model_fn(features, labels, mode, params, config) of a run, for TPUEstimator."""
    network = find_network(run.network)

    def model_fn(
        features: Mapping[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Mapping[str, Any], config: Any
    ) -> Any:
        serving = mode == ModeKeys.PREDICT
        arrived = dataclasses.replace(run.input, layout="NHWC") if serving else run.input
        images = from_infeed(features["image"], arrived)
        # Keras draws the first weights with a generator of its own, which RunConfig's seed does not reach.
        tf.keras.utils.set_random_seed(run.input.seed)
        model = build(network, images, len(run.classes), mode == ModeKeys.TRAIN, run.precision)
        if serving:
            return _prediction(model.output)
        if mode == ModeKeys.EVAL:
            return _evaluation(model.output, labels, features["weight"])
        loss = training_loss(model.output, labels, features["weight"], run) + added_loss(model)
        return _training(model, loss, run, params["use_tpu"], config.model_dir)

    return model_fn


def _training(model: Any, loss: tf.Tensor, run: TrainConfig, use_tpu: bool, model_dir: str) -> Any:
    # Read once: the update waits for the rate and thus for this, so that all that is told is of the same step.
    step = tf.identity(v1.train.get_or_create_global_step())
    rate = run.schedule.learning_rate(tf.cast(step, tf.float32), xp=tf)
    optimizer = make_optimizer(run.optimizer, rate, run.weight_decay)
    if use_tpu:
        optimizer = v1.tpu.CrossShardOptimizer(optimizer)
    train_op = tf.group(optimizer.minimize(loss, v1.train.get_global_step()), *model.updates)
    host_call = make_host_call(step, loss, rate, run, model_dir)
    return v1.estimator.tpu.TPUEstimatorSpec(ModeKeys.TRAIN, loss=loss, train_op=train_op, host_call=host_call)


def _evaluation(logits: tf.Tensor, labels: tf.Tensor, weight: tf.Tensor) -> Any:
    losses = cross_entropy(logits, labels)
    # TPUEstimator's own loss is the first replica's and knows no weights: the metrics are what counts.
    return v1.estimator.tpu.TPUEstimatorSpec(
        ModeKeys.EVAL, loss=weighted_mean(losses, weight), eval_metrics=(streaming, [logits, labels, losses, weight])
    )


def _prediction(logits: tf.Tensor) -> Any:
    outputs = {"probabilities": tf.nn.softmax(logits), "logits": logits}  # serving.py makes more of them
    return v1.estimator.tpu.TPUEstimatorSpec(
        ModeKeys.PREDICT,
        predictions=outputs,
        export_outputs={"serving_default": tf.estimator.export.PredictOutput(outputs)},
    )
