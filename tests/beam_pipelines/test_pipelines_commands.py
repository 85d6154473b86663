"""The commands of beam_pipelines as users type them: one clear line and exit code 2 for a mistake, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from support.pipelines_commands import refused, run

ROOT = Path(__file__).parents[2]


def test_sample_convert_and_verify_say_what_they_did(capsys, tmp_path):
    digits, dataset = tmp_path / "digits", tmp_path / "dataset"
    assert (
        run(capsys, "sample", digits)[1] == f"{digits}: 1,797 digits in 10 class folders, 1,797 of them written now\n"
    )
    assert "1,797 digits in 10 class folders, 0 of them written now" in run(capsys, "sample", digits)[1]
    convert = ("convert", f"--input={digits}", f"--output={dataset}", "--shard_size=200KB")
    code, out, err = run(capsys, *convert)
    assert (code, err) == (0, "")
    assert "train: 1,644 examples of 10 classes in 10 shards" in out
    assert "rejected: 0 of 1,797 inputs" in out
    assert f"complete: {dataset}/manifest.json" in out
    assert "already complete, nothing to do" in run(capsys, *convert)[1]
    code, out, err = run(capsys, "verify", dataset)
    assert (code, err) == (0, "")
    assert "no problems found" in out
    (dataset / "rejected.jsonl").unlink()
    code, out, _ = run(capsys, "verify", dataset)
    assert (code, out) == (1, f"rejected.jsonl is missing\n{dataset}: 1 problems\n")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--shard_size=0", "shard_size must be at least 10000 bytes, got 0"),
        ("--shard_size=-5MB", "'-5MB' is not a size; write 500KB, 100MB or 1GB"),
        ("--shard_size=big", "'big' is not a size"),
        ("--num_shards=train=0", "num_shards must be at least 1, got 0 for split 'train'"),
        ("--num_shards=train=2,training=3", "num_shards must name each split once, got train, train"),
        ("--splits=train=50%", "splits must name each split once and add up to 100 %"),
        ("--splits=train", "'train' is not a list of splits; write train=90%,validation=10%"),
        ("--splits=train=150%", "must have a share above 0 % and at most 100 %, got 1.5"),
        ("--labels=/nowhere.txt", "cannot read '/nowhere.txt'"),
        ("--first_label=7", "argument --first_label: must be one of 0, 1, got 7"),
        ("--num_shards=train=x", "'train=x' is not a list of counts; write train=1024,validation=128"),
        ("--num_shards=train=1000", "split 'train' has 35 images, too few for --num_shards=train=1000"),
        ("--max_rejected=2", "'2' is not a percentage; write 1% or 0.5%"),
        ("--quality=0", "quality must be 1 to 100, got 0"),
        ("--resize_shorter=-1", "resize_shorter must be 0 or a number of pixels, got -1"),
        ("--label_list=x=/l.txt", "--label_list names the split 'x', but no --input does"),
        ("--input=other=/tmp", "each of several inputs must have its own split, --input=SPLIT=PATH"),
        ("--num_processes=0", "argument --num_processes: '0' is not a whole number of at least 1"),
        ("--num_processes=two", "argument --num_processes: 'two' is not a whole number of at least 1"),
        ("--shard_sise=1MB", "unknown flag --shard_sise; did you mean --shard_size?"),
        ("stray", "unknown argument 'stray'"),
    ],
)
def test_a_flag_that_cannot_work_says_what_is_needed(capsys, few_digits, tmp_path, flag, message):
    assert message in refused(capsys, "convert", f"--input={few_digits}", f"--output={tmp_path}/out", flag)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("runner", ["FnApiRunner", "FlinkRunner"])
def test_processes_of_this_machine_are_not_the_workers_of_a_runner(capsys, few_digits, tmp_path, runner):
    flags = [f"--runner={runner}", "--num_processes=2"]
    message = refused(capsys, "convert", f"--input={few_digits}", f"--output={tmp_path}/out", *flags)
    assert message == (
        "error: --num_processes=2 is for processes on this machine; leave it out, as "
        f"--runner={runner} has flags of its own for the number of workers, or leave out --runner\n"
    )
    assert not (tmp_path / "out").exists()


def test_worker_processes_that_could_hang_the_job_are_refused(capsys, few_digits, tmp_path):
    flags = ["--runner=FnApiRunner", "--direct_running_mode=multi_processing"]
    message = refused(capsys, "convert", f"--input={few_digits}", f"--output={tmp_path}/out", *flags)
    assert "uses processes of its own on all cores" in message


def test_a_mistyped_required_flag_is_recognised(capsys, tmp_path):
    assert "unknown flag --inputs; did you mean --input?" in refused(capsys, "convert", "--inputs=x", "--output=y")


def test_a_missing_input_says_what_an_input_is(capsys, tmp_path):
    message = refused(capsys, "convert", "--input=/no/such/folder", f"--output={tmp_path}/out")
    assert "input '/no/such/folder' does not exist; it must be a folder of class folders" in message


def test_a_single_image_is_no_input(capsys, few_digits, tmp_path):
    image = next((few_digits / "0").iterdir())
    message = refused(capsys, "convert", f"--input={image}", f"--output={tmp_path}/out")
    assert "is a file of unknown type; it must be a folder of class folders" in message


def test_an_empty_folder_is_refused(capsys, tmp_path):
    (tmp_path / "in").mkdir()
    assert "is empty" in refused(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    assert not list((tmp_path / "out").rglob("*"))


def test_a_folder_with_one_class_is_refused(capsys, few_digits, tmp_path):
    message = refused(capsys, "convert", f"--input={few_digits}/0/..", f"--output={few_digits}/out")
    assert "overlap: one contains the other" in message
    (tmp_path / "in").mkdir()
    (few_digits / "0").rename(tmp_path / "in" / "zero")
    message = refused(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    assert "has only one class, 'zero'; a classifier needs at least 2" in message


def test_images_outside_class_folders_are_explained(capsys, few_digits, tmp_path):
    message = refused(capsys, "convert", f"--input={few_digits}/0", f"--output={tmp_path}/out")
    assert "none of the 12 inputs" in message
    assert "is not in a class folder" in message


def test_images_larger_than_a_shard_are_explained(capsys, tmp_path):
    for label in "ab":
        (tmp_path / "in" / label).mkdir(parents=True)
        Image.effect_noise((200, 200), 90).save(tmp_path / "in" / label / "1.jpg", quality=95)
    message = refused(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--shard_size=10KB")
    assert "none of the 2 inputs" in message
    assert message.endswith(" bytes, more than --shard_size\n")  # the layout is known


def test_nothing_but_broken_images_is_refused_with_the_reasons(capsys, tmp_path):
    for label in "ab":
        (tmp_path / "in" / label).mkdir(parents=True)
        (tmp_path / "in" / label / "1.jpg").write_text("no image")
    message = refused(capsys, "convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out")
    assert "2 of 2 inputs were rejected (100 %), more than --max_rejected=1%: not_an_image 2" in message
    assert f"listed in {tmp_path}/out/rejected.jsonl" in message


def test_a_list_without_the_columns_is_refused(capsys, tmp_path):
    (tmp_path / "list.csv").write_text("a,b,c\n")
    message = refused(capsys, "convert", f"--input={tmp_path}/list.csv", f"--output={tmp_path}/out")
    assert "begins with 'a,b,c', but must have the header image,label[,split][,group]" in message


def test_verify_of_no_dataset_is_refused(capsys, tmp_path):
    assert "contains no manifest.json, so it is not a complete dataset" in refused(capsys, "verify", tmp_path)


@pytest.mark.parametrize("command", ["sample", "convert", "verify", "report"])
def test_help_explains_each_command(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"jpeg2tpu {command}" in out


def test_a_command_in_its_own_process_prints_nothing_but_its_lines(few_digits, tmp_path):
    args = ["convert", f"--input={few_digits}", f"--output={tmp_path}/out"]
    result = subprocess.run([sys.executable, "-m", "beam_pipelines", *args], capture_output=True, text=True, cwd=ROOT)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 4
