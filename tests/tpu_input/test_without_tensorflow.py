"""Reading a dataset where TensorFlow is not installed; and random numbers, windows and pixels beside TensorFlow's."""

from __future__ import annotations

import functools
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tpu_input import InputConfig
from tpu_input.dataset_format.jpeg_markers import frame_size, with_rows
from tpu_input.dataset_format.records import RecordSpec
from tpu_input.pipeline import images
from tpu_input.pipeline.seeds import seed_for
from tpu_input.without_tensorflow import decode_window as decoding, random_numbers, windows
from tpu_input.without_tensorflow.decode_window import decode_window

ROOT = Path(__file__).parents[2]

# Runs the rest of the arguments as Python does, in a process in which TensorFlow cannot be imported.
WITHOUT = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tensorflow":
            raise ModuleNotFoundError(f"No module named {name!r}", name="tensorflow")

sys.meta_path.insert(0, Absent())
kind, *sys.argv = sys.argv[1:]
exec(sys.argv[0]) if kind == "-c" else runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def without_tensorflow(*args: str) -> tuple[int, str, str]:
    """Returns the exit code, stdout and stderr of `python ARGS`."""
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT, *args]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return result.returncode, result.stdout, result.stderr


READ = """
import tpu_input
manifest = tpu_input.read_manifest(sys.argv[1])
order = tpu_input.training_order(sys.argv[1], 8)
source = tpu_input.RecordSource(sys.argv[1], "train")
config = tpu_input.InputConfig(image_size=16)
for name in ("rand_augment:2,9", "color_jitter", "auto"):
    tpu_input.TrainSource(sys.argv[1], tpu_input.InputConfig(image_size=16, augment=name), 8)[0]
keys = [source[number].key for number in order.batches(0, 1)[0].tolist()]
example = tpu_input.TrainSource(sys.argv[1], config, 8)[0]
last = tpu_input.EvalSource(sys.argv[1], config, 8)[-1]
print(len(keys), tpu_input.eval_steps(manifest, "validation", 8), example["image"].shape, last["weight"])
"""


def test_a_dataset_is_read_where_tensorflow_is_not_installed(digits_dataset):
    code, out, err = without_tensorflow("-c", READ, digits_dataset.path)
    assert (code, out.strip()) == (0, "8 42 (16, 16, 3) 0.0"), err


def test_dali_s_index_is_written_where_tensorflow_is_not_installed(dataset_copy):
    assert without_tensorflow("-m", "tpu_input", "idx", str(dataset_copy)) == (
        *(0, f"11 index files in {dataset_copy}/index\n", ""),
    )
    assert len(list(dataset_copy.glob("index/*.idx"))) == 11


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("tpu_input.make_train_input_fn", "tpu_input.make_train_input_fn"),
        ("tpu_input.make_serving_input_receiver_fn", "tpu_input.make_serving_input_receiver_fn"),
        ("tpu_input.manifest_from_shards", "tpu_input.manifest_from_shards"),
        ("find_undecodable()", "tpu_input.find_undecodable(sys.argv[1], 'train', '')"),
    ],
)
def test_what_needs_tensorflow_says_what_to_install(digits_dataset, name, call):
    code, _, err = without_tensorflow("-c", f"import tpu_input; {call}", digits_dataset.path)
    expected = f"ImportError: {name}: TensorFlow is not installed; install it with: pip install 'jpeg2tpu[train]'"
    assert (code, err.splitlines()[-1]) == (1, expected)


def test_a_dataset_in_another_store_is_to_be_copied(digits_dataset):
    code, _, err = without_tensorflow(
        "-c", "import tpu_input; tpu_input.read_manifest('s3://b/d')", digits_dataset.path
    )
    expected = (
        "'s3://b/d/manifest.json' cannot be read: copy it to a local folder or to gs://, from which datasets are read"
    )
    assert (code, err.splitlines()[-1]) == (1, f"ValueError: {expected}")


@pytest.mark.parametrize("args", [("benchmark", "DATASET"), ("dispatcher",), ("worker", "--dispatcher=grpc://a:1")])
def test_a_command_that_needs_tensorflow_says_what_to_install_in_a_line(digits_dataset, args):
    result = without_tensorflow("-m", "tpu_input", *(arg.replace("DATASET", digits_dataset.path) for arg in args))
    line = "error: TensorFlow is not installed; install it with: pip install 'jpeg2tpu[train]'\n"
    assert result == (2, "", line)


# Of Random123, the authors' library: tests/kat_vectors, "philox4x32 10": counter, key, output.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(texts: Any) -> np.ndarray:
    return np.array([[int(word, 16) for word in text.split()] for text in texts], np.uint64).T


def test_philox_gives_its_authors_known_answers():
    counters, keys, outputs = map(words, zip(*KNOWN_ANSWERS, strict=True))
    np.testing.assert_array_equal(random_numbers.philox(counters, keys), outputs)


