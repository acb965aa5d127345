"""Gate in a folder, by which a test holds a request of another process."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(os.environ.get("GATE", "."))


def enter() -> None:
    """Note that the request has arrived, and in which process."""
    (FOLDER / "entered").write_text(str(os.getpid()))


def is_open() -> bool:
    return (FOLDER / "open").exists()
