"""How fast a step can be, and what feeds it: arithmetic with the chips' published peaks."""

from __future__ import annotations

import pytest

from estimator_app.preflight.feeding import check_feeding, pace
from estimator_app.preflight.findings import COSTS, GOOD
from estimator_app.preflight.tensorflow_checks import TensorFlowChecks
from estimator_app.runtime.topologies import find_topology
from tpu_input import InputConfig
from tpu_input.benchmark.cost import Cost
from tpu_input.benchmark.measure import batching_rate, whole_cost

V5E = find_topology("v5e:2x2")
ONE_CORE_S = Cost(images_per_second=2420, cpu_ms=1000 / 1210)


@pytest.mark.parametrize(
    ("flops", "bytes_accessed", "steps"),
    [(197e12, 1e9, 1.0), (19.7e12, 1e9, 10.0), (1e12, 819e9, 1.0), (1e12, 81.9e9, 10.0)],
)
def test_a_step_takes_the_longer_of_its_arithmetic_and_its_memory(flops, bytes_accessed, steps):
    rate = pace(flops, bytes_accessed, V5E, train_batch_size=1024)
    assert rate.images_per_second == pytest.approx(1024 * steps)


ONE_THREAD_S = 60_000.0


def fed(images_per_second, name="v5e:2x2", one_thread=ONE_THREAD_S):
    """Returns what is said of a slice whose cores take so many images a second, 10 steps of them."""
    topology = find_topology(name)
    rate = pace(topology.flops / 10, 1e9, topology, train_batch_size=round(images_per_second / 10))
    (_, feeding) = check_feeding(rate, topology, ONE_CORE_S, one_thread, TensorFlowChecks.less_input)
    return feeding


def test_threads_that_fill_batches_together_have_no_limit_but_the_cores():
    rate = pace(V5E.flops / 10, 1e9, V5E, train_batch_size=100_000)
    (_, feeding) = check_feeding(rate, V5E, ONE_CORE_S, None)
    assert feeding.verdict == COSTS
    assert feeding.advice == "store smaller images (convert --resize_shorter), or use a smaller slice"
    rate = pace(V5E.flops / 10, 1e9, V5E, train_batch_size=9400)
    (_, feeding) = check_feeding(rate, V5E, ONE_CORE_S, None)
    assert str(feeding).endswith("and a VM has 112 vCPUs")


def test_the_cores_that_feed_it_are_counted_a_vm():
    rate = pace(19.7e12, 1e9, V5E, train_batch_size=940)
    bound, feeding = check_feeding(rate, V5E, ONE_CORE_S, ONE_THREAD_S)
    assert bound.seen == "at most 10.0 steps/s, limited by arithmetic: 9,400 images/s"
    assert str(feeding) == (
        "✓ the TPU needs 9,400 images/s from 1 TPU VM: that takes 8 cores at this machine's 1,210 images/s per core, "
        "and a VM has 112 vCPUs; one thread puts up to 60,000 images/s into batches on this machine"
    )
    feeding = fed(9400, "v5e:4x4")
    assert "needs 2,350 images/s from each of 4 TPU VMs: that takes 2 cores" in str(feeding)
    assert feeding.verdict == GOOD


# Of v5e:1x1 a VM has 24 vCPUs: ct5lp-hightpu-1t.
@pytest.mark.parametrize(
    ("name", "cores", "verdict", "words"),
    [
        ("v5e:2x2", 112, GOOD, "112 cores at this machine's 1,210 images/s per core, and a VM has 112 vCPUs"),
        (
            "v5e:2x2",
            113,
            COSTS,
            "takes 113 cores at this machine's 1,210 images/s per core, but a VM has 112 vCPUs: store smaller",
        ),
        ("v5e:1x1", 24, GOOD, "24 cores at this machine's 1,210 images/s per core, and a VM has 24 vCPUs"),
        (
            "v5e:1x1",
            38,
            COSTS,
            "takes 38 cores at this machine's 1,210 images/s per core, but a VM has 24 vCPUs: store smaller",
        ),
    ],
)
def test_more_cores_than_a_vm_has_are_not_enough(name, cores, verdict, words):
    feeding = fed(1210 * cores - 10, name, one_thread=1e6)
    assert feeding.verdict == verdict
    assert words in str(feeding)


def test_what_one_thread_cannot_batch_is_not_enough_however_many_cores_decode():
    feeding = fed(46_000, one_thread=45_000)
    assert feeding.verdict == COSTS
    assert (
        "39 cores at this machine's 1,210 images/s per core can decode that, but batches are put together in one "
        "thread, at most 45,000" in str(feeding)
    )
    assert "run the input on other machines (--service)" in feeding.advice
    assert fed(46_000, one_thread=47_000).verdict == GOOD


def test_one_thread_s_part_takes_less_than_the_whole(digits_dataset):
    config = InputConfig(image_size=64)
    one_thread, cost = batching_rate(config, 640, 2, 64), whole_cost(digits_dataset, "train", config, 640, 2, 64)
    assert 0 < 1000 / one_thread < cost.cpu_ms
