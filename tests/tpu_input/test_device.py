"""What reaches the device: static shapes, layouts and their inverse, dtypes, normalisation; and serving's crop."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tpu_input import InputConfig, from_infeed, make_eval_input_fn, make_train_input_fn
from tpu_input.config import LAYOUTS, Dtype
from tpu_input.pipeline.device import resolved_layout
from tpu_input.pipeline.images import decode_for_evaluation, decode_for_training, decode_whole

SHAPES = {"NHWC": (6, 8, 8, 3), "HWCN": (8, 8, 3, 6), "HWNC": (8, 8, 6, 3)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", get_args(Dtype))
@pytest.mark.parametrize("make", [make_train_input_fn, make_eval_input_fn])
def test_shapes_are_static_and_dtypes_as_configured(digits_dataset, make, layout, dtype):
    features, label = make(digits_dataset, InputConfig(8, dtype, layout))({"batch_size": 6}).element_spec
    assert features["image"] == tf.TensorSpec(SHAPES[layout], dtype)
    assert features["weight"] == tf.TensorSpec([6], tf.float32)
    assert label == tf.TensorSpec([6], tf.int32)


def normalised(dataset, config):
    features, _ = next(iter(make_eval_input_fn(dataset, config)({"batch_size": 6})))
    return from_infeed(features["image"], config)


@pytest.fixture(scope="module")
def reference(digits_dataset):
    return normalised(digits_dataset, InputConfig(8, "float32")).numpy()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", get_args(Dtype))
def test_from_infeed_undoes_layout_and_dtype_and_normalises(digits_dataset, reference, layout, dtype):
    images = normalised(digits_dataset, InputConfig(8, dtype, layout))
    assert images.dtype == tf.float32
    # uint8 rounds to 0.5 and bfloat16 to 0.5 of 255, before the division by a deviation of about 57.
    np.testing.assert_allclose(images, reference, atol=0.51 / 57)


@pytest.mark.parametrize(
    ("batch_size", "shape"),
    [(8, (8, 8, 8, 3)), *(pytest.param(n, (8, 8, 3, n), marks=pytest.mark.long) for n in (3, 9))],
)
@pytest.mark.parametrize("make", [make_train_input_fn, make_eval_input_fn])
def test_auto_chooses_the_layout_by_the_batch_and_the_device_recognises_it(digits_dataset, make, batch_size, shape):
    def first(layout):
        config = InputConfig(8, layout=layout)
        images = next(iter(make(digits_dataset, config)({"batch_size": batch_size})))[0]["image"]
        return images.shape, from_infeed(images, config)

    auto = first("auto")
    assert auto[0] == shape
    np.testing.assert_array_equal(auto[1], first("NHWC")[1])


@pytest.mark.parametrize("seed", range(5))
def test_the_fused_decode_gives_the_pixels_of_the_plain_one(seed):
    config, encoded = InputConfig(64, "float32", scaled_decode=False), jpeg(375, 500)
    for fused, unfused in (
        (
            decode_for_training(encoded, [0, seed], config),
            decode_for_training(decode_whole(encoded), [0, seed], config),
        ),
        (decode_for_evaluation(encoded, config), decode_for_evaluation(decode_whole(encoded), config)),
    ):
        np.testing.assert_allclose(fused, unfused, atol=1)


def on_tensorflow(images, config):
    return tf.function(lambda images: from_infeed(images, config))(tf.constant(images)).numpy()


def on_jax(images, config):
    jax = pytest.importorskip("jax", exc_type=ImportError)
    return np.asarray(jax.jit(lambda images: from_infeed(images, config))(images))


@pytest.mark.parametrize("layout", [*LAYOUTS, "auto"])
@pytest.mark.parametrize("dtype", get_args(Dtype))
@pytest.mark.parametrize("compiled", [on_tensorflow, on_jax])
def test_from_infeed_gives_the_same_in_every_library(compiled, layout, dtype):
    for batch_size in (3, 8, 9):
        config = InputConfig(8, dtype, layout, mean=(120, 115.5, 104), std=(58.5, 57, 57.25))
        axes = resolved_layout(layout, batch_size)
        pixels = np.random.default_rng(batch_size).uniform(0, 255, (batch_size, 8, 8, 3))
        images = pixels.transpose(["NHWC".index(axis) for axis in axes]).astype(tf.as_dtype(dtype).as_numpy_dtype)
        on_numpy = from_infeed(images, config)
        assert type(on_numpy) is np.ndarray
        assert on_numpy.dtype == np.float32
        arrived = pixels.astype(images.dtype).astype(np.float64)
        np.testing.assert_allclose(on_numpy, (arrived - config.mean) / config.std, atol=1e-6)
        # A compiler may multiply by the reciprocal of a constant.
        np.testing.assert_allclose(compiled(images, config), on_numpy, rtol=0, atol=5e-7)


def test_a_step_of_several_hosts_is_recognised_in_layout_auto():
    """Each host's part of 8 is laid out HWNC; their global array has 16 along that axis."""
    parts = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), np.uint8)
    together = np.concatenate([part.transpose(1, 2, 0, 3) for part in (parts[:8], parts[8:])], axis=2)
    expected = from_infeed(parts, InputConfig(8))
    np.testing.assert_array_equal(from_infeed(together, InputConfig(8, layout="auto")), expected)
    np.testing.assert_array_equal(from_infeed(tf.constant(together), InputConfig(8, layout="auto")), expected)


