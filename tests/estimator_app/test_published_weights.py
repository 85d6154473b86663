"""--init_from with files of safetensors: names of timm, what does not fit, the pixels' normalization, and attacks.

test_published_references.py has timm's own networks, in an environment with PyTorch.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from estimator_app.__main__ import main
from estimator_app.config import TrainConfig, default_trainer
from estimator_app.model.layer_names import variables_of
from estimator_app.model.published_weights import PUBLISHED, PublishedWeights, read_published, resized_positions
from estimator_app.model.safetensors_files import read_header
from estimator_app.model_dir.run_files import read_config
from estimator_app.train import open_run
from estimator_app.trainers.checks import make_weighted_model
from estimator_app.trainers.starting_weights import TABLE_NAME, starting_weights
from support import published
from support.app_fixtures import configured, keras_warns

pytestmark = keras_warns
RESNET, VIT = published.timm_resnet18(10), published.timm_vit_s16(10, 64)


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with the tensors of timm's resnet18 for ten classes."""
    return published.write(tmp_path_factory.mktemp("timm") / "resnet18.safetensors", published.random_tensors(RESNET))


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with the tensors of timm's vit_small_patch16_224 for ten classes and images of 64 pixels."""
    return published.write(tmp_path_factory.mktemp("timm") / "vit.safetensors", published.random_tensors(VIT))


@pytest.fixture(scope="module")
def shapes(digits_dataset) -> dict[str, tuple[int, ...]]:
    """The shapes of our resnet18's variables."""
    model = make_weighted_model(configured(digits_dataset, network="resnet18", image_size=32))
    return {path: tuple(variable.shape) for path, (variable, _) in variables_of(model).items()}


def config_for(manifest, network: str, source: object, image_size: int = 32, **options) -> TrainConfig:
    return configured(manifest, network=network, image_size=image_size, init_from=str(source), **options)


def loaded(config: TrainConfig) -> dict[str, np.ndarray]:
    """The variables of the model that a run begins with."""
    model = make_weighted_model(config, starting_weights(config).values)
    return {path: variable.numpy() for path, (variable, _) in variables_of(model).items()}


def test_a_resnet_takes_every_tensor_by_its_name(digits_dataset, resnet):
    config, tensors = config_for(digits_dataset, "resnet18", resnet), published.random_tensors(RESNET)
    weights, variables = starting_weights(config), loaded(config)
    assert str(weights) == f"{len(variables)} of {len(variables)} variables"
    assert len({row[2] for row in weights.rows}) == len(RESNET)
    for path, name in (
        ("stem/kernel", "conv1.weight"),
        ("stage1_block1_conv1/kernel", "layer1.0.conv1.weight"),
        ("stage4_block2_conv2/kernel", "layer4.1.conv2.weight"),
        ("stage2_block1_shortcut/kernel", "layer2.0.downsample.0.weight"),
    ):
        np.testing.assert_array_equal(variables[path], tensors[name].transpose(2, 3, 1, 0), err_msg=path)
    for path, name in (
        ("stem_norm/gamma", "bn1.weight"),
        ("stage1_block2_conv2_norm/beta", "layer1.1.bn2.bias"),
        ("stage3_block1_conv1_norm/moving_mean", "layer3.0.bn1.running_mean"),
        ("stage2_block1_shortcut_norm/moving_variance", "layer2.0.downsample.1.running_var"),
        ("head/bias", "fc.bias"),
    ):
        np.testing.assert_array_equal(variables[path], tensors[name], err_msg=path)
    np.testing.assert_array_equal(variables["head/kernel"], tensors["fc.weight"].T)
    assert ("head/kernel", "[512, 10]", "fc.weight", "[10, 512]", "") in weights.rows
    assert ("", "", "bn1.num_batches_tracked", "[]", "not used") in weights.rows


