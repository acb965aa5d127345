"""Where processes find what has them wait for their last report for as long as it takes on a busy machine."""

from __future__ import annotations

from pathlib import Path

# An entry of PYTHONPATH, for what runs under `stagelens run`.
LONG_FLUSH = str(Path(__file__).parent / "long_flush")
