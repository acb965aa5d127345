"""Memory settings of a server process: return freed memory to the system, and run the garbage collector less often.

The allocator of glibc returns large blocks to the system when they are freed, but each freed block raises the size limit of a
large block, up to 32 MiB, and smaller blocks are retained. It also has up to eight heaps for each core. Bodies are large,
short-lived and processed in several threads: after a flood of the largest bodies a collector of 174 MiB retained 329 MiB, with
these settings 240 MiB. Lower limits double the CPU time of the kernel, which clears each page that it gives out again.

Free memory below memory in use is returned by `malloc_trim` only: a replay of the incidents of 40 services left 37 MiB.

Processing spans creates hundreds of thousands of small live objects; repeated scans of them take a third of the processing time.

Source: mallopt(3), malloc_trim(3), and the numbers in malloc.h of glibc; `gc.set_threshold` counts created objects and collections.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES, _RETAINED_BYTES, _HEAPS = 2048 * 1024, 8192 * 1024, 2
_OBJECTS, _YOUNG, _OLD = 10_000, 10, 20


def return_freed_memory() -> None:
    """Make glibc's allocator return freed memory to the system; does nothing with another allocator."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    for parameter, value in (
        (_M_MMAP_THRESHOLD, _LARGE_BYTES),
        (_M_TRIM_THRESHOLD, _RETAINED_BYTES),
        (_M_ARENA_MAX, _HEAPS),
    ):
        mallopt(parameter, value)


def trim_heap() -> None:
    """Return the free memory within the heap to the system; does nothing with another allocator."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def reduce_gc_frequency() -> None:
    """Raise the thresholds of the garbage collector and exclude existing objects; to be called after the start of all parts."""
    gc.freeze()
    gc.set_threshold(_OBJECTS, _YOUNG, _OLD)