def test_a_vit_takes_every_tensor_by_its_name(digits_dataset, vit):
    config, tensors = config_for(digits_dataset, "vit_s16", vit, 64), published.random_tensors(VIT)
    variables = loaded(config)
    assert str(starting_weights(config)) == f"{len(variables)} of {len(variables)} variables"
    np.testing.assert_array_equal(variables["positions/positions"], tensors["pos_embed"])
    np.testing.assert_array_equal(variables["positions/class_token"], tensors["cls_token"])
    for third, part in enumerate(("query", "key", "value")):
        rows = slice(384 * third, 384 * (third + 1))
        np.testing.assert_array_equal(variables[f"block12_{part}/kernel"], tensors["blocks.11.attn.qkv.weight"][rows].T)
        np.testing.assert_array_equal(variables[f"block12_{part}/bias"], tensors["blocks.11.attn.qkv.bias"][rows])
    np.testing.assert_array_equal(variables["block1_projection/kernel"], tensors["blocks.0.attn.proj.weight"].T)
    np.testing.assert_array_equal(variables["block1_mlp2/kernel"], tensors["blocks.0.mlp.fc2.weight"].T)
    np.testing.assert_array_equal(variables["block1_mlp_norm/gamma"], tensors["blocks.0.norm2.weight"])


def test_positions_are_resized_to_the_images_and_the_class_token_s_stays(digits_dataset, vit):
    weights = starting_weights(config_for(digits_dataset, "vit_s16", vit, 32))
    assert str(weights).endswith("variables; positions resized from 4 x 4 to 2 x 2")
    positions = published.random_tensors(VIT)["pos_embed"].astype(np.float32)
    assert weights.values["positions/positions"].shape == (1, 5, 384)
    np.testing.assert_array_equal(weights.values["positions/positions"][:, 0], positions[:, 0])


@pytest.mark.parametrize(("old", "new"), [(14, 24), (14, 7), (14, 2), (3, 14), (14, 14)])
def test_positions_are_resized_as_pillow_resizes_an_image(old, new):
    positions = np.random.default_rng(0).normal(size=(1, 1 + old**2, 3)).astype(np.float32)
    resized = resized_positions(positions, new)
    for channel in range(3):
        image = Image.fromarray(positions[0, 1:, channel].reshape(old, old))
        expected = np.asarray(image.resize((new, new), Image.Resampling.BICUBIC))
        np.testing.assert_allclose(resized[0, 1:, channel].reshape(new, new), expected, atol=2e-6)


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_other_precisions_are_read(shapes, dtype):
    tensors = published.random_tensors(RESNET, dtype="f4")
    if dtype == "BF16":  # the upper half of each float32
        stored = {name: (v.view("u4") >> 16).astype("u2") if v.dtype == "f4" else v for name, v in tensors.items()}
        tensors = {name: (v.view("u4") >> 16 << 16).view("f4") if v.dtype == "f4" else v for name, v in tensors.items()}
    else:
        stored = tensors
    values = read(stored, shapes).values
    np.testing.assert_array_equal(values["head/kernel"], tensors["fc.weight"].T)
    np.testing.assert_array_equal(values["stem/kernel"], tensors["conv1.weight"].transpose(2, 3, 1, 0))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fc.weight": (1000, 512), "fc.bias": (1000,)}, "another shape"),
        ({"fc.weight": None, "fc.bias": None}, "not in the source"),
    ],
)
def test_a_last_layer_of_other_classes_is_left_new(digits_dataset, tmp_path, change, reason):
    shapes = {name: shape for name, shape in (RESNET | change).items() if shape}
    shapes |= {name: () for name in RESNET if name.endswith("tracked")}
    path = published.write(tmp_path / "x.safetensors", published.random_tensors(shapes))
    config = config_for(digits_dataset, "resnet18", path)
    weights = starting_weights(config)
    assert str(weights) == f"100 of 102 variables; new: head/kernel ({reason}), head/bias ({reason})"
    fresh = variables_of(make_weighted_model(dataclasses.replace(config, init_from="")))
    np.testing.assert_array_equal(loaded(config)["head/kernel"], fresh["head/kernel"][0].numpy())


