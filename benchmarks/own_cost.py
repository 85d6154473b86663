"""What a process takes of its own: imported by the ways of benchmarks/input, in whatever environment they run."""

from __future__ import annotations

import ctypes
import resource
import time
from collections.abc import Callable
from pathlib import Path


def cost_of(work: Callable[[], int]) -> dict[str, float]:
    """Returns {"images/s", "cpu_ms" an image, "peak_mb"} of work, which returns how many images it made."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    images = work()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"images/s": images / seconds, "cpu_ms": cpu / images * 1000, "peak_mb": peak_mb()}


def peak_mb() -> float:
    """Returns the most memory that this process has had, in MB.

    Not ru_maxrss, which begins with the size of the process that this one was forked from (getrusage(2), proc(5)).
    """
    return _status_mb("VmHWM")


def trimmed_mb() -> float:
    """Returns the memory of this process in MB, once glibc has returned what is freed to the operating system."""
    ctypes.CDLL(None).malloc_trim(0)
    return _status_mb("VmRSS")


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024 / 1e6
