"""Number of cores that this process may use: the CPU affinity, and the CPU quota of its container.

`docker run --cpus=1.5`, and a CPU limit in Kubernetes, leave the affinity at all cores of the machine: the kernel stops
all threads of a control group (cgroup) for the rest of each period, of 100 ms, in which they have used up the quota.
A process or a thread for each core of the machine would take memory and gain nothing, and os.process_cpu_count counts
the affinity alone. https://docs.kernel.org/scheduler/sched-bwc.html
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def num_cores(root: str = "/") -> int:
    """Returns the number of cores that this process may use, at least 1; a quota of 1.5 cores counts as 2.

    Args:
      root: Folder that contains proc/ and the control groups.
    """
    affinity = len(os.sched_getaffinity(0))
    quota = min(_quotas(Path(root)), default=math.inf)
    return affinity if quota >= affinity else math.ceil(quota)


def _quotas(root: Path) -> Iterator[float]:
    """Yields the quotas, in cores, of the control groups that this process is in, and of all those around them."""
    for group, mount_point in _groups(root):
        for folder in (group, *group.parents):
            yield from _quota(folder)
            if folder == mount_point:
                break


def _quota(folder: Path) -> Iterator[float]:
    """Yields the quota of a control group, of either version of the interface, if it has one."""
    try:
        if (folder / "cpu.max").exists():  # https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
            quota, _, period = (folder / "cpu.max").read_text().partition(" ")
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        if float(quota) > 0 and float(period) > 0:  # version 1 says -1 for no quota, version 2 "max"
            yield float(quota) / float(period)
    except (OSError, ValueError):
        return


def _groups(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yields (control group of this process, mount point) for each mounted hierarchy that may have a quota."""
    try:
        paths = _paths((root / "proc/self/cgroup").read_text(errors="surrogateescape"))
        mounts = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:  # proc is hidden
        return
    for mount in mounts:
        # "32 31 0:29 /docker/1f3a /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu": the group that is mounted, and where.
        # https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
        fields, _, rest = (part.split() for part in mount.partition(" - "))
        if len(fields) < 5 or len(rest) < 3 or not rest[0].startswith("cgroup"):
            continue
        is_version_2 = rest[0] == "cgroup2"
        path = paths.get("" if is_version_2 else "cpu")
        if path is None or not (is_version_2 or "cpu" in rest[2].split(",")):
            continue
        mount_point = root / _unescaped(fields[4]).lstrip("/")
        yield mount_point / _below(path, _unescaped(fields[3])), mount_point


def _paths(text: str) -> dict[str, str]:
    """Returns the paths of /proc/self/cgroup by controller, "" for version 2: "0::/a" and "4:cpu,cpuacct:/a"."""
    lines = (line.split(":", 2) for line in text.splitlines())
    return {name: fields[2] for fields in lines if len(fields) == 3 for name in fields[1].split(",")}


def _below(path: str, mounted: str) -> str:
    """Returns the path of a control group within a mount of the group `mounted`; "" if it is not below that.

    A container sees its own group as the mount's, and the group's path as it is on the host (Docker with version 1), as
    "/", or as one with ".." if it was started in a group outside of those that it may see.
    """
    group = PurePosixPath(path)
    if ".." in group.parts or not group.is_relative_to(mounted):
        return ""
    return str(group.relative_to(mounted))


def _unescaped(path: str) -> str:
    r"""Returns a path of mountinfo, where a space is \040, with its characters."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)
