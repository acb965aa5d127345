"""The modules beside the tests: without this they could not be imported, for test modules are no package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
