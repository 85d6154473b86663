"""The commands of estimator_app as a user types them: calm lines, one clear line for a mistake, never a traceback."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from estimator_app.commands import without_process_flags
from estimator_app.config import default_trainer
from support.app_commands import FLAGS, refused, run, without_progress
from support.shared import shared
from support.terminal import run_in_terminal

ROOT = Path(__file__).parents[2]
# Without importing it: what is tested first is what happens before that.
TENSORFLOW = tuple(map(int, importlib.metadata.version("tensorflow").split(".")[:2]))


@pytest.fixture(scope="module")
def model_dir(digits_dataset, tmp_path_factory):
    """A complete run of 40 steps in a process of its own, and what that process said."""

    def make(folder: Path) -> Path:
        train = ("train", f"--dataset={digits_dataset.path}", f"--model_dir={folder}", *FLAGS)
        process = subprocess.run(
            [sys.executable, "-m", "estimator_app", *train, "--train_steps=40", "--steps_per_eval=30"],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("TF_")},
            capture_output=True,
            text=True,
        )
        (folder / "said.json").write_text(
            json.dumps([process.returncode, process.stdout, without_progress(process.stderr)])
        )
        return folder

    return shared(tmp_path_factory, "app_commands", make)


def test_training_says_what_it_does_in_six_lines_and_tensorflow_says_nothing(model_dir, digits_dataset):
    code, out, err = json.loads((model_dir / "said.json").read_text())
    assert (code, err) == (0, "")
    metrics = json.loads((model_dir / "metrics.json").read_text())
    train, held_out = (digits_dataset.split(name).num_examples for name in ("train", "validation"))
    lines = out.splitlines()
    devices = "" if default_trainer() == "tpu_estimator" else ", on 1 CPU"  # TPUEstimator does not say
    assert lines[0] == f"training cnn at step 0/40: {train} images of 10 classes{devices}"
    assert lines[1].startswith("step 30/40: accuracy ")
    assert lines[2] == (
        f"step 40/40: accuracy {100 * metrics['accuracy']:.1f} % on {held_out} validation images, "
        f"loss {metrics['loss']:.3f}"
    )
    assert lines[3] == f"curves and confusion matrix: {model_dir}/curves.png, {model_dir}/confusion.png"
    assert all(
        path.read_bytes().startswith(b"\x89PNG") for path in (model_dir / "curves.png", model_dir / "confusion.png")
    )
    assert lines[4].startswith("export with the best accuracy, step ")
    assert lines[5:] == [f"export: {model_dir}/{metrics['export']}"]
    assert (metrics["step"], metrics["num_examples"]) == (40, held_out)
    assert (model_dir / metrics["export"] / "saved_model.pb").is_file()


def test_later_commands_ask_nothing_again(capsys, model_dir, digits_dataset, digits, tmp_path):
    again = ("train", f"--dataset={digits_dataset.path}/", f"--model_dir={model_dir}/", *FLAGS, "--train_steps=40")
    code, out, err = run(capsys, *again)
    assert (code, err) == (0, "")
    assert out.startswith("nothing to train: step 40 is done, accuracy ")
    code, out, err = run(capsys, "evaluate", f"--model_dir={model_dir}", "--eval_batch_size=7")
    assert (code, err) == (0, "")
    assert out.replace("step 40:", "step 40/40:") in json.loads((model_dir / "said.json").read_text())[1]
    code, out, err = run(capsys, "export", f"--model_dir={model_dir}", f"--export_dir={tmp_path}/export")
    assert (code, err) == (0, "")
    assert Path(out.removeprefix("export: ").strip()).parent == tmp_path / "export"
    files = sorted((digits / "0").iterdir())[:3]
    code, out, err = run(capsys, "predict", f"--export_dir={tmp_path}/export", *files)
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["file"] for row in rows] == [str(path) for path in files]
    assert all(row["class"] == digits_dataset.classes[row["label"]] and 0 < row["probability"] <= 1 for row in rows)


@pytest.mark.long
def test_a_checkpoint_and_an_export_of_it_are_evaluated_alike(capsys, model_dir, tmp_path):
    code, _, err = run(capsys, "export", f"--model_dir={model_dir}", "--step=30", f"--export_dir={tmp_path}")
    assert (code, err) == (0, "")
    ways = [
        (f"--model_dir={model_dir}", "--step=30"),
        (f"--model_dir={model_dir}", f"--checkpoint={model_dir}/model.ckpt-30"),
        (f"--export_dir={tmp_path}",),
    ]
    metrics = [json.loads(run(capsys, "evaluate", *way, "--split=train", "--json")[1]) for way in ways]
    assert metrics[0] == metrics[1]
    assert metrics[0]["step"] == metrics[2]["step"] == 30
    assert metrics[0]["num_examples"] == metrics[2]["num_examples"] > 1000
    assert metrics[0]["loss"] == pytest.approx(metrics[2]["loss"], rel=1e-4)
    assert metrics[0]["recall"] == pytest.approx(metrics[2]["recall"])
    assert metrics[0]["confusion"] == metrics[2]["confusion"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate",), "evaluate needs --model_dir or --export_dir, got neither"),
        (("evaluate", "--model_dir=MODEL", "--export_dir=MODEL"), "--model_dir or --export_dir, got both"),
        (
            ("evaluate", "--export_dir=MODEL", "--step=40"),
            "--step can be used only with --model_dir, not with --export_dir",
        ),
        (("evaluate", "--model_dir=MODEL", "--step=40", "--checkpoint=x"), "--step and --checkpoint both select a"),
        (("evaluate", "--model_dir=MODEL", "--step=7"), "holds no checkpoint of step 7; it has "),
        (("evaluate", "--model_dir=MODEL", "--checkpoint=nowhere"), "nowhere' does not exist; give a path such as"),
        (("evaluate", "--model_dir=MODEL", "--split=test"), "has no split 'test'; it has 'train', 'validation'"),
        (("evaluate", "--export_dir=MODEL", "--eval_batch_size=0"), "eval_batch_size must be at least 1, got 0"),
        (
            ("evaluate", "--export_dir=MODEL", "--dataset=nowhere"),
            "has no manifest.json, so it is not a complete dataset",
        ),
        (("evaluate", "--modeldir=MODEL"), "unknown flag --modeldir; did you mean --model_dir?"),
        (("export", "--model_dir=MODEL", "--step=7"), "holds no checkpoint of step 7; it has "),
        (("export", "--model_dir=MODEL", "--export_dir=/dev/null/x"), "/dev/null"),
        (("predict", "--export_dir=nowhere", "x.jpg"), "nowhere' does not exist; give a SavedModel"),
        (("predict", "--export_dir=MODEL"), "the following arguments are required: FILE"),
        (("predict", "--export_dir=MODEL", "--top=0", __file__), "top must be at least 1, got 0"),
        (("predict", "--export_dir=MODEL", "--batch_size=0", __file__), "batch_size must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_evaluated_exported_or_predicted_with_is_answered_in_a_line(
    capsys, model_dir, arguments, message
):
    assert message in refused(capsys, *(word.replace("MODEL", str(model_dir)) for word in arguments))


def test_a_folder_without_images_is_no_success(capsys, model_dir, tmp_path):
    (tmp_path / "notes.txt").touch()
    code, out, err = run(capsys, "predict", f"--export_dir={model_dir}", tmp_path)
    assert (code, out) == (1, "")
    assert err == f"skipped in folders: 1 named *.txt\nno image files in {tmp_path}\n"


def test_a_folder_s_images_are_classified_in_every_format_that_convert_reads(capsys, model_dir, digits, tmp_path):
    with Image.open(min((digits / "3").iterdir())) as image:
        for ending in ("webp", "gif", "bmp", "tiff", "PNG", "JPEG"):
            image.save(tmp_path / f"3.{ending}")
    code, out, err = run(capsys, "predict", f"--export_dir={model_dir}", tmp_path)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 6


def test_files_that_cannot_be_classified_are_named_and_the_rest_is_done(capsys, model_dir, digits, tmp_path):
    good = next((digits / "7").iterdir())
    text = tmp_path / "text.jpg"
    text.write_text("not an image")
    code, out, err = run(capsys, "predict", f"--export_dir={model_dir}/export", text, tmp_path / "nowhere.jpg", good)
    assert code == 1
    assert err == f"{text}: not an image: begins with b'not an i'\n{tmp_path}/nowhere.jpg: No such file or directory\n"
    assert json.loads(out)["file"] == str(good)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--image_size=0", "image_size must be at least 1, got 0"),
        ("--eval_batch_size=0", "eval_batch_size must be at least 1, got 0"),
        ("--train_steps=-1", "train_steps must be at least 1, got -1"),
        ("--learning_rate=0", "learning_rate must be positive and finite, got 0.0"),
        ("--crop_area=0.5,2", "crop_area must satisfy 0 < smallest <= largest <= 1.0, got (0.5, 2.0)"),
        ("--crop_area=big", "argument --crop_area: must be two numbers, LOW,HIGH, got 'big'"),
        ("--profile=5", "argument --profile: must be two steps, FIRST,LAST, got '5'"),
        ("--profile=5,4", "profile must be the first and the last step, such as 100,110, got (5, 4)"),
        ("--network=resnet9000", "got 'resnet9000'; did you mean resnet50?"),
        ("--network=nowhere:net", "network 'nowhere:net': no module 'nowhere' in the working directory or among"),
        (
            "--optimizer=adam",
            "--optimizer: must be one of momentum, lars, adamw, got 'adam'; did you mean adamw?",
        ),
        (
            "--decay=cosin",
            "--decay: must be one of cosine, polynomial, steps, got 'cosin'; did you mean cosine?",
        ),
        (
            "--precision=bfloat",
            "--precision: must be one of float32, bfloat16, got 'bfloat'; did you mean bfloat16?",
        ),
        ("--class_weights=even", "--class_weights: must be one of equal, balanced, got 'even'"),
        ("--label_smoothing=1", "label_smoothing must be in [0, 1), got 1.0"),
        ("--weight_decay=-1", "weight_decay must be in [0, 1), got -1.0"),
        ("--warmup_steps=1000", "warmup_steps must be in [0, decay_steps=1000), got 1000"),
        ("--decay_steps=0", "decay_steps must be at least 1, got 0"),
        ("--early_stop_metric=recall", "mean_recall, top_5_accuracy, got 'recall'; did you mean mean_recall?"),
        ("--summary_steps=0", "summary_steps must be at least 1, got 0"),
        ("--layout=CHWN", "--layout: must be one of NHWC, HWCN, HWNC, auto, got 'CHWN'"),
        ("--split=test", "has no split 'test'; it has 'train', 'validation'"),
        ("--dataset=/nowhere", "'/nowhere' has no manifest.json, so it is not a complete dataset"),
        ("--model_dir=/dev/null/model", "/dev/null"),
        ("--seed=-1", "seed must be in [0, 2**31), got -1"),
        ("--cache=crops", "argument --cache: must be one of records, decoded, none, got 'crops'"),
        ("--image_sise=16", "unknown flag --image_sise; did you mean --image_size? (see jpeg2tpu train"),
        ("stray", "unrecognized arguments: stray"),
    ],
)
def test_a_flag_that_cannot_work_says_what_is_needed(capsys, digits_dataset, tmp_path, flag, message):
    train = ("train", f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/model", flag)
    assert message in refused(capsys, *train)
    assert not (tmp_path / "model").exists()


def test_a_model_dir_whose_exports_could_not_be_listed_is_refused(capsys, digits_dataset, tmp_path):
    train = ("train", f"--dataset={digits_dataset.path}", f"--model_dir={tmp_path}/a\nb", *FLAGS, "--train_steps=40")
    assert "has signs in it that cannot be printed; use another --model_dir" in refused(capsys, *train)
    assert not [*tmp_path.iterdir()]


def test_a_shard_that_is_missing_is_said_before_anything_is_read(capsys, model_dir, dataset_copy, tmp_path):
    next(dataset_copy.glob("validation-00001-*")).unlink()
    train = ("train", f"--dataset={dataset_copy}", f"--model_dir={tmp_path}/model", *FLAGS, "--train_steps=40")
    message = "1 of the 2 shards of split 'validation' of"
    assert message in refused(capsys, *train)
    assert not (tmp_path / "model").exists()
    others = f"--model_dir={model_dir}", f"--dataset={dataset_copy}"
    assert message in refused(capsys, "evaluate", *others)
    assert message in refused(capsys, "predict", *others, f"--output={tmp_path}/p.parquet")


def test_a_model_dir_of_another_run_is_refused_and_left_alone(capsys, model_dir, digits_dataset):
    before = (model_dir / "config.json").read_text()
    train = ("train", f"--dataset={digits_dataset.path}", f"--model_dir={model_dir}", *FLAGS, "--train_steps=40")
    message = refused(capsys, *train, "--image_size=28", "--seed=1")
    assert "holds another run: its --image_size is 16, not 28; its --seed is 0, not 1; use another" in message
    assert "or repeat its options: jpeg2tpu train --dataset=" in message
    assert (model_dir / "config.json").read_text() == before


def test_the_options_to_repeat_are_for_the_folder_that_a_run_was_moved_to(capsys, model_dir, digits_dataset, tmp_path):
    shutil.copytree(model_dir, moved := tmp_path / "moved here")
    train = ("train", f"--dataset={digits_dataset.path}", f"--model_dir={moved}", *FLAGS, "--train_steps=40")
    message = refused(capsys, *train, "--seed=1")
    assert f"'--model_dir={moved}'" in message
    assert f"--model_dir={model_dir}" not in message


def test_the_options_to_repeat_have_none_of_a_process():
    argv = ["train", "--process_id", "1", "--seed=2", "--coordinator_address=host:1", "--num_processes=2", "--no_flip"]
    assert without_process_flags(argv) == ["train", "--seed=2", "--no_flip"]


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_folder_without_a_run_is_refused(capsys, tmp_path, command):
    assert "has no config.json, so it is not a training run; create one" in refused(
        capsys, command, f"--model_dir={tmp_path}"
    )
    assert "nowhere' does not exist; create one with" in refused(capsys, command, f"--model_dir={tmp_path}/nowhere")


@pytest.mark.parametrize("flag", ["--dataset=here", "--model_dir=there"])
def test_a_tpu_and_a_local_folder_are_refused_before_anything_slow(capsys, flag):
    paths = {"--dataset": "gs://bucket/digits", "--model_dir": "gs://bucket/model"} | dict([flag.split("=")])
    arguments = [f"{name}={value}" for name, value in paths.items()]
    message = refused(capsys, "train", *arguments, "--use_tpu", "--tpu=mine")
    name, value = flag.split("=")
    assert f"{name} is '{Path(value).absolute()}', which a TPU's hosts cannot open" in message


@pytest.mark.parametrize("arguments", [("train", "--dataset=here"), ("evaluate",)])
def test_a_tpu_that_is_named_but_not_used_is_refused_before_anything_slow(capsys, arguments):
    for flag in ("--tpu", "--tpu_zone", "--gcp_project"):
        message = refused(capsys, *arguments, "--model_dir=there", f"{flag}=mine")
        assert f"{flag} has no effect without --use_tpu; add --use_tpu" in message


def test_the_flags_and_an_example_of_every_command_are_in_its_help(capsys):
    for command in ("train", "watch", "evaluate", "export", "predict", "folds", "preflight"):
        code, out, _ = run(capsys, command, "--help")
        assert code == 0
        assert f"example:\n  jpeg2tpu {command} --" in out
    assert "the following arguments are required: COMMAND" in refused(capsys)
    assert "unknown flag --datset; did you mean --dataset?" in refused(capsys, "train", "--datset=x", "--model_dir=y")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN is for x86 here")
@pytest.mark.parametrize(("setting", "used"), [(None, "True"), ("0", "False")])
def test_tensorflow_uses_onednn_on_any_x86_processor_unless_the_environment_says_otherwise(setting, used):
    program = (
        "from estimator_app.runtime.tensorflow_startup import import_tensorflow; import_tensorflow(verbose=False); "
        "from tensorflow.python.util import _pywrap_util_port; print(_pywrap_util_port.IsMklEnabled())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
    environment |= {"TF_ENABLE_ONEDNN_OPTS": setting} if setting else {}
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip() == used


@pytest.mark.skipif(TENSORFLOW <= (2, 15), reason="TPUEstimator is there")
def test_a_newer_tensorflow_is_told_apart(capsys, tmp_path):
    message = refused(capsys, "train", f"--dataset={tmp_path}", f"--model_dir={tmp_path}", "--trainer=tpu_estimator")
    assert "--trainer=tf_distribute" in message
    assert re.search("TPUEstimator(, whose last version is| needs) TensorFlow 2.15[;,]", message)


def test_a_quiet_run_prints_its_result_alone_and_json_is_one_object(capsys, model_dir, digits_dataset):
    again = ("train", f"--dataset={digits_dataset.path}", f"--model_dir={model_dir}", *FLAGS, "--train_steps=40")
    metrics = json.loads((model_dir / "metrics.json").read_text())
    code, out, err = run(capsys, *again, "--quiet")
    assert (code, err) == (0, "")
    first, last = out.splitlines()
    assert first.startswith(f"step 40: accuracy {100 * metrics['accuracy']:.1f} %")
    assert last == f"export: {model_dir}/{metrics['export']}"
    code, out, err = run(capsys, *again, "--json")
    result = json.loads(out)
    assert (code, out.count("\n"), result["model_dir"]) == (0, 1, str(model_dir))
    assert (result["step"], result["accuracy"]) == (metrics["step"], metrics["accuracy"])
    assert result["export"] == f"{model_dir}/{metrics['export']}"
    assert err.startswith("nothing to train: step 40 is done, ")


@pytest.mark.long
def test_a_terminal_shows_that_an_evaluation_goes_on_and_then_its_result(model_dir):
    code, output = run_in_terminal("estimator_app", "evaluate", f"--model_dir={model_dir}")
    assert code == 0
    assert output.startswith("\rstarting TensorFlow …")
    assert "\revaluating on 333 images of validation …" in output
    assert output.split("\r\x1b[K")[-1].startswith("step 40: accuracy ")
    assert run_in_terminal("estimator_app", "evaluate", f"--model_dir={model_dir}", "--quiet")[1].startswith(
        "step 40: "
    )
