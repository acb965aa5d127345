"""How Sphinx makes the site of these pages: `make site` writes it to build/site, and fails at the first broken link.

Pages are plain Markdown that GitHub renders as well. So the site's navigation comes from ordinary lists: each section of
`index.md` is a caption of the sidebar, and the links of its list are the pages below it.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from stagelens import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Stagelens"
release = __version__
extensions = ["myst_parser"]
root_doc = "index"
html_theme = "furo"
html_title = f"Stagelens {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
# Headings that links may name, as GitHub names them.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
nitpicky = True

ROOT = Path(__file__).parent.parent
# Pages of the site that GitHub shows at the root of the repository.
FROM_ROOT = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}
# Pages whose links to their neighbours are entries of the sidebar.
LISTS = ("start/index", "libraries/README", "design/README")
_LOCAL = re.compile(r"\]\((?!https?:|#)(docs/)?")
_LINK = re.compile(r"^(?:- |\|).*?\]\(([\w/.-]+)\.md\)", re.MULTILINE)


def toctree(links: list[str], caption: str = "") -> str:
    """Return a hidden table of contents, which Sphinx needs for its sidebar."""
    options = (":hidden:", f":caption: {caption}") if caption else (":hidden:",)
    return "\n".join(("", "```{toctree}", *options, "", *dict.fromkeys(links), "```", ""))


def read_source(_: object, page: str, source: list[str]) -> None:
    """Add the navigation to the pages that list others, and take those of the root from there."""
    if page in FROM_ROOT:
        # These name files from the root.
        source[0] = _LOCAL.sub(lambda link: "](" if link[1] else "](../", (ROOT / FROM_ROOT[page]).read_text())
    elif page == root_doc:
        sections = re.split(r"^## (.+)$", source[0], flags=re.MULTILINE)[1:]
        pairs = zip(sections[::2], sections[1::2], strict=True)
        source[0] += "".join(toctree(_LINK.findall(text), caption) for caption, text in pairs)
    elif page in LISTS:
        source[0] += toctree([link for link in _LINK.findall(source[0]) if not link.startswith("..")])


def setup(app: "Sphinx") -> None:
    app.connect("source-read", read_source)
