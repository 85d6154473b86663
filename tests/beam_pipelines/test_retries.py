"""What engines do with an element when they scale or lose a worker: run it twice, at the same time, or too late."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from beam_pipelines.conversion.planning.make_plan import make_plan
from beam_pipelines.conversion.shard_writing import write_planned
from beam_pipelines.conversion.working_folder import WorkingFolder
from beam_pipelines.convert import convert
from beam_pipelines.runners.executors import Inline
from beam_pipelines.verify import verify
from support.conversion import options
from support.folders import files


@pytest.fixture
def planned(few_digits, tmp_path):
    """Options, working folder and shard names of a planned conversion, and the files that it has to end with."""
    (few_digits / "0" / "page.jpg").write_text("<html>")
    convert(options(few_digits, tmp_path / "once"))
    opts = options(few_digits, tmp_path / "out")
    plan = make_plan(opts)
    folder = WorkingFolder.for_plan(opts.output, plan)
    folder.write_plan(plan)
    return opts, folder, [name for names in plan.shards.values() for name in names], files(tmp_path / "once")


def test_planning_and_shards_that_are_run_twice_end_with_the_same_files(planned, tmp_path):
    opts, folder, shards, expected = planned
    make_plan(opts)
    for shard in [*shards, *shards]:
        write_planned(shard, folder, opts, Inline(), lambda *_: None)
    convert(opts)
    assert files(tmp_path / "out") == expected


def test_a_shard_that_two_workers_write_record_by_record_at_the_same_time_is_whole(planned, tmp_path):
    opts, folder, shards, expected = planned
    for shard in shards:
        both = threading.Barrier(2, timeout=60)
        with ThreadPoolExecutor(2) as workers:
            tries = [
                workers.submit(write_planned, shard, folder, opts, Inline(), lambda *_, both=both: both.wait())
                for _ in range(2)
            ]
        assert [attempt.result() is None for attempt in tries].count(True) == 1  # the other's receipt counts
    convert(opts)
    assert files(tmp_path / "out") == expected


def test_a_worker_that_ends_after_the_commit_changes_nothing_and_leaves_nothing(planned, tmp_path):
    opts, folder, shards, expected = planned
    late = overtaken(opts, folder, shards[0])
    assert late is None  # it has seen that its shard is not wanted any more
    assert files(tmp_path / "out") == expected
    assert not verify(opts.output).problems


@pytest.mark.cloud
def test_in_a_bucket_a_worker_that_ends_after_the_commit_changes_nothing_and_leaves_nothing(cloud, few_digits):
    opts = options(few_digits, f"{cloud.make_bucket()}/out")
    plan = make_plan(opts)
    folder = WorkingFolder.for_plan(opts.output, plan)
    folder.write_plan(plan)
    late = overtaken(opts, folder, plan.shards["train"][0])
    assert late is None  # likewise
    assert not verify(opts.output).problems


def overtaken(opts, folder: WorkingFolder, shard: str) -> BaseException | None:
    """Returns what a worker raises that ends a shard after another conversion has committed."""
    start_event, commit_event = threading.Event(), threading.Event()

    def wait(*_) -> None:
        start_event.set()
        assert commit_event.wait(60)

    with ThreadPoolExecutor(1) as workers:
        late = workers.submit(write_planned, shard, folder, opts, Inline(), wait)
        assert start_event.wait(60)
        convert(opts)
        commit_event.set()
        return late.exception()


def test_a_worker_that_begins_after_the_commit_writes_nothing(planned, tmp_path):
    opts, folder, shards, expected = planned
    convert(opts)
    with pytest.raises(FileNotFoundError):  # which no engine waits for any more
        write_planned(shards[0], folder, opts, Inline(), lambda *_: None)
    assert files(tmp_path / "out") == expected
