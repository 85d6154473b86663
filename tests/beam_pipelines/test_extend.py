"""Datasets that grow: new images in new shards, everything else as it was, also after kill -9, and old versions."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from beam_pipelines.conversion.output_folder import read_manifest
from support.folders import files
from support.pipelines_commands import refused, run
from tpu_input.dataset_format.records import Manifest, decode, read_frames

FLAGS = ("--shard_size=20KB", "--max_rejected=10%")


@pytest.fixture
def images(digits, tmp_path) -> list[Path]:
    """60 digits of three classes in class folders, and the folder; more are added by add()."""
    for label in "012":
        (tmp_path / "in" / label).mkdir(parents=True)
    more = [sorted((digits / label).iterdir())[number] for number in range(60) for label in "012"]
    for path in more[:60]:
        shutil.copy(path, tmp_path / "in" / path.parent.name)
    return more[60:]


def add(images: list[Path], folder: Path) -> None:
    for path in images:
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.parent.name)


def stored(path: Path, manifest: Manifest | None = None) -> dict[str, tuple[str, str, int]]:
    """(split, class, label) by key, of the shards that the manifest names."""
    examples = dict[str, tuple[str, str, int]]()
    manifest = manifest or read_manifest(str(path))
    assert manifest
    for name, split in manifest.splits.items():
        for shard in split.shards:
            with open(path / shard.name, "rb") as file:
                for _, payload in read_frames(file):
                    record = decode(payload)
                    assert record.key not in examples
                    examples[record.key] = name, record.class_name, record.label
    return examples


def convert(capsys: pytest.CaptureFixture[str], tmp_path: Path, *args: str) -> str:
    command = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out", *FLAGS)
    code, out, err = run(capsys, *command, *args)
    assert code == 0, err
    return out + err


def test_new_images_go_to_new_shards_and_old_ones_are_not_even_read(capsys, images, tmp_path):
    convert(capsys, tmp_path)
    for path in (tmp_path / "out/index").iterdir():  # as if the dataset had been written in an hour
        os.utime(path, (time.time() + 3600,) * 2)
    before, old = files(tmp_path / "out"), stored(tmp_path / "out")
    assert "already complete, nothing to do" in convert(capsys, tmp_path, "--extend")
    for path in (tmp_path / "in").rglob("*.jpg"):
        path.write_bytes(bytes(path.stat().st_size))  # of the same size; as an image, it would be rejected
    add(images[:30], tmp_path / "in")
    (tmp_path / "in" / "4").mkdir()
    shutil.copy(images[0], tmp_path / "in" / "4" / "new.jpg")
    output = convert(capsys, tmp_path, "--extend")
    assert "91 inputs" in output
    assert "have changed" not in output  # as they would if they were read
    after, manifest = files(tmp_path / "out"), read_manifest(str(tmp_path / "out"))
    assert manifest
    assert {path: after[path] for path in before if path != "manifest.json"} == {
        path: digest for path, digest in before.items() if path != "manifest.json"
    }
    assert after["manifest-1.json"] == before["manifest.json"]
    new = stored(tmp_path / "out")
    assert {key: new[key] for key in old} == old
    assert new.keys() - old.keys() == {f"{path.parent.name}/{path.name}" for path in images[:30]} | {"4/new.jpg"}
    assert new["4/new.jpg"][1:] == ("4", 3)
    assert (manifest.version, manifest.num_inputs, len(manifest.classes)) == (2, 91, 4)
    splits = Counter(split for split, _, _ in new.values())
    assert {name: split.num_examples for name, split in manifest.splits.items()} == splits
    assert sum(sum(split.class_counts) for split in manifest.splits.values()) == 91
    code, out, _ = run(capsys, "verify", tmp_path / "out")
    assert (code, "no problems found" in out) == (0, True)
    assert run(capsys, "report", tmp_path / "out")[0] == 0
    assert "already complete, nothing to do" in convert(capsys, tmp_path, "--extend")
    first = read_first(tmp_path / "out")
    assert stored(tmp_path / "out", first) == old


def read_first(path: Path) -> Manifest:
    return Manifest.from_json((path / "manifest-1.json").read_bytes(), str(path))


@pytest.mark.long
def test_statistics_are_those_of_all_images(capsys, images, tmp_path):
    convert(capsys, tmp_path)
    add(images[:60], tmp_path / "in")
    convert(capsys, tmp_path, "--extend")
    command = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/whole", *FLAGS)
    assert run(capsys, *command)[0] == 0
    extended, at_once = read_manifest(f"{tmp_path}/out"), read_manifest(f"{tmp_path}/whole")
    assert extended
    assert at_once
    assert stored(tmp_path / "out") == stored(tmp_path / "whole")
    for name, split in at_once.splits.items():
        extended_split = extended.splits[name]
        assert (extended_split.class_counts, extended_split.height, extended_split.width) == (
            split.class_counts,
            split.height,
            split.width,
        )
        assert extended_split.channel_mean == pytest.approx(split.channel_mean, abs=0.01)
        assert extended_split.channel_std == pytest.approx(split.channel_std, abs=0.01)
    code, out, _ = run(capsys, "diff", tmp_path / "out", tmp_path / "whole")
    assert (code, "examples are the same" in out, "added" in out) == (0, True, False)


@pytest.mark.long
def test_a_dataset_grows_several_times_and_can_be_replaced(capsys, images, tmp_path):
    convert(capsys, tmp_path)
    (tmp_path / "in/0/no.jpg").write_bytes(b"no image")
    counts = []
    for start in range(0, 60, 20):
        add(images[start : start + 20], tmp_path / "in")
        convert(capsys, tmp_path, "--extend")
        manifest = read_manifest(f"{tmp_path}/out")
        assert manifest
        counts.append((manifest.version, manifest.num_inputs, manifest.num_rejected))
        assert run(capsys, "verify", tmp_path / "out")[0] == 0
    (tmp_path / "in/1/.DS_Store").write_bytes(b"x")
    output = convert(capsys, tmp_path, "--extend")
    assert (
        "no image was added; inputs that the dataset does not have were rejected: not_an_image 1, system_file 1"
        in output
    )
    assert counts == [(number + 2, 81 + 20 * number, {"not_an_image": 1}) for number in range(3)]
    names = {path.name for path in (tmp_path / "out").glob("manifest*")}
    assert names == {"manifest.json", "manifest-1.json", "manifest-2.json", "manifest-3.json"}
    for number in range(1, 4):
        text = (tmp_path / f"out/manifest-{number}.json").read_bytes()
        earlier = Manifest.from_json(text, str(tmp_path / "out"))
        assert (earlier.version, len(stored(tmp_path / "out", earlier))) == (number, [60, 80, 100][number - 1])
    command = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out", *FLAGS, "--seed=1", "--overwrite")
    assert run(capsys, *command)[0] == 0
    assert not list((tmp_path / "out").glob("manifest-*"))
    assert run(capsys, "verify", tmp_path / "out")[0] == 0


def test_a_dataset_of_a_number_of_shards_grows_by_one_shard(capsys, images, tmp_path):
    args = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--num_shards=train=8")
    assert run(capsys, *args)[0] == 0
    add(images[:6], tmp_path / "in")
    assert "and now there are 66; add what is new with --extend" in refused(capsys, *args)
    assert run(capsys, *args, "--extend")[0] == 0
    manifest = read_manifest(f"{tmp_path}/out")
    assert manifest
    assert len(manifest.splits["train"].shards) == 9
    assert manifest.options["num_shards"] == {"train": 8}
    assert run(capsys, "verify", tmp_path / "out")[0] == 0
    assert "already complete" in run(capsys, *args, "--extend")[1]


def test_a_dataset_whose_validation_split_was_cut_out_of_train_grows_by_test_images(capsys, images, tmp_path):
    for split in ("train", "test"):
        add(images[:30] if split == "train" else images[30:36], tmp_path / "two" / split)
    args = ("convert", f"--input={tmp_path}/two", f"--output={tmp_path}/out", "--validation=20%")
    assert run(capsys, *args)[0] == 0
    before = stored(tmp_path / "out")
    add(images[36:42], tmp_path / "two" / "test")
    assert run(capsys, *args, "--extend")[0] == 0
    after = stored(tmp_path / "out")
    assert {split for key, (split, _, _) in after.items() if key not in before} == {"test"}
    assert before.items() <= after.items()


def test_a_validation_split_that_gets_no_image_is_said(capsys, images, tmp_path):
    add(images[:12], tmp_path / "train")
    args = ("convert", f"--input=train={tmp_path}/train", f"--output={tmp_path}/out", "--validation=0.01%")
    code, _, err = run(capsys, *args)
    message = "no image is taken for validation; there are too few images of train (12) for --validation=0.01%\n"
    assert (code, err) == (0, message)


def test_inputs_of_one_class_are_not_noted_where_the_dataset_has_more(capsys, images, tmp_path):
    convert(capsys, tmp_path)
    for label in "12":
        shutil.rmtree(tmp_path / "in" / label)
    add([path for path in images if path.parent.name == "0"], tmp_path / "in")
    command = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out", *FLAGS, "--extend")
    code, _, err = run(capsys, *command)
    assert (code, "have one class" in err) == (0, False), err


def test_images_that_are_gone_stay_and_are_told(capsys, images, tmp_path):
    convert(capsys, tmp_path)
    old = stored(tmp_path / "out")
    for path in sorted((tmp_path / "in/0").iterdir())[:3]:
        path.unlink()
    add(images[:9], tmp_path / "in")
    output = convert(capsys, tmp_path, "--extend")
    assert f"images of '{tmp_path}/out' that are not among the inputs any more: 3, e.g. '0/" in output
    assert "they stay in it, and --extend --prune leaves them out" in output
    assert old.items() <= stored(tmp_path / "out").items()


@pytest.mark.parametrize("how", ["written", "dated back", "linked"])
def test_another_image_in_a_file_of_the_same_size_is_noticed_and_replaced(capsys, images, tmp_path, how):
    changed, touched, *_ = sorted((tmp_path / "in/1").iterdir())
    status, link = changed.stat(), tmp_path / "other.jpg"
    other = next(data for path in images if len(data := path.read_bytes()) < status.st_size)
    link.write_bytes(other.ljust(status.st_size, b"\0"))  # older than the dataset
    convert(capsys, tmp_path)
    old = contents(tmp_path / "out")
    touched.write_bytes(touched.read_bytes())
    if how == "linked":
        changed.unlink()
        changed.symlink_to(link)
    else:
        changed.write_bytes(link.read_bytes())
    if how == "dated back":  # as rsync and cp -p do
        os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))
    output = convert(capsys, tmp_path, "--extend")
    assert f"whose files have changed: '1/{changed.name}'; the dataset keeps them as they were" in output
    assert contents(tmp_path / "out") == old
    output = convert(capsys, tmp_path, "--extend", "--prune")
    assert f"whose files have changed: '1/{changed.name}'; replaced" in output
    now = contents(tmp_path / "out")
    assert {key for key in old if now[key] != old[key]} == {f"1/{changed.name}"}
    assert "have changed" not in convert(capsys, tmp_path, "--extend", "--prune")


def change(images: list[Path], folder: Path) -> tuple[set[str], set[str]]:
    """Removes three images of a folder and replaces two; returns the keys of both."""
    paths = sorted((folder / "0").iterdir())
    for path in paths[:3]:
        path.unlink()
    for path, other in zip(paths[5:7], images, strict=False):
        path.write_bytes(other.read_bytes() + b"changed")
    return {f"0/{path.name}" for path in paths[:3]}, {f"0/{path.name}" for path in paths[5:7]}


def shards_of(manifest: Manifest) -> list[str]:
    return [shard.name for split in manifest.splits.values() for shard in split.shards]


def contents(path: Path, manifest: Manifest | None = None) -> dict[str, bytes]:
    """Image by key."""
    image_bytes = dict[str, bytes]()
    manifest = manifest or read_manifest(str(path))
    assert manifest
    for split in manifest.splits.values():
        for shard in split.shards:
            with open(path / shard.name, "rb") as file:
                image_bytes |= {
                    record.key: record.encoded for record in (decode(payload) for _, payload in read_frames(file))
                }
    return image_bytes


@pytest.mark.parametrize("num_new", [0, 9])
def test_prune_leaves_out_what_is_gone_and_replaces_what_has_changed(capsys, images, tmp_path, num_new):
    convert(capsys, tmp_path)
    before, old, old_images = files(tmp_path / "out"), stored(tmp_path / "out"), contents(tmp_path / "out")
    removed_keys, changed_keys = change(images[:2], tmp_path / "in")
    if not num_new:
        for key in changed_keys:
            (tmp_path / "in" / key).unlink()
        removed_keys, changed_keys = removed_keys | changed_keys, set()
    add(images[30 : 30 + num_new], tmp_path / "in")
    output = convert(capsys, tmp_path, "--extend")
    assert "that are not among the inputs any more" in output
    assert ("whose files have changed: 2, e.g." in output) is bool(changed_keys)
    if num_new:
        extended_images = contents(tmp_path / "out")
        assert {key: extended_images[key] for key in old_images} == old_images
    output = convert(capsys, tmp_path, "--extend", "--prune")
    assert "left out" in output
    assert ("; replaced" in output) is bool(changed_keys)
    new, manifest, new_images = stored(tmp_path / "out"), read_manifest(f"{tmp_path}/out"), contents(tmp_path / "out")
    assert manifest
    assert manifest.version == (4 if num_new else 2)
    assert new.keys() == {f"{path.parent.name}/{path.name}" for path in (tmp_path / "in").rglob("*.jpg")}
    assert {key: new[key] for key in old.keys() - removed_keys} == {key: old[key] for key in old.keys() - removed_keys}
    assert {key for key in old.keys() - removed_keys if new_images[key] != old_images[key]} == changed_keys
    after = files(tmp_path / "out")
    assert {path for path in before if after.get(path) != before[path]} == {"manifest.json"}
    for name, split in manifest.splits.items():
        labels = Counter(label for example_split, _, label in new.values() if example_split == name)
        assert split.class_counts == tuple(labels[label] for label in range(3))
    first = read_first(tmp_path / "out")
    assert contents(tmp_path / "out", first) == old_images
    code, out, _ = run(capsys, "verify", tmp_path / "out")
    assert (code, "no problems found" in out) == (0, True), out
    assert run(capsys, "report", tmp_path / "out")[0] == 0
    assert "already complete, nothing to do" in convert(capsys, tmp_path, "--extend", "--prune")
    old_shard = min(set(shards_of(first)) - set(shards_of(manifest)))  # of an earlier version alone
    (tmp_path / "out" / old_shard).rename(tmp_path / "lost")
    code, out, _ = run(capsys, "verify", tmp_path / "out")
    assert (code, f"{old_shard} is missing, which an earlier version of the dataset has" in out) == (1, True), out
    (tmp_path / "lost").rename(tmp_path / "out" / old_shard)
    shard = manifest.splits["train"].shards[-1].name
    data = (tmp_path / "out" / shard).read_bytes()
    (tmp_path / "out" / shard).write_bytes(b"")
    assert run(capsys, "repair", tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / shard).read_bytes() == data
    command = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out", *FLAGS, "--seed=1", "--overwrite")
    assert run(capsys, *command)[0] == 0
    manifest = read_manifest(f"{tmp_path}/out")
    assert manifest
    assert {path.name for path in (tmp_path / "out").glob("*.tfrecord")} == {
        shard.name for split in manifest.splits.values() for shard in split.shards
    }
    assert run(capsys, "verify", tmp_path / "out")[0] == 0


def test_prune_of_a_whole_split_and_of_everything(capsys, images, tmp_path):
    convert(capsys, tmp_path)
    for key, (split, _, _) in stored(tmp_path / "out").items():
        if split == "validation":
            (tmp_path / "in" / key).unlink()
    convert(capsys, tmp_path, "--extend", "--prune")
    assert {split for split, _, _ in stored(tmp_path / "out").values()} == {"train"}
    assert run(capsys, "verify", tmp_path / "out")[0] == 0
    shutil.rmtree(tmp_path / "in")
    add(images[:20], tmp_path / "in")
    args = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out", *FLAGS)
    assert "so --prune would leave out all of them" in refused(capsys, *args, "--extend", "--prune")
    assert "use it together with extend" in refused(capsys, *args, "--prune")


@pytest.mark.long
@pytest.mark.parametrize("num_new", [0, 9])
def test_a_prune_that_is_killed_goes_on_with_the_same_bytes(capsys, images, tmp_path, num_new):
    convert(capsys, tmp_path)
    change(images[:2] if num_new else [], tmp_path / "in")
    add(images[30 : 30 + num_new], tmp_path / "in")
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    command = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/other", *FLAGS, "--extend", "--prune")
    assert run(capsys, *command)[0] == 0
    expected = files(tmp_path / "other")
    args = [f"--input={tmp_path}/in", f"--output={tmp_path}/out", *FLAGS, "--extend", "--prune"]
    kills = 0
    for marks in (
        ".jpeg2tpu/plan-*",
        "train-*-????????.tfrecord",
        "index/*-????????.parquet",
        "manifest-*",
        "lengths-*",
    ):
        old_paths = set((tmp_path / "out").glob(marks))
        process = subprocess.Popen(
            [sys.executable, "-m", "beam_pipelines", "convert", *args],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and not set((tmp_path / "out").glob(marks)) - old_paths:
            time.sleep(0.002)
        kills += process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert read_manifest(f"{tmp_path}/out")
    assert kills
    assert run(capsys, "convert", *args)[0] == 0
    assert files(tmp_path / "out") == expected
    assert run(capsys, "verify", tmp_path / "out")[0] == 0


def test_a_member_that_is_packed_twice_is_one_image(capsys, images, tmp_path):
    import tarfile

    path = tmp_path / "in.tar"
    with tarfile.open(path, "w") as archive:
        for image in [*images[:60], images[0]]:
            archive.add(image, f"{image.parent.name}/{image.name}")
    args = ("convert", f"--input={path}", f"--output={tmp_path}/out", *FLAGS)
    assert run(capsys, *args)[0] == 0
    with tarfile.open(path, "a") as archive:
        for image in images[60:66]:
            archive.add(image, f"{image.parent.name}/{image.name}")
    code, out, err = run(capsys, *args, "--extend", "--prune")
    assert (code, "not among the inputs any more" in out + err, "changed" in out + err) == (0, False, False), err
    assert len(stored(tmp_path / "out")) == 66


def test_what_cannot_be_extended_is_refused_and_stays_as_it_is(capsys, images, tmp_path):
    args = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/out", *FLAGS)
    assert "is not a complete dataset" in refused(capsys, *args, "--extend")
    convert(capsys, tmp_path)
    before = files(tmp_path / "out")
    add(images, tmp_path / "in")
    assert "was made with --seed=0, not --seed=1; extend it" in refused(capsys, *args, "--extend", "--seed=1")
    assert "--dedup must be none" in refused(capsys, *args, "--extend", "--dedup=exact")
    assert "leave out one of them" in refused(capsys, *args, "--extend", "--overwrite")
    other = (args[0], f"--input={tmp_path}/in/0", *args[2:], "--extend")
    assert "extend it with the inputs that it was made of" in refused(capsys, *other)
    for number in range(9):
        (tmp_path / f"in/0/bad{number}.jpg").write_bytes(b"no image")
    message = refused(capsys, *args, "--extend", "--max_rejected=2%")
    assert "9 of 189 inputs were rejected" in message
    after = files(tmp_path / "out")
    assert {path: after[path] for path in before} == before
    shutil.rmtree(tmp_path / "out/.jpeg2tpu", ignore_errors=True)


@pytest.mark.long
def test_an_extension_that_is_killed_goes_on_with_the_same_bytes(capsys, images, tmp_path):
    convert(capsys, tmp_path)
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    add(images, tmp_path / "in")
    command = ("convert", f"--input={tmp_path}/in", f"--output={tmp_path}/other", *FLAGS, "--extend")
    assert run(capsys, *command)[0] == 0
    expected = files(tmp_path / "other")
    args = [f"--input={tmp_path}/in", f"--output={tmp_path}/out", *FLAGS, "--extend"]
    kills = 0
    for marks in ("plan-*", "*/plan.json", "*/*.receipt", "*/*.receipt"):
        old_paths = set((tmp_path / "out").glob(f".jpeg2tpu/{marks}"))
        process = subprocess.Popen(
            [sys.executable, "-m", "beam_pipelines", "convert", *args],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and not set((tmp_path / "out").glob(f".jpeg2tpu/{marks}")) - old_paths:
            time.sleep(0.005)
        kills += process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert run(capsys, "verify", "--quick", tmp_path / "out")[0] == 0  # the old version, or the new one
    assert kills
    assert run(capsys, "convert", *args)[0] == 0
    assert files(tmp_path / "out") == expected


@pytest.mark.long
@pytest.mark.core
def test_training_reads_all_versions(capsys, images, tmp_path):
    pytest.importorskip("tensorflow")
    import numpy as np

    import tpu_input

    convert(capsys, tmp_path)
    old = stored(tmp_path / "out")
    add(images[:50], tmp_path / "in")
    convert(capsys, tmp_path, "--extend")
    new = stored(tmp_path / "out")
    for version, expected in ((None, new), (2, new), (1, old)):
        manifest = tpu_input.read_manifest(f"{tmp_path}/out", version=version)
        config = tpu_input.InputConfig(image_size=16)
        batches = tpu_input.make_eval_input_fn(manifest, config, "train")({"batch_size": 16})
        steps = tpu_input.eval_steps(manifest, "train", 16)
        weights = [features["weight"] for features, _ in batches.take(steps).as_numpy_iterator()]
        assert np.sum(weights) == sum(split == "train" for split, _, _ in expected.values())
        train = tpu_input.make_train_input_fn(manifest, config)({"batch_size": 16})
        assert next(iter(train))[1].shape == (16,)
    with pytest.raises(ValueError, match="has no version 3; it has 1 to 2"):
        tpu_input.read_manifest(f"{tmp_path}/out", version=3)


@pytest.mark.long
def test_a_damaged_shard_of_any_version_is_repaired(capsys, images, tmp_path):
    convert(capsys, tmp_path)
    add(images[:60], tmp_path / "in")
    convert(capsys, tmp_path, "--extend")
    expected = files(tmp_path / "out")
    shards = sorted((tmp_path / "out").glob("*.tfrecord"))
    for shard in (shards[0], shards[-1]):
        shard.write_bytes(b"")
        assert run(capsys, "verify", tmp_path / "out")[0] == 1
        code, out, _ = run(capsys, "repair", tmp_path / "out")
        assert (code, "no problems found" in out) == (0, True)
        assert files(tmp_path / "out") == expected
    for shard in shards[-1:]:
        (tmp_path / "out/index" / shard.with_suffix(".parquet").name).unlink()
        code, out, _ = run(capsys, "repair", tmp_path / "out")
        assert code in (0, 2)
        assert "Traceback" not in out


@pytest.mark.cloud
def test_a_dataset_in_a_bucket_grows(capsys, cloud, images, tmp_path):
    bucket = cloud.make_bucket()
    cloud.upload(tmp_path / "in", f"{bucket}/in")
    command = ("convert", f"--input={bucket}/in", f"--output={bucket}/out", *FLAGS)
    assert run(capsys, *command)[0] == 0
    before = cloud.files(f"{bucket}/out")
    add(images[:30], tmp_path / "in")
    cloud.upload(tmp_path / "in", f"{bucket}/in")
    assert run(capsys, *command, "--extend")[0] == 0
    after = cloud.files(f"{bucket}/out")
    assert {path for path in before if after.get(path) != before[path]} == {"manifest.json"}
    assert after["manifest-1.json"] == before["manifest.json"]
    code, out, _ = run(capsys, "verify", f"{bucket}/out")
    assert (code, "no problems found" in out) == (0, True)
    assert "already complete" in run(capsys, *command, "--extend")[1]  # all were uploaded again, as they were
    changed, size = images[5], images[5].stat().st_size
    other = next(path.read_bytes() for path in images if path.stat().st_size < size)
    cloud.put(f"{bucket}/in/{changed.parent.name}/{changed.name}", other.ljust(size, b"\0"))
    stderr = run(capsys, *command, "--extend")[2]
    assert f"whose files have changed: '{changed.parent.name}/{changed.name}'; the dataset keeps" in stderr


def test_a_pipeline_in_one_job_extends(images, tmp_path):
    """As on an engine: the job lists, plans, writes and commits."""
    import apache_beam as beam

    from beam_pipelines.conversion import extension
    from beam_pipelines.convert import build_conversion
    from beam_pipelines.options import ConvertOptions, Source

    options = ConvertOptions((Source(f"{tmp_path}/in"),), f"{tmp_path}/out", shard_bytes=20_000)
    with beam.Pipeline() as pipeline:
        build_conversion(pipeline, options)
    old = stored(tmp_path / "out")
    add(images[:30], tmp_path / "in")
    for _ in range(2):  # the second time, nothing is new
        extended = extension.begin(options)
        with beam.Pipeline() as pipeline:
            build_conversion(pipeline, extended)
        new = stored(tmp_path / "out")
        assert (len(new), old.items() <= new.items()) == (90, True)
    manifest = read_manifest(f"{tmp_path}/out")
    assert manifest
    assert manifest.version == 2
    removed_keys, _ = change([], tmp_path / "in")
    options = dataclasses.replace(options, extend=True, prune=True)
    for _ in range(2):
        with beam.Pipeline() as pipeline:
            build_conversion(pipeline, extension.begin(options))
        assert stored(tmp_path / "out").keys() == new.keys() - removed_keys
    manifest = read_manifest(f"{tmp_path}/out")
    assert manifest
    assert manifest.version == 3


def test_a_corrected_label_and_split_are_named_and_applied_with_prune(capsys, digits, tmp_path):
    images = sorted(digits.rglob("*.jpg"))[:12]
    rows = [
        [str(path), ("cat", "dog")[number % 2], ("train", "test")[number > 7]] for number, path in enumerate(images)
    ]

    def extend(*flags: str) -> str:
        (tmp_path / "l.csv").write_text("\n".join(map(",".join, [["image", "label", "split"], *rows])) + "\n")
        code, out, err = run(capsys, "convert", f"--input={tmp_path}/l.csv", f"--output={tmp_path}/out", *flags)
        assert code == 0, err
        return out + err

    extend()
    rows[0][1], rows[1][2], rows[9][1:] = "bird", "test", ["cat", "train"]
    output = extend("--extend")
    assert "whose inputs have another label now: 2, e.g. " in output
    assert "whose inputs are of another split now: 2, e.g. " in output
    assert "not applied: changes of the inputs of 3 images" in output
    assert "nothing to do" not in output
    assert "nothing to do" not in extend("--extend", "--prune")
    assert "nothing to do" in extend("--extend", "--prune")
    manifest = Manifest.from_json((tmp_path / "out/manifest.json").read_bytes(), str(tmp_path / "out"))
    examples: dict[str, tuple[str, str]] = {}
    for split, content in manifest.splits.items():
        for shard in content.shards:
            with open(tmp_path / "out" / shard.name, "rb") as file:
                records = [decode(payload, 0) for _, payload in read_frames(file)]
            examples |= {record.key: (record.class_name, split) for record in records}
    assert examples == {path: (label, split) for path, label, split in rows}
