"""Images of the documentation: what their script draws, each used, and none with a word that we do not use."""

from __future__ import annotations

import json
import re

from docs import pictures
from tests.docs.blocks import ROOT
from tests.test_language import Text, complaints

IMAGES = pictures.IMAGES
RECORDED = IMAGES / "pictures.json"
_IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*\bsrc=\"([^\"]+)\"")


def test_pages_use_all_images_and_no_others() -> None:
    used = {
        (page.parent / "".join(image)).resolve()
        for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        for image in _IMAGE.findall(page.read_text(encoding="utf-8"))
        if "://" not in "".join(image)
    }

    assert {path for path in used if path.is_relative_to(IMAGES)} == {*IMAGES.iterdir()} - {RECORDED}
    assert [path for path in used if not path.exists()] == []


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
