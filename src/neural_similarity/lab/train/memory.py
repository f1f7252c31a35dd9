"""Keeping the memory that a training step frees for the next one."""

import ctypes
import sys

MMAP_MAX, TRIM_THRESHOLD = -4, -1
"""Numbers of glibc's parameters in malloc.h."""


def keep_freed_memory() -> bool:
    """Make the process keep freed memory for its next step; return whether that succeeded.

    glibc takes every large block from Linux and hands it back when it is freed, so that each step
    touches new pages, which Linux clears one by one: half of the time of CNN-4 on images of 84
    pixels. This changes the whole process, so commands call it and the library does not; see
    mallopt(3).
    """
    mallopt = None if sys.platform != "linux" else getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*p) for p in ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1)))
