"""What the documentation says is what there is."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from stagelens.core.stages import BY_KEY
from stagelens.instrumentors.registry import LIBRARIES, Library

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


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))],
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    """A link to a file of the repository names one that exists."""
    text = (ROOT / page).read_text()
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]

    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []


def test_the_pages_of_the_libraries_are_what_their_modules_declare() -> None:
    """`make docs` writes them; a page cannot drift from the code."""
    spec = importlib.util.spec_from_file_location("stagelens_docs", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    there = {f"libraries/{path.name}": path.read_text() for path in (ROOT / "docs" / "libraries").glob("*.md")}

    assert there == generate.pages()


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.module)
def test_every_library_declares_what_it_times(library: Library) -> None:
    """A reader finds each under its name, with stages that exist and the versions it was tested with, no newer than ours."""
    cls = library.load()

    assert cls.title
    assert set(cls.stages) <= set(BY_KEY)
    assert cls.tested
    for distribution, tested in cls.tested.items():
        assert Version(tested) <= Version(version(distribution))


def test_every_library_is_in_the_readme() -> None:
    """What can be timed is on the front page."""
    readme = (ROOT / "README.md").read_text()

    assert [library.module for library in LIBRARIES if library.load().title not in readme] == []
