"""JPEG bytes → one image of the configured size; the only place that decodes and crops.

    scalar string ──window──▶ fused decode of that window alone ──▶ bilinear resize ──▶ [image_size, image_size, 3]

Costs measured on 500 x 375 JPEGs at 224 px: the fused decode saves a fifth of a full one; INTEGER_FAST and plain
upscaling save 8 %, bilinear instead of bicubic 0.45 ms an image.
"""

from __future__ import annotations

import tensorflow as tf

from tpu_input.config import InputConfig


def decode_for_training(encoded: tf.Tensor, seed: tf.Tensor, config: InputConfig) -> tf.Tensor:
    """Returns a random crop, perhaps mirrored: [image_size, image_size, 3] of config.dtype in [0, 255].

    Args:
      encoded: Scalar string, a JPEG file.
      seed: [2] integers; the same seed gives the same crop.
      config: For image_size, dtype, crop_area, crop_aspect and flip.
    """
    shape = tf.io.extract_jpeg_shape(encoded)
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.zeros([1, 0, 4]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=config.crop_aspect,
        area_range=config.crop_area,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], axis=0)
    # After 10 misses (a panorama, say) the op returns the whole image, which resizing would squeeze.
    whole = tf.reduce_all(tf.equal(size[:2], shape[:2]))
    image = _decode_window(encoded, tf.where(whole, _centre_window(shape, 1.0), window), config)
    if config.flip:
        image = tf.image.stateless_random_flip_left_right(image, seed)
    return image


def decode_for_evaluation(encoded: tf.Tensor, config: InputConfig) -> tf.Tensor:
    """Returns the centred square: [image_size, image_size, 3] of config.dtype in [0, 255]; also what serving sees.

    Args:
      encoded: Scalar string, a JPEG file.
      config: For image_size, dtype and eval_crop.
    """
    shape = tf.io.extract_jpeg_shape(encoded)
    return _decode_window(encoded, _centre_window(shape, config.eval_crop), config)


def _centre_window(shape: tf.Tensor, share: float) -> tf.Tensor:
    """Returns [4] int32 (y, x, height, width) of the centred square with `share` of the shorter side."""
    side = tf.cast(tf.round(share * tf.cast(tf.reduce_min(shape[:2]), tf.float32)), tf.int32)
    side = tf.maximum(side, 1)
    return tf.concat([(shape[:2] - side) // 2, [side, side]], axis=0)


def _decode_window(encoded: tf.Tensor, window: tf.Tensor, config: InputConfig) -> tf.Tensor:
    image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3, dct_method="INTEGER_FAST", fancy_upscaling=False)
    image = tf.image.resize(image, [config.image_size, config.image_size], "bilinear")
    if config.dtype == "uint8":
        image = tf.round(image)
    return tf.cast(image, config.dtype)