def test_numpy_arrays_need_no_tensorflow():
    code = """
import sys
sys.modules["tensorflow"] = sys.modules["jax"] = None
import numpy as np, tpu_input
images = np.full((4, 4, 3, 9), 200, np.uint8)
config = tpu_input.InputConfig(4, layout="HWCN", mean=(100, 0, 0), std=(50, 1, 1))
assert tpu_input.from_infeed(images, config)[0, 0, 0].tolist() == [2, 200, 200]
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_normalisation_uses_the_given_mean_and_deviation():
    config = InputConfig(1, "float32", mean=(10, 20, 30), std=(1, 2, 4))
    np.testing.assert_allclose(from_infeed(tf.constant([[[[11.0, 24.0, 42.0]]]]), config), [[[[1, 2, 3]]]])


def jpeg(height: int, width: int) -> bytes:
    """Horizontal position in red, vertical in green."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([255 * x / (width - 1), 255 * y / (height - 1), 0 * x], axis=-1)
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "JPEG", quality=95, subsampling=0)
    return buffer.getvalue()


def test_evaluation_sees_the_centred_square():
    image = decode_for_evaluation(jpeg(100, 200), InputConfig(50, "float32", eval_crop=0.5)).numpy()
    # Of 200 pixels the crop takes 75 to 125, of 100 it takes 25 to 75.
    assert image[:, 0, 0].mean() == pytest.approx(255 * 75.5 / 199, abs=3)
    assert image[:, -1, 0].mean() == pytest.approx(255 * 123.5 / 199, abs=3)
    assert image[0, :, 1].mean() == pytest.approx(255 * 25.5 / 99, abs=3)
    assert image[-1, :, 1].mean() == pytest.approx(255 * 73.5 / 99, abs=3)


def test_training_crops_keep_to_their_area_and_aspect():
    config = InputConfig(16, "float32", crop_area=(0.2, 0.5), crop_aspect=(0.9, 1.1), flip=False)
    for number in range(50):
        image = decode_for_training(jpeg(200, 200), [0, number], config).numpy()
        width, height = np.ptp(image[:, :, 0]) / 255, np.ptp(image[:, :, 1]) / 255
        assert 0.15 < width * height < 0.52
        assert 0.8 < width / height < 1.25


def test_a_panorama_is_cropped_to_its_centre_rather_than_squeezed():
    config = InputConfig(16, "float32", crop_area=(0.9, 1.0), flip=False)
    image = decode_for_training(jpeg(20, 400), [0, 0], config).numpy()
    assert np.ptp(image[:, :, 0]) < 255 * (20 * 4 / 3) / 400 * 1.5


def test_greyscale_becomes_three_equal_channels(digits):
    data = (digits / "0" / "0000.jpg").read_bytes()
    image = decode_for_evaluation(data, InputConfig(8)).numpy()
    assert (image[..., :1] == image).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size": 0}, "image_size must be at least 1, got 0"),
        ({"dtype": "float16"}, "dtype must be one of uint8, bfloat16, float32, got 'float16'"),
        ({"layout": "NCHW"}, "layout must be one of NHWC, HWCN, HWNC, auto, got 'NCHW'"),
        ({"crop_area": (0.0, 1.0)}, "crop_area must satisfy 0 < smallest <= largest <= 1"),
        ({"crop_aspect": (2.0, 1.0)}, "crop_aspect must satisfy 0 < smallest <= largest"),
        ({"eval_crop": 1.5}, "eval_crop must be above 0 and at most 1, got 1.5"),
        ({"std": (1, 0, 1)}, "std must be positive"),
        ({"std": (1, float("inf"), 1)}, "std must be a finite number, got inf"),
        ({"mean": (1, 256, 1)}, "mean must be from 0 to 255"),
        ({"mean": (1, float("nan"), 1)}, "mean must be a finite number, got nan"),
        ({"seed": -1}, "seed must be in"),
    ],
)
def test_a_configuration_that_cannot_work_says_what_is_needed(change, message):
    with pytest.raises(ValueError, match=message):
        InputConfig(**{"image_size": 8, **change})


@pytest.mark.parametrize("size", [(100, 130), (40, 30)])
def test_small_and_large_windows_are_resized_alike(monkeypatch, size):
    results = []
    for cast_up_to in (0, 100):
        monkeypatch.setattr("tpu_input.pipeline.images.CAST_UP_TO", cast_up_to)
        results.append(decode_for_training(jpeg(*size), [0, 7], InputConfig(32)).numpy().astype(int))
    assert np.abs(results[0] - results[1]).max() <= 1