def some_seeds(number: int) -> np.ndarray:
    seeds = np.random.default_rng(0).integers(-(2**63), 2**63, [number, 2])
    seeds[:4] = [[0, 0], [1, 2**32], [-1, -1], [2**31 - 1, 5]]
    return seeds


def test_numbers_of_a_seed_are_tensorflow_s():
    seeds = some_seeds(300)
    for count in (1, 4, 7, 40):
        expected = [tf.random.stateless_uniform([count], seed).numpy() for seed in seeds[:: 40 // count + 1]]
        np.testing.assert_array_equal(random_numbers.uniform(seeds[:: 40 // count + 1], count), expected)


@pytest.mark.parametrize("limit", [1, 7, 2**31 - 1])
def test_integers_of_a_seed_are_tensorflow_s(limit):
    seeds = some_seeds(100)
    expected = [tf.random.stateless_uniform([], seed, 0, limit, tf.int32).numpy() for seed in seeds]
    np.testing.assert_array_equal(random_numbers.integers(seeds, limit), expected)


def test_the_seed_of_a_purpose_is_tensorflow_s():
    seeds = some_seeds(100)
    for purpose in ("window", "flip"):
        expected = [seed_for(tf.constant(seed), purpose).numpy() for seed in seeds]
        np.testing.assert_array_equal(random_numbers.seed_for(seeds, purpose), expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"crop_area": (0.25, 0.25), "crop_aspect": (1.0, 1.0)},  # sides that are halves of odd numbers
        {"crop_area": (0.01, 0.6), "crop_aspect": (0.5, 3.0)},
        {"crop_area": (0.5, 1.0), "crop_aspect": (1.5, 2.5)},  # most draws do not fit
        {"crop_area": (1.0, 1.0), "crop_aspect": (1.0, 1.0)},  # almost none does
        {"resize": "squash"},
        {"resize": "pad", "crop_area": (0.25, 0.25), "crop_aspect": (1.0, 1.0)},
        {"resize": "pad", "crop_area": (0.5, 1.0), "crop_aspect": (1.5, 2.5)},
    ],
)
def test_windows_and_flips_of_a_seed_are_tensorflow_s(options):
    number, config, random = 4000, InputConfig(8, seed=7, **options), np.random.default_rng(1)
    shapes = random.integers(1, 1000, [number, 2]).astype(np.int32)
    shapes[::10] = shapes[::10, :1]  # squares
    seeds = np.stack([np.full(number, config.seed), random.integers(0, 2**40, number)], axis=1)
    two = tf.constant([[[0], [1]]])

    def draw(shape: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        window = images.random_window(tf.concat([shape, [3]], 0), seed_for(seed, "window"), config)
        return window, tf.image.stateless_random_flip_left_right(two, seed_for(seed, "flip"))[0, 0, 0]

    expected = tf.data.Dataset.from_tensor_slices((shapes, seeds)).map(draw).batch(number).get_single_element()
    draws = windows.draw(seeds, config)
    examples = zip(shapes.tolist(), draws.tries, strict=True)
    actual = [windows.random_window(height, width, tries, config) for (height, width), tries in examples]
    np.testing.assert_array_equal(actual, expected[0])
    np.testing.assert_array_equal(draws.flips, expected[1])
    assert 0.45 < draws.flips.mean() < 0.55
    assert not windows.draw(seeds[:20], InputConfig(8, flip=False)).flips.any()


def test_centre_whole_and_scaled_windows_and_padded_sides_are_tensorflow_s():
    random = np.random.default_rng(2)
    for height, width in random.integers(1, 600, [60, 2]).tolist():
        share, ratio = float(random.uniform(0.01, 1)), int(random.choice([2, 4, 8]))
        centre = windows.centre_window(height, width, share)
        np.testing.assert_array_equal(centre, images.centre_window(tf.constant([height, width, 3]), share))
        scaled = windows.scaled_window(centre, ratio)
        np.testing.assert_array_equal(scaled, images.scaled_window(tf.constant(centre), ratio))
        full, shape, size = windows.whole_window(height, width), tf.constant([height, width, 3]), int(centre[3])
        np.testing.assert_array_equal(full, images.whole_window(shape))
        np.testing.assert_array_equal(windows.padded_sides(full[2:], size), images.padded_sides(shape[:2], size))


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Pixels with coarse and fine detail, as a photograph has, [height, width, 3]."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, [height // 16 + 2, width // 16 + 2, 3], np.uint8))
    noise = random.integers(-12, 13, [height, width, 3])
    return np.clip(np.asarray(coarse.resize((width, height))) + noise, 0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90, **options)
    return file.getvalue()


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


FILES = {
    "4:2:0": jpeg(smooth(375, 500), subsampling=2),
    "4:2:2": jpeg(smooth(333, 401), subsampling=1),
    "4:4:4": jpeg(smooth(201, 199), subsampling=0),
    "grey": jpeg(smooth(375, 500)[..., 0]),
    "progressive": jpeg(smooth(375, 500), progressive=True),
    "restart markers": jpeg(smooth(375, 500), restart_marker_blocks=7),
    "with what follows the end": jpeg(smooth(100, 90)) + b"\0" * 20,
    "PNG": png(smooth(90, 120)),
    "grey PNG": png(smooth(90, 120)[..., 1]),
}


@pytest.fixture(params=["NumPy", "OpenCV"])
def resizer(request, monkeypatch) -> str:
    if request.param == "OpenCV":
        pytest.importorskip("cv2")
    else:
        monkeypatch.setattr(decoding, "cv2", None)
    return request.param


def assert_pixels(actual: np.ndarray, expected: np.ndarray, resizer: str) -> None:
    """NumPy's resize gives TensorFlow's pixels; OpenCV's differs by the 11 bits of its weights, 0.12 on average."""
    if resizer == "NumPy":
        np.testing.assert_array_equal(actual, expected)
        return
    difference = abs(actual.astype(float) - expected)
    if actual.dtype == np.float32:
        assert difference.max() < 0.01
    else:
        assert difference.max() <= 1
        assert difference.mean() < 0.16


@pytest.mark.parametrize("encoded", FILES.values(), ids=FILES.keys())
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_pixels_of_a_window_are_tensorflow_s(encoded, dtype, resizer):
    for image_size in (8, 40, 64, 224):  # decoded at 1/8 to 1, made smaller and larger
        all_actual, all_expected = [], []
        for number in range(3):
            config, seed = InputConfig(image_size, dtype, seed=3), np.array([[3, number]])
            draws = windows.draw(seed, config)
            choose = functools.partial(windows.random_window, tries=draws.tries[0], config=config)
            actual = decode_window(encoded, choose, config, bool(draws.flips[0]))
            expected = images.decode_for_training(tf.constant(encoded), tf.constant(seed[0]), config, RecordSpec())
            assert (actual.shape, str(actual.dtype)) == ((image_size, image_size, 3), dtype)
            all_actual.append(actual)
            all_expected.append(expected.numpy())
        assert_pixels(np.array(all_actual), np.array(all_expected), resizer)


STRIPS = {"lying": jpeg(smooth(40, 900)), "standing": jpeg(smooth(601, 3)), "PNG": FILES["PNG"]}


@pytest.mark.parametrize("encoded", STRIPS.values(), ids=STRIPS.keys())
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("resize", ["pad", "squash"])
def test_pixels_of_whole_images_are_tensorflow_s(encoded, dtype, resize, resizer):
    for image_size in (9, 40, 224):  # decoded at 1/8 to 1; with an even and an odd number of columns beside the image
        config = InputConfig(image_size, dtype, resize=resize, mean=(200.0, 30.4, 99.6), seed=3)
        expected = [images.decode_for_evaluation(tf.constant(encoded), config)]
        actual, seeds = (
            [decode_window(encoded, windows.whole_window, config)],
            np.array([[3, number] for number in range(4)]),
        )
        draws = windows.draw(seeds, config)
        assert draws.flips.tolist().count(True) in (1, 2, 3)
        for seed, tries, flip in zip(seeds, draws.tries, draws.flips, strict=True):
            choose = functools.partial(windows.random_window, tries=tries, config=config)
            actual.append(decode_window(encoded, choose, config, bool(flip)))
            expected.append(images.decode_for_training(tf.constant(encoded), tf.constant(seed), config, RecordSpec()))
        assert actual[0].dtype == dtype
        assert_pixels(np.array(actual), np.array(expected), resizer)


@pytest.mark.parametrize("name", [name for name in FILES if "PNG" not in name])
def test_a_jpeg_with_fewer_rows_has_the_pixels_of_those(name):
    import simplejpeg

    fast = {"fastdct": True, "fastupsample": True}
    pixels = simplejpeg.decode_jpeg(FILES[name], **fast)
    assert frame_size(FILES[name]) == pixels.shape[:2]
    for rows in (1, 7, 8, 16, 17, len(pixels) - 1):
        few = simplejpeg.decode_jpeg(with_rows(FILES[name], rows), strict=False, **fast)
        np.testing.assert_array_equal(few, pixels[:rows])


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (FILES["4:2:0"][:5000], "remature end"),
        (FILES["4:2:0"][:20], "no frame"),
        (b"not an image", "not a JPEG or PNG file"),
        (FILES["PNG"][:5000], "not a JPEG or PNG file"),
    ],
)
def test_an_image_that_cannot_be_decoded_is_an_error(damaged, why):
    with pytest.raises(ValueError, match=why):
        decode_window(damaged, lambda height, width: (0, 0, height - 1, width), InputConfig(8))
