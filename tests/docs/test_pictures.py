"""The pictures are what their script draws."""

from __future__ import annotations

import importlib.util

from tests.docs.blocks import ROOT


def test_pictures_equal_the_output_of_the_script() -> None:
    spec = importlib.util.spec_from_file_location("stagelens_pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    assert {path.name: path.read_text() for path in script.IMAGES.glob("concept-*.svg")} == script.pictures()
