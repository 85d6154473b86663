"""Who reads what, at real sizes."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from support.training_input import Context
from tpu_input.dataset_format.records import Manifest, Shard, Split
from tpu_input.datasets import eval_steps
from tpu_input.pipeline.hosts import Host, check_params, check_steps, own_share

IMAGENET_TRAIN, IMAGENET_VALIDATION = 1_281_167, 50_000


def shards(total: int, count: int) -> tuple[Shard, ...]:
    """`total` examples over `count` shards, as evenly as they go."""
    return tuple(Shard(f"s{n}", total // count + (n < total % count), 0, "") for n in range(count))


def manifest(total: int, count: int) -> Manifest:
    split = Split(shards(total, count), (total,), (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1))
    return Manifest("d", ("a",), 0, {"validation": split}, total, {}, {}, "")


@pytest.mark.parametrize("num_hosts", [1, 2, 3, 8, 64, 1024])
@pytest.mark.parametrize("total", [IMAGENET_TRAIN, IMAGENET_VALIDATION, 101, 7])
def test_hosts_evaluate_equal_shares_that_make_the_split(total, num_hosts):
    shares = [own_share(total, Host(index, num_hosts)) for index in range(num_hosts)]
    assert [number for share in shares for number in share] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_hosts_feed_neighbouring_positions_of_a_step():
    hosts = [Host(index, 3, batches_per_step=2) for index in range(3)]
    assert [host.positions(4) for host in hosts] == [range(8), range(8, 16), range(16, 24)]
    assert {host.lanes(4) for host in hosts} == {24}


@pytest.mark.parametrize(
    ("total", "count", "batch_size", "num_hosts", "steps"),
    [
        (IMAGENET_VALIDATION, 128, 1024, 1, 49),
        (IMAGENET_VALIDATION, 128, 1024, 8, 49),
        (IMAGENET_VALIDATION, 128, 1024, 128, 49),
        (101, 1, 8, 4, 13),
        (101, 3, 8, 2, 13),
        (50_000, 67, 1024, 64, 49),
        (3, 1, 64, 8, 1),
        (64, 1, 64, 1, 1),
        (65, 1, 64, 1, 2),
    ],
)
def test_eval_steps_are_the_examples_by_the_batch(total, count, batch_size, num_hosts, steps):
    assert eval_steps(manifest(total, count), "validation", batch_size, num_hosts) == steps


@pytest.mark.parametrize(("batch_size", "num_hosts"), [(0, 1), (-8, 1), (10, 4)])
def test_eval_steps_refuses_a_batch_that_hosts_cannot_share(batch_size, num_hosts):
    with pytest.raises(ValueError, match=f"positive multiple of {num_hosts} hosts, got {batch_size}"):
        eval_steps(manifest(10, 1), "validation", batch_size, num_hosts)


# InputPipelineConfig: PER_SHARD_V1, PER_HOST_V1, PER_HOST_V2, BROADCAST, SLICED = 1 to 5, and the older True and False.
@pytest.mark.parametrize(("mode", "batches", "cores"), [(3, 8, 1), (2, 1, 8), (4, 1, 1), (5, 8, 1), (True, 1, 8)])
def test_a_step_takes_a_batch_a_replica_unless_the_host_s_batch_is_divided_or_sent_to_all(mode, batches, cores):
    run_config = SimpleNamespace(tpu_config=SimpleNamespace(per_host_input_for_training=mode))
    host = Host.from_params({"context": Context(2, 4, 8)}, run_config)
    assert host == Host(2, 4, batches, cores_per_batch=cores)
    assert Host.from_params({}) == Host(0, 1, 1)


def test_one_host_and_a_batch_for_every_replica_are_assumed():
    for host in (Host(), Host.from_params({"batch_size": 8})):
        assert (host.index, host.num_hosts, host.batches_per_step, host.cores_per_batch) == (0, 1, 1, 1)
    host = Host.from_params({"context": Context(2, 4, 8)})
    assert (host.index, host.num_hosts, host.batches_per_step, host.cores_per_batch) == (2, 4, 8, 1)


def test_a_host_keeps_its_number():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Host(0, 4).index = 1  # type: ignore[misc]


@pytest.mark.parametrize(("index", "num_hosts"), [(-1, 4), (4, 4), (5, 4), (0, 0)])
def test_a_number_that_no_host_has_is_refused(index, num_hosts):
    with pytest.raises(ValueError, match=f"at least 0 and below num_hosts {num_hosts}, got {index}"):
        Host(index, num_hosts)


@pytest.mark.parametrize(("start", "end"), [(0, None), (0, 1), (5, 6), (9, None)])
def test_an_input_trains_at_least_one_step(start, end):
    check_steps(start, end)


@pytest.mark.parametrize(("start", "end"), [(-1, None), (-1, 5), (0, 0), (5, 5), (5, 4)])
def test_steps_that_are_none_are_refused(start, end):
    with pytest.raises(
        ValueError, match=rf"start_step must be at least 0 and end_step after it, got {start} and {end}"
    ):
        check_steps(start, end)


def test_a_batch_has_at_least_one_example():
    assert check_params({"batch_size": 1}) == 1
    assert check_params({"batch_size": 1024, "host": 0}) == 1024
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {size}"):
            check_params({"batch_size": size})
    for params in (None, 128, ["batch_size"], {}, {"batch": 128}):
        with pytest.raises(ValueError, match='params must be a mapping with "batch_size"'):
            check_params(params)


@pytest.mark.parametrize("mode", [1, False])
def test_per_shard_v1_which_takes_no_dataset_is_refused_with_what_to_set(mode):
    run_config = SimpleNamespace(tpu_config=SimpleNamespace(per_host_input_for_training=mode))
    with pytest.raises(ValueError, match=r"PER_SHARD_V1, which takes tensors, .* set it to .*PER_HOST_V2"):
        Host.from_params({"context": Context(0, 1, 8)}, run_config)


def test_the_modes_are_those_of_tpuestimator():
    tpu = pytest.importorskip("tensorflow_estimator.python.estimator.tpu.tpu_config", reason="TensorFlow 2.15 only")
    modes = tpu.InputPipelineConfig
    assert (modes.PER_SHARD_V1, modes.PER_HOST_V1, modes.PER_HOST_V2, modes.BROADCAST, modes.SLICED) == (1, 2, 3, 4, 5)


def test_hosts_can_be_told_who_they_are():
    assert Host.from_params({"host": 3, "num_hosts": 4}) == Host(3, 4, 1)
    assert Host.from_params({"host": 3, "num_hosts": 4, "batches_per_step": 2}) == Host(3, 4, 2)
    with pytest.raises(ValueError, match='need both "host" and "num_hosts", or neither; got batch_size, host'):
        Host.from_params({"host": 3, "batch_size": 8})
    with pytest.raises(ValueError, match='need both "host" and "num_hosts", or neither; got batch_size, num_hosts'):
        Host.from_params({"num_hosts": 4, "batch_size": 8})
    with pytest.raises(ValueError, match="host must be at least 0 and below num_hosts 4, got 4"):
        Host.from_params({"host": 4, "num_hosts": 4})
