"""Has every process that `stagelens run` starts wait for its last report for up to a minute.

Two seconds, as everywhere else, are too few where the machine of the tests is busy. It stands on PYTHONPATH: see `LONG_FLUSH`
in `tests/support/long_flush_path.py`.
"""

from __future__ import annotations

import sys

# Loaded by our own sitecustomize, which runs before this one; other interpreters have nothing to report.
recorder = sys.modules.get("stagelens.instrumentors.recorder")
if recorder is not None:
    recorder.flush.__defaults__ = (60.0,)
