"""Tiers of the tests: the first one is `make test`, the others are named by a mark (CONTRIBUTING.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

# In files of which every test is in one tier of its own.
_WHOLE_FILE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(stacks|soak)\b", re.MULTILINE)


def tier_of(item: pytest.Item) -> str:
    return next((name for name in ("soak", "stacks") if item.get_closest_marker(name)), "first")


def tier_of_file(path: Path) -> str:
    """Return the tier of all tests of the file *path*; "first" also for a file with tests of several tiers."""
    match = _WHOLE_FILE.search(path.read_text(encoding="utf-8"))
    return match[1] if match else "first"
