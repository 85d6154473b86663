"""Every command of beam_pipelines on gs:// as on disk, and with a network in between that fails."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from beam_pipelines import storage
from beam_pipelines.conversion.output_folder import read_manifest
from beam_pipelines.convert import convert
from beam_pipelines.verify import verify
from support.conversion import after_planning, options
from support.fault_proxy import every
from support.folders import files
from support.pipelines_commands import refused, run
from tpu_input.dataset_format.index import read_index

pytestmark = pytest.mark.cloud


@pytest.fixture
def images(few_digits: Path) -> Path:
    """Thirty-six digits, and a file that is no image."""
    (few_digits / "0" / "page.jpg").write_text("<html>")
    return few_digits


def delete_all(folder: str) -> None:
    storage.delete([f"{folder}/{path}" for path, _ in storage.list_files(folder)])


def shards(digests: dict[str, str]) -> dict[str, str]:
    return {path: digest for path, digest in digests.items() if path.endswith(".tfrecord")}


def test_worker_processes_read_a_bucket_and_the_command_writes_another_as_one_process_does(capsys, cloud, images):
    bucket, other = cloud.make_bucket(), cloud.make_bucket()
    cloud.upload(images, f"{bucket}/images")
    outputs = []
    for number in (1, 2):
        flags = (f"--num_processes={number}", "--shard_size=10KB", "--max_rejected=100%")
        assert run(capsys, "convert", f"--input={bucket}/images", f"--output={other}/out", *flags)[0] == 0
        outputs.append(cloud.files(f"{other}/out"))
        delete_all(f"{other}/out")
    assert outputs[0] == outputs[1]
    assert len(shards(outputs[0])) == 5


def test_every_command_does_on_a_bucket_what_it_does_on_disk(capsys, cloud, images, tmp_path):
    bucket = cloud.make_bucket()
    cloud.upload(images, f"{bucket}/images")
    cloud.put(f"{bucket}/images/0/", b"")  # the mark of a folder
    flags = ("--shard_size=10KB", "--max_rejected=100%")
    command = ("convert", f"--input={bucket}/images", f"--output={bucket}/out", *flags)
    code, out, err = run(capsys, *command)
    assert (code, err) == (0, "")
    assert f"complete: {bucket}/out/manifest.json" in out
    assert run(capsys, "convert", f"--input={images}", f"--output={tmp_path}/out", *flags)[0] == 0
    digests = cloud.files(f"{bucket}/out")
    assert shards(digests) == shards(files(tmp_path / "out"))
    assert digests.keys() == files(tmp_path / "out").keys()  # no working file is left, nor the lock
    assert "already complete, nothing to do" in run(capsys, *command)[1]
    code, out, _ = run(capsys, "verify", f"{bucket}/out")
    assert (code, "no problems found" in out) == (0, True)
    assert run(capsys, "report", f"{bucket}/out")[:2] == (0, f"{bucket}/out/report.html\n")
    assert b"page.jpg" in cloud.get(f"{bucket}/out/report.html")
    assert cloud.files(f"{bucket}/out").items() - digests.items() == {
        ("report.html", cloud.files(f"{bucket}/out")["report.html"])
    }


@pytest.mark.parametrize("flags", [[], ["--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"]])
def test_a_damaged_shard_in_a_bucket_is_repaired_from_its_own_inputs(capsys, cloud, images, flags):
    bucket = cloud.make_bucket()
    cloud.upload(images, f"{bucket}/images")
    manifest, *_ = convert(options(f"{bucket}/images", f"{bucket}/out"))
    before, shard = cloud.files(f"{bucket}/out"), manifest.split("train").shards[1].name
    index = cloud.get(f"{bucket}/out/index/{shard.replace('.tfrecord', '.parquet')}")
    cloud.put(f"{bucket}/out/{shard}", b"noise")
    sources = {row.uri for row in read_index(index)}
    storage.delete(
        [uri for path, _ in storage.list_files(f"{bucket}/images") if (uri := f"{bucket}/images/{path}") not in sources]
    )
    code, out, _ = run(capsys, "repair", f"{bucket}/out", *flags)
    assert code == 0, out
    assert f"re-created from the sources: {shard}" in out
    assert cloud.files(f"{bucket}/out") == before


def test_the_sample_is_written_into_a_bucket_and_completed_there(capsys, cloud):
    bucket = cloud.make_bucket()
    assert "1,797 of them written now" in run(capsys, "sample", f"{bucket}/digits")[1]
    delete_all(f"{bucket}/digits/3")
    assert not storage.exists(f"{bucket}/digits/3")
    assert "183 of them written now" in run(capsys, "sample", f"{bucket}/digits")[1]


def test_lists_and_archives_in_a_bucket_name_the_same_images(cloud, images, tmp_path):
    bucket = cloud.make_bucket()
    os.link(images / "1" / "0001.jpg", images / "2" / "link.jpg")
    cloud.upload(images, f"{bucket}/images")
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.jpg"))
    lines = "".join(f"{bucket}/images/{name},{name[0]}\n" for name in [*names, "1/none.jpg"])
    odd = "gs:///1.jpg,1\ngs://-/1.jpg,1\ngs://no-such-bucket-here/1.jpg,1\n"
    cloud.put(f"{bucket}/lists/images.csv", f"image,label\n{lines}{odd}".encode())
    with tarfile.open(tmp_path / "images.tar", "w") as tar:
        tar.add(images, "images")
        assert sum(member.islnk() for member in tar.getmembers()) == 1
    cloud.put(f"{bucket}/images.tar", (tmp_path / "images.tar").read_bytes())
    list_manifest, *_ = convert(options(f"{bucket}/lists/images.csv", f"{bucket}/of_list"))
    assert (list_manifest.num_inputs, list_manifest.num_rejected) == (42, {"missing": 4, "not_an_image": 1})
    tar_manifest, *_ = convert(options(f"{bucket}/images.tar", f"{bucket}/of_tar"))
    convert(options(tmp_path / "images.tar", tmp_path / "out"))
    assert shards(cloud.files(f"{bucket}/of_tar")) == shards(files(tmp_path / "out"))
    assert (tar_manifest.num_inputs, tar_manifest.num_rejected) == (38, {"not_an_image": 1})


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_list_in_a_bucket_of_images_in_buckets_is_converted_as_one_on_disk(capsys, cloud, images, tmp_path, ending):
    bucket, other = cloud.make_bucket(), cloud.make_bucket()
    cloud.upload(images, f"{bucket}/few")  # beside the list, as on disk
    cloud.upload(images / "0", f"{other}/0")
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.jpg"))
    where = {"0": other, "1": "few", "2": f"{bucket}/few"}  # in another bucket, relative to the list, in its bucket
    rows = [
        {"image": f"{where[name[0]]}/{name}", "label": name[0], "split": "train" if number % 5 else "validation"}
        for number, name in enumerate(names)
    ]
    listed = as_list(rows, ending)
    (images.parent / f"list.{ending}").write_bytes(listed)
    cloud.put(f"{bucket}/list.{ending}", listed)
    for folder in (images.parent, bucket):
        flags = (f"--output={folder}/out", "--shard_size=10KB", "--max_rejected=100%")
        assert run(capsys, "convert", f"--input={folder}/list.{ending}", *flags)[0] == 0
    assert shards(cloud.files(f"{bucket}/out")) == shards(files(images.parent / "out"))
    manifest = read_manifest(f"{bucket}/out")
    assert manifest
    assert (manifest.num_inputs, manifest.num_rejected) == (37, {"not_an_image": 1})
    assert {name: split.num_examples for name, split in manifest.splits.items()} == {"train": 28, "validation": 8}


def as_list(rows: list[dict[str, str]], ending: str) -> bytes:
    if ending == "jsonl":
        return "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    return "".join(f"{','.join(line)}\n" for line in (rows[0], *(row.values() for row in rows))).encode()


def test_damage_in_a_bucket_is_found_and_repaired(capsys, cloud, images):
    bucket = cloud.make_bucket()
    cloud.upload(images, f"{bucket}/images")
    manifest, *_ = convert(options(f"{bucket}/images", f"{bucket}/out"))
    expected = cloud.files(f"{bucket}/out")
    first, second = (shard.name for shard in manifest.split("train").shards[:2])
    cloud.put(f"{bucket}/out/{first}", b"noise")
    storage.delete([f"{bucket}/out/{second}"])
    assert verify(f"{bucket}/out").damaged == [first, second]
    assert run(capsys, "verify", "--repair", f"{bucket}/out")[0] == 0
    assert cloud.files(f"{bucket}/out") == expected


@pytest.mark.parametrize("kind", ["images", "images.tar"])
def test_objects_that_are_replaced_between_plan_and_writing_stop_the_conversion(
    kind, capsys, cloud, images, tmp_path, monkeypatch
):
    bucket, replaced = cloud.make_bucket(), f"0/{sorted(path.name for path in (images / '0').iterdir())[0]}"
    (images / "0" / "page.jpg").unlink()
    cloud.upload(images, f"{bucket}/images")
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        archive.add(images, ".")
    cloud.put(f"{bucket}/images.tar", (tmp_path / "images.tar").read_bytes())
    name = f"{bucket}/images/{replaced}" if kind == "images" else f"{bucket}/images.tar"
    # The same bytes: what tells it from what was listed is its generation alone.
    after_planning(monkeypatch, lambda: cloud.put(name, cloud.get(name)))
    command = ("convert", f"--input={bucket}/{kind}", f"--output={bucket}/out", "--splits=all=100%")
    message = refused(capsys, *command)
    assert "changed since" in message
    assert f"'{name}" in message
    assert "manifest.json" not in cloud.files(f"{bucket}/out")
    assert run(capsys, *command)[0] == 0


def test_what_is_not_the_datasets_own_is_refused_and_never_deleted(capsys, cloud, images):
    bucket = cloud.make_bucket()
    cloud.put(f"{bucket}/out/thesis.txt", b"mine")
    cloud.put(f"{bucket}/output/thesis.txt", b"mine")
    command = ("convert", f"--input={images}", f"--output={bucket}/out", "--shard_size=10KB", "--max_rejected=100%")
    assert "contains other files and no dataset: 'thesis.txt'" in refused(capsys, *command, "--overwrite")
    delete_all(f"{bucket}/out")
    assert run(capsys, *command)[0] == 0
    cloud.put(f"{bucket}/out/thesis.txt", b"mine")
    assert "'thesis.txt'" in refused(capsys, *command)
    storage.delete([f"{bucket}/out/thesis.txt"])
    assert "holds another dataset: its --seed is 0, not 1" in refused(capsys, *command, "--seed=1")
    assert run(capsys, *command, "--seed=1", "--overwrite")[0] == 0
    manifest = read_manifest(f"{bucket}/out")
    assert manifest
    assert manifest.options["seed"] == 1
    assert verify(f"{bucket}/out").problems == []
    assert cloud.get(f"{bucket}/output/thesis.txt") == b"mine"


@pytest.mark.parametrize(
    "faults",
    [
        ("503", "429"),
        ("cut", "reset"),
        ("lost", "503", "cut", "429", "reset", "503", "503", "503", "503", "503", "503", "stall"),
    ],
    ids=["refused", "broken", "all"],
)
def test_a_conversion_through_a_network_that_fails_ends_with_the_same_bytes(cloud, proxy, images, tmp_path, faults):
    bucket = cloud.make_bucket()
    cloud.upload(images, f"{bucket}/images")
    convert(options(images, tmp_path / "out"))
    proxy.fault = every(5, faults)
    manifest, *_ = convert(options(f"{bucket}/images", f"{bucket}/out"))
    assert verify(f"{bucket}/out").problems == []
    assert proxy.faults.keys() == {"", *faults}
    assert shards(cloud.files(f"{bucket}/out")) == shards(files(tmp_path / "out"))
    assert (manifest.num_inputs, manifest.num_rejected) == (37, {"not_an_image": 1})


def test_a_store_that_stays_away_ends_the_conversion_rejects_nothing_and_the_next_run_goes_on(
    capsys, cloud, proxy, images, tmp_path, monkeypatch
):
    from beam_pipelines.storage import gcs

    bucket = cloud.make_bucket()
    cloud.upload(images, f"{bucket}/images")
    command = ("convert", f"--input={bucket}/images", f"--output={tmp_path}/out", "--shard_size=10KB")
    monkeypatch.setattr(gcs, "RETRY", gcs.RETRY.with_timeout(1))
    proxy.fault = lambda request: "503" if request.kind == "read" and "2/" in request.name else ""
    message = refused(capsys, *command)
    assert "cannot be reached" in message
    assert "while running" not in message
    assert f"{bucket}/images/2/" in message
    assert message.endswith("rerun the same command to resume\n")
    proxy.calm()
    assert run(capsys, *command, "--max_rejected=100%")[0] == 0
    manifest = read_manifest(str(tmp_path / "out"))
    assert manifest
    assert manifest.num_rejected == {"not_an_image": 1}


class Interrupted(Exception):
    """Stands for anything that may happen while a file is written."""


@pytest.mark.parametrize("num_bytes", [1_000, 20 << 20], ids=["small", "large"])
def test_a_writer_that_raises_half_way_leaves_no_object(cloud, num_bytes):
    bucket = cloud.make_bucket()

    def write():
        with storage.create(f"{bucket}/shard") as file:
            file.write(bytes(num_bytes))
            raise Interrupted

    with pytest.raises(Interrupted):
        write()
    assert cloud.files(bucket) == {}
