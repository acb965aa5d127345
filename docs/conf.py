"""How Sphinx makes the site of these pages: `make site` writes it to build/site, and fails at the first link that leads nowhere."""

from stagelens import __version__

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
