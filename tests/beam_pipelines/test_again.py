"""What a second conversion into the same output does: go on, replace, refuse; never mix, never lose."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipelines import storage
from beam_pipelines.__main__ import main
from beam_pipelines.conversion import commit, shard_writing
from beam_pipelines.conversion.commit import write_lengths
from beam_pipelines.convert import convert
from beam_pipelines.repair import repair
from beam_pipelines.report.page import write_report
from beam_pipelines.report.summary import print_summary
from beam_pipelines.sample_digits import write_sample
from beam_pipelines.storage import local as local_files
from beam_pipelines.verify import verify
from support.conversion import options
from support.folders import files, without_edition
from tpu_input.record_source import write_tfds_metadata

convert_module = importlib.import_module("beam_pipelines.convert")

ROOT = str(Path(__file__).parents[2])
IN_ORDER = (("train", 0.5), ("validation", 0.5))


def interrupted(monkeypatch, opts, module=convert_module, name="commit"):
    """Converts until `name` is called."""
    with monkeypatch.context() as broken:
        broken.setattr(module, name, lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            convert(opts)


def test_splits_in_another_order_are_another_dataset(few_digits, tmp_path, monkeypatch):
    differ = "its --splits is train=50%,validation=50%, not validation=50%,train=50%;"
    interrupted(monkeypatch, options(few_digits, tmp_path / "out", splits=IN_ORDER))
    with pytest.raises(ValueError, match=f"holds an unfinished conversion of other inputs or options: {differ}"):
        convert(options(few_digits, tmp_path / "out", splits=IN_ORDER[::-1]))
    convert(options(few_digits, tmp_path / "out", splits=IN_ORDER))
    with pytest.raises(ValueError, match=differ):
        convert(options(few_digits, tmp_path / "out", splits=IN_ORDER[::-1]))


def test_an_overwriting_that_was_killed_goes_on(few_digits, tmp_path, monkeypatch):
    convert(options(few_digits, tmp_path / "out"))
    changed = options(few_digits, tmp_path / "out", shard_bytes=20_000, seed=3, overwrite=True)
    delete, shards = storage.delete, list[str]()

    def delete_some(paths):
        shards.extend(path for path in paths if path.endswith(".tfrecord"))
        delete(shards[:1] or paths)
        if shards:
            raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(storage, "delete", delete_some)
        with pytest.raises(KeyboardInterrupt):
            convert(changed)
    assert len(shards) > 1
    convert(changed)
    convert(options(few_digits, tmp_path / "new", shard_bytes=20_000, seed=3))
    assert without_edition(tmp_path / "out") == without_edition(tmp_path / "new")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_conversion_killed_between_the_lengths_and_the_manifest_goes_on(few_digits, tmp_path, monkeypatch, overwrite):
    opts = options(few_digits, tmp_path / "out")

    def die(manifest):
        write_lengths(manifest)
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(commit, "write_lengths", die)
        with pytest.raises(KeyboardInterrupt):
            convert(opts)
    assert (tmp_path / "out" / "lengths.parquet").exists()
    assert not (tmp_path / "out" / "manifest.json").exists()
    if overwrite:  # by a dataset of other shards
        opts = options(few_digits, tmp_path / "out", shard_bytes=20_000, seed=3, overwrite=True)
    convert(opts)
    convert(dataclasses.replace(opts, output=str(tmp_path / "new"), overwrite=False))
    assert files(tmp_path / "out") == files(tmp_path / "new")


def test_a_dataset_of_an_earlier_build_without_lengths_is_complete_and_can_be_replaced(few_digits, tmp_path):
    convert(options(few_digits, tmp_path / "out"))
    (tmp_path / "out" / "lengths.parquet").unlink()
    before = files(tmp_path / "out")
    assert not convert(options(few_digits, tmp_path / "out")).is_new
    assert files(tmp_path / "out") == before
    changed = options(few_digits, tmp_path / "out", seed=3, overwrite=True)
    assert convert(changed).is_new
    convert(dataclasses.replace(changed, output=str(tmp_path / "new")))
    assert without_edition(tmp_path / "out") == without_edition(tmp_path / "new")


def test_overwriting_a_folder_with_other_files_is_refused_before_anything_is_removed(few_digits, tmp_path):
    convert(options(few_digits, tmp_path / "out"))
    (tmp_path / "out" / "notes.txt").write_text("mine")
    before = files(tmp_path / "out")
    with pytest.raises(ValueError, match=r"contains files that are not part of this dataset: 'notes\.txt'; move"):
        convert(options(few_digits, tmp_path / "out", seed=3, overwrite=True))
    assert files(tmp_path / "out") == before


def test_a_dataset_that_lacks_a_shard_is_not_called_complete(few_digits, tmp_path):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    before = files(tmp_path / "out")
    shard = manifest.split("train").shards[0].name
    (tmp_path / "out" / shard).unlink()
    with pytest.raises(
        ValueError, match=f"holds this dataset without '{shard}'; re-create what is missing with: .* --repair"
    ):
        convert(options(few_digits, tmp_path / "out"))
    repair(verify(manifest.path))
    assert files(tmp_path / "out") == before


def test_files_that_could_not_be_read_are_tried_again(few_digits, tmp_path, monkeypatch):
    read = local_files.read_bytes

    def refuse(path, *args):
        if path.endswith("0000.jpg") and list((tmp_path / "out").glob(".jpeg2tpu/*/plan.json")):
            raise PermissionError(13, "Permission denied")
        return read(path, *args)

    with monkeypatch.context() as refused:
        refused.setattr(local_files, "read_bytes", refuse)
        with pytest.raises(ValueError, match="unreadable 1"):
            convert(options(few_digits, tmp_path / "out", max_rejected=0.0))
    manifest, *_ = convert(options(few_digits, tmp_path / "out", max_rejected=0.0))
    assert manifest.num_rejected == {}
    assert verify(manifest.path).problems == []


def test_a_share_that_is_met_exactly_is_not_exceeded(few_digits, tmp_path):
    for path in sorted(few_digits.rglob("*.jpg"))[:35]:
        (path.parent / f"copy_{path.name}").write_bytes(path.read_bytes())
    for number in range(29):
        (few_digits / "0" / f"{number}.jpg").write_text("<html>")
    manifest, *_ = convert(options(few_digits, tmp_path / "out", max_rejected=0.29))  # 0.29 * 100 < 29
    assert (manifest.num_inputs, manifest.num_rejected) == (100, {"not_an_image": 29})


def test_an_output_within_the_input_is_found_behind_a_link(few_digits, tmp_path):
    (tmp_path / "link").symlink_to(few_digits)
    with pytest.raises(ValueError, match="overlap: one contains the other; use separate folders"):
        convert(options(tmp_path / "link", few_digits / "out"))
    assert not (few_digits / "out").exists()


def test_a_bucket_without_a_name_is_no_local_folder(tmp_path):
    command = [sys.executable, "-m", "beam_pipelines", "verify", "gs://"]
    process = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": ROOT}
    )
    assert process.returncode == 2
    assert len(process.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def killed_while_writing(monkeypatch, write):
    """Lets write() leave what a kill would."""
    with monkeypatch.context() as killed:
        killed.setattr(os, "replace", lambda *_: 1 / 0)
        killed.setattr(os, "remove", lambda *_: None)
        with pytest.raises(ZeroDivisionError):
            write()


def test_a_report_that_was_killed_is_in_nobody_s_way(few_digits, tmp_path, monkeypatch):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    killed_while_writing(monkeypatch, lambda: write_report(manifest.path))
    assert not convert(options(few_digits, tmp_path / "out"))[1]
    assert verify(manifest.path).problems == []
    write_report(manifest.path)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.name.startswith((".", "rep"))) == [
        "report.html"
    ]


def test_what_tells_tensorflow_datasets_of_a_dataset_goes_with_it(few_digits, tmp_path):
    manifest, *_ = convert(options(few_digits, tmp_path / "out"))
    metadata_files = {Path(path) for path in write_tfds_metadata(manifest)}
    assert verify(manifest.path).problems == []
    convert(options(few_digits, tmp_path / "out", seed=3, overwrite=True))
    assert not metadata_files & set((tmp_path / "out").iterdir())


def test_a_sample_that_was_killed_is_made_whole(tmp_path, monkeypatch):
    killed_while_writing(monkeypatch, lambda: write_sample(str(tmp_path / "digits")))
    assert list((tmp_path / "digits").rglob("*.part-*"))
    write_sample(str(tmp_path / "digits"))
    assert len(files(tmp_path / "digits")) == 1797


def test_a_sample_is_not_mixed_with_other_images(few_digits):
    (few_digits / "0" / "cat.jpg").write_bytes(b"")
    before = files(few_digits)
    with pytest.raises(
        ValueError, match=r"contains '0/cat\.jpg', which is not a file of the sample; choose another folder"
    ):
        write_sample(str(few_digits))
    assert files(few_digits) == before


def test_a_class_without_examples_is_said(few_digits, tmp_path, capsys):
    lines = [f"{path.relative_to(few_digits)},{path.parent.name}" for path in sorted(few_digits.rglob("*.jpg"))]
    # One image of class 0 goes along, as splits without a class in common are refused.
    validation_lines = {lines[0], *(line for line in lines if line.endswith(",2"))}
    lines = [f"{line},{'validation' if line in validation_lines else 'train'}" for line in lines]
    (few_digits / "list.csv").write_text("\n".join(["image,label,split", *lines]))
    manifest, *_ = convert(options(few_digits / "list.csv", tmp_path / "out"))
    print_summary(manifest)
    stdout = capsys.readouterr().out
    assert "train: 23 examples of 3 classes, no examples of '2' in " in stdout
    assert "validation: 13 examples of 3 classes, no examples of '1' in " in stdout


def error_line(capsys) -> str:
    """Returns the one line on stderr."""
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err


def test_the_command_of_an_unfinished_conversion_is_shown_and_goes_on(few_digits, tmp_path, monkeypatch, capsys):
    (few_digits / "0" / "page.jpg").write_text("<html>")
    folder = few_digits.rename(tmp_path / "it's a folder")
    command = ["convert", f"--input={folder}", f"--output={tmp_path}/out", "--quality=80", "--resize_shorter=16"]
    assert main([*command, "--max_rejected=0%", "--overwrite"]) == 2
    capsys.readouterr()
    assert main([*command[:3], "--quality=75", "--num_shards=train=2"]) == 2
    message = error_line(capsys)
    assert "its --quality is 80, not 75" in message
    assert "its --resize_shorter is 16, not 0 (the default)" in message
    assert "its --num_shards is not given, not train=2" in message
    assert "--min_side" not in message
    match = re.search(r"resume it with: (jpeg2tpu .*?), choose another output", message)
    assert match
    words = shlex.split(match[1])
    assert words == ["jpeg2tpu", *command, "--max_rejected=0%"]
    assert main([*words[1:-1], "--max_rejected=10%"]) == 0


def test_other_inputs_of_an_unfinished_conversion_are_named(few_digits, tmp_path, monkeypatch):
    interrupted(monkeypatch, options(few_digits, tmp_path / "out"))
    folder = few_digits.rename(tmp_path / "elsewhere")
    next((folder / "0").iterdir()).unlink()
    with pytest.raises(
        ValueError, match=f"made from 36 inputs of '{few_digits}', and now there are 35; rerun its command"
    ):
        convert(options(folder, tmp_path / "out"))


def test_an_unfinished_conversion_whose_inputs_have_changed_is_not_to_be_resumed(few_digits, tmp_path, monkeypatch):
    interrupted(monkeypatch, options(few_digits, tmp_path / "out"))
    with next((few_digits / "0").iterdir()).open("ab") as file:
        file.write(b"0")
    with pytest.raises(
        ValueError, match="now some have other names, sizes, labels or features; choose another output, or repl"
    ):
        convert(options(few_digits, tmp_path / "out"))


@pytest.mark.parametrize("word", ["\x1b]0;title\x07", "a\nb", 7])
def test_a_kept_command_that_a_terminal_would_obey_is_not_shown(word, few_digits, tmp_path, monkeypatch, capsys):
    interrupted(monkeypatch, options(few_digits, tmp_path / "out"))
    (path,) = (tmp_path / "out").glob(".jpeg2tpu/*/conversion.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"command": [word]}))
    assert main(["convert", f"--input={few_digits}", f"--output={tmp_path}/out", "--seed=1"]) == 2
    message = error_line(capsys)
    assert message[:-1].isprintable()
    assert "conversion.json' is damaged" in message


@contextlib.contextmanager
def read_only(folder: Path):
    """Makes a folder what one on a disk that is mounted read-only is."""
    if os.geteuid():  # whom permissions bind
        mode = folder.stat().st_mode
        folder.chmod(0o555)
        yield
        folder.chmod(mode)
        return
    mounted = subprocess.run(["mount", "--bind", folder, folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mount: {mounted.stderr.decode().strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_complete_dataset_on_a_read_only_disk_is_complete(few_digits, tmp_path, capsys):
    output = tmp_path / "out"
    command = ["convert", f"--input={few_digits}", f"--output={output}"]
    assert main(command) == 0
    before = files(output)
    with read_only(output):
        with pytest.raises(OSError, match=r"Read-only file system|Permission denied"):
            (output / "file").write_text("")
        capsys.readouterr()
        assert main(command) == 0
        assert f"already complete, nothing to do: {output}/manifest.json" in capsys.readouterr().out
        assert main([*command, "--quality=75", "--overwrite"]) == 2
        assert re.search(
            "its --quality is 90, not 75; .* cannot be written: (Read-only|Permission)", error_line(capsys)
        )
    (output / "rejected.jsonl").unlink()
    with read_only(output):
        assert main(command) == 2
        assert "without 'rejected.jsonl'" in error_line(capsys)
    assert files(output) == {path: digest for path, digest in before.items() if path != "rejected.jsonl"}
    with read_only(tmp_path / "out" / "index"):
        assert main(["convert", f"--input={few_digits}", f"--output={output}/index/new"]) == 2
        assert re.search("Read-only file system|Permission denied", error_line(capsys))


def test_a_conversion_whose_output_is_removed_meanwhile_goes_on(few_digits, tmp_path, monkeypatch, capsys):
    opts = options(few_digits, tmp_path / "new", shard_bytes=10_000)
    convert(opts)
    command = ["convert", f"--input={few_digits}", f"--output={tmp_path}/out", "--shard_size=10KB"]
    end, receipts = shard_writing._Files.end, []

    def remove_before_the_second(shard_files, receipt):
        receipts.append(receipt)
        if len(receipts) == 2:
            shutil.rmtree(tmp_path / "out")
        end(shard_files, receipt)

    with monkeypatch.context() as patch:
        patch.setattr(shard_writing._Files, "end", remove_before_the_second)
        assert main(command) == 2
    assert error_line(capsys).endswith("rerun the same command to resume\n")
    assert main(command) == 0
    assert files(tmp_path / "out") == files(tmp_path / "new")


@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
@pytest.mark.long
def test_shards_that_a_removal_has_missed_are_this_conversion_s_or_kept(flags, few_digits, tmp_path, capsys):
    opts = options(few_digits, tmp_path / "new", shard_bytes=10_000)
    manifest, *_ = convert(opts)
    convert(options(few_digits, tmp_path / "other", shard_bytes=10_000, seed=3))
    first, second = (shard.name for shard in manifest.split("train").shards[:2])
    command = ["convert", f"--input={few_digits}", f"--output={tmp_path}/out", "--shard_size=10KB", *flags]

    def leave(folder: Path, *names: str) -> None:
        for name in names:
            (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / name, tmp_path / "out" / name)

    for foreign in (f"index/{first[:-9]}.parquet", first):
        leave(tmp_path / "new", second)
        leave(tmp_path / "other", foreign)
        before = files(tmp_path / "out")
        assert main(command) == 2
        assert "contains other files and no dataset: " in error_line(capsys)
        assert files(tmp_path / "out") == before
        (tmp_path / "out" / foreign).unlink()
    leave(tmp_path / "new", second, f"index/{first[:-9]}.parquet")
    assert main(command) == 0
    assert files(tmp_path / "out") == files(tmp_path / "new")


def test_splits_that_nothing_would_follow_are_refused(few_digits, tmp_path, capsys):
    for split in ("train", "validation"):
        shutil.copytree(few_digits, tmp_path / "in" / split)
    command = ["convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out"]
    assert main([*command, "--splits=train=80%,test=20%"]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert (
        "already specifies its split ('train', 'validation'), so --splits=train=80%,test=20% would have no effect"
        in message
    )
    assert not (tmp_path / "out").exists()
    assert main(command) == 0
