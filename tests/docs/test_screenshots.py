"""The pictures of the dashboard, the notifications and the terminal show today's pages."""

from __future__ import annotations

import difflib
import json

import pytest

from docs import screenshots

pytestmark = pytest.mark.stacks


def test_pictures_show_the_texts_of_todays_pages() -> None:
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
