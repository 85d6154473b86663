"""Number of cores: the affinity, or a smaller CPU quota of the control groups that a process is in."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpu_input.command_line.cores import num_cores

DOCKER = "/docker/1f3a"


def cores_of(tmp_path: Path, groups: str, mounts: list[str], files: dict[str, str]) -> int:
    """Returns num_cores() with the files of /proc and of the mounts, each "MOUNTED MOUNT_POINT TYPE OPTIONS"."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    lines = ["24 31 0:22 / /proc rw,nosuid - proc proc rw", "40 31 0:41 / /mnt/caf\udce9 rw - tmpfs tmpfs rw"]
    for number, mount in enumerate(mounts):
        mounted, mount_point, kind, options = mount.split(" ")
        lines.append(f"{32 + number} 31 0:29 {mounted} {mount_point} rw,relatime shared:9 - {kind} {kind} {options}")
    text = "\n".join(lines) + "\n"
    (tmp_path / "proc/self/mountinfo").write_bytes(text.encode(errors="surrogateescape"))
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    return num_cores(str(tmp_path))


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


VERSION_2 = "/ /sys/fs/cgroup cgroup2 rw,nsdelegate"


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("150000 100000", 2),
        ("200000 100000", 2),
        ("200001 100000", 3),
        ("5000 100000", 1),
        ("25000 10000", 3),
        ("1600000 100000", 8),
        ("", 8),
        ("0 100000", 8),
        ("100000 0", 8),
        ("many of_them", 8),
    ],
)
def test_a_container_sees_its_own_group_as_the_root_of_version_2(tmp_path, quota, cores):
    assert cores_of(tmp_path, "0::/\n", [VERSION_2], {"sys/fs/cgroup/cpu.max": quota}) == cores


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(("inner", "outer", "cores"), [(300, 600, 3), (600, 300, 3), (-1, 150, 2), (250, -1, 3)])
def test_the_smallest_quota_of_a_group_and_those_around_it_counts(tmp_path, inner, outer, cores):
    def files(name: str, percent: int, version: int) -> dict[str, str]:
        if version == 2:
            return {f"{name}/cpu.max": f"{percent}000 100000" if percent > 0 else "max 100000"}
        quota = f"{percent}000" if percent > 0 else "-1"
        return {f"{name}/cpu.cfs_quota_us": quota, f"{name}/cpu.cfs_period_us": "100000"}

    for version, folder, groups, mount in (
        (2, "sys/fs/cgroup", "0::/a.slice/b.slice/job\n", VERSION_2),
        (1, "sys/fs/cgroup/cpu,cpuacct", "4:cpu,cpuacct:/a.slice/b.slice/job\n1:name=systemd:/x\n0::/x\n", None),
    ):
        mount = mount or "/ /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct"
        quota_files = files(f"{folder}/a.slice/b.slice/job", inner, version) | files(
            f"{folder}/a.slice", outer, version
        )
        (tmp_path / str(version)).mkdir()
        assert cores_of(tmp_path / str(version), groups, [mount], quota_files) == cores


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize("path", [DOCKER, "/", "/../other", "/elsewhere"])
def test_a_container_of_version_1_has_its_group_mounted_under_another_path(tmp_path, path):
    mount = f"{DOCKER} /sys/fs/cgroup/cpu cgroup rw,cpu"
    folder = "sys/fs/cgroup/cpu"
    files = {f"{folder}/cpu.cfs_quota_us": "350000", f"{folder}/cpu.cfs_period_us": "100000"}
    assert cores_of(tmp_path, f"1:cpu:{path}\n", [mount], files) == 4


@pytest.mark.usefixtures("eight_cores")
def test_a_group_within_the_container_is_found_below_the_mounted_one(tmp_path):
    folder = "sys/fs/cgroup/cpu/inner"
    files = {f"{folder}/cpu.cfs_quota_us": "350000", f"{folder}/cpu.cfs_period_us": "100000"}
    assert cores_of(tmp_path, f"1:cpu:{DOCKER}/inner\n", [f"{DOCKER} /sys/fs/cgroup/cpu cgroup rw,cpu"], files) == 4


@pytest.mark.usefixtures("eight_cores")
def test_what_lies_beside_the_mounted_group_is_not_read(tmp_path):
    files = {"sys/fs/other/cpu.max": "100000 100000", "sys/fs/cgroup/cpu.max": "300000 100000"}
    assert cores_of(tmp_path, "0::/../other\n", [VERSION_2], files) == 3


@pytest.mark.usefixtures("eight_cores")
def test_groups_of_both_versions_count_and_other_controllers_do_not(tmp_path):
    mounts = [
        "/ /sys/fs/cgroup/cpu cgroup rw,cpu",
        "/ /sys/fs/cgroup/cpuset cgroup rw,cpuset",
        r"/ /sys/fs/cgroup/two\040words cgroup2 rw",
    ]
    files = {
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "600000",
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpuset/cpu.cfs_quota_us": "100000",
        "sys/fs/cgroup/cpuset/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/two words/job/cpu.max": "500000 100000",
    }
    assert cores_of(tmp_path, "3:cpuset:/\n1:cpu:/job\n0::/job\n", mounts, files) == 5


@pytest.mark.usefixtures("eight_cores")
def test_without_groups_the_affinity_counts(tmp_path):
    assert num_cores(str(tmp_path)) == 8
    assert cores_of(tmp_path, "nonsense\n", ["/ /sys/fs/cgroup cgroup2 rw"], {}) == 8


def test_a_smaller_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert cores_of(tmp_path, "0::/\n", [VERSION_2], {"sys/fs/cgroup/cpu.max": "400000 100000"}) == 1


@pytest.fixture
def real_groups() -> Iterator[tuple[Path, Path]]:
    """A control group of this machine's, and one in it, of the version that this machine has."""
    name = f"jpeg2tpu-test-{uuid.uuid4().hex}"
    for top in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup")):
        outer, groups = top / name, list[Path]()
        try:
            for group in (outer, outer / "inner"):
                group.mkdir()
                groups.append(group)
                if group == outer and (outer / "cgroup.subtree_control").exists():
                    (outer / "cgroup.subtree_control").write_text("+cpu")
            if not any((outer / file).exists() for file in ("cpu.max", "cpu.cfs_quota_us")):
                continue
            yield outer, outer / "inner"
            return
        except OSError:
            continue
        finally:
            for group in reversed(groups):
                group.rmdir()
    pytest.skip("this machine lets no control group be made")


def set_quota(group: Path, quota: int) -> None:
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota} 100000")
    else:
        (group / "cpu.cfs_quota_us").write_text(str(quota))


def cores_in(group: Path) -> int:
    """Returns num_cores() of a process that is in a control group."""
    code = f"""
import os
with open({str(group / "cgroup.procs")!r}, "w") as file:
    file.write(str(os.getpid()))
from tpu_input.command_line.cores import num_cores
print(num_cores())
"""
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def test_a_process_in_a_real_group_counts_its_quota(real_groups):
    outer, inner = real_groups
    affinity = num_cores()
    assert cores_in(inner) == affinity
    for quota in (150_000, 50_000):
        set_quota(outer, quota)
        assert cores_in(inner) == min(affinity, math.ceil(quota / 100_000))
    set_quota(inner, 30_000)
    assert cores_in(inner) == 1
