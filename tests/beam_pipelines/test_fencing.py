"""Writers that come late, twice or from another plan, and datasets that are replaced: at each moment, one is whole.

A late writer is a process of its own that is stopped (SIGSTOP), and goes on when everything else is done, as a worker
of an engine does whose machine was suspended.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tpu_input
from beam_pipelines import storage
from beam_pipelines.__main__ import main
from beam_pipelines.conversion import commit, output_checks
from beam_pipelines.conversion.commit import commit_once, write_lengths
from beam_pipelines.conversion.output_folder import complete_manifest
from beam_pipelines.conversion.plan import Plan
from beam_pipelines.conversion.planning.make_plan import make_plan
from beam_pipelines.conversion.shard_writing import write_planned
from beam_pipelines.conversion.working_folder import Output, WorkingFolder
from beam_pipelines.convert import convert
from beam_pipelines.options import ConvertOptions
from beam_pipelines.runners.executors import Inline
from beam_pipelines.verify import verify
from support.conversion import options
from support.folders import files, without_edition
from tpu_input import Manifest

ROOT = Path(__file__).parents[2]
# Writes one shard, and stops itself once, at a moment of which the name is given.
WRITER = """
import os, pickle, signal, sys
from beam_pipelines.conversion.shard_writing import write_planned
from beam_pipelines.runners.executors import Inline
from beam_pipelines.conversion.working_folder import Output, WorkingFolder

shard, folder, options, moment = pickle.loads(bytes.fromhex(sys.argv[1]))
is_open, checks = WorkingFolder.is_open, []

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

def progress(*_):
    if moment == "in a record" and not checks:
        checks.append(True)
        stop()

def checked(self):
    found = is_open(self)
    checks.append(found)
    if moment == {1: "before its files have names", 2: "before its receipt"}.get(len(checks)):
        stop()
    return found

if moment != "in a record":
    WorkingFolder.is_open = checked
write_planned(shard, folder, options, Inline(), progress)
"""
MOMENTS = ["in a record", "before its files have names", "before its receipt"]


@pytest.fixture(params=["local", pytest.param("gs", marks=pytest.mark.cloud)])
def place(request, tmp_path) -> Iterator[str]:
    """Where the datasets are: a folder, or a bucket."""
    if request.param == "local":
        yield str(tmp_path)
    else:
        yield request.getfixturevalue("cloud").make_bucket()


@contextlib.contextmanager
def stopped_writer(shard: str, folder: WorkingFolder, opts: ConvertOptions, moment: str) -> Iterator[Callable[[], int]]:
    """Starts a process that writes a shard and waits until it has stopped itself; yields what lets it end."""
    arguments = pickle.dumps((shard, folder, opts, moment)).hex()
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", WRITER, arguments], cwd=ROOT)
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

        def go_on() -> int:
            process.send_signal(signal.SIGCONT)
            return process.wait(60)

        yield go_on
    finally:
        process.kill()
        process.wait()


def plan_conversion(opts: ConvertOptions) -> tuple[WorkingFolder, list[str]]:
    """Plans a conversion as an engine does; returns its working folder and the shards of its training split."""
    plan = make_plan(opts)
    folder = WorkingFolder.for_plan(opts.output, plan)
    folder.write_plan(plan)
    return folder, plan.shards["train"]


def written_plan(opts: ConvertOptions) -> Plan:
    """Plans a conversion and writes its shards, without the commit."""
    plan = make_plan(opts)
    folder = WorkingFolder.for_plan(opts.output, plan)
    folder.write_plan(plan)
    for shard in folder.reopen():
        write_planned(shard, folder, opts, Inline(), lambda *_: None)
    return plan


def content(dataset: str) -> dict[str, bytes]:
    """Every file of a dataset that is no working file, by its path."""
    paths = [path for path, _ in storage.list_files(dataset) if not path.startswith(".jpeg2tpu/")]
    return {path: storage.read_bytes(f"{dataset}/{path}") for path in paths}


def seen_by_globs(dataset: str) -> set[str]:
    """What other people's readers find: train-*, at the place where shards are."""
    return {path for path, _ in storage.list_files(dataset) if path.startswith("train-")}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_late_writer_of_another_plan_changes_nothing_of_the_dataset_that_replaced_it(few_digits, place, moment):
    late = options(few_digits, f"{place}/out")
    folder, shards = plan_conversion(late)
    with stopped_writer(shards[0], folder, late, moment) as go_on:
        opts = options(few_digits, late.output, seed=5, overwrite=True)
        manifest, *_ = convert(opts)
        before = content(opts.output)
        go_on()
    assert content(opts.output) == before
    assert seen_by_globs(opts.output) == {shard.name for shard in manifest.split("train").shards}
    assert verify(opts.output).problems == []
    convert(opts)  # removes what is left of the late one
    assert {path for path, _ in storage.list_files(opts.output)} == set(before)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_late_writer_whose_sources_are_gone_changes_nothing_of_the_complete_dataset(few_digits, place, moment):
    opts = options(few_digits, f"{place}/out")
    folder, shards = plan_conversion(opts)
    with stopped_writer(shards[0], folder, opts, moment) as go_on:
        convert(opts)
        assert verify(opts.output).problems == []
        before = content(opts.output)
        for image in few_digits.rglob("*.jpg"):
            image.unlink()
        go_on()
    assert content(opts.output) == before
    assert verify(opts.output).problems == []