def read(tensors: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]]) -> PublishedWeights:
    content = published.to_bytes(tensors)
    return read_published(io.BytesIO(content), len(content), "resnet18", shapes)


def changed(change: dict[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of resnet18, with some of another shape, or without those whose shape is None."""
    shapes = {name: shape for name, shape in (RESNET | change).items() if shape is not None}
    return {name: np.zeros(shape, "f2") for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer4.1.bn2.weight": None}, "it has no tensor for stage4_block2_conv2_norm/gamma of resnet18"),
        (
            {"layer1.0.conv2.weight": (64, 2, 3, 3)},
            r"its 'layer1\.0\.conv2\.weight' has the shape \[64, 2, 3, 3\], which does not fit "
            r"stage1_block1_conv2/kernel of resnet18, \[3, 3, 64, 64\]",
        ),
        (
            {"layer1.0.se.fc1.weight": (8, 64), "layer1.0.se.fc2.weight": (64, 8)},
            r"it has 'layer1\.0\.se\.fc1\.weight' and 1 more tensors, which resnet18 does not have",
        ),
        ({"layer1.0.conv1.bias": (64,)}, r"it has 'layer1\.0\.conv1\.bias', which resnet18 does not have"),
        ({"classifier.1.weight": (10, 512)}, "are the same variable, head/kernel"),
        ({"layer1.2.conv1.weight": (64, 64, 3, 3)}, r"it has the weights of a ResNet \(3, 2, 2, 2 blocks\), --network"),
        ({"layer1.0.conv3.weight": (64, 64, 1, 1)}, "it has the weights of a ResNet .*, --network is resnet18"),
    ],
)
def test_what_is_missing_more_or_of_another_shape_is_an_error(shapes, change, message):
    with pytest.raises(ValueError, match=message):
        read(changed(change), shapes)


def test_weights_of_another_network_are_an_error(digits_dataset, resnet, vit, tmp_path):
    other = published.write(tmp_path / "x.safetensors", {"weight\n": np.zeros(1, "f4")})
    for path, network, message in (
        (vit, "resnet50", "it has the weights of vit_s16, --network is resnet50; use --network=vit_s16"),
        (resnet, "vit_s16", "it has the weights of resnet18, --network is vit_s16; use --network=resnet18"),
        (resnet, "resnet34", "it has the weights of resnet18, --network is resnet34"),
        (resnet, "cnn", f"files of safetensors are read for {', '.join(PUBLISHED)}; --network is cnn"),
        (other, "resnet18", r"the weights of a network that is not known \(its tensors are called 'weight\\n', …\)"),
    ):
        with open(path, "rb") as file, pytest.raises(ValueError, match=message):
            read_published(file, os.path.getsize(path), network, {"head/kernel": (512, 10)})


@pytest.mark.parametrize("shape", [(1, 5, 192), (2, 5, 384), (1, 4, 384), (1, 1, 384), (5, 384)])
def test_positions_that_are_no_square_are_an_error(shape):
    shapes = {"positions/positions": (1, 5, 384), "patches/kernel": (16, 16, 3, 384)}
    shapes |= {f"block{block}_mlp1/bias": (1,) for block in range(1, 13)}
    tensors = {"pos_embed": np.zeros(shape, "f2"), "patch_embed.proj.weight": np.zeros((384, 3, 16, 16), "f2")}
    tensors |= {f"blocks.{block}.mlp.fc1.bias": np.zeros(1, "f2") for block in range(12)}
    content = published.to_bytes(tensors)
    with pytest.raises(ValueError, match=r"'pos_embed' has the shape .*, which does not fit positions/positions"):
        read_published(io.BytesIO(content), len(content), "vit_s16", shapes)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full((64, 3, 7, 7), np.nan, "f4"), "tensor 'conv1.weight' has values that are infinite or NaN"),
        (np.zeros((64, 3, 7, 7), "f8"), "its 'conv1.weight' has dtype F64; F32, F16, BF16 are read"),
        (np.zeros((64, 3, 7, 7), "i8"), "its 'conv1.weight' has dtype I64; F32, F16, BF16 are read"),
    ],
)
def test_values_that_are_no_weights_are_an_error(shapes, values, message):
    with pytest.raises(ValueError, match=message):
        read(changed({}) | {"conv1.weight": values}, shapes)


# The file of a stranger. Each of these is one line of error, before anything is allocated.

ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
ATTACKS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a safetensors file, or it is cut off"),
    "short": (bytes(7), "not a safetensors file, or it is cut off"),
    "no header": (bytes(8), "not a safetensors file, or it is cut off"),
    "a header of 2**63 bytes": (b"\xff" * 8 + b"{}", "not a safetensors file, or it is cut off"),
    "a header beyond the end": ((100).to_bytes(8, "little") + b"{}", "not a safetensors file, or it is cut off"),
    "a header of megabytes": (published.with_header(b" " * (5 << 20), b""), r"header has 5,242,880 bytes; at most"),
    "not JSON": (published.with_header(b"\x80\x04pickle", b""), "cannot be read"),
    "a list": (published.with_header([], b""), r"the header must be an object, got \[\]"),
    "deep": (published.with_header(b"[" * 1_000_000, b""), "nested too deeply"),
    "deep in an object": (published.with_header(b'{"a":' * 500_000, b""), "nested too deeply"),
    "a number of a million digits": (published.with_header(b'{"a":' + b"9" * 1_000_000 + b"}", b""), "cannot be read"),
    "NaN": (published.with_header(b'{"a": NaN}', b""), "NaN is not a JSON number"),
    "an entry that is a list": (published.with_header({"a": [1]}, b""), "the tensor 'a' must be an object"),
    "no dtype": (published.with_header({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)), "lacks 'dtype'"),
    "an unknown dtype": (published.with_header({"a": ONE | {"dtype": "F4"}}, bytes(4)), "unknown dtype 'F4'"),
    "a dtype that is a list": (published.with_header({"a": ONE | {"dtype": ["F32"]}}, bytes(4)), "unknown dtype"),
    "a negative size": (published.with_header({"a": ONE | {"shape": [-1]}}, bytes(4)), "must be a whole number"),
    "a size that is true": (published.with_header({"a": ONE | {"shape": [True]}}, bytes(4)), "must be a whole number"),
    "a thousand axes": (published.with_header({"a": ONE | {"shape": [1] * 1000}}, bytes(4)), "has 1000 axes"),
    "exabytes": (published.with_header({"a": ONE | {"shape": [2**53] * 8}}, bytes(4)), "cannot have 4 bytes"),
    "an offset beyond the end": (
        published.with_header({"a": ONE | {"shape": [2**40], "data_offsets": [0, 2**42]}}, bytes(4)),
        r"tensors take 4,398,046,511,104 bytes, but 4 follow",
    ),
    "offsets backwards": (published.with_header({"a": ONE | {"data_offsets": [4, 0]}}, bytes(4)), "cannot have -4"),
    "three offsets": (published.with_header({"a": ONE | {"data_offsets": [0, 4, 8]}}, bytes(4)), "a list of 2"),
    "an offset that is text": (
        published.with_header({"a": ONE | {"data_offsets": ["0", 4]}}, bytes(4)),
        "must be a who",
    ),
    "an overlap": (published.with_header({"a": ONE, "b": ONE}, bytes(8)), "tensor 'b' overlaps the one before it"),
    "a gap": (published.with_header({"a": ONE | {"data_offsets": [4, 8]}}, bytes(8)), "'a' leaves a gap before it"),
    "bytes after the end": (published.with_header({"a": ONE}, bytes(8)), "tensors take 4 bytes, but 8 follow"),
    "metadata that are numbers": (published.with_header({"__metadata__": {"a": 1}}, b""), "must be text"),
    "a name that UTF-8 does not have": (published.with_header(b'{"\\ud83d": {}}', b""), "can be encoded as UTF-8"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_header_is_checked_before_anything_is_read(attack):
    content, message = ATTACKS[attack]
    with pytest.raises(ValueError, match=message if message != "cannot be read" else None):
        read_header(io.BytesIO(content), len(content))


@pytest.mark.parametrize("attack", ["deep", "an offset beyond the end", "not JSON"])
def test_an_attack_ends_a_command_with_one_line(digits_dataset, tmp_path, capsys, attack):
    (tmp_path / "x.safetensors").write_bytes(ATTACKS[attack][0])
    command = ["train", f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/model", "--network=resnet18"]
    code = main([*command, f"--init_from={tmp_path}/x.safetensors", "--image_size=32"])
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2
    assert f"--init_from={tmp_path}/x.safetensors cannot be read: " in line
    assert not (tmp_path / "model").exists()


def test_what_is_no_file_is_not_opened(digits_dataset, resnet, tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(ValueError, match=rf"{name}\.safetensors is not a file"):
            starting_weights(config_for(digits_dataset, "resnet18", tmp_path / f"{name}.safetensors"))
    with pytest.raises(ValueError, match=r"gone\.safetensors does not exist"):
        starting_weights(config_for(digits_dataset, "resnet18", tmp_path / "gone.safetensors"))
    os.mkfifo(tmp_path / "config.json")
    shutil.copy(resnet, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"config\.json' is a named pipe"):
        opened(digits_dataset, tmp_path / "x.safetensors")


# Normalization

HALF = (127.5, 127.5, 127.5)
IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
CFG = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def opened(manifest, source: object, model_dir: str | None = None, **options):
    options = {"image_size": 32, "network": "resnet18", "init_from": str(source)} | options
    return open_run(manifest, model_dir, 1000, options)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.json", {"architecture": "resnet18", "pretrained_cfg": CFG | {"crop_pct": 0.95}}, IMAGENET),
        ("config.json", {"default_cfg": CFG}, IMAGENET),
        ("config.json", CFG, IMAGENET),
        ("preprocessor_config.json", {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}, (HALF, HALF)),
        (
            "preprocessor_config.json",
            {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "rescale_factor": 0.01},
            ((50.0,) * 3, (25.0,) * 3),
        ),
        (
            "preprocessor_config.json",
            {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_normalize": False},
            ((0.0,) * 3, (255.0,) * 3),
        ),
        ("metadata", {"pretrained_cfg": json.dumps(CFG), "format": "pt"}, IMAGENET),
        ("metadata", {"mean": "[0.5, 0.5, 0.5]", "std": "[0.5, 0.5, 0.5]"}, (HALF, HALF)),
    ],
)
def test_the_normalization_of_the_weights_is_taken_over_and_said(digits_dataset, tmp_path, name, content, expected):
    source = published.write(tmp_path / "x.safetensors", {}, content if name == "metadata" else None)
    if name != "metadata":
        (tmp_path / name).write_text(json.dumps(content))
    run = opened(digits_dataset, source)
    assert (run.config.input.mean, run.config.input.std) == expected
    numbers = ["{:g},{:g},{:g}".format(*three) for three in expected]
    assert run.normalization == f"input: --mean={numbers[0]} --std={numbers[1]}, of the {name} of {source}"


def test_a_user_s_normalization_comes_first(digits_dataset, tmp_path):
    source = published.write(tmp_path / "x.safetensors", {}, {"mean": "[0.5, 0.5, 0.5]", "std": "[0.5, 0.5, 0.5]"})
    full = opened(digits_dataset, source, mean=(1.0, 2.0, 3.0), std=(4.0, 5.0, 6.0))
    assert (full.config.input.mean, full.config.input.std) == ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))
    assert full.normalization == ""
    half = opened(digits_dataset, source, std=(4.0, 5.0, 6.0))
    assert (half.config.input.mean, half.config.input.std) == (HALF, (4.0, 5.0, 6.0))
    assert half.normalization.startswith("input: --mean=127.5,127.5,127.5, of the metadata")


def test_without_one_the_dataset_s_is_taken_and_a_line_says_how_to_set_it(digits_dataset, tmp_path):
    source = published.write(tmp_path / "x.safetensors", {}, {"format": "pt"})
    (tmp_path / "config.json").write_text('{"model_type": "resnet"}')
    run = opened(digits_dataset, source)
    train = digits_dataset.split("train")
    assert (run.config.input.mean, run.config.input.std) == (train.channel_mean, train.channel_std)
    assert run.normalization.startswith(
        f"note: neither {source} nor a config.json in its folder names the normalization"
    )
    assert "--mean and --std: ResNets mostly have 123.675,116.28,103.53" in run.normalization


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"config\.json: "),
        ("[" * 100_000, r"config\.json: it is nested too deeply"),
        ('{"mean": [0.5], "std": [1, 1, 1]}', r"config\.json: mean must be a list of 3"),
        ('{"mean": [0.5, 0.5, 127], "std": [1, 1, 1]}', r"config\.json: each of mean must be a number from 0 to 1"),
        ('{"mean": [0, 0, 0], "std": [0, 1, 1]}', r"config\.json: each of std must be a number from 0\.001 to 1"),
        ('{"mean": [0, 0, "0"], "std": [1, 1, 1]}', r"config\.json: each of mean must be a number"),
    ],
)
def test_a_damaged_config_beside_the_weights_is_an_error(digits_dataset, tmp_path, text, message):
    source = published.write(tmp_path / "x.safetensors", {})
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        opened(digits_dataset, source)


def test_shares_instead_of_pixels_are_an_error(digits_dataset):
    with pytest.raises(ValueError, match=r"mean must be of pixels from 0 to 255, .*; use 123\.675,116\.28,103\.53"):
        configured(digits_dataset, mean=(0.485, 0.456, 0.406))
    with pytest.raises(ValueError, match=r"std must be of pixels from 0 to 255, .*; use 58\.395,57\.12,57\.375"):
        configured(digits_dataset, std=(0.229, 0.224, 0.225))


TRAINERS = ["tf_distribute", *(["tpu_estimator"] if default_trainer() == "tpu_estimator" else [])]


@pytest.mark.long
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_run_starts_from_a_file_and_goes_on_without_it(digits_dataset, resnet, tmp_path, capsys, trainer):
    source = Path(shutil.copy(resnet, tmp_path / "timm.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": CFG}))
    command = ["train", f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/model", f"--trainer={trainer}"]
    command += ["--network=resnet18", f"--init_from={source}", "--image_size=32", "--train_batch_size=8"]
    command += ["--steps_per_eval=1", "--eval_batch_size=333", "--wrong_images=0", "--decay_steps=2"]
    assert main([*command, "--train_steps=1"]) == 0
    printed = capsys.readouterr().out
    assert f"initial weights: 102 of 102 variables; {tmp_path}/model/{TABLE_NAME}" in printed
    assert "input: --mean=123.675,116.28,103.53 --std=58.395,57.12,57.375, of the config.json of" in printed
    assert (tmp_path / "model" / TABLE_NAME).read_text().count("\n") == 1 + 102 + 20
    source.unlink()
    (tmp_path / "config.json").unlink()
    assert main([*command, "--train_steps=2"]) == 0
    input_config = read_config(f"{tmp_path}/model").input
    assert (input_config.mean, input_config.std) == IMAGENET
    capsys.readouterr()
    assert main([*command, "--train_steps=2", "--mean=1,2,3"]) == 2
    assert "its --mean is (123.675, 116.28, 103.53), not (1.0, 2.0, 3.0)" in capsys.readouterr().err
