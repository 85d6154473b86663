"""jpeg2tpu preflight as a user types it, without the TPU's compiler."""

from __future__ import annotations

import json
import re

import pytest
import tensorflow as tf

from estimator_app.config import default_trainer
from estimator_app.model_dir.run_files import write_run_config
from support import broken_networks
from support.app_commands import FLAGS, refused, run
from support.app_fixtures import configured, keras_warns

pytestmark = keras_warns
TRAINER = default_trainer()


@pytest.fixture(autouse=True)
def _without_compiler(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # where no `make preflight` has put one


def preflight_command(manifest, *flags):
    return ("preflight", f"--dataset={manifest.path}", "--topology=v5e:2x2", "--eval_batch_size=32", *FLAGS, *flags)


def test_a_good_run_is_a_page_of_what_is_right(capsys, digits_dataset):
    code, out, err = run(capsys, *preflight_command(digits_dataset))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"cnn by {TRAINER} on v5e:2x2, 1 TPU VM × 4 cores on 1/2 host, batches of 32"
    assert [line for line in lines if line and line[0] != " "][1:-1] == [
        *("runtime", "graph", "input", "xla", "compile", "feeding")
    ]
    assert lines[-1] == "nothing found that would fail on a TPU; lines marked – were not checked"
    assert "✗" not in out
    assert "image [8, 16, 16, 3] uint8, weight [8] float32, label [8] int32" in out
    split = digits_dataset.split("validation").num_examples
    assert f"each of {split} examples exactly once" in out
    for mode in ("training", "evaluation", "prediction"):
        assert f"✓ {mode}: XLA compiles the step: " in out
        assert f"✓ {mode}: TPUs support all " in out or TRAINER == "tf_distribute"
    assert "  – libtpu is not installed: run make preflight" in lines


def test_a_bad_run_exits_1_with_what_to_do_and_so_does_its_json(capsys, digits_dataset):
    bad = preflight_command(digits_dataset, "--network=support.broken_networks:text", "--json")
    code, out, err = run(capsys, *bad)
    assert (code, err) == (1, "")
    fields = json.loads(out)
    assert (fields["topology"], fields["fails"]) == ("v5e:2x2", True)
    parts = {part["name"]: part["findings"] for part in fields["parts"]}
    failing = {name for name, findings in parts.items() if any(finding["verdict"] == "fails" for finding in findings)}
    assert failing == ({"graph", "xla"} if TRAINER == "tpu_estimator" else {"xla"})
    (finding,) = (finding for finding in parts["xla"] if finding["verdict"] == "fails")
    assert "AsString" in finding["seen"]
    assert finding["advice"] == "strings are supported only on hosts; remove the op, or move it into the input"


def test_a_mistake_that_training_does_not_make_is_told(capsys, digits_dataset):
    code, out, err = run(
        capsys, *preflight_command(digits_dataset, "--network=support.broken_networks:text_in_evaluation")
    )
    assert (code, err) == (1, "")
    place = broken_networks.line_of("EVALUATED")
    assert "✓ training: XLA compiles the step" in out
    for mode in ("evaluation", "prediction"):
        assert re.search(rf"✗ {mode}: XLA does not support AsString \(\S*{place}\): strings are supported", out)


def test_the_flags_that_train_takes_for_a_tpu_are_looked_at(capsys, digits_dataset, tmp_path):
    (tmp_path / "file").touch()
    tpu_flags = ("--use_tpu", "--tpu=mine", f"--model_dir={tmp_path}/model", f"--export_dir={tmp_path}/file/export")
    # A batch that cannot be divided ends the rest early.
    code, out, err = run(capsys, *preflight_command(digits_dataset, "--train_batch_size=30", *tpu_flags))
    assert (code, err) == (1, "")
    for name, path in (("--dataset", digits_dataset.path), ("--model_dir", f"{tmp_path}/model")):
        assert (
            f"✗ {name} is {path!r}, which a TPU's hosts cannot open: copy it to a bucket and use gs://BUCKET/…" in out
        )
    assert "✓ --model_dir can be written" in out
    assert f"✗ --export_dir '{tmp_path}/file/export' cannot be written: " in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]  # nothing is left behind
    code, out, _ = run(
        capsys,
        *preflight_command(digits_dataset, "--train_batch_size=30", "--use_tpu", "--tpu=local", "--topology=v5e:4x4"),
    )
    assert "✗ --tpu=local is the TPU of a single VM, but v5e:4x4 has 4 TPU VMs: name the TPU" in out
    assert "--dataset is" not in out


@pytest.mark.parametrize("flag", ["--service=grpc://nowhere.invalid:5050", "--cache=decoded"])
@pytest.mark.long
def test_what_other_machines_are_for_is_not_asked_of_this_one(capsys, digits_dataset, monkeypatch, flag):
    monkeypatch.setattr("tpu_input.pipeline.caching.available_bytes", lambda: 0)
    code, out, err = run(capsys, *preflight_command(digits_dataset, flag))
    assert (code, err) == (0, "")
    assert "✗" not in out


def test_the_options_of_another_run_than_the_model_dir_s_are_told(capsys, digits_dataset, tmp_path):
    write_run_config(str(tmp_path), configured(digits_dataset, image_size=28, trainer=TRAINER))
    tf.train.Checkpoint(global_step=tf.Variable(7)).save(f"{tmp_path}/model.ckpt")
    code, out, _ = run(capsys, *preflight_command(digits_dataset, f"--model_dir={tmp_path}", "--train_steps=6"))
    assert code == 1
    for problem in (
        "--image_size is 28, not 16",
        "--train_steps must be at least 7, the number of completed steps, got 6",
    ):
        assert f"✗ its {problem}: use another --model_dir, or repeat the options of its run" in out


def test_a_batch_that_the_cores_cannot_share_is_told_before_anything_else(capsys, digits_dataset):
    code, out, _ = run(capsys, *preflight_command(digits_dataset, "--train_batch_size=30", "--eval_batch_size=2"))
    assert code == 1
    assert "✗ --train_batch_size=30 cannot be divided evenly among 4 cores: use 28 or 32" in out
    assert "✗ --eval_batch_size=2 cannot be divided evenly among 4 cores: use 4" in out
    assert out.endswith("\nproblems to fix before training on a TPU: 2\n")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--topology=v9:2x2", "the topology's generation must be one of v2, v3, v4, v5e, v5p, v6e, tpu7x, got 'v9'"),
        (
            "--compiler=/nowhere/python",
            "--compiler '/nowhere/python' is not an executable file; create it with: make preflight",
        ),
        ("--tpu=mine", "--tpu has no effect without --use_tpu; add --use_tpu"),
    ],
)
def test_a_flag_that_cannot_work_is_one_line_and_exit_2(capsys, digits_dataset, flag, message):
    assert message in refused(capsys, *preflight_command(digits_dataset, flag))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "the following arguments are required: --dataset"),
        (("--jax_step=my:step", "--dataset=shards"), "preflight takes --dataset or --jax_step, got both"),
        (("--jax_step=my",), "--jax_step must name a function as package.module:function, got 'my'"),
    ],
)
def test_a_dataset_or_a_step_in_jax_is_needed(capsys, flags, message):
    assert run(capsys, "preflight", "--topology=v5e:2x2", *flags) == (2, "", f"error: {message}\n")


def test_a_step_in_jax_needs_the_compiler(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "preflight", "--topology=v5e:2x2", "--jax_step=my:step")
    assert (code, err) == (0, "")
    assert out.startswith("my:step on v5e:2x2, 1 TPU VM × 4 cores")
    assert "  – libtpu is not installed: run make preflight" in out
