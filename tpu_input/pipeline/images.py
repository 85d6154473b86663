"""Decoding of image files into images of the configured size; the only module that decodes images.

    scalar string ──window──▶ fused decode of the window ──▶ bilinear resize ──▶ [image_size, image_size, 3]

A window is the part of an image that is used: random_window() draws it for training; for evaluation, centre_window()
returns it, or whole_window() with config.resize other than "crop". JPEGs are decoded only inside the window, and at
1/2, 1/4 or 1/8 of their size where the window is that many times as large as the result; PNGs and raw pixels are
decoded completely. Costs measured on 500 x 375 JPEGs at 224 px: the fused decode saves a fifth of a full one;
INTEGER_FAST and plain upscaling save 8 %; bilinear instead of bicubic resizing saves 0.45 ms per image.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_input.config import InputConfig
from tpu_input.dataset_format.manifest import Split
from tpu_input.dataset_format.records import RecordSpec
from tpu_input.pipeline.seeds import seed_for
from tpu_input.without_tensorflow.windows import BELOW_HALF, RATIOS, TRIES, ranges


def random_window(shape: tf.Tensor, seed: tf.Tensor, config: InputConfig) -> tf.Tensor:
    """Returns [4] int32 (y, x, height, width) of a random window of an image.

    The window's area is uniformly distributed over config.crop_area, as in Szegedy et al. 2014, "Going deeper with
    convolutions", section 6; the logarithm of width / height over config.crop_aspect's; its position over all
    positions within the image. A window that does not fit into the image is drawn again. If ten draws do not fit (e.g.
    in a panorama), it is the largest centered window with an allowed aspect ratio. These are the rules of
    torchvision.transforms.RandomResizedCrop. With config.resize "pad" and "squash", the aspect ratio is relative to the
    image's: the window is the one that these rules give for the image stretched to a square.

    Args:
      shape: [3] int32, (height, width, channels) of the image.
      seed: [2] int64, used for nothing else.
      config: For crop_area, crop_aspect and resize.
    """
    smallest, largest = config.crop_aspect
    low, high = np.repeat(ranges(config)[:, :, None], TRIES, axis=2)
    # (share, log aspect, y, x) of all tries at once, because the time depends on the number of ops.
    tries = low + (high - low) * tf.random.stateless_uniform([4, TRIES], seed)
    sides = tf.cast(shape[:2], tf.float32)
    largest_sides = sides[::-1]  # times an aspect ratio and its inverse: the largest window's
    if config.resize != "crop":
        tries += tf.math.log(sides[1] / sides[0]) * [[0.0], [1.0], [0.0], [0.0]]
        largest_sides = sides
    shares, aspects, _, _ = tf.unstack(tries)
    area = tf.reduce_prod(sides)
    # Tests height² = area / aspect and width² = area × aspect at once; up to half a pixel too much is rounded down.
    height, width = tf.unstack(sides + 0.5)
    fits = shares * tf.exp(tf.abs(aspects - tf.math.log(width / height))) <= width * height / area
    choice = tf.argmax(tf.cast(fits, tf.int8))
    one_fits = tf.gather(fits, choice)
    share, aspect, place = tf.split(tf.gather(tries, choice, axis=1), [1, 1, 2])
    size = tf.sqrt(share * area * tf.exp(aspect * [-1.0, 1.0]))
    size = tf.where(one_fits, size, largest_sides * [1 / smallest, largest])
    size = tf.clip_by_value(tf.round(size), 1.0, sides)
    begin = tf.floor(tf.where(one_fits, place, float(BELOW_HALF)) * (sides - size + 1))
    return tf.cast(tf.concat([begin, size], 0), tf.int32)


def centre_window(shape: tf.Tensor, share: float) -> tf.Tensor:
    """Returns [4] int32 (y, x, height, width) of the centered square whose side is `share` of the shorter side."""
    side = tf.cast(tf.round(share * tf.cast(tf.reduce_min(shape[:2]), tf.float32)), tf.int32)
    side = tf.maximum(side, 1)
    return tf.concat([(shape[:2] - side) // 2, [side, side]], axis=0)


def whole_window(shape: tf.Tensor) -> tf.Tensor:
    """Returns [4] int32 (0, 0, height, width), the whole image."""
    return tf.concat([tf.zeros([2], tf.int32), shape[:2]], axis=0)


# ([height, width, 3] uint8, its window in pixels of the image at its own size, config) -> image of config.dtype
Resize = Callable[[tf.Tensor, tf.Tensor, InputConfig], tf.Tensor]

Parts = tuple[list[tf.Tensor], list[tf.Tensor]]  # pixels of windows, at their own size or less; the windows

_OURS = RecordSpec()
_JPEG_BEGIN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
_PNG_BEGIN, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"


def decode_for_training(
    encoded: tf.Tensor,
    seed: tf.Tensor,
    config: InputConfig,
    record: RecordSpec = _OURS,
    magic_checked: bool = False,
    resize: Resize | None = None,
    augmented: bool = True,
) -> Any:
    """Returns a random crop, mirrored at random: [image_size, image_size, 3] of config.dtype in [0, 255].

    With config.echo above 1, it returns a tuple of that many crops; stacking them would cost two more copies.

    Args:
      encoded: Scalar string, a JPEG or PNG file or as `record` says; or a decoded image, [height, width, 3] uint8.
      seed: [2] int64; the same seed gives the same crop. Window, flip, config.augment and each crop of config.echo use
        separate seeds that are derived from it.
      config: For image_size, dtype, resize, crop_area, crop_aspect, flip, augment, echo, and mean as the color of
        "pad".
      record: How `encoded` is encoded.
      magic_checked: Whether has_magic_bytes() returned True, so that the file type need not be checked again.
      resize: Makes the image from the pixels of its window; None resizes them. The benchmark gives one that does not.
      augmented: Whether the crop is mirrored and augmented; if not, augment_crops() does that.
    """

    def windows(shape: tf.Tensor) -> list[tf.Tensor]:
        return [random_window(shape, seed_for(crop_seed, "window"), config) for crop_seed in _crop_seeds(seed, config)]

    images = _crops(encoded, windows, config, record, magic_checked, resize or _resized)
    crops = images[0] if config.echo == 1 else tuple(images)
    return augment_crops(crops, seed, config) if augmented else crops


def augment_crops(crops: Any, seed: tf.Tensor, config: InputConfig) -> Any:
    """Returns what decode_for_training() returns, from what it returns with augmented=False."""
    images, seeds = [crops] if config.echo == 1 else list(crops), _crop_seeds(seed, config)
    if config.flip:
        flips = [seed_for(crop_seed, "flip") for crop_seed in seeds]
        images = [tf.image.stateless_random_flip_left_right(*pair) for pair in zip(images, flips, strict=True)]
    if config.augment not in (None, "none"):
        images = [
            _augmented(image, seed_for(crop_seed, "augment"), config)
            for image, crop_seed in zip(images, seeds, strict=True)
        ]
    return images[0] if config.echo == 1 else tuple(images)


def _crop_seeds(seed: tf.Tensor, config: InputConfig) -> list[tf.Tensor]:
    """Returns one seed for each of config.echo crops."""
    if config.echo == 1:
        return [seed]
    return [tf.stack([seed[0], seed[1] * config.echo + crop]) for crop in range(config.echo)]


def decode_for_evaluation(
    encoded: tf.Tensor, config: InputConfig, record: RecordSpec = _OURS, magic_checked: bool = False
) -> tf.Tensor:
    """Returns what evaluation and serving see of an image: [image_size, image_size, 3] of config.dtype in [0, 255].

    It is the centered square, or with config.resize "pad" and "squash" the whole image.

    Args:
      encoded: Scalar string, a JPEG or PNG file or as `record` says.
      config: For image_size, dtype, resize, eval_crop, and mean as the color of "pad".
      record: How `encoded` is encoded.
      magic_checked: Whether has_magic_bytes() returned True, so that the file type need not be checked again.
    """
    is_cropped = config.resize == "crop"
    window = functools.partial(centre_window, share=config.eval_crop) if is_cropped else whole_window
    (image,) = _crops(encoded, lambda shape: [window(shape)], config, record, magic_checked, _resized)
    return image


def has_magic_bytes(encoded: tf.Tensor, record: RecordSpec) -> tf.Tensor:
    """Returns a scalar bool: whether a file begins and ends with the magic bytes of its encoding.

    The end may be followed by other bytes, as cameras add them, but is looked for in the second half of the file alone:
    a preview in the header has an end too. The check is cheap and does not guarantee that the image decodes. For raw
    pixels, it compares the number of bytes.
    """
    if record.raw_shape:
        return tf.equal(tf.strings.length(encoded), tf.reduce_prod(record.raw_shape))
    begin, end = (_JPEG_BEGIN, _JPEG_END) if record.encoding == "jpeg" else (_PNG_BEGIN, _PNG_END)
    size = tf.strings.length(encoded)
    length = tf.minimum(len(end), size)  # substr fails outside of the string
    ends = tf.cond(
        tf.equal(tf.strings.substr(encoded, -length, length), end),
        lambda: tf.constant(True),
        lambda: tf.size(tf.strings.split(tf.strings.substr(encoded, size // 2, size), end)) > 1,
    )
    return tf.logical_and(_begins(encoded, begin), ends)


def decode_whole(encoded: tf.Tensor, record: RecordSpec = _OURS) -> tf.Tensor:
    """Returns all pixels of an image, [height, width, 3] uint8."""
    if record.raw_shape:
        pixels = tf.reshape(tf.io.decode_raw(encoded, tf.uint8), record.raw_shape)
        return tf.broadcast_to(pixels, [*record.raw_shape[:2], 3])
    return tf.cond(
        _begins(encoded, _JPEG_BEGIN),
        lambda: tf.image.decode_jpeg(encoded, channels=3, dct_method="INTEGER_FAST", fancy_upscaling=False),
        lambda: tf.ensure_shape(tf.image.decode_image(encoded, channels=3, expand_animations=False), [None, None, 3]),
    )


def _augmented(image: tf.Tensor, seed: tf.Tensor, config: InputConfig) -> tf.Tensor:
    if not callable(config.augment):
        raise TypeError(f"a function of augment is needed here, got the name {config.augment!r}; see find_augment()")
    augmented = config.augment(image, seed)
    if augmented is None:
        raise ValueError("augment must return an image, got None; end the function with return")
    augmented = tf.convert_to_tensor(augmented)
    if augmented.dtype != image.dtype or not image.shape.is_compatible_with(augmented.shape):
        raise ValueError(
            f"augment must keep dtype and shape, got {augmented.dtype.name} {augmented.shape} for an image of "
            f"{image.dtype.name} {image.shape}"
        )
    return tf.ensure_shape(augmented, image.shape)


def _begins(encoded: tf.Tensor, magic: bytes) -> tf.Tensor:
    return tf.equal(tf.strings.substr(encoded, 0, len(magic)), magic)


def _crops(
    encoded: tf.Tensor,
    choose: Callable[[tf.Tensor], list[tf.Tensor]],
    config: InputConfig,
    record: RecordSpec,
    magic_checked: bool,
    resize: Resize,
) -> list[tf.Tensor]:
    """Returns one image for each window that `choose` returns for the shape [height, width, 3]."""
    # The branches of a tf.cond return pixels, so that what follows is in the graph once.
    encoded = tf.convert_to_tensor(encoded)

    def decoded(windows: list[tf.Tensor], ratio: int = 1) -> list[tf.Tensor]:
        """Returns the pixels of windows, which are in pixels of 1 / ratio of the image."""
        decode = functools.partial(
            tf.image.decode_and_crop_jpeg, channels=3, ratio=ratio, dct_method="INTEGER_FAST", fancy_upscaling=False
        )
        if len(windows) == 1:
            return [decode(encoded, windows[0])]
        low = tf.reduce_min([window[:2] for window in windows], axis=0)
        high = tf.reduce_max([window[:2] + window[2:] for window in windows], axis=0)
        covered = decode(encoded, tf.concat([low, high - low], 0))
        return [_part(covered, tf.concat([window[:2] - low, window[2:]], 0)) for window in windows]

    def fused() -> Parts:
        windows = choose(tf.io.extract_jpeg_shape(encoded))
        if not config.scaled_decode:
            return decoded(windows), windows
        times = tf.reduce_min([_times_as_large(window, config) for window in windows])

        def scaled() -> list[tf.Tensor]:
            number = tf.reduce_sum(tf.cast(times >= tf.constant(RATIOS), tf.int32)) - 1
            branches = [functools.partial(decoded_at, ratio) for ratio in RATIOS]
            return list(tf.switch_case(number, branches))

        def decoded_at(ratio: int) -> list[tf.Tensor]:
            return decoded([scaled_window(window, ratio) for window in windows], ratio)

        return tf.cond(times >= RATIOS[0], scaled, lambda: decoded(windows)), windows

    def full() -> Parts:
        image = decode_whole(encoded, record) if encoded.dtype == tf.string else encoded
        windows = choose(tf.shape(image))
        return [_part(image, window) for window in windows], windows

    if record.encoding != "jpeg" or encoded.dtype != tf.string:
        parts, windows = full()
    elif magic_checked:
        parts, windows = fused()
    else:
        parts, windows = tf.cond(_begins(encoded, _JPEG_BEGIN), fused, full)
    return [resize(image, window, config) for image, window in zip(parts, windows, strict=True)]


def _times_as_large(window: tf.Tensor, config: InputConfig) -> tf.Tensor:
    """Returns how many times as large a window is as the image that it becomes, rounded down, scalar int32."""
    shorter = tf.reduce_min(window[2:])
    if config.resize != "pad":
        return shorter // config.image_size
    # The longer side becomes image_size, and the shorter one may be of any length; a pixel of it has to be left.
    return tf.minimum(tf.reduce_max(window[2:]) // config.image_size, shorter)


def for_images_of(config: InputConfig, split: Split) -> InputConfig:
    """Returns the config without scaled_decode if no window of the split's images can be twice as large as the result.

    To look at each window takes 2 % of the time of a photograph of 500 x 375 pixels.
    """
    sides = split.height[2], split.width[2]  # at most, in pixels; 0 is not known
    side = max(sides) if config.resize == "pad" else min(sides)
    large = not side or side >= RATIOS[0] * config.image_size
    return dataclasses.replace(config, scaled_decode=config.scaled_decode and large)


def scaled_window(window: tf.Tensor, ratio: int) -> tf.Tensor:
    """Returns a window, [4] int32 (y, x, height, width), in the pixels of an image that is decoded at 1 / ratio.

    libjpeg then makes one pixel of each ratio x ratio pixels, counted from the upper left corner. The sides are
    rounded to the nearest of them, so that they move by at most half of one, which is at most half a pixel of the
    result. A window of at least image_size * ratio pixels keeps at least image_size.
    """
    corners = (tf.concat([window[:2], window[:2] + window[2:]], 0) + ratio // 2) // ratio
    return tf.concat([corners[:2], corners[2:] - corners[:2]], 0)


def _part(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    return tf.slice(image, tf.pad(window[:2], [[0, 1]]), tf.concat([window[2:], [3]], 0))


# The resize reads uint8 one channel of one pixel at a time, but uses vector instructions for float32. Casting first is
# faster for up to this many times the pixels of the output; for more, it would only take memory.
CAST_UP_TO = 4


def _resized(image: tf.Tensor, window: tf.Tensor, config: InputConfig) -> tf.Tensor:
    size: Any = [config.image_size, config.image_size]
    if config.resize == "pad":
        size = padded_sides(window[2:], config.image_size)
    image = tf.cond(
        tf.size(image) <= CAST_UP_TO * 3 * config.image_size**2,
        lambda: tf.image.resize(tf.cast(image, tf.float32), size, "bilinear"),
        lambda: tf.image.resize(image, size, "bilinear"),
    )
    if config.dtype == "uint8":
        image = tf.round(image)
    image = tf.cast(image, config.dtype)
    return _padded(image, config) if config.resize == "pad" else image


def padded_sides(sides: tf.Tensor, image_size: int) -> tf.Tensor:
    """Returns [2] int32, the (height, width) that a window gets with resize="pad": the longer one is image_size."""
    sides = tf.cast(sides, tf.float32)
    return tf.cast(tf.maximum(tf.round(sides * (image_size / tf.reduce_max(sides))), 1.0), tf.int32)


def _padded(image: tf.Tensor, config: InputConfig) -> tf.Tensor:
    """Returns an image in the middle of a square of config.image_size, whose rest has the color config.mean."""
    color = np.round(config.mean) if config.dtype == "uint8" else np.array(config.mean)
    color = tf.cast(tf.constant(color, tf.float32), config.dtype)
    side = config.image_size
    height, width = tf.unstack(tf.shape(image)[:2])
    top, begin = (side - height) // 2, (side - width) // 2

    def bar(height: Any, width: Any) -> tf.Tensor:
        return tf.broadcast_to(color, [height, width, 3])

    image = tf.concat([bar(top, width), image, bar(side - height - top, width)], 0)
    image = tf.concat([bar(side, begin), image, bar(side, side - width - begin)], 1)
    return tf.ensure_shape(image, [side, side, 3])
