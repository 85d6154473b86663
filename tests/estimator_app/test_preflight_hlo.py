"""The XLA part of preflight: a step of either loop as XLA sees it, and what it objects to."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.config import TrainConfig, default_trainer
from estimator_app.preflight.findings import COSTS, FAILS, GOOD
from estimator_app.preflight.xla import check_hlo
from estimator_app.runtime.topologies import find_topology
from support import broken_networks
from support.app_fixtures import configured, keras_warns
from support.tensorflow_steps import make_checks, make_step
from tpu_input import make_train_input_fn

pytestmark = keras_warns
HAS_ESTIMATOR = default_trainer() == "tpu_estimator"
TRAINERS = ["tpu_estimator", "tf_distribute"] if HAS_ESTIMATOR else ["tf_distribute"]


def lowered(manifest, tmp_path, spec=None, **options):
    config: TrainConfig = configured(manifest, **options)
    spec = spec or make_train_input_fn(manifest, config.input)({"batch_size": 16}).element_spec
    return check_hlo(lambda: make_step(config, str(tmp_path), spec))


@pytest.mark.parametrize("loop", TRAINERS)
@pytest.mark.parametrize("options", [{}, {"layout": "HWCN", "optimizer": "lars", "precision": "bfloat16"}], ids=str)
def test_a_good_step_has_fixed_sizes_and_nothing_of_64_bits(digits_dataset, tmp_path, loop, options):
    findings, hlo = lowered(digits_dataset, tmp_path, trainer=loop, **options)
    assert [finding.verdict for finding in findings] == [GOOD], findings
    assert "u8[16,16,3,16]" if options else "u8[16,16,16,3]" in hlo.text
    assert ("bf16[" in hlo.text) == bool(options)
    assert hlo.text.count("convolution(") >= 6 * 2  # forward and back
    assert len(hlo.serialized) > 10_000


@pytest.mark.parametrize("loop", TRAINERS)
@pytest.mark.parametrize("layout", ["NHWC", "HWCN"])
def test_steps_of_evaluation_and_prediction_only_go_forward(digits_dataset, loop, layout):
    options = {"trainer": loop, "layout": layout, "eval_batch_size": 32, "ema": 0.9}
    config = configured(digits_dataset, **options)
    for mode in ("evaluation", "prediction"):
        checks = make_checks(digits_dataset, config, find_topology("v5e:2x2"))
        findings, hlo = check_hlo(functools.partial(checks.step_of, mode), mode)
        assert [finding.verdict for finding in findings] == [GOOD], findings
        assert hlo
        assert f"{mode}: XLA compiles the step" in findings[0].seen
        assert hlo.text.count("convolution(") == 6
        # Files of a client are decoded as NHWC, whatever the layout of the dataset's batches is.
        sizes = "u8[16,16,3,8]" if (mode, layout) == ("evaluation", "HWCN") else "u8[8,16,16,3]"
        assert sizes in hlo.text


@pytest.mark.parametrize("network", ["lstm", "gru"])
@pytest.mark.long
def test_recurrent_layers_that_xla_trains_raise_no_alarm_in_either_loop(digits_dataset, tmp_path, network):
    images = tf.random.stateless_uniform([16, 16, 16, 3], [1, 2])
    inputs = tf.keras.Input([16, 16, 3])
    model = tf.keras.Model(inputs, getattr(broken_networks, network)(inputs, 10, None))

    @tf.function(autograph=False)
    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(images, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    # Keras and XLA without anything of ours: the run that an alarm would contradict.
    compiled = tf.function(gradients, jit_compile=True, autograph=False)()
    for gradient, reference in zip(compiled, gradients(), strict=True):
        assert np.allclose(gradient, reference, atol=1e-5)
    for loop in TRAINERS:
        findings, hlo = lowered(digits_dataset, tmp_path, trainer=loop, network=f"support.broken_networks:{network}")
        assert [finding.verdict for finding in findings] == [GOOD], (loop, findings)
        assert " while(" in hlo.text


@pytest.mark.parametrize("loop", TRAINERS)
@pytest.mark.parametrize(
    ("network", "verdict", "messages"),
    [
        ("data_dependent_size", FAILS, ["depends on the data", broken_networks.line_of("SIZE")]),
        (
            "text",
            FAILS,
            [
                "XLA does not support AsString",
                broken_networks.line_of("TEXT"),
                "strings are supported only on hosts",
            ],
        ),
        ("masked", COSTS, ["<=160", "weight of 0, instead of using boolean_mask", broken_networks.line_of("MASKED")]),
        ("precise", COSTS, ["f64[16,10] is float64", "use float32", broken_networks.line_of("PRECISE")]),
    ],
)
def test_what_xla_cannot_do_or_does_at_a_cost_is_told(digits_dataset, tmp_path, loop, network, verdict, messages):
    findings, _ = lowered(digits_dataset, tmp_path, trainer=loop, network=f"support.broken_networks:{network}")
    assert {finding.verdict for finding in findings} == {verdict}
    assert all(any(message in str(finding) for finding in findings) for message in messages), findings


@pytest.mark.parametrize("loop", TRAINERS)
def test_a_label_of_64_bits_is_told_by_its_name(digits_dataset, tmp_path, loop):
    config = configured(digits_dataset)
    features, label = make_train_input_fn(digits_dataset, config.input)({"batch_size": 16}).element_spec
    findings, _ = lowered(digits_dataset, tmp_path, (features, tf.TensorSpec(label.shape, tf.int64)), trainer=loop)
    assert findings[0].verdict == COSTS
    assert str(findings[0]) == (
        "! the input's label is int64, which a TPU emulates with two 32-bit numbers: cast it to int32 in the input"
    )
