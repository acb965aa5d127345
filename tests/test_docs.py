"""What the documentation says is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PARTS = ("alerts", "collector", "core", "dashboard", "instrumentors")
# Set by `stagelens run` for its own child; not a setting.
INTERNAL = {"STAGELENS_RUN_PID"}


def _settings_in_code() -> set[str]:
    sources = [ROOT / "__main__.py", *(path for part in PARTS for path in (ROOT / part).rglob("*.py"))]
    return {name for path in sources for name in re.findall(r'"(STAGELENS_[A-Z0-9_]+)"', path.read_text())} - INTERNAL


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    """docs/configuration.md lists exactly the variables the code reads."""
    documented = set(re.findall(r"`(STAGELENS_[A-Z0-9_]+)`", (ROOT / "docs" / "configuration.md").read_text()))

    assert documented == _settings_in_code()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/configuration.md"])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    """A link to a file of the repository names one that exists."""
    text = (ROOT / page).read_text()
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]

    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []


def test_every_instrumentor_is_in_the_readme() -> None:
    """A library that can be timed is one a reader can find."""
    readme = (ROOT / "README.md").read_text().lower().replace(" ", "")

    for library in ("fastapi", "starlette", "onnxruntime", "pytorch"):
        assert library in readme
