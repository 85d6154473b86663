"""examples/jax_train.py trains as estimator_app does, on any number of devices and processes; needs JAX."""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import importlib.util
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from estimator_app.trainers.checks import make_weighted_model
from support import jax_example
from support.app_fixtures import configured, keras_warns, step_losses
from support.cloud import free_port
from tpu_input import InputConfig, as_numpy, make_eval_input_fn, make_train_input_fn

pytestmark = [
    pytest.mark.long,
    keras_warns,
    pytest.mark.skipif(
        importlib.util.find_spec("flax") is None, reason="needs JAX, which is beside the newest TensorFlow"
    ),
]
STEPS = 20
FLAGS = (f"--train_steps={STEPS}", "--steps_per_eval=5")


@functools.cache
def example() -> Any:
    """Returns the example as a module."""
    spec = importlib.util.spec_from_file_location("jax_train", jax_example.ROOT / "examples" / "jax_train.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{"bfloat16": False, "seed": 0, "learning_rate": jax_example.RATE, "train_steps": STEPS} | more
    )


def keras_config(manifest):
    """The same run by estimator_app: its network, optimizer, schedule, seed and batches."""
    fitting = InputConfig.of(manifest)
    input_options = {"image_size": fitting.image_size, "crop_area": fitting.crop_area}
    training_options = {"train_batch_size": jax_example.BATCH, "learning_rate": jax_example.RATE}
    return configured(manifest, trainer="tf_distribute", train_steps=STEPS, **training_options, **input_options)


def write_keras_weights(manifest, model_dir: Path) -> None:
    """Writes the example's checkpoint of step 0, with the initial weights of estimator_app."""
    import orbax.checkpoint as ocp
    from flax import nnx

    model, optimizer = example().create_train_state(options(), manifest)
    values = iter(np.asarray(weight) for weight in make_weighted_model(keras_config(manifest)).trainable_weights)
    for layer in model.layers:
        for name in {nnx.Conv: ["kernel"], nnx.BatchNorm: ["scale", "bias"], nnx.Linear: ["kernel", "bias"]}.get(
            type(layer), []
        ):
            weight, value = getattr(layer, name), next(values)
            assert weight[...].shape == value.shape
            weight[...] = value
    assert not list(values)
    position = {"dataset": manifest.fingerprint, "batch_size": jax_example.BATCH, "seed": 0, "step": 0}
    save_args = {"state": ocp.args.StandardSave(nnx.state((model, optimizer))), "position": ocp.args.JsonSave(position)}
    with ocp.CheckpointManager(model_dir) as checkpoints:
        checkpoints.save(0, args=ocp.args.Composite(**save_args))


@pytest.fixture(scope="module")
def straight(digits_dataset, tmp_path_factory):
    """The model_dir of a run on 8 devices of one process that begins with Keras' weights, and what it printed."""
    model_dir = tmp_path_factory.mktemp("jax")
    write_keras_weights(digits_dataset, model_dir)
    (text,) = jax_example.printed(*jax_example.training(digits_dataset.path, model_dir, *FLAGS))
    return model_dir, text


def assert_close(actual: dict[int, float], expected: dict[int, float], tolerance: float) -> None:
    assert actual
    np.testing.assert_allclose(list(actual.values()), [expected[step] for step in actual], rtol=0, atol=tolerance)


def test_the_first_twenty_losses_are_those_of_estimator_app(straight, digits_dataset, tmp_path, monkeypatch):
    """At a small rate: two libraries differ by rounding, which decides on which side of 0 the inputs of some ReLUs are.
    At a rate of 0.01 or more, that grows beyond the tolerance within ten steps."""
    losses = step_losses(monkeypatch)
    training = importlib.import_module("estimator_app.train")
    training.run(
        digits_dataset, keras_config(digits_dataset), str(tmp_path), f"{tmp_path}/export", report=lambda line: None
    )
    assert_close(jax_example.losses(straight[1]), dict(enumerate(losses, 1)), 1e-3)


def test_kernels_alone_decay(digits_dataset):
    """By gradients of 0: within twenty steps, decay changes losses by less than they are compared to."""
    import jax
    from flax import nnx

    model, optimizer = example().create_train_state(options(learning_rate=1000.0), digits_dataset)
    before = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    optimizer.update(model, jax.tree.map(lambda weight: 0 * weight, nnx.state(model, nnx.Param)))
    factor = 1 - 1.9 * 1e-4 * 500  # Nesterov momentum's first step, at half of the peak rate
    weights = zip(jax.tree.leaves(before), jax.tree.leaves(nnx.state(model, nnx.Param)), strict=True)
    for weight, after in weights:
        np.testing.assert_allclose(after, weight * (factor if weight.ndim > 1 else 1), rtol=1e-5)