def test_a_receipt_is_on_the_disk_after_the_files_that_it_names(few_digits, tmp_path, monkeypatch):
    opts = options(few_digits, tmp_path / "out")
    folder, shards = plan_conversion(opts)
    flushed: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(f"{opts.output}/.jpeg2tpu"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write_planned(shards[0], folder, opts, Inline(), lambda *_: None)
    kinds = [path.rpartition(".tfrecord.")[2].partition("-")[0].partition(".")[0] for path in flushed]
    assert sorted(kinds[:2]) == ["data", "index"]
    assert kinds[2:] == ["receipt", f"/{folder.name}"]  # the folder last, for the names of all three


def test_of_two_attempts_the_first_counts_whatever_the_second_could_not_read(few_digits, place):
    opts = options(few_digits, f"{place}/out")
    folder, shards = plan_conversion(opts)
    with stopped_writer(shards[0], folder, opts, "in a record") as go_on:
        for shard in shards:
            write_planned(shard, folder, opts, Inline(), lambda *_: None)
        receipt = list(folder.read_receipts(shards[:1]))
        last = [row.uri for row in folder.read_rows(shards[0])][-1]
        image = Path(last).read_bytes()
        Path(last).unlink()
        assert go_on() == 0
        Path(last).write_bytes(image)
    assert list(folder.read_receipts(shards[:1])) == receipt
    assert not set(shards) & set(folder.unwritten())  # the files that the receipts name are still there
    manifest, *_ = convert(opts)
    assert manifest.num_rejected == {}
    assert verify(opts.output).problems == []


def test_the_commit_compares_every_file_with_its_receipt_and_the_same_command_mends_it(few_digits, place, monkeypatch):
    opts = options(few_digits, f"{place}/out")
    folder, shards = plan_conversion(opts)
    for shard in shards:
        write_planned(shard, folder, opts, Inline(), lambda *_: None)
    (receipt,) = folder.read_receipts(shards[:1])
    path = f"{opts.output}/{folder.attempt_paths(shards[0], receipt.attempt)[0]}"
    data = bytearray(storage.read_bytes(path))
    data[len(data) // 2] ^= 1
    damaged = bytes(data) if place.startswith("gs://") else bytes(data[:-1])  # a bucket knows checksums, a disk sizes
    with monkeypatch.context() as patch:
        patch.setattr(WorkingFolder, "unwritten", unwritten_before(path, damaged))
        with pytest.raises(ValueError, match=r"'train-00000.*differs from its receipt; rerun the same command"):
            convert(opts)
    assert seen_by_globs(opts.output) == set()
    convert(opts)
    assert verify(opts.output).problems == []


def unwritten_before(path: str, damaged: bytes) -> Callable[[WorkingFolder], list[str]]:
    """WorkingFolder.unwritten, after which a file is damaged."""
    real = WorkingFolder.unwritten

    def unwritten(folder: WorkingFolder, output: Output | None = None) -> list[str]:
        shards = real(folder, output)
        with storage.create(path) as file:
            file.write(damaged)
        return shards

    return unwritten


def keys(dataset: str) -> list[str]:
    """Keys of all records, read as somebody's program reads them who has just read the manifest."""
    manifest = tpu_input.read_manifest(dataset)
    sources = [tpu_input.RecordSource(manifest, split) for split in manifest.splits]
    return sorted(source[number].key for source in sources for number in range(len(source)))


class Moments:
    """Calls a function before and after each change that a conversion makes to files on this machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, function: Callable[[], None]) -> None:
        self._busy = False
        for name in ("replace", "remove", "link"):
            monkeypatch.setattr(os, name, self._around(getattr(os, name), function))

    def _around(self, change: Callable[..., None], function: Callable[[], None]) -> Callable[..., None]:
        def changed(*args: object, **kwargs: object) -> None:
            self._call(function)
            change(*args, **kwargs)
            self._call(function)

        return changed

    def _call(self, function: Callable[[], None]) -> None:
        if not self._busy:
            self._busy = True
            try:
                function()
            finally:
                self._busy = False


def test_at_each_moment_of_a_replacement_the_old_or_the_new_dataset_verifies_and_reads(
    few_digits, tmp_path, monkeypatch
):
    old = options(few_digits, tmp_path / "out")
    convert(old)
    seeds = list[int]()
    expected = keys(old.output)

    def look() -> None:
        findings = verify(old.output, decode_images=False)
        assert findings.problems == []
        seeds.append(findings.manifest.options["seed"])
        assert keys(old.output) == expected

    with monkeypatch.context() as patch:
        Moments(patch, look)
        manifest, *_ = convert(options(few_digits, tmp_path / "out", seed=5, overwrite=True))
    assert seeds.count(0) > 30  # moments before the new manifest stands
    assert seeds.count(5) > 10  # moments after it
    assert seeds == sorted(seeds)
    convert(options(few_digits, tmp_path / "new", seed=5))
    assert without_edition(tmp_path / "out") == without_edition(tmp_path / "new")
    assert {path.name for path in (tmp_path / "out").glob("train-*")} == {
        shard.name for shard in manifest.split("train").shards
    }


@pytest.mark.long
@pytest.mark.core
def test_a_replacement_that_is_killed_at_any_change_leaves_a_dataset_that_verifies_and_goes_on(
    few_digits, tmp_path, monkeypatch
):
    for number in range(0, 400, 3):
        folder = tmp_path / f"{number}"
        convert(options(few_digits, folder, shard_bytes=30_000))
        opts = options(few_digits, folder, shard_bytes=30_000, seed=5, overwrite=True)
        remaining = [number]

        def die(remaining: list[int] = remaining) -> None:
            remaining[0] -= 1
            if remaining[0] < 0:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            Moments(patch, die)
            with contextlib.suppress(KeyboardInterrupt):
                convert(opts, num_processes=1)
        assert verify(str(folder), decode_images=False).problems == []
        if remaining[0] >= 0:
            break
        convert(opts)
        assert verify(str(folder), decode_images=False).problems == []
        assert not (folder / ".jpeg2tpu").exists()
    else:
        pytest.fail("the conversion changes files more than 400 times")
    assert number > 40


def test_a_new_conversion_that_fails_leaves_the_old_dataset_as_it_is(few_digits, place):
    old = options(few_digits, f"{place}/out")
    convert(old)
    before = content(old.output)
    (few_digits / "0" / "page.jpg").write_text("<html>")
    with pytest.raises(ValueError, match=r"more than --max_rejected=0%.*listed in .*/rejected-[0-9a-f]{8}\.jsonl"):
        convert(options(few_digits, old.output, seed=5, overwrite=True, max_rejected=0.0))
    assert before.items() <= content(old.output).items()
    assert verify(old.output).problems == []


def test_in_a_replaced_dataset_nobody_finds_new_bytes_under_old_names(few_digits, place):
    old, *_ = convert(options(few_digits, f"{place}/out"))
    new, *_ = convert(options(few_digits, f"{place}/out", seed=5, overwrite=True))
    names = [{shard.name for split in manifest.splits.values() for shard in split.shards} for manifest in (old, new)]
    assert not names[0] & names[1]
    again, *_ = convert(options(few_digits, f"{place}/out", overwrite=True))
    assert not names[1] & {shard.name for split in again.splits.values() for shard in split.shards}
    assert again.fingerprint == old.fingerprint
    assert verify(again.path).problems == []


def test_of_two_that_replace_a_dataset_at_the_same_time_one_is_refused(few_digits, place, monkeypatch):
    """Neither holds the lock, as two pipelines with WriteDataset do not."""
    convert(options(few_digits, f"{place}/out"))
    # Of other numbers of shards: no name of their plans is that of a file of the replaced dataset.
    sizes = {5: 14_000, 6: 20_000}
    first, second = (
        options(few_digits, f"{place}/out", seed=seed, shard_bytes=size, overwrite=True) for seed, size in sizes.items()
    )
    plans = [written_plan(opts) for opts in (first, second)]

    def meanwhile(manifest: Manifest) -> None:
        monkeypatch.undo()
        write_lengths(manifest)
        commit_once(second, plans[1])

    monkeypatch.setattr(commit, "write_lengths", meanwhile)
    with pytest.raises(FileExistsError, match=r"manifest\.json' was written by another process in the meantime"):
        commit_once(first, plans[0])
    output_checks.remove_replaced(second.output)
    assert complete_manifest(second.output).fingerprint == plans[1].fingerprint
    # The next call removes what the refused one has left.
    manifest, *_ = convert(second)
    assert seen_by_globs(second.output) == {shard.name for shard in manifest.split("train").shards}
    assert verify(second.output).problems == []


def test_a_shard_of_a_replacement_is_repaired_under_its_name(few_digits, tmp_path):
    convert(options(few_digits, tmp_path / "out"))
    manifest, *_ = convert(options(few_digits, tmp_path / "out", seed=5, overwrite=True))
    before = files(tmp_path / "out")
    (tmp_path / "out" / manifest.split("train").shards[0].name).write_bytes(b"noise")
    (tmp_path / "out" / f"lengths-{manifest.edition}.parquet").unlink()
    assert main(["verify", "--repair", str(tmp_path / "out")]) == 0
    assert files(tmp_path / "out") == before


def test_who_holds_the_manifest_of_a_replaced_dataset_is_told_to_read_it_again(few_digits, place):
    old, *_ = convert(options(few_digits, f"{place}/out"))
    source = tpu_input.RecordSource(old, "train")
    convert(options(few_digits, f"{place}/out", seed=5, overwrite=True))
    message = r"train-00000-of-\d+\.tfrecord' does not exist: the dataset was replaced.*; read the manifest again"
    with pytest.raises(ValueError, match=message):
        source[0]
    with pytest.raises(ValueError, match=message):
        tpu_input.RecordSource(old, "train")
