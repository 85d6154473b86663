"""TPUEstimator's model_fn, and the TPUEstimator of a run.

    {"image", "weight"}, label ──from_infeed()──▶ [N, H, W, 3] ──network──▶ logits ──▶ weighted loss ──▶ train_op
                                                                              ├──▶ weighted metrics
                                                                              └──▶ probabilities
    TrainConfig + model_dir + Tpu ──make_estimator()──▶ TPUEstimator, on a TPU or on this machine's CPU

On a TPU the model_fn runs once per replica, with the replica's part of the batch. The values of the training curves are
sent to the host by a host_call:

    step, loss, learning rate of every replica ──outfeed──▶ host_call ──every summary_steps──▶ model_dir's events

Images per second cannot be measured inside a graph; TPUEstimator's own hook measures them between steps and writes
"examples/sec" to the same events (RunConfig.log_step_count_steps).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from estimator_app.config import TrainConfig
from estimator_app.model.losses import (
    OVER_CORES,
    cross_entropy,
    loss_and_gradients,
    probabilities,
    weight_and_replicas,
    weighted_mean,
)
from estimator_app.model.networks import apply
from estimator_app.model.optimizers import averaging, clip, dense, make_optimizer
from estimator_app.model.tasks import Task
from estimator_app.model.tensorflow_metrics import streaming
from estimator_app.model_dir.checkpoints import MAX_TO_KEEP
from estimator_app.runtime.tensorflow_private import eagerly
from estimator_app.trainers.checks import class_weights, is_mixed, make_weighted_model, mixed
from estimator_app.trainers.tpu_estimator.keras_in_graph import Averages, KerasInGraph
from tpu_input import from_infeed

v1 = tf.compat.v1
ModeKeys = v1.estimator.ModeKeys


def make_model_fn(run: TrainConfig, initial: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Returns the model_fn(features, labels, mode, params, config) of a run, for TPUEstimator.

    Args:
      run: Config of the run.
      initial: Initial weights, see make_weighted_model().
    """
    make_network = functools.cache(functools.partial(make_weighted_model, run, initial))

    def model_fn(
        features: Mapping[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Mapping[str, Any], config: Any
    ) -> Any:
        serving = mode == ModeKeys.PREDICT
        arrived = dataclasses.replace(run.input, layout="NHWC") if serving else run.input
        images = from_infeed(features["image"], arrived)
        with eagerly():
            network = make_network()
        averages: Averages = "none" if not run.ema else "both" if mode == ModeKeys.TRAIN else "instead"
        model = KerasInGraph(network, averages)
        if mode == ModeKeys.TRAIN:
            return _training(network, model, images, labels, features["weight"], run, params["use_tpu"], config)
        logits = model.call(functools.partial(apply, network, training=False), images)
        return _prediction(logits, run.task) if serving else _evaluation(logits, labels, features["weight"])

    return model_fn


def _training(
    network: Any,
    model: KerasInGraph,
    images: tf.Tensor,
    labels: tf.Tensor,
    weight: tf.Tensor,
    run: TrainConfig,
    use_tpu: bool,
    config: Any,
) -> Any:
    # Read once, so that all reported values are of the same step: the update depends on the rate, thus on this read.
    step = tf.identity(v1.train.get_or_create_global_step())
    rate = run.schedule.learning_rate(tf.cast(step, tf.float32), xp=tf)
    optimizer = make_optimizer(run.optimizer, rate, run.weight_decay)
    images, labels, weight = mixed(images, labels, weight, step, run)
    sums = _over_cores(weight_and_replicas(weight), use_tpu)
    share, gradients = model.call(
        lambda images, labels, weight, sums: loss_and_gradients(
            network, images, labels, weight, sums, run.label_smoothing, class_weights(run), is_mixed(run)
        ),
        *(images, labels, weight, sums),
    )
    if run.clip_norm:
        total = functools.partial(_over_cores, use_tpu=use_tpu)
        gradients = clip(gradients, model.trainable, run.clip_norm, total)
    if use_tpu:
        # Sums the gradients over the cores. They are made dense before, as its own conversion logs a warning.
        optimizer = v1.tpu.CrossShardOptimizer(optimizer)
        gradients = [dense(gradient, variable) for gradient, variable in zip(gradients, model.trainable, strict=True)]
    update = optimizer.apply_gradients(zip(gradients, model.trainable, strict=True), v1.train.get_global_step())
    # share.op is the complete call, which also assigns the statistics; the gradients do not depend on these.
    train_op = tf.group(update, share.op)
    if run.ema:
        with tf.control_dependencies([train_op]):
            train_op = model.average(averaging(run.ema, step))
    loss = _over_cores(share, use_tpu)
    host_call = make_host_call(step, loss, rate, run, config.model_dir)
    return v1.estimator.tpu.TPUEstimatorSpec(
        ModeKeys.TRAIN, loss=loss, train_op=train_op, host_call=host_call, scaffold_fn=model.scaffold
    )


def _over_cores(value: tf.Tensor, use_tpu: bool) -> tf.Tensor:
    """Returns the sum over all cores of a TPU, the same on each; on a CPU, which is one replica, the value itself."""
    with tf.name_scope(OVER_CORES):
        return v1.tpu.cross_replica_sum(value) if use_tpu else value


def _evaluation(logits: tf.Tensor, labels: tf.Tensor, weight: tf.Tensor) -> Any:
    losses = cross_entropy(logits, labels)
    # TPUEstimator's own loss is only the first replica's and ignores weights: eval_metrics are used instead.
    return v1.estimator.tpu.TPUEstimatorSpec(
        ModeKeys.EVAL, loss=weighted_mean(losses, weight), eval_metrics=(streaming, [logits, labels, losses, weight])
    )


def _prediction(logits: tf.Tensor, task: Task) -> Any:
    outputs = {"probabilities": probabilities(logits, task), "logits": logits}  # export.py adds label and class
    return v1.estimator.tpu.TPUEstimatorSpec(
        ModeKeys.PREDICT,
        predictions=outputs,
        export_outputs={"serving_default": tf.estimator.export.PredictOutput(outputs)},
    )


def make_host_call(
    step: tf.Tensor, loss: tf.Tensor, rate: tf.Tensor, config: TrainConfig, model_dir: str
) -> tuple[Callable[..., Any], list[tf.Tensor]]:
    """Returns the host_call of a TPUEstimatorSpec: the function that runs on the host, and the tensors sent to it.

    Args:
      step: Global step of this step, 0-based.
      loss: Scalar, of this replica; the curve is the mean over the replicas.
      rate: Scalar, the learning rate.
      config: Gives the steps between points, and the length of an epoch.
      model_dir: Folder or URI to which the events are written.
    """
    epochs_per_step = config.train_batch_size / config.train_examples

    def host_call(step: tf.Tensor, loss: tf.Tensor, rate: tf.Tensor) -> list[tf.Operation]:
        count = step[0] + 1
        # The values of all steps of a loop arrive together at its end, so the queue holds that many.
        writer = tf.summary.create_file_writer(model_dir, max_queue=config.iterations_per_loop)
        with writer.as_default(), tf.summary.record_if(tf.equal(count % config.summary_steps, 0)):
            tf.summary.scalar("train/loss", tf.reduce_mean(loss), count)
            tf.summary.scalar("train/learning_rate", rate[0], count)
            tf.summary.scalar("train/epoch", tf.cast(count, tf.float32) * epochs_per_step, count)
        return list(tf.compat.v1.summary.all_v2_summary_ops())

    # Each tensor gets an axis along which TPUEstimator concatenates the tensors of all replicas.
    return host_call, [tf.reshape(tensor, [1]) for tensor in (step, loss, rate)]


tpu = tf.compat.v1.estimator.tpu
_NEVER = 1 << 40  # seconds


def make_estimator(
    config: TrainConfig, model_dir: str, cluster: Any = None, initial: Mapping[str, Any] | None = None
) -> Any:
    """Returns the TPUEstimator that trains, evaluates and exports the run in `model_dir`.

    Args:
      config: Config of the run.
      model_dir: Folder or URI of the checkpoints.
      cluster: TPUClusterResolver; None runs on this machine's CPU.
      initial: Initial weights, see make_weighted_model().
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
        # Without any interval, Estimator would save no checkpoint at the end of a stretch either.
        save_checkpoints_secs=config.save_seconds or _NEVER,
        # With --eval=watch, prune_checkpoints() removes them, as a checkpoint must stay until it is evaluated.
        keep_checkpoint_max=0 if config.eval == "watch" else MAX_TO_KEEP,
        log_step_count_steps=config.summary_steps,  # for "examples/sec", in addition to the values of the host_call
    )
    return tpu.TPUEstimator(
        make_model_fn(config, initial),
        config=run_config,
        use_tpu=cluster is not None,
        train_batch_size=config.train_batch_size,
        eval_batch_size=config.eval_batch_size,
        export_to_tpu=False,  # True would add a second MetaGraph, and tf.saved_model.load would need tags to choose one
    )
