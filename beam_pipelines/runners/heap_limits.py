"""How much memory a process keeps for itself, which glibc would decide by its threads and by what was freed before."""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of malloc.h


def apply() -> None:
    """Makes glibc return freed memory to the operating system: blocks of 8 MiB and more, and the end of a heap.

    By itself, it keeps blocks of up to 32 MiB. After planning 200,000 inputs, these would be 60 MB in addition to the
    processes that make records. If it kept none, the kernel would clear new pages for each unit of images, of 4 MB.
    Therefore a heap keeps up to 16 MiB at its end.

    It also reserves 64 MiB of addresses for each thread, up to 8 times the number of cores. The threads that read ahead
    would exceed a limit of the address space (ulimit -v): here, all threads share four such heaps.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 8 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 16 << 20)
        libc.mallopt(_M_ARENA_MAX, 4)
