"""Serving sees what evaluation sees."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpu_input import InputConfig, make_serving_input_receiver_fn
from tpu_input.pipeline.images import decode_for_evaluation

pytest.importorskip("tensorflow_estimator", reason="TPUEstimator ends with TensorFlow 2.15")


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32"])
def test_the_receiver_crops_a_batch_of_jpegs_as_evaluation_does(digits, dtype):
    config = InputConfig(16, dtype, layout="HWCN")
    files = [path.read_bytes() for path in sorted((digits / "3").iterdir())[:5]]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        receiver = make_serving_input_receiver_fn(config)()
        placeholder = receiver.receiver_tensors["image_bytes"]
        assert receiver.features["image"].shape.as_list() == [None, 16, 16, 3]
        served = session.run(receiver.features["image"], {placeholder: files})
    evaluated = np.stack([decode_for_evaluation(data, config).numpy() for data in files])
    assert served.dtype == evaluated.dtype
    np.testing.assert_array_equal(served, evaluated)


def test_the_receiver_takes_pngs_too(digits):
    config = InputConfig(16)
    jpeg = min((digits / "3").iterdir()).read_bytes()
    png = tf.io.encode_png(tf.io.decode_jpeg(jpeg, channels=3, dct_method="INTEGER_FAST")).numpy()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        receiver = make_serving_input_receiver_fn(config)()
        served = session.run(receiver.features["image"], {receiver.receiver_tensors["image_bytes"]: [jpeg, png]})
    np.testing.assert_array_equal(served[0], served[1])


def test_the_receiver_is_built_without_autograph(monkeypatch):
    statuses = []

    def decode(encoded, config):
        statuses.append(tf.__internal__.autograph.control_status_ctx().status.name)
        return decode_for_evaluation(encoded, config)

    monkeypatch.setattr("tpu_input.predict.decode_for_evaluation", decode)
    with tf.Graph().as_default():
        make_serving_input_receiver_fn(InputConfig(16))()
    assert statuses == ["DISABLED"]
