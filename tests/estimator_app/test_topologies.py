"""Slices of TPUs by name, beside Google's tables."""

from __future__ import annotations

from fractions import Fraction

import pytest

from estimator_app.runtime.topologies import CHIPS, find_topology

# "Topology | TPU chips | Hosts | VMs" of https://docs.cloud.google.com/tpu/docs/v6e, which has both; of 2x4 the row of
# one VM of 8 chips, ct6e-standard-8t.
V6E = """
    1x1     1   1/8  1
    2x2     4   1/2  1
    2x4     8   1    1
    4x4     16  2    4
    4x8     32  4    8
    8x8     64  8    16
    8x16    128 16   32
    16x16   256 32   64
"""
# "Topology | Number of TPU chips | Number of hosts" of https://docs.cloud.google.com/tpu/docs/v5e, and its types for
# training: v5litepod-16 to v5litepod-256 are 4x4 to 16x16 of ct5lp-hightpu-4t, VMs of 4 chips.
V5E = V6E
# "Topology | Chips | Hosts" of https://docs.cloud.google.com/tpu/docs/v5p; its VMs have 4 chips, and so have hosts.
V5P = """
    2x2x1    4    1    1
    2x2x2    8    2    2
    2x4x4    32   8    8
    4x4x4    64   16   16
    4x4x8    128  32   32
    4x8x8    256  64   64
    8x8x8    512  128  128
    8x8x16   1024 256  256
    8x16x16  2048 512  512
    16x16x16 4096 1024 1024
    16x16x24 6144 1536 1536
"""
# v2-8 to v2-512 and v3-8 to v3-2048, named after TensorCores, two a chip; 4 chips a VM:
# https://docs.cloud.google.com/tpu/docs/v2 and v3.
V2 = "2x2 4 1 1\n 4x4 16 4 4\n 8x8 64 16 16\n 8x16 128 32 32\n 16x16 256 64 64"
V3 = V2 + "\n 4x8 32 8 8\n 16x32 512 128 128\n 32x32 1024 256 256"
# The page of TPU7x has no table of slices, but "VMs of 4 chips" and 9,216 chips per pod; GKE's machine type is
# tpu7x-standard-4t: https://docs.cloud.google.com/tpu/docs/tpu7x, read 2026-11-28.
TPU7X = "2x2x1 4 1 1\n 2x2x2 8 2 2\n 4x4x4 64 16 16\n 16x24x24 9216 2304 2304"
TABLES = {
    "v2": V2,
    "v3": V3,
    "v4": V5P.replace("16x16x24 6144 1536 1536", ""),
    "v5e": V5E,
    "v5p": V5P,
    "v6e": V6E,
    "tpu7x": TPU7X,
}


@pytest.mark.parametrize("generation", CHIPS)
def test_slices_have_the_hosts_and_vms_of_google_s_tables(generation):
    cores = 2 if generation in ("v2", "v3", "tpu7x") else 1
    for row in filter(str.strip, TABLES[generation].splitlines()):
        sides, chips, hosts, vms = row.split()
        topology = find_topology(f"{generation}:{sides}")
        assert (topology.num_hosts, topology.machines) == (int(vms), Fraction(hosts)), row
        assert topology.num_cores == topology.num_hosts * topology.cores_per_host == int(chips) * cores, row


def test_a_table_is_whole():
    for generation in ("v2", "v3", "v5e", "v6e"):
        assert sorted(CHIPS[generation].slices) == sorted(
            row.split()[0] for row in TABLES[generation].split("\n") if row
        )


# vCPUs of the machine types ct3-, ct4p-, ct5lp-, ct5p-hightpu-*t and ct6e-standard-*t; teraflops in bfloat16 of the
# pages above, of a chip.
@pytest.mark.parametrize(
    ("name", "vcpus", "teraflops"),
    [
        ("v2:2x2", 96, 46 / 2),
        ("v3:4x4", 96, 123 / 2),
        ("v4:4x4x4", 240, 275),
        ("v5e:1x1", 24, 197),
        ("v5e:2x2", 112, 197),
        ("v5e:2x4", 224, 197),
        ("v5e:4x4", 112, 197),
        ("v5p:2x2x2", 208, 459),
        ("v6e:1x1", 44, 918),
        ("v6e:16x16", 180, 918),
        ("tpu7x:2x2x1", 224, 2307 / 2),
    ],
)
def test_a_vm_has_the_processors_of_its_machine_type(name, vcpus, teraflops):
    topology = find_topology(name)
    assert (topology.vcpus, topology.flops) == (vcpus, teraflops * 1e12)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v5e:4x4", "v5e:4x4, 4 TPU VMs × 4 cores on 2 hosts"),
        ("v5e:2x2", "v5e:2x2, 1 TPU VM × 4 cores on 1/2 host"),
        ("v5e:1x1", "v5e:1x1, 1 TPU VM × 1 core on 1/8 host"),
        ("v3:4x4", "v3:4x4, 4 TPU VMs × 8 cores"),
    ],
)
def test_hosts_are_told_where_they_are_not_the_vms(name, words):
    assert str(find_topology(name)) == words


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v6e-8", "'v6e-8' is the type of an accelerator; as a topology it is 'v6e:2x4'"),
        ("v5litepod-16", "as a topology it is 'v5e:4x4'"),
        ("v4-8", "as a topology it is 'v4:2x2x1'"),
        ("v5:2x2", "generation must be one of v2, v3, v4, v5e, v5p, v6e, tpu7x, got 'v5'; did you mean v5"),
        ("v5e", "2 dimensions in chips, as in 'v5e:2x2', got 'v5e'"),
        ("v5e:2x2x1", "2 dimensions in chips, as in 'v5e:2x2', got 'v5e:2x2x1'"),
        ("v4:2x2", "3 dimensions in chips, as in 'v4:2x2x1', got 'v4:2x2'"),
        ("v5e:0x4", "2 dimensions in chips"),
        ("v3:3x3", "there is no slice 'v3:3x3'; v3 has 2x2, 4x4, 4x8, 8x8, 8x16, 16x16, 16x32, 32x32"),
        ("v5e:8x4", "there is no slice 'v5e:8x4'"),
        ("v2:4x8", "there is no slice 'v2:4x8'"),
        ("v4:8x4x4", "2x4x4, or multiples of 4 in ascending order, up to 4,096 chips"),
        ("v4:16x16x24", "up to 4,096 chips"),
    ],
)
def test_a_slice_that_there_is_not_is_refused(name, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        find_topology(name)
    assert message in str(error.value)
