"""What runs where, as the documentation that tpu_software.py names has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator_app.runtime.topologies import CHIPS, find_topology
from estimator_app.runtime.tpu_software import ROWS, find_software, newest, table

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_the_table():
    assert f"\n{table()}\n" in (DOCS / "preflight.md").read_text()


# Names that Google's page builds by its rule, and the packages that PyPI has.
@pytest.mark.parametrize(
    ("version", "topology", "runtime", "package"),
    [
        ("2.15.1", "v3:2x2", "tpu-vm-tf-2.15.1-se", ""),
        ("2.15.1", "v3:4x4", "tpu-vm-tf-2.15.1-pod-se", ""),
        ("2.15.0", "v5e:2x2", "tpu-vm-tf-2.15.0-pjrt", ""),
        ("2.16.1", "v5e:4x4", "tpu-vm-tf-2.16.1-pod-pjrt", ""),
        ("2.17.0", "v5p:2x2x1", "tpu-vm-tf-2.17.0-pjrt", "tensorflow-tpu==2.17.0"),
        ("2.19.1", "v6e:2x2", "v2-alpha-tpuv6e", "tensorflow-tpu==2.19.1"),
    ],
)
def test_a_slice_gets_the_name_of_its_software(version, topology, runtime, package):
    software = find_software(version, find_topology(topology))
    assert software
    assert (software.runtime, software.package) == (runtime, package)
    assert "tf_distribute" in software.trainers


def test_tpuestimator_runs_only_where_there_is_no_pjrt():
    for version in ("2.15.1", "2.16.1", "2.20.0"):
        for generation, chip in CHIPS.items():
            software = find_software(version, find_topology(f"{generation}:{chip.slices[-1]}"))
            is_se = version == "2.15.1" and generation in ("v2", "v3", "v4")
            assert bool(software and "tpu_estimator" in software.trainers) == is_se
            assert not is_se or (software and software.runtime.endswith("-se"))


def test_what_is_not_documented_has_no_row():
    assert find_software("2.21.0", find_topology("v5e:2x2")) is None
    assert find_software("2.20.0", find_topology("v3:2x2")) is None
    assert newest() == "2.20"
    pairs = [(version, name) for row in ROWS for version in row.versions for name in row.generations]
    assert len(pairs) == len(set(pairs))
    assert {name for _, name in pairs} == {*CHIPS} - {"tpu7x"}  # on which TensorFlow does not run
