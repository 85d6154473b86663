"""How fast a step can be, and what feeds it: arithmetic with the chips' published peaks."""

from __future__ import annotations

import pytest

from estimator_app.findings import COSTS, GOOD
from estimator_app.preflight_feeding import check_feeding, pace
from estimator_app.topologies import find_topology
from tpu_input.benchmark import Cost

V5E = find_topology("v5e:2x2")
ONE_CORE_S = Cost(images_per_second=2420, cpu_ms=1000 / 1210)


@pytest.mark.parametrize(
    ("flops", "bytes_accessed", "steps"),
    [(197e12, 1e9, 1.0), (19.7e12, 1e9, 10.0), (1e12, 819e9, 1.0), (1e12, 81.9e9, 10.0)],
)
def test_a_step_takes_the_longer_of_its_arithmetic_and_its_memory(flops, bytes_accessed, steps):
    found = pace(flops, bytes_accessed, V5E, train_batch_size=1024)
    assert found.images_per_second == pytest.approx(1024 * steps)


def test_the_cores_that_feed_it_are_counted_a_host():
    found = pace(19.7e12, 1e9, V5E, train_batch_size=940)
    bound, feeding = check_feeding(found, V5E, ONE_CORE_S)
    assert bound.seen == "at most 10.0 steps/s, as its arithmetic allows no more: 9,400 images/s"
    assert str(feeding) == "✓ needs 9,400 images/s on 1 host: 8 cores at your 1,210 images/s a core are enough"
    (_, feeding) = check_feeding(found, find_topology("v5e:4x4"), ONE_CORE_S)
    assert "needs 2,350 images/s on each of 4 hosts: 2 cores" in str(feeding)
    assert feeding.verdict == GOOD


def test_what_no_host_can_feed_is_told():
    found = pace(1e9, 1e6, V5E, train_batch_size=1024)
    (_, feeding) = check_feeding(found, V5E, ONE_CORE_S)
    assert feeding.verdict == COSTS
    assert "more than any host decodes: store smaller images (convert --resize_shorter), or take a" in str(feeding)
