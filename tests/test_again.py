"""What a second conversion into the same output does: go on, replace, refuse; never mix, never lose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import files, local
from test_convert import options

from beam_pipelines import convert as convert_module
from beam_pipelines import local_files, storage
from beam_pipelines.command_line import print_summary
from beam_pipelines.convert import convert
from beam_pipelines.repair import repair
from beam_pipelines.report import write_report
from beam_pipelines.sample import write_sample
from beam_pipelines.verify import verify

ROOT = str(Path(__file__).parent.parent)
IN_ORDER = (("train", 0.5), ("validation", 0.5))


def interrupted(monkeypatch, opts, module=convert_module, name="commit"):
    """Converts until `name` is called."""
    with monkeypatch.context() as broken:
        broken.setattr(module, name, lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            convert(opts, local())


def test_splits_in_another_order_are_another_dataset(few_digits, tmp_path, monkeypatch):
    interrupted(monkeypatch, options(few_digits, tmp_path / "out", splits=IN_ORDER))
    with pytest.raises(ValueError, match="holds an unfinished conversion of other inputs or options"):
        convert(options(few_digits, tmp_path / "out", splits=IN_ORDER[::-1]), local())
    convert(options(few_digits, tmp_path / "out", splits=IN_ORDER), local())
    with pytest.raises(ValueError, match=r"its splits is \{'train': 0\.5, 'validation': 0\.5\}, not \{'validation'"):
        convert(options(few_digits, tmp_path / "out", splits=IN_ORDER[::-1]), local())


def test_an_overwriting_that_was_killed_goes_on(few_digits, tmp_path, monkeypatch):
    convert(options(few_digits, tmp_path / "out"), local())
    changed = options(few_digits, tmp_path / "out", shard_bytes=20_000, seed=3, overwrite=True)
    delete, shards = storage.delete, []

    def delete_some(paths):
        shards.extend(path for path in paths if path.endswith(".tfrecord"))
        delete(shards[:1] or paths)
        if shards:
            raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(storage, "delete", delete_some)
        with pytest.raises(KeyboardInterrupt):
            convert(changed, local())
    assert len(shards) > 1
    convert(changed, local())
    convert(options(few_digits, tmp_path / "new", shard_bytes=20_000, seed=3), local())
    assert files(tmp_path / "out") == files(tmp_path / "new")


def test_overwriting_a_folder_with_other_files_is_refused_before_anything_is_removed(few_digits, tmp_path):
    convert(options(few_digits, tmp_path / "out"), local())
    (tmp_path / "out" / "notes.txt").write_text("mine")
    before = files(tmp_path / "out")
    with pytest.raises(ValueError, match=r"holds 'notes\.txt', which are no part of this dataset"):
        convert(options(few_digits, tmp_path / "out", seed=3, overwrite=True), local())
    assert files(tmp_path / "out") == before


def test_a_dataset_that_lacks_a_shard_is_not_called_complete(few_digits, tmp_path):
    manifest, _ = convert(options(few_digits, tmp_path / "out"), local())
    before = files(tmp_path / "out")
    shard = manifest.split("train").shards[0].name
    (tmp_path / "out" / shard).unlink()
    with pytest.raises(ValueError, match=f"holds this dataset without '{shard}'; make that again with: .* --repair"):
        convert(options(few_digits, tmp_path / "out"), local())
    repair(verify(manifest.path), local())
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
            convert(options(few_digits, tmp_path / "out", max_rejected=0.0), local())
    manifest, _ = convert(options(few_digits, tmp_path / "out", max_rejected=0.0), local())
    assert manifest.num_rejected == {}
    assert verify(manifest.path).problems == []


def test_a_share_that_is_met_exactly_is_not_exceeded(few_digits, tmp_path):
    for path in sorted(few_digits.rglob("*.jpg"))[:35]:
        (path.parent / f"copy_{path.name}").write_bytes(path.read_bytes())
    for number in range(29):
        (few_digits / "0" / f"{number}.jpg").write_text("<html>")
    manifest, _ = convert(options(few_digits, tmp_path / "out", max_rejected=0.29), local())  # 0.29 * 100 < 29
    assert (manifest.num_inputs, manifest.num_rejected) == (100, {"not_an_image": 29})


def test_an_output_within_the_input_is_found_behind_a_link(few_digits, tmp_path):
    (tmp_path / "link").symlink_to(few_digits)
    with pytest.raises(ValueError, match="lie in each other; keep them apart"):
        convert(options(tmp_path / "link", few_digits / "out"), local())
    assert not (few_digits / "out").exists()


def test_a_bucket_without_a_name_is_no_local_folder(tmp_path):
    command = [sys.executable, "-m", "beam_pipelines", "verify", "gs://"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": ROOT})
    assert shown.returncode == 2
    assert len(shown.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def killed_while_writing(monkeypatch, write):
    """Lets write() leave what a kill would."""
    with monkeypatch.context() as killed:
        killed.setattr(os, "replace", lambda *_: 1 / 0)
        killed.setattr(os, "remove", lambda *_: None)
        with pytest.raises(ZeroDivisionError):
            write()


def test_a_report_that_was_killed_is_in_nobody_s_way(few_digits, tmp_path, monkeypatch):
    manifest, _ = convert(options(few_digits, tmp_path / "out"), local())
    killed_while_writing(monkeypatch, lambda: write_report(manifest.path))
    assert not convert(options(few_digits, tmp_path / "out"), local())[1]
    assert verify(manifest.path).problems == []
    write_report(manifest.path)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.name.startswith((".", "rep"))) == [
        "report.html"
    ]


def test_a_sample_that_was_killed_is_made_whole(tmp_path, monkeypatch):
    killed_while_writing(monkeypatch, lambda: write_sample(str(tmp_path / "digits")))
    assert list((tmp_path / "digits").rglob("*.part-*"))
    write_sample(str(tmp_path / "digits"))
    assert len(files(tmp_path / "digits")) == 1797


def test_a_sample_is_not_mixed_with_other_images(few_digits):
    (few_digits / "0" / "cat.jpg").write_bytes(b"")
    before = files(few_digits)
    with pytest.raises(ValueError, match=r"holds '0/cat\.jpg', which is none of the sample's; choose another folder"):
        write_sample(str(few_digits))
    assert files(few_digits) == before


def test_a_class_without_examples_is_said(few_digits, tmp_path, capsys):
    lines = [f"{path.relative_to(few_digits)},{path.parent.name}" for path in sorted(few_digits.rglob("*.jpg"))]
    lines = [f"{line},{'validation' if line.endswith(',2') else 'train'}" for line in lines]
    (few_digits / "list.csv").write_text("\n".join(["image,label,split", *lines]))
    manifest, _ = convert(options(few_digits / "list.csv", tmp_path / "out"), local())
    print_summary(manifest)
    shown = capsys.readouterr().out
    assert "train: 24 examples of 3 classes, none of '2' in " in shown
    assert "validation: 12 examples of 3 classes, none of '0' and 1 more in " in shown
