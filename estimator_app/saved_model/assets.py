"""Warm-up requests, which TensorFlow Serving runs at startup, so that no client has to wait for the first inference.

    image files ──▶ PredictionLog{PredictLog{PredictRequest}} ──▶ TFRecords in assets.extra/tf_serving_warmup_requests

https://www.tensorflow.org/tfx/serving/saved_model_warmup. Only tensorflow-serving-api contains these protobuf
messages; it would be a dependency that pins TensorFlow's version, for five field numbers. These are defined below, and
a test compares them with tensorflow-serving-api.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpu_input.dataset_format.tfrecord import length_delimited

WARMUP_NAME = "tf_serving_warmup_requests"

# Field numbers of tensorflow_serving/apis/prediction_log.proto, predict.proto and model.proto.
_PREDICTION_LOG_PREDICT_LOG = 6
_PREDICT_LOG_REQUEST = 1
_REQUEST_MODEL_SPEC, _REQUEST_INPUTS = 1, 2
_MODEL_SPEC_SIGNATURE_NAME = 3
_MAP_KEY, _MAP_VALUE = 1, 2  # https://protobuf.dev/programming-guides/proto3/#maps


def write_warmup(path: str, requests: Iterable[Sequence[bytes]]) -> None:
    """Writes the warm-up file `path`; each request is a batch of image files."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(path) as writer:
        for files in requests:
            writer.write(prediction_log(files))


def prediction_log(files: Sequence[bytes]) -> bytes:
    """Returns the serialized PredictionLog of a request to serving_default with a batch of image files."""
    import tensorflow as tf

    tensor: bytes = tf.make_tensor_proto(files, tf.string, [len(files)]).SerializeToString()
    model_spec = _field(_REQUEST_MODEL_SPEC, _field(_MODEL_SPEC_SIGNATURE_NAME, b"serving_default"))
    inputs = _field(_REQUEST_INPUTS, _field(_MAP_KEY, b"image_bytes"), _field(_MAP_VALUE, tensor))
    return _field(_PREDICTION_LOG_PREDICT_LOG, _field(_PREDICT_LOG_REQUEST, model_spec, inputs))


def _field(number: int, *parts: bytes) -> bytes:
    return b"".join(length_delimited(number, parts))