def test_evaluation_counts_every_example_once(straight, digits_dataset):
    """Counted in NumPy, from the last checkpoint's logits of one batch of all examples, which has no padding."""
    import jax
    import orbax.checkpoint as ocp
    from flax import nnx

    model_dir, text = straight
    definition, state = nnx.split(example().create_train_state(options(), digits_dataset))
    with ocp.CheckpointManager(model_dir) as checkpoints:
        restore_args = ocp.args.Composite(state=ocp.args.StandardRestore(state))
        state = checkpoints.restore(checkpoints.latest_step(), args=restore_args).state
    model, _ = nnx.merge(definition, state)
    model.eval()
    split, config = digits_dataset.split("validation"), InputConfig.of(digits_dataset)
    features, labels = next(as_numpy(make_eval_input_fn(digits_dataset, config)({"batch_size": split.num_examples})))
    images = (features["image"].astype(np.float64) - config.mean) / config.std
    logits = np.asarray(jax.jit(model)(images.astype(np.float32)), np.float64)
    right = np.exp(logits[np.arange(len(labels)), labels]) / np.exp(logits).sum(axis=1)
    assert split.num_examples % jax_example.BATCH  # the last batch has padding
    num_examples, accuracy, loss = jax_example.evaluations(text)[STEPS]
    assert num_examples == split.num_examples
    assert accuracy == pytest.approx(np.mean(logits.argmax(axis=1) == labels), abs=1e-4)
    assert loss == pytest.approx(-np.log(right).mean(), rel=1e-4)  # of float32 logits of other batches
    assert set(jax_example.evaluations(text)) == {5, 10, 15, 20}


def test_a_run_with_another_order_of_examples_is_not_resumed(straight, digits_dataset):
    model_dir, _ = straight
    more = {"dataset": digits_dataset.path, "model_dir": str(model_dir), "batch_size": jax_example.BATCH}
    message = r"error: .* has a run of .*'seed': 0, 'step': 20}, this one is of .*'seed': 1}"
    with pytest.raises(SystemExit, match=message):
        example().train(options(**more, no_flip=True, seed=1))


def test_bfloat16_is_what_the_convolutions_compute_in(digits_dataset):
    import jax
    from flax import nnx

    kinds = [((16, 16, 3, 8), np.uint8), ((8,), np.int32), ((8,), np.float32)]
    batch = tuple(jax.ShapeDtypeStruct(*kind) for kind in kinds)
    for bfloat16, kind in ((False, "f32"), (True, "bf16")):
        create = functools.partial(example().create_train_state, options(bfloat16=bfloat16), digits_dataset)
        definition, state = nnx.split(nnx.eval_shape(create))
        text = example().train_step.lower(definition, InputConfig(16, layout="HWCN"), state, batch).as_text()
        dtypes = set(re.findall(r"stablehlo.convolution.*-> tensor<[0-9x]+(\w+)>", text))
        assert dtypes == {kind}
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(nnx.state(state, nnx.Param))} == {"float32"}


@pytest.mark.core
def test_killed_on_four_processes_and_resumed_on_two_it_trains_as_undisturbed(straight, digits_dataset, tmp_path):
    """XLA adds gradients up in another order within a process than between processes, so that of the runs without an
    interruption that on two processes is compared exactly, and that on one within the rounding of 20 steps."""
    resumed, undisturbed = tmp_path / "resumed", tmp_path / "undisturbed"
    write_keras_weights(digits_dataset, undisturbed)
    text, _ = jax_example.printed(*jax_example.training(digits_dataset.path, undisturbed, *FLAGS, processes=2))
    write_keras_weights(digits_dataset, resumed)
    before = ""
    with jax_example.started(*jax_example.training(digits_dataset.path, resumed, *FLAGS, processes=4)) as processes:
        stdout = processes[0].stdout
        assert stdout
        for line in stdout:
            before += line
            if line.startswith("step 12: loss"):
                break
        for process in processes:
            process.send_signal(signal.SIGKILL)
    after, silent = jax_example.printed(*jax_example.training(digits_dataset.path, resumed, *FLAGS, processes=2))
    assert "step" not in silent
    match = re.search(r"^step (\d+) of 20, on 8 devices of 2 processes$", after, re.MULTILINE)
    assert match
    assert int(match[1]) in (5, 10)
    assert_close(jax_example.losses(before), jax_example.losses(text), 1e-5)
    assert_close(jax_example.losses(after), jax_example.losses(text), 1e-5)
    assert_close(jax_example.losses(text), jax_example.losses(straight[1]), 1e-3)
    assert list(jax_example.losses(after)) == list(range(int(match[1]) + 1, STEPS + 1))
    assert jax_example.evaluations(after)[STEPS] == pytest.approx(jax_example.evaluations(text)[STEPS], abs=1e-5)


def test_two_processes_have_the_batches_of_one(digits_dataset):
    """Put together from the devices of both, in order."""
    code = """
import hashlib, itertools, sys
import jax
from jax.experimental.multihost_utils import process_allgather
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
sys.path.insert(0, "examples")
import jax_train
_, divided = jax_train.make_shardings(jax.devices(), "HWCN")
batches = jax_train.global_batches(sys.argv[3], "train", 48, divided, layout="HWCN", start_step=7)
for batch in itertools.islice(batches, 4):
    assert {len(array.addressable_shards) for array in batch} == {4}
    whole = [process_allgather(array, tiled=True) for array in batch]
    print("batch", *(hashlib.sha256(array.tobytes()).hexdigest() for array in whole))
"""
    address = f"127.0.0.1:{free_port()}"
    texts = jax_example.printed(*(["-c", code, address, str(process), digits_dataset.path] for process in range(2)))
    config = InputConfig.of(digits_dataset, layout="HWCN")
    dataset = make_train_input_fn(digits_dataset, config, start_step=7)({"batch_size": 48})
    expected = []
    for features, label in as_numpy(dataset.take(4)):
        arrays = (features["image"], label, features["weight"])
        expected.append(" ".join(["batch", *(hashlib.sha256(array.tobytes()).hexdigest() for array in arrays)]))
    for text in texts:
        assert [line for line in text.splitlines() if line.startswith("batch")] == expected
