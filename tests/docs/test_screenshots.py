"""The pictures of the dashboard, the notifications and the terminal show today's pages."""

from __future__ import annotations

import difflib
import importlib.util
import json
import sys
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT

pytestmark = pytest.mark.stacks


@pytest.fixture(scope="module")
def screenshots() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stagelens_screenshots", ROOT / "docs" / "screenshots.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    # Its dataclasses look up their module.
    sys.modules[spec.name] = script
    spec.loader.exec_module(script)
    return script


def test_pictures_show_the_texts_of_todays_pages(screenshots: ModuleType) -> None:
    recorded = json.loads(screenshots.RECORDED.read_text(encoding="utf-8"))
    with screenshots.data() as (fleet, run):
        shown = screenshots.texts(fleet, run)
    different = [
        line
        for name in sorted({*recorded, *shown})
        for line in difflib.unified_diff(
            recorded.get(name, []), shown.get(name, []), f"docs/images/{name}.png", "today", n=0, lineterm=""
        )
    ]

    assert different == [], "run `make pictures`, and look at what it draws:\n" + "\n".join(different)
