"""What recipes of training are made of, in both trainers: mixup, CutMix, clipping, averaged weights, augmentation."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from estimator_app.__main__ import _recipe, make_parser
from estimator_app.config import TrainConfig, default_trainer, read_recipe
from estimator_app.model.losses import cross_entropy
from estimator_app.model.mixing import mix
from estimator_app.model_dir.checkpoints import NAME
from estimator_app.model_dir.history import read_history
from estimator_app.model_dir.run_files import read_config
from estimator_app.preflight.findings import GOOD
from estimator_app.preflight.xla import check_hlo
from estimator_app.saved_model.classifier import load_classifier
from estimator_app.trainers.checks import make_weighted_model, named_weights
from estimator_app.trainers.interruption import Stopped
from estimator_app.trainers.progress import Progress
from support.app_commands import refused
from support.app_fixtures import RECIPE, configured, held_out_records, keras_warns
from support.parsers import PARSERS
from support.tensorflow_steps import make_step
from tpu_input import InputConfig, from_infeed, make_train_input_fn
from tpu_input.augment import color_jitter, rand_augment
from tpu_input.predict import decode_files

training = importlib.import_module("estimator_app.train")

pytestmark = keras_warns
TRAINERS = ["tf_distribute", *(["tpu_estimator"] if default_trainer() == "tpu_estimator" else [])]
NOT_SHOWN = {"crop_aspect": (0.5, 2.0), "on_corrupt": "skip"}  # options without a flag


def train(manifest, model_dir, **options):
    config = configured(manifest, **{"train_steps": 4, "steps_per_eval": 4, "save_steps": 1} | options)
    finished = training.run(manifest, config, str(model_dir), f"{model_dir}/export", report=lambda line: None)
    return finished, config


def stored(model_dir, step: int) -> dict[str, np.ndarray]:
    """Returns the variables of a checkpoint by the names of named_weights(), averages as ema_NAME."""
    reader = tf.train.load_checkpoint(f"{model_dir}/{NAME}-{step}")
    variables = {}
    for name in reader.get_variable_to_shape_map():
        short = name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").removeprefix("weights/").replace("ema/", "ema_")
        if short.removeprefix("ema_").partition("_")[0].isdigit() and "/" not in short:
            variables[short] = reader.get_tensor(name)
    return variables


def test_the_loss_of_mixed_labels_is_the_mean_of_the_losses_of_its_classes():
    random = np.random.default_rng(0)
    logits = random.normal(size=(6, 4)).astype(np.float32)
    shares = random.dirichlet(np.ones(4), size=6).astype(np.float32)
    for smoothing, weights in ((0.0, ()), (0.1, ()), (0.1, (0.5, 1.0, 1.5, 2.0))):
        class_losses = [
            cross_entropy(tf.constant(logits), tf.fill([6], label), smoothing, weights).numpy() for label in range(4)
        ]
        expected = (shares * np.stack(class_losses, axis=1)).sum(axis=1)
        losses = cross_entropy(tf.constant(logits), tf.constant(shares), smoothing, weights, mixed=True)
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
    log_softmax = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    losses = cross_entropy(tf.constant(logits), tf.constant(shares), mixed=True)
    np.testing.assert_allclose(losses, -(shares * log_softmax).sum(axis=1), rtol=1e-5)


def test_each_step_applies_mixup_or_cutmix_with_shares_of_its_own():
    images = np.zeros((4, 8, 8, 3), np.float32)
    images[:2] = 1.0  # mixed with the two of the other end of the batch
    labels, weight = tf.constant([0, 0, 1, 1]), tf.ones([4])
    ways, shares = [], []
    for step in range(50):
        mixed, mixed_labels, mixed_weight = mix(tf.constant(images), labels, weight, 2, (7, step), 0.4, 1.0)
        share = mixed_labels[0, 0].numpy()
        np.testing.assert_allclose(mixed[0].numpy().mean(), share, atol=1e-5)
        np.testing.assert_allclose(mixed_labels.numpy().sum(axis=1), 1.0, rtol=1e-6)
        np.testing.assert_array_equal(mixed_weight, weight)
        if 0 < share < 1:
            ways.append(len(np.unique(mixed[0])) == 2)  # a box has two values, a mixture one
            shares.append(share)
    assert 0.3 < np.mean(ways) < 0.7
    assert len(np.unique(shares)) > 25
    again = mix(tf.constant(images), labels, weight, 2, (7, 49), 0.4, 1.0)
    np.testing.assert_array_equal(again[0], mixed)


@pytest.mark.long
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_step_is_as_long_as_its_clipped_gradients(digits_dataset, tmp_path, trainer):
    options = {"trainer": trainer, "train_steps": 1, "steps_per_eval": 1, "weight_decay": 0.0, "warmup_steps": 0}
    lengths = {}
    for norm in (0.0, 0.01):
        _, config = train(digits_dataset, tmp_path / str(norm), clip_norm=norm, **options)
        before, after = stored(tmp_path / str(norm), 0), stored(tmp_path / str(norm), 1)
        trainable = len(make_weighted_model(config).trainable_weights)
        moves = [after[name] - before[name] for name in before if int(name.partition("_")[0]) < trainable]
        lengths[norm] = np.sqrt(sum((move.astype(np.float64) ** 2).sum() for move in moves))
    # Nesterov's first step is 1 + 0.9 gradients long (Sutskever et al. 2013, section 2.1), times the rate.
    assert lengths[0.01] == pytest.approx(1.9 * config.schedule.learning_rate(0.0) * 0.01, rel=1e-4)
    assert lengths[0.0] > 10 * lengths[0.01]


@pytest.mark.long
@pytest.mark.parametrize("trainer", TRAINERS)
def test_averaged_weights_are_those_of_every_step_and_are_evaluated_exported_and_taken(
    digits_dataset, tmp_path, trainer
):
    finished, config = train(digits_dataset, tmp_path / "model", trainer=trainer, ema=0.5)
    average = {name: value for name, value in stored(tmp_path / "model", 0).items() if not name.startswith("ema_")}
    for step in range(1, 5):
        decay = min(0.5, step / (9 + step))  # the step before counts from 0
        now = stored(tmp_path / "model", step)
        average = {name: decay * value + (1 - decay) * now[name] for name, value in average.items()}
        for name, value in average.items():
            np.testing.assert_allclose(
                now[f"ema_{name}"], value, rtol=1e-4, atol=1e-6, err_msg=f"{name} of step {step}"
            )
    model = make_weighted_model(config)
    for name, variable in named_weights(model).items():
        variable.assign(average[name])
    records = held_out_records(digits_dataset)
    predictions = load_classifier(finished.export)([record.encoded for record in records])
    probabilities = np.stack([prediction for prediction in predictions if not isinstance(prediction, ValueError)])
    accuracy = np.mean(probabilities.argmax(axis=1) == [record.label for record in records])
    assert finished.metrics.accuracy == pytest.approx(accuracy)
    pixels = tf.data.Dataset.from_tensors([record.encoded for record in records[:8]])
    images = from_infeed(decode_files(next(iter(pixels)), config.input), config.input)
    np.testing.assert_allclose(tf.nn.softmax(model(images, training=False)), probabilities[:8], atol=1e-5)
    train(digits_dataset, tmp_path / "tuned", trainer=trainer, init_from=finished.export, train_steps=1)
    initial = stored(tmp_path / "tuned", 0)
    for name, value in average.items():
        np.testing.assert_allclose(initial[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_run_with_all_of_it_goes_on_as_if_it_had_never_stopped(digits_dataset, tmp_path, trainer):
    recipe = RECIPE | {"sampling": "balanced"}
    straight, _ = train(digits_dataset, tmp_path / "straight", trainer=trainer, **recipe)
    config = configured(digits_dataset, trainer=trainer, train_steps=4, steps_per_eval=4, save_steps=1, **recipe)

    class Stop:
        """Set after step 2, as by a signal."""

        def is_set(self) -> bool:
            return (tmp_path / "stopped" / f"{NAME}-2.index").exists()

        wait = None

    with pytest.raises(Stopped):
        training.run(
            digits_dataset,
            config,
            f"{tmp_path}/stopped",
            f"{tmp_path}/stopped/export",
            report=lambda line: None,
            stop=Stop(),
        )
    again, _ = train(digits_dataset, tmp_path / "stopped", trainer=trainer, **recipe)
    assert again.metrics == straight.metrics
    one, other = stored(tmp_path / "straight", 4), stored(tmp_path / "stopped", 4)
    assert one.keys() == other.keys()
    assert sum(name.startswith("ema_") for name in one) == len(one) / 2
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)


@pytest.mark.long
@pytest.mark.skipif(len(TRAINERS) < 2, reason="TensorFlow without TPUEstimator")
def test_both_trainers_have_the_same_losses_with_all_of_it(digits_dataset, tmp_path, monkeypatch):
    losses: dict[str, list[float]] = {trainer: [] for trainer in TRAINERS}
    original = Progress.add_step
    for trainer in TRAINERS:

        def record(self, step, loss, *args, curve=losses[trainer]):
            curve.append(loss)
            original(self, step, loss, *args)

        monkeypatch.setattr(Progress, "add_step", record)
        train(digits_dataset, tmp_path / trainer, trainer=trainer, **RECIPE)
        assert [row.step for row in read_history(str(tmp_path / trainer))] == [4]
    np.testing.assert_allclose(losses["tpu_estimator"], losses["tf_distribute"], atol=1e-3)
    assert len(losses["tf_distribute"]) == 4


@pytest.mark.long
def test_xla_takes_a_step_with_all_of_it(digits_dataset, tmp_path):  # TPUEstimator's: test_tpu_compile.py
    config = configured(digits_dataset, trainer="tf_distribute", **RECIPE)
    spec = make_train_input_fn(digits_dataset, config.input)({"batch_size": 16}).element_spec
    findings, _ = check_hlo(lambda: make_step(config, str(tmp_path), spec))
    assert [finding.verdict for finding in findings] == [GOOD], findings


@pytest.mark.parametrize(
    ("text", "function"),
    [
        pytest.param("rand_augment:1,15", rand_augment(1, 15), marks=pytest.mark.long),
        ("color_jitter:0.4,0.2", color_jitter(0.4, 0.2, 0.4)),
    ],
)
def test_augmentation_by_name_is_that_of_its_function(digits_dataset, text, function):
    def images(augment):
        config = InputConfig(16, augment=augment)
        return next(iter(make_train_input_fn(digits_dataset, config)({"batch_size": 16})))[0]["image"].numpy()

    np.testing.assert_array_equal(images(text), images(function))
    assert (images(text) != images(None)).mean() > 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": "rand_agument"}, "augment must be .*rand_augment.*got 'rand_agument'"),
        (
            {"augment": "rand_augment:1,2,3"},
            "augment rand_augment takes up to 2 numbers, such as rand_augment:1,2, got",
        ),
        ({"augment": "color_jitter:a"}, "augment color_jitter takes up to 3 numbers"),
        ({"mixup": -1}, "mixup must be at least 0, got -1"),
        ({"ema": 1.0}, r"ema must be in \[0, 1\), got 1.0"),
    ],
)
def test_what_is_no_recipe_is_told(digits_dataset, options, message):
    with pytest.raises(ValueError, match=message):
        configured(digits_dataset, **options)


def test_an_epoch_is_as_many_steps_as_show_each_example_once(digits_dataset):
    examples = digits_dataset.split("train").num_examples
    for epochs, batch_size in ((1, 16), (2.5, 100), (0.01, 128)):
        config = configured(digits_dataset, train_steps=None, epochs=epochs, train_batch_size=batch_size)
        assert config.train_steps * batch_size >= epochs * examples > (config.train_steps - 1) * batch_size
        assert config.decay_steps == config.train_steps
    for options, message in (
        ({"epochs": 1, "train_steps": 5}, "epochs and train_steps both say how long to train, got 1 and 5"),
        ({"epochs": 0, "train_steps": None}, "epochs must be above 0, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            configured(digits_dataset, **options)


def test_a_recipe_is_what_config_json_has(digits_dataset, tmp_path):
    config = configured(
        digits_dataset, trainer="tf_distribute", augment="color_jitter", learning_rate=0.01, **NOT_SHOWN
    )
    (tmp_path / "config.json").write_text(config.to_json({}, "a command"))
    recipe = read_recipe(str(tmp_path / "config.json"))
    assert TrainConfig.of(digits_dataset, recipe) == config
    (tmp_path / "recipe.yaml").write_text("learning_rate: 1e-4\ncrop_area: [0.5, 1]\nepochs: 3\nflip: false\n")
    recipe = read_recipe(str(tmp_path / "recipe.yaml"))
    assert recipe == {"learning_rate": 1e-4, "crop_area": (0.5, 1), "epochs": 3, "flip": False}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 1", r"there is no option 'learning_rat'; did you mean learning_rate\?"),
        ("learning_rate: fast", "could not convert string to float: 'fast'"),
        ("- a\n- b", "must be a mapping from options to values"),
        ("input: 3", "input must be a mapping from options to values, got 3"),
        ("a: [", "cannot be read: .*give a YAML or JSON file, or one of digits, imagenet_resnet50, small_photos"),
        ("optimizer: sgd", "optimizer must be"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_told(tmp_path, text, message):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_recipe(str(tmp_path / "recipe.yaml"))
    with pytest.raises(ValueError, match=r"recipe 'gone' cannot be read: .*No such file"):
        read_recipe("gone")


REQUIRED = {
    "train": ("--model_dir=m",),
    "folds": ("--model_dir=m", "--output=p.parquet"),
    "preflight": ("--topology=v5e:1x1",),
}


@pytest.mark.parametrize(
    "command", [name for name, parser in PARSERS.items() if "--config" in parser._option_string_actions]
)
def test_the_code_that_a_recipe_names_is_imported_only_when_a_flag_names_it(
    command, digits_dataset, tmp_path, monkeypatch, capsys
):
    module = f"stranger_s_{command}"
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{module}.py").write_text("open('imported', 'w')\n")
    (tmp_path / "recipe.yaml").write_text(f"network: {module}:network\n")
    words = (command, f"--dataset={digits_dataset.path}", "--config=recipe.yaml", *REQUIRED[command])
    line = refused(capsys, *words)
    assert f"whose code is imported only if you name it; if you trust it, add --network={module}:network" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml", f"{module}.py"]
    if command == "folds":  # it looks at the dataset first
        return
    assert f"module '{module}' has no attribute" in refused(capsys, *words, f"--network={module}:network")
    assert (tmp_path / "imported").exists()


def test_flags_take_precedence_over_a_recipe():
    def parsed(*flags):
        argv = ["train", "--dataset=d", "--model_dir=m", "--config=small_photos", *flags]
        return make_parser(_recipe(make_parser().parse_args(argv))).parse_args(argv)

    assert parsed().epochs == 100
    assert (parsed().mixup, parsed("--mixup=0").mixup) == (0.2, 0)
    assert (parsed("--train_steps=5").epochs, parsed("--train_steps=5").train_steps) == (None, 5)
    assert parsed("--epochs=5").epochs == 5


@pytest.mark.long
@pytest.mark.parametrize("name", ["small_photos", "imagenet_resnet50"])  # the guide's commands train digits
def test_each_recipe_that_ships_trains(digits_dataset, tmp_path, name):
    flags = [
        "--image_size=32",
        "--train_batch_size=8",
        "--eval_batch_size=111",
        "--train_steps=2",
        "--steps_per_eval=2",
    ]
    command = [sys.executable, "-W", "ignore", "-m", "estimator_app", "train", f"--dataset={digits_dataset.path}"]
    command += [f"--model_dir={tmp_path}", f"--config={name}", *flags]
    process = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert process.returncode == 0, process.stderr
    fields = json.loads((tmp_path / "config.json").read_text())
    recipe = read_recipe(name)
    for option in recipe.keys() - {flag[2:].partition("=")[0] for flag in flags} - {"epochs"}:
        value = {**fields["input"], **fields}[option]
        assert (tuple(value) if isinstance(value, list) else value) == recipe[option], option


@pytest.mark.long
def test_the_commands_of_the_guide_run_as_they_stand(digits_dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dataset").symlink_to(digits_dataset.path)
    text = (Path(__file__).parents[2] / "docs" / "train.md").read_text().replace("\\\n", "")
    sections = [text.partition(f"\n## {title}\n")[2].partition("\n## ")[0] for title in ("Fine-tuning", "Recipes")]
    commands = [
        line.strip() for section in sections for line in section.splitlines() if line.startswith("    jpeg2tpu ")
    ]
    assert len(commands) == 3
    train(digits_dataset, tmp_path / "model", image_size=32, train_steps=1)
    for command in commands:
        _, *argv = shlex.split(re.sub("--train_steps=200", "--train_steps=2", command))
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        more = [] if "--train_steps" in command else ["--train_steps=2"]
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "jpeg2tpu", *argv, *more],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert process.returncode == 0, (command, process.stderr)
    assert not read_config(f"{tmp_path}/again").differences(read_config(f"{tmp_path}/from_recipe"))


# Each list has nine times the one before: 3 * 10**19 values, if aliases were followed.
BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 21))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixup: 0.1\nmixup: 0.2\n", "'mixup' is there twice"),
        ("[" * 3000 + "]" * 3000, "cannot be read"),
        ("a: !!python/object/apply:os.system [x]", "cannot be read"),
        (BOMB, "there is no option 'a0'; remove it, or name one of jpeg2tpu train --help"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_one_line(tmp_path, text, message):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_recipe(str(tmp_path / "r.yaml"))
    assert "\n" not in str(error.value)
