"""--init_from and --freeze: what a run takes from a trained model, and what of it stays as it is, in both trainers."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf

from estimator_app.config import TrainConfig, default_trainer
from estimator_app.model.layer_names import layers_of, variables_of
from estimator_app.model_dir.checkpoints import latest_checkpoint
from estimator_app.trainers.checks import make_weighted_model
from estimator_app.trainers.starting_weights import TABLE_NAME, starting_weights
from support.app_fixtures import configured, keras_warns

training = importlib.import_module("estimator_app.train")

# Keras saves and loads tf.Variables through NumPy, which the newest NumPy deprecates.
numpy_warns = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
pytestmark = [keras_warns, numpy_warns]
TRAINERS = ["tf_distribute", *(["tpu_estimator"] if default_trainer() == "tpu_estimator" else [])]
ONE_BY_DEFAULT = ["tf_distribute", *(pytest.param(name, marks=pytest.mark.long) for name in TRAINERS[1:])]
IMAGES = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype(np.float32)


def run(manifest, model_dir, lines=None, **options):
    config = configured(manifest, **{"train_steps": 3, "steps_per_eval": 3} | options)
    report = (lines if lines is not None else []).append
    return training.run(manifest, config, str(model_dir), f"{model_dir}/export", report=report), config


@pytest.fixture(scope="module")
def trained(digits_dataset, tmp_path_factory):
    return train_three_steps(digits_dataset, tmp_path_factory, "tf_distribute")


@pytest.fixture(scope="module", params=ONE_BY_DEFAULT)
def trained_by_trainer(digits_dataset, tmp_path_factory, request):
    return train_three_steps(digits_dataset, tmp_path_factory, request.param)


def train_three_steps(manifest, tmp_path_factory, trainer):
    """Returns the model_dir, export, config and model of a run."""
    model_dir = tmp_path_factory.mktemp("trained") / "model"
    finished, config = run(manifest, model_dir, trainer=trainer, seed=1)
    return str(model_dir), finished.export, config, by_own_names(config, str(model_dir))


def by_own_names(config: TrainConfig, model_dir: str):
    """Returns the model of a run, with the values of its checkpoint in the order of their numbers."""
    model, path = make_weighted_model(config), latest_checkpoint(model_dir)
    reader = tf.train.load_checkpoint(path)
    weights = [*model.trainable_weights, *model.non_trainable_weights]
    keys = [key for key in reader.get_variable_to_shape_map() if "SLOT" not in key and "Momentum" not in key]
    for number, weight in enumerate(weights):
        (key,) = [key for key in keys if key.removeprefix("weights/").startswith(f"{number}_")]
        weight.assign(reader.get_tensor(key))
    return model


def features(model) -> np.ndarray:
    """Returns what comes before the last layer, for IMAGES."""
    body = tf.keras.Model(model.input, model.get_layer("head").input)
    return np.asarray(body(IMAGES, training=False))


def seed_2(config: TrainConfig, path, **options) -> TrainConfig:
    other = dataclasses.replace(config.input, seed=2)
    return dataclasses.replace(config, input=other, init_from=str(path), **options)


def started(config: TrainConfig):
    weights = starting_weights(config)
    return make_weighted_model(config, weights.values), weights


def test_features_are_those_of_a_run_its_checkpoint_and_its_export(trained_by_trainer):
    model_dir, export, config, model = trained_by_trainer
    fresh = make_weighted_model(seed_2(config, ""))
    assert np.abs(features(fresh) - features(model)).max() > 0.01
    for path in (model_dir, str(latest_checkpoint(model_dir)), export, f"{model_dir}/export"):
        network, weights = started(seed_2(config, path))
        np.testing.assert_allclose(features(network), features(model), atol=1e-5, err_msg=path)
        assert str(weights) == "32 of 32 variables"


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning")
@pytest.mark.parametrize(
    "name",
    [
        "model.weights.h5",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("model.keras", "model.h5", "saved", "checkpoint")),
    ],
)
def test_features_are_those_of_what_keras_and_tensorflow_save(trained, tmp_path, name):
    _, _, config, model = trained
    path = tmp_path / name
    if name == "saved":
        tf.saved_model.save(model, str(path))
    elif name == "checkpoint":
        path = tf.train.Checkpoint(model=model).save(str(path))
    elif name == "model.weights.h5":
        model.save_weights(path)
    else:
        model.save(path)
    network, weights = started(seed_2(config, path))
    np.testing.assert_allclose(features(network), features(model), atol=1e-5)
    assert len(weights.values) == 32


@pytest.mark.long
def test_features_are_those_of_a_tf1_checkpoint(trained, tmp_path):
    _, _, config, model = trained
    values = {name: variable.numpy() for name, (variable, _) in variables_of(model).items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in values.items():
            tf.compat.v1.get_variable(f"net/{name}", initializer=value, use_resource=False)
        tf.compat.v1.train.get_or_create_global_step()
        session.run(tf.compat.v1.global_variables_initializer())
        path = tf.compat.v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), 7)
    network, weights = started(seed_2(config, path))
    np.testing.assert_allclose(features(network), features(model), atol=1e-5)
    assert {row[4] for row in weights.rows} == {""}


def test_the_head_of_other_classes_is_left_new_and_the_table_says_so(trained):
    _, export, config, model = trained
    fewer = dataclasses.replace(config, classes=config.classes[:5], class_counts=config.class_counts[:5])
    renamed = dataclasses.replace(config, classes=tuple(f"class {name}" for name in config.classes))
    for other, reason in ((fewer, "another shape"), (renamed, "other classes")):
        network, weights = started(seed_2(other, export))
        np.testing.assert_allclose(features(network), features(model), atol=1e-5)
        head = network.get_layer("head").kernel.numpy()
        np.testing.assert_array_equal(head, make_weighted_model(seed_2(other, "")).get_layer("head").kernel.numpy())
        assert str(weights) == f"30 of 32 variables; new: head/kernel ({reason}), head/bias ({reason})"
        rows = {row[0]: row[1:] for row in weights.rows}
        assert rows["head/kernel"] == (f"[128, {len(other.classes)}]", "head/kernel", "[128, 10]", reason)
        assert rows["stage1_conv1/kernel"] == ("[3, 3, 3, 32]", "stage1_conv1/kernel", "[3, 3, 3, 32]", "")


def test_a_part_of_another_network_is_taken_and_the_rest_is_listed(trained, tmp_path):
    _, _, config, _ = trained
    inputs = tf.keras.Input([16, 16, 3])
    convolved = tf.keras.layers.Conv2D(32, 3, name="stage1_conv1", use_bias=False)(inputs)
    outside = tf.keras.layers.Dense(2, name="elsewhere")(tf.keras.layers.GlobalAveragePooling2D()(convolved))
    other = tf.keras.Model(inputs, outside)
    other.save(tmp_path / "other.keras")
    network, weights = started(seed_2(config, tmp_path / "other.keras"))
    kernel = other.get_layer("stage1_conv1").kernel.numpy()
    np.testing.assert_array_equal(network.get_layer("stage1_conv1").kernel.numpy(), kernel)
    assert list(weights.values) == ["stage1_conv1/kernel"]
    assert weights.rows[-2:] == (
        ("", "", "elsewhere/vars/0", "[32, 2]", "not in the network"),
        ("", "", "elsewhere/vars/1", "[2]", "not in the network"),
    )
    assert "new: stage1_conv1_norm/gamma (not in the source)" in str(weights)


@pytest.mark.long
@pytest.mark.parametrize("trainer", TRAINERS)
def test_frozen_layers_keep_weights_and_statistics_from_the_source_to_the_end(
    digits_dataset, trained, tmp_path, trainer
):
    model_dir, _, _, before = trained
    lines: list[str] = []
    options = {"seed": 2, "trainer": trainer, "init_from": model_dir, "freeze": "stage[12]_.*"}
    _, config = run(digits_dataset, tmp_path / "tuned", lines, **options)
    after = by_own_names(config, str(tmp_path / "tuned"))
    values, old = variables_of(after), variables_of(before)
    moved = {name for name, (value, _) in values.items() if (value.numpy() != old[name][0].numpy()).any()}
    assert moved == {name for name in values if not name.startswith(("stage1", "stage2"))}
    assert "stage1_conv1_norm/moving_mean" in values
    assert f"initial weights: 32 of 32 variables; {tmp_path}/tuned/{TABLE_NAME}" in lines
    with open(tmp_path / "tuned" / TABLE_NAME, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 32
    assert rows[0]["variable"] == "stage1_conv1/kernel"


@pytest.mark.long
def test_a_run_goes_on_without_its_source(digits_dataset, trained_by_trainer, tmp_path):
    model_dir, _, config, _ = trained_by_trainer
    source = shutil.copytree(model_dir, tmp_path / "source")
    options = {"seed": 2, "trainer": config.trainer, "init_from": str(source), "decay_steps": 3}
    run(digits_dataset, tmp_path / "tuned", **options)
    shutil.rmtree(source)
    finished, _ = run(digits_dataset, tmp_path / "tuned", train_steps=5, **options)
    assert finished.metrics.step == 5
    with pytest.raises(ValueError, match=f"its --init_from is '{source}', not ''; use another --model_dir"):
        run(digits_dataset, tmp_path / "tuned", train_steps=5, **options | {"init_from": ""})


def test_what_cannot_be_taken_or_frozen_is_told(digits_dataset, trained, tmp_path):
    _, _, config, _ = trained
    (tmp_path / "bad.h5").write_bytes(b"not HDF5")
    (tmp_path / "bad.keras").write_bytes(b"not a zip")
    (tmp_path / "object.npz").write_bytes(b"of NumPy")
    for path, message in (
        ("gone", "gone does not exist; give a model_dir, a checkpoint such as"),
        ("object.npz", "object.npz is a file that is not read; give a .keras"),
        ("bad.h5", r"bad\.h5 cannot be read: "),
        ("bad.keras", r"bad\.keras cannot be read: "),
        ("gone.weights.h5", r"gone\.weights\.h5 cannot be read: "),
        (".", "holds no SavedModel"),
    ):
        with pytest.raises(ValueError, match=message):
            starting_weights(seed_2(config, tmp_path / path))
    dense = tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(2, name="other")])
    dense.save_weights(tmp_path / "dense.weights.h5")
    with pytest.raises(
        ValueError, match=r"has no variable that cnn has by name and shape: it has .*vars/0.*stage1_conv1"
    ):
        starting_weights(seed_2(config, tmp_path / "dense.weights.h5"))
    for pattern, message in (
        ("stage9", "--freeze=stage9 matches no whole name of a layer; the network has stage1_conv1, stage1_conv1_norm"),
        (".*", "leaves nothing to train"),
    ):
        with pytest.raises(ValueError, match=message):
            make_weighted_model(seed_2(config, "", freeze=pattern))
    with pytest.raises(ValueError, match=r"freeze must be a regular expression, got '\(': "):
        configured(digits_dataset, freeze="(")


def test_no_code_of_the_source_is_imported(trained, tmp_path):
    model_dir, _, config, _ = trained
    source = Path(shutil.copytree(model_dir, tmp_path / "source"))
    text = (source / "config.json").read_text().replace('"network": "cnn"', '"network": "evil.module:network"')
    (source / "config.json").write_text(text)
    with pytest.raises(
        ValueError, match=r"has the custom network evil\.module:network, whose code is imported only if"
    ):
        starting_weights(seed_2(config, source))


@pytest.mark.parametrize("hostile", ["lambda", "function name", "pickle"])
def test_no_code_of_a_keras_file_is_run(trained, tmp_path, hostile):
    """Weights are read, whatever config.json says of the layers; Keras 2.15 runs such code in its safe mode."""
    _, _, config, model = trained
    model.save(tmp_path / "plain.keras")
    marker = tmp_path / "code-was-run"
    function = {"module": "os", "class_name": "function", "config": "system", "registered_name": "system"}
    settings: dict[str, object] = {
        "name": "lam",
        "module": "os",
        "function": function,
        "function_type": "function",
        "arguments": {},
    }
    if hostile == "pickle":
        settings |= {"function_type": "lambda", "function": ["gASVAAAAAAAAAAA=", None, None]}
    layer: dict[str, object] = {
        "class_name": "Lambda",
        "module": "keras.layers",
        "registered_name": None,
        "config": settings,
    }
    if hostile == "function name":
        layer |= {"class_name": "function", "module": "os", "config": {"name": "system"}, "registered_name": "system"}
    layer |= {"name": "lam", "inbound_nodes": [[["_CONSTANT_VALUE", -1, f"touch {marker}", {}]]]}
    with zipfile.ZipFile(tmp_path / "plain.keras") as source, zipfile.ZipFile(tmp_path / "x.keras", "w") as target:
        described = json.loads(source.read("config.json"))
        described["config"]["layers"].insert(1, layer)
        target.writestr("config.json", json.dumps(described))
        target.writestr("model.weights.h5", source.read("model.weights.h5"))
    network, weights = started(seed_2(config, tmp_path / "x.keras"))
    assert not marker.exists()
    assert len(weights.values) == 32
    np.testing.assert_allclose(features(network), features(model), atol=1e-5)


def test_files_of_keras_are_not_trusted_with_sizes_and_paths(trained, tmp_path):
    _, _, config, _ = trained
    (tmp_path / "elsewhere").write_bytes(bytes(4 * 864))
    with h5py.File(tmp_path / "outside.weights.h5", "w") as file:
        place = [(str(tmp_path / "elsewhere"), 0, 4 * 864)]
        file.create_dataset("layers/stage1_conv1/vars/0", (3, 3, 3, 32), "float32", external=place)
    with h5py.File(tmp_path / "inflates.weights.h5", "w") as file:  # 2 KB that declare 400 GB
        file.create_dataset("layers/stage1_conv1/vars/0", (100_000, 1_000_000), "float32", chunks=(1000, 1000))
    with h5py.File(tmp_path / "links.weights.h5", "w") as file:
        file["layers"] = h5py.ExternalLink(str(tmp_path / "outside.weights.h5"), "layers")
    with zipfile.ZipFile(tmp_path / "inflates.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", bytes(200 << 20))
    with zipfile.ZipFile(tmp_path / "lacks.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    with h5py.File(tmp_path / "empty.weights.h5", "w") as file:
        file["layers/stage1_conv1/vars/0"] = h5py.Empty("float32")
    layers = [{"class_name": "Dense", "config": {"name": "same"}}] * 20_000
    with zipfile.ZipFile(tmp_path / "layers.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", json.dumps({"config": {"layers": layers}}))
        archive.write(tmp_path / "empty.weights.h5", "model.weights.h5")
    for name, message in (
        ("empty.weights.h5", "has no variable that cnn has by name and shape"),
        ("layers.keras", "its config.json has more than 10,000 layers"),
        ("outside.weights.h5", "its 'layers/stage1_conv1/vars/0' lies in another file"),
        ("inflates.weights.h5", "its arrays inflate to more than 100 times"),
        ("links.weights.h5", "has no variable that cnn has by name and shape"),
        ("inflates.keras", "it inflates to more than such a file can hold"),
        ("lacks.keras", "it needs one config.json and one model.weights.h5, and has config.json"),
    ):
        with pytest.raises(ValueError, match=message):
            starting_weights(seed_2(config, tmp_path / name))


def test_names_do_not_depend_on_the_models_made_before():
    def nested():
        inner = tf.keras.Sequential([tf.keras.Input([8]), tf.keras.layers.Dense(4), tf.keras.layers.Dense(4)])
        inputs = tf.keras.Input([8])
        attended = tf.keras.layers.MultiHeadAttention(2, 4, name="mix")(*[inner(inputs)[:, None]] * 2)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(2)(tf.keras.layers.Flatten()(attended)))

    first, second = nested(), nested()
    assert [name for name, _ in layers_of(first)] == ["dense", "dense_1", "mix", "dense_2"]
    assert list(variables_of(first)) == list(variables_of(second))
    assert {"dense_2/kernel", "mix/query/kernel", "mix/key/bias"} < variables_of(first).keys()
    shapes = {name: tuple(variable.shape) for name, (variable, _) in variables_of(first).items()}
    assert [shapes["dense/kernel"], shapes["dense_1/kernel"]] == [(8, 4), (4, 4)]


@pytest.mark.long
def test_the_command_takes_both_flags(digits_dataset, trained, tmp_path):
    model_dir, _, config, _ = trained
    command = [sys.executable, "-W", "ignore", "-m", "estimator_app", "train", f"--dataset={digits_dataset.path}"]
    command += ["--train_steps=1", "--image_size=16", f"--trainer={config.trainer}", f"--model_dir={tmp_path}/tuned"]
    process = subprocess.run(
        [*command, f"--init_from={model_dir}", "--freeze=(?!head).*"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.returncode == 0, process.stderr
    assert f"initial weights: 32 of 32 variables; {tmp_path}/tuned/{TABLE_NAME}" in process.stdout
