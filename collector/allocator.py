"""What a server frees goes back to the system: glibc would keep much of it for later.

Its allocator takes large blocks from the system one by one and gives each back, until the first is freed: then it raises what
counts as large, up to 32 MiB, and keeps eight heaps a core for the threads besides. Bodies are large and short-lived, and read
by several threads: after a flood of the largest ones a collector of 174 MiB held 329 MiB for good, and so 240 MiB.

Python's search for garbage in circles is made seldom: a fold makes hundreds of thousands of small objects that are all in use,
and looking through them again and again took a third of its time.

Source: mallopt(3), and the numbers in malloc.h of glibc; `gc.set_threshold` counts objects made, and searches.
"""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES, _KEPT_BYTES, _HEAPS = 256 * 1024, 1024 * 1024, 2
_OBJECTS, _YOUNG, _OLD = 10_000, 10, 20


def return_freed_memory() -> None:
    """Have this process's allocator do so, where it is glibc's; anywhere else nothing happens."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    for parameter, value in (
        (_M_MMAP_THRESHOLD, _LARGE_BYTES),
        (_M_TRIM_THRESHOLD, _KEPT_BYTES),
        (_M_ARENA_MAX, _HEAPS),
    ):
        mallopt(parameter, value)


def reduce_gc_frequency() -> None:
    """Have this process do so, and never look through what is there already; to be called once all of it has started."""
    gc.freeze()
    gc.set_threshold(_OBJECTS, _YOUNG, _OLD)
