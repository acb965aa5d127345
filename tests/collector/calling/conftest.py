"""The server that targets are scraped from does for calls of any kind."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "shared"))
