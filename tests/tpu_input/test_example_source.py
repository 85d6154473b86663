"""The sources that grain and PyTorch read: batch for batch those of the input_fns, whatever the hosts."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpu_input
from support.guides import run_blocks
from tpu_input import EvalSource, InputConfig, TrainSource, augment
from tpu_input.without_tensorflow import decode_window as decoding

CONFIG = InputConfig(image_size=24, crop_area=(0.3, 1.0), seed=5)


@pytest.fixture(autouse=True)
def numpy_resizes(monkeypatch):
    """So that pixels are TensorFlow's; OpenCV's are held against them in another test."""
    monkeypatch.setattr(decoding, "cv2", None)


def batch(source: Any, step: int, size: int) -> dict[str, np.ndarray]:
    examples = [source[step * size + place] for place in range(size)]
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}


def assert_same(ours: dict[str, np.ndarray], theirs: tuple[dict[str, np.ndarray], np.ndarray]) -> None:
    features, label = theirs
    expected = features | {"label": label}
    assert {name: (array.dtype, array.shape) for name, array in ours.items()} == {
        name: (array.dtype, array.shape) for name, array in expected.items()
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(ours[name], values, name)


@pytest.mark.parametrize(
    ("hosts", "start_step", "options"),
    [
        (1, 0, {}),
        (2, 44, {}),  # an epoch ends in step 45
        (4, 7, {"flip": False, "block_records": 1}),
        (1, 3, {"dtype": "float32"}),
        (2, 5, {"resize": "pad"}),
        (1, 3, {"resize": "squash", "dtype": "float32"}),
        (1, 3, {"dtype": "bfloat16"}),
        (2, 3, {"augment": "color_jitter"}),
        (1, 0, {"augment": "color_jitter:1,1,1", "dtype": "float32"}),
        (1, 0, {"augment": "color_jitter:1,1,1", "dtype": "bfloat16", "resize": "pad"}),
        (2, 44, {"augment": "rand_augment"}),
        (1, 0, {"augment": "rand_augment:3,28", "dtype": "float32"}),
        (1, 0, {"augment": augment.rand_augment(2, 20, cutout_const=4), "dtype": "bfloat16", "resize": "squash"}),
        (1, 5, {"augment": "rand_augment:1,9", "image_size": 1}),
        (1, 2, {"augment": "auto"}),
    ],
)
def test_batches_are_those_of_the_input_fn(digits_dataset, hosts, start_step, options):
    config, size = dataclasses.replace(CONFIG, **options), 32 // hosts
    for host in range(hosts):
        source = TrainSource(digits_dataset.path, config, size, host=host, num_hosts=hosts, start_step=start_step)
        input_fn = tpu_input.make_train_input_fn(digits_dataset, config, start_step=start_step)
        theirs = input_fn({"batch_size": size, "host": host, "num_hosts": hosts}).take(4).as_numpy_iterator()
        for step, expected in enumerate(theirs):
            assert_same(batch(source, step, size), expected)


def test_batches_of_a_split_that_is_read_from_its_shards_are_those_of_the_input_fn(digits_dataset, monkeypatch):
    from tpu_input.pipeline import order

    monkeypatch.setattr(order, "_IN_MEMORY_BYTES", 0)  # as of a large dataset: blocks of records
    source = TrainSource(digits_dataset, CONFIG, 4, start_step=700)
    assert source._order.block_records > 1
    expected = tpu_input.make_train_input_fn(digits_dataset, CONFIG, start_step=700)({"batch_size": 4})
    for step, theirs in enumerate(expected.take(3).as_numpy_iterator()):
        assert_same(batch(source, step, 4), theirs)


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize(
    ("hosts", "start_step", "options"),
    [
        (1, 0, {"cache": "records"}),
        (1, 44, {"cache": "decoded"}),  # an epoch ends in step 45
        (3, 43, {"cache": "records", "augment": "color_jitter"}),
        (5, 91, {"cache": "decoded", "dtype": "float32", "resize": "pad"}),  # each host keeps 4 of the same records
        (2, 3, {"cache": "decoded", "sampling": "balanced"}),
        (2, 3, {"cache": "records", "sampling": "balanced"}),
    ],
)
def test_batches_with_a_cache_are_those_of_the_input_fn(
    digits_dataset, monkeypatch, hosts, start_step, options, is_small
):
    from tpu_input.pipeline import order

    if not is_small:
        monkeypatch.setattr(order, "_IN_MEMORY_BYTES", 0)
    config, size = dataclasses.replace(CONFIG, **options), 32 // hosts
    for host in range(hosts):
        source = TrainSource(digits_dataset, config, size, host=host, num_hosts=hosts, start_step=start_step)
        input_fn = tpu_input.make_train_input_fn(digits_dataset, config, start_step=start_step)
        theirs = input_fn({"batch_size": size, "host": host, "num_hosts": hosts}).take(4).as_numpy_iterator()
        for step, expected in enumerate(theirs):
            assert_same(batch(source, step, size), expected)


@pytest.mark.parametrize("cache", ["records", "decoded"])
def test_a_cache_reads_each_record_once_and_keeps_no_more_than_the_share(digits_dataset, monkeypatch, cache):
    from tpu_input.pipeline import order

    monkeypatch.setattr(order, "_IN_MEMORY_BYTES", 0)
    reads, read = Counter[int](), tpu_input.RecordSource.__getitem__

    def counted(records: Any, number: int) -> Any:
        reads[int(number)] += 1
        return read(records, number)

    monkeypatch.setattr(tpu_input.RecordSource, "__getitem__", counted)
    config, total = dataclasses.replace(CONFIG, cache=cache), digits_dataset.split("train").num_examples
    sources = [TrainSource(digits_dataset, config, 8, host=host, num_hosts=5) for host in range(5)]
    for number in range(3 * total // 5):
        for source in sources:
            source[number]
    assert set(reads) == set(range(total))
    assert sum(reads.values()) <= total + 4 * (total % 5)  # what the hosts do not divide, each of them keeps
    assert all(len(source._cache) <= total // 5 + total % 5 for source in sources)
    copy = pickle.loads(pickle.dumps(sources[0]))
    assert not copy._cache
    np.testing.assert_array_equal(copy[3]["image"], sources[0][3]["image"])


def test_a_cache_that_does_not_fit_into_memory_is_refused(digits_dataset, monkeypatch):
    from tpu_input.pipeline import caching

    monkeypatch.setattr(caching, "available_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r'cache="decoded" needs .* of memory on each host, too much'):
        TrainSource(digits_dataset, dataclasses.replace(CONFIG, cache="decoded"), 8)


def test_a_global_batch_does_not_depend_on_the_number_of_hosts(digits_dataset):
    one = batch(TrainSource(digits_dataset, CONFIG, 12), 3, 12)
    for hosts in (2, 3, 6):
        size = 12 // hosts
        parts = [
            batch(TrainSource(digits_dataset, CONFIG, size, "train", host, hosts), 3, size) for host in range(hosts)
        ]
        for name, values in one.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)


def test_evaluation_of_whole_images_is_that_of_the_input_fn(digits_dataset):
    for resize in ("pad", "squash"):
        config = dataclasses.replace(CONFIG, resize=resize, eval_crop=0.5)  # which "crop" alone uses
        theirs = next(tpu_input.make_eval_input_fn(digits_dataset, config)({"batch_size": 40}).as_numpy_iterator())
        assert_same(batch(EvalSource(digits_dataset, config, 40), 0, 40), theirs)


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_evaluation_is_that_of_the_input_fn_and_has_each_example_once(digits_dataset, hosts):
    real = list[tuple[bytes, int]]()
    steps = tpu_input.eval_steps(digits_dataset, "validation", 30, hosts)
    for host in range(hosts):
        source = EvalSource(digits_dataset, CONFIG, 30 // hosts, host=host, num_hosts=hosts)
        assert len(source) == steps * 30 // hosts
        params = {"batch_size": 30 // hosts, "host": host, "num_hosts": hosts}
        expected = tpu_input.make_eval_input_fn(digits_dataset, CONFIG)(params).take(steps).as_numpy_iterator()
        for step, theirs in enumerate(expected):
            ours = batch(source, step, 30 // hosts)
            assert_same(ours, theirs)
            is_real = ours["weight"] == 1
            real += zip(
                (image.tobytes() for image in ours["image"][is_real]), ours["label"][is_real].tolist(), strict=True
            )
    assert len(real) == digits_dataset.split("validation").num_examples
    counts = np.bincount([label for _, label in real]).tolist()
    assert counts == list(digits_dataset.split("validation").class_counts)
    assert max(Counter(real).values()) <= 2  # of digits, two may be equal


def test_an_epoch_has_each_example_once(digits_dataset):
    records = tpu_input.RecordSource(digits_dataset, "train")
    source = TrainSource(digits_dataset, CONFIG, 8, end_step=183)
    assert len(source) == len(records)
    numbers = list(itertools.chain(*(source._plan(chunk).numbers for chunk in range(6))))[: len(records)]
    assert sorted(numbers) == list(range(len(records)))


def test_a_source_is_a_sequence_that_can_be_pickled(digits_dataset):
    source = TrainSource(digits_dataset, CONFIG, 8, start_step=3, end_step=5)
    assert len(source) == 16
    first, copy = source[0], pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(copy[0]["image"], first["image"])
    np.testing.assert_array_equal(copy[np.int64(-1)]["image"], source[15]["image"])
    for outside in (16, -17):
        with pytest.raises(IndexError, match="out of range"):
            source[outside]
    assert len(TrainSource(digits_dataset, CONFIG, 8)) == 2**62


def test_a_function_augments_by_the_seed_of_the_input_fn(digits_dataset):
    def shifted(image: Any, seed: Any) -> Any:
        return image + type(image[0, 0, 0])(int(seed[0]) % 7)

    def shifted_by_tensorflow(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return image + tf.cast(seed[0] % 7, image.dtype)

    config = dataclasses.replace(CONFIG, dtype="float32", augment=shifted)
    input_fn = tpu_input.make_train_input_fn(digits_dataset, dataclasses.replace(config, augment=shifted_by_tensorflow))
    theirs = next(input_fn({"batch_size": 16}).as_numpy_iterator())
    assert_same(batch(TrainSource(digits_dataset, config, 16), 0, 16), theirs)
    wrong = dataclasses.replace(config, augment=lambda image, seed: image[:1])
    with pytest.raises(ValueError, match=r"augment must return float32 of shape \(24, 24, 3\)"):
        TrainSource(digits_dataset, wrong, 16)[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "HWCN"}, "layout must be 'NHWC' without TensorFlow, got 'HWCN'"),
        ({"on_corrupt": "skip"}, "on_corrupt must be 'error' without TensorFlow, got 'skip'"),
        ({"echo": 2}, "echo must be 1 without TensorFlow, got 2"),
        ({"service": "grpc://localhost:1", "deterministic": False}, "service must be None without TensorFlow"),
        ({"augment": "rand_augment:2.5"}, "the number of layers must be an integer"),
        ({"features": ("depth",)}, "has no feature 'depth'"),
    ],
)
def test_options_that_need_tensorflow_and_wrong_ones_are_refused(digits_dataset, options, message):
    with pytest.raises(ValueError, match=message):
        TrainSource(digits_dataset, dataclasses.replace(CONFIG, **options), 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"host": 2, "num_hosts": 2}, "host must be at least 0 and below num_hosts"),
        ({"start_step": 3, "end_step": 3}, "end_step after it"),
        ({"start_step": 1.5}, "start_step must be an integer, got 1.5"),
        ({"split": "test"}, "test"),
    ],
)
def test_wrong_arguments_are_refused(digits_dataset, arguments, message):
    with pytest.raises(ValueError, match=message):
        TrainSource(digits_dataset, CONFIG, **({"batch_size": 8} | arguments))


def test_a_damaged_image_is_named_by_its_key(digits_dataset, monkeypatch):
    source = TrainSource(digits_dataset, CONFIG, 8)
    record = source._records[0]._replace(encoded=b"\xff\xd8\xff" + b"?" * 100, key="7/12.jpg")
    monkeypatch.setattr(type(source._records), "__getitem__", lambda *_: record)
    with pytest.raises(ValueError, match=r"the image of '7/12.jpg' cannot be decoded"):
        source[0]


def grain_batches(source: Any, size: int = 16, **workers: Any) -> Any:
    import grain

    batches = grain.MapDataset.source(source).batch(size, drop_remainder=True)
    dataset = batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=2))
    return iter(dataset.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(**workers)) if workers else dataset)


@pytest.mark.parametrize("name", [None, "color_jitter", "rand_augment:2,9"])
def test_grain_resumes_in_the_middle_of_an_epoch(digits_dataset, name):
    config = dataclasses.replace(CONFIG, augment=name)
    source = TrainSource(digits_dataset, config, 16)
    iterator = grain_batches(source)
    for _ in range(5):
        next(iterator)
    state = pickle.loads(pickle.dumps(iterator.get_state()))
    expected = [next(iterator) for _ in range(3)]
    resumed = grain_batches(source)
    resumed.set_state(state)
    input_fn = tpu_input.make_train_input_fn(digits_dataset, config, start_step=5)
    theirs = input_fn({"batch_size": 16}).as_numpy_iterator()
    for step in expected:
        ours = next(resumed)
        np.testing.assert_array_equal(ours["image"], step["image"])
        assert_same(ours, next(theirs))


@pytest.mark.long
@pytest.mark.parametrize("name", [None, "color_jitter", "rand_augment:2,9", "auto"])
def test_grain_s_worker_processes_keep_the_order(digits_dataset, name):
    config = dataclasses.replace(CONFIG, augment=name, image_size=32, crop_area=(1.0, 1.0), crop_aspect=(1.0, 1.0))
    source = TrainSource(digits_dataset, config, 16, end_step=5)
    expected = list(grain_batches(source))
    actual = list(grain_batches(source, num_workers=2))
    assert len(actual) == len(expected) == 5
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(ours["label"], theirs["label"])
        # Crops are whole images of 32 x 32, as OpenCV resizes there, if it is installed.
        np.testing.assert_array_equal(ours["image"], theirs["image"])


GUIDE = Path(__file__).parents[2] / "docs" / "pytorch.md"


def test_the_guide_s_blocks_for_grain_run(digits_dataset):
    names = {"DATASET": digits_dataset.path}
    assert run_blocks(GUIDE, names, lambda block: "DataLoader" not in block and "__main__" not in block) == 5


@pytest.mark.long
def test_the_guide_s_script_with_processes_of_grain_runs_as_it_stands(digits_dataset, tmp_path):
    (script,) = (
        block for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "main()" in block
    )
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "-W", "ignore", "script.py", digits_dataset.path]
    environment = os.environ | {"PYTHONPATH": str(GUIDE.parents[1])}
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (result.returncode, result.stdout) == (0, "(64, 32, 32, 3)\n"), result.stderr
