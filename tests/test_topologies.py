"""Slices of TPUs by name."""

from __future__ import annotations

import pytest

from estimator_app.topologies import find_topology


@pytest.mark.parametrize(
    ("name", "hosts", "cores", "teraflops"),
    [
        ("v2:2x2", 1, 8, 23),
        ("v3:2x2", 1, 8, 61.5),
        ("v3:4x4", 4, 8, 61.5),
        ("v3:32x32", 256, 8, 61.5),
        ("v4:2x2x1", 1, 4, 275),
        ("v4:4x4x4", 16, 4, 275),
        ("v5e:1x1", 1, 1, 197),
        ("v5e:2x2", 1, 4, 197),
        ("v5e:2x4", 1, 8, 197),
        ("v5e:4x4", 4, 4, 197),
        ("v5e:16x16", 64, 4, 197),
        ("v5p:2x2x2", 2, 4, 459),
        ("v6e:4x4", 4, 4, 918),
    ],
)
def test_a_slice_has_the_hosts_and_cores_of_google_s_tables(name, hosts, cores, teraflops):
    topology = find_topology(name)
    assert (topology.num_hosts, topology.cores_per_host) == (hosts, cores)
    assert topology.num_cores == hosts * cores
    assert topology.flops == teraflops * 1e12
    assert str(topology).startswith(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5:2x2", "generation must be one of v2, v3, v4, v5e, v5p, v6e, got 'v5'; did you mean v5"),
        ("v5e", "2 sides in chips, as in 'v5e:2x2', got 'v5e'"),
        ("v5e:2x2x1", "2 sides in chips, as in 'v5e:2x2', got 'v5e:2x2x1'"),
        ("v4:2x2", "3 sides in chips, as in 'v4:2x2x1', got 'v4:2x2'"),
        ("v5e:0x4", "2 sides in chips"),
        ("v3:3x3", "has 9 chips, which hosts of 4 cannot share"),
    ],
)
def test_a_slice_that_there_is_not_is_refused(name, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        find_topology(name)
    assert message in str(error.value)
