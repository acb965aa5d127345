"""Memory settings of a server process: return freed memory to the system, and run the garbage collector less often.

The allocator of glibc requests large blocks from the system one by one and returns them, until the first one is freed: then it raises
the limit of a large block, up to 32 MiB. It also keeps eight heaps for each core. Bodies are large, short-lived and processed in several
threads: after a flood of the largest bodies a collector of 174 MiB kept 329 MiB, with these settings 240 MiB.

Processing spans creates hundreds of thousands of small live objects; scanning them again and again took a third of its time.

Source: mallopt(3), and the numbers in malloc.h of glibc; `gc.set_threshold` counts created objects and collections.
"""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES, _KEPT_BYTES, _HEAPS = 256 * 1024, 1024 * 1024, 2
_OBJECTS, _YOUNG, _OLD = 10_000, 10, 20


def return_freed_memory() -> None:
    """Make glibc's allocator return freed memory; with another allocator nothing happens."""
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
    """Raise the thresholds of the garbage collector and exclude existing objects; call it after the start of all parts."""
    gc.freeze()
    gc.set_threshold(_OBJECTS, _YOUNG, _OLD)
