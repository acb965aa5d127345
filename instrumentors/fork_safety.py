"""Threads of ours that a forked child inherits.

A fork takes along the thread that forks, and no other; but under gevent threads are greenlets, and they all go on in the child. They
would tell there what their parent tells, under the same names.
"""

from __future__ import annotations

import os
import threading


def park_if_inherited(pid: int) -> None:
    """Never return in a process other than *pid*, the one that started this thread; for what its loop does after each wait."""
    if os.getpid() != pid:
        # Ending is no way out: `threading` no longer knows the thread, and prints a KeyError.
        threading.Event().wait()
