"""Real servers that `make` installs beside the packages for tests."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).parents[2] / ".venv"


def installed(part: str) -> Path:
    """Return the folder of *part*; where it is not installed the test is skipped, never in CI."""
    folder = ENVIRONMENT / part
    if not folder.exists() and not os.environ.get("CI"):
        pytest.skip(f"no {part}; `make {part}` installs it, and `make test-stacks` does")
    return folder


def is_up(url: str, timeout: float = 60) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            return response.status == 200
    except urllib.error.HTTPError as error:
        # It is a response, with a connection.
        error.close()
        return False
    except OSError:
        return False
