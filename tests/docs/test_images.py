"""Images of the documentation: what their script draws, each used, and none with a word that we do not use."""

from __future__ import annotations

import json
import re
from pathlib import Path

from docs import pictures
from tests.docs.blocks import ROOT
from tests.test_language import Text, complaints

IMAGES = pictures.IMAGES
RECORDED = IMAGES / "pictures.json"
_IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*\bsrc=\"([^\"]+)\"")


def _used_images() -> dict[str, set[Path]]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {
        page.relative_to(ROOT).as_posix(): {
            (page.parent / (markdown or html)).resolve()
            for markdown, html in _IMAGE.findall(page.read_text(encoding="utf-8"))
            if "://" not in (markdown or html)
        }
        for page in pages
    }


def test_every_image_of_a_page_exists() -> None:
    missing = [f"{page}: {path.name}" for page, used in _used_images().items() for path in used if not path.exists()]

    assert missing == []


def test_every_image_is_on_a_page() -> None:
    used = {path for paths in _used_images().values() for path in paths}
    unused = [path.name for path in sorted(IMAGES.iterdir()) if path != RECORDED and path.resolve() not in used]

    assert unused == []


def test_every_picture_has_its_text_recorded() -> None:
    drawn = {path.stem for path in IMAGES.glob("*.png")}

    assert drawn == set(json.loads(RECORDED.read_text(encoding="utf-8")))


def test_pictures_use_the_words_of_the_field() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    found = [
        line
        for name, texts in recorded.items()
        for number, text in enumerate(texts, 1)
        for line in complaints(Text(f"docs/images/{name}.png", number, "message", text))
    ]

    assert found == [], "\n".join(found)


def test_pictures_equal_the_output_of_the_script() -> None:
    assert {path.name: path.read_text() for path in IMAGES.glob("concept-*.svg")} == pictures.pictures()
