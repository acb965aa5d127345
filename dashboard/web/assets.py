"""Static files of the pages, under URLs with a hash of their content, which browsers may cache forever.

All scripts and all style sheets are one file each. Plotly is a file of its own, because pages load it after they are shown.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from flask import Flask, Response, abort

from .compression import Encoding, accepted_encoding, compressed

PREFIX = "/assets/"
FOLDER = Path(__file__).parents[1] / "assets"
STYLES = ("tokens.css", "style.css")
FONT = re.compile(r"url\((inter[\w-]+\.woff2)\)")
# Before the first paint, with charts, and in report files only; all other scripts are in `app.js`.
_ALONE = ("boot.js", "plotly.min.js", "report.js")
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
_VERSIONED = re.compile(r"([\w-]+(?:\.min)?)(?:\.([0-9a-f]{12}))?(\.\w+)")


def text_of(*names: str) -> str:
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in names)


def url(name: str) -> str:
    """Return the URL of the file *name*, such as `app.js`."""
    return PREFIX + _versioned(name, _hash(name))


def add_asset_route(server: Flask) -> None:
    def asset(name: str) -> Response:
        match = _VERSIONED.fullmatch(name)
        plain = f"{match[1]}{match[3]}" if match else ""
        if match is None or plain not in _files():
            abort(404)
        response = Response(_files()[plain], mimetype=_TYPES[match[3]])
        encoding = accepted_encoding() if match[3] != ".woff2" else None
        if encoding is not None:
            response.set_data(_compressed(plain, encoding))
            response.headers["Content-Encoding"] = encoding
        response.headers["Vary"] = "Accept-Encoding"
        # A page of another version asks for another hash, and gets the current file.
        is_current = match[2] == _hash(plain)
        response.headers["Cache-Control"] = "private, max-age=31536000, immutable" if is_current else "no-cache"
        return response

    server.add_url_rule(f"{PREFIX}<name>", "asset", asset)


@cache
def _files() -> Mapping[str, bytes]:
    whole = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in _TYPES}
    scripts = sorted(name for name in whole if name.endswith(".js") and name not in _ALONE)
    alone = {name: content for name, content in whole.items() if name not in {*scripts, *STYLES, "report.js"}}
    styles = FONT.sub(lambda font: f"url({_versioned(font[1], _hash_of(whole[font[1]]))})", text_of(*STYLES))
    return {**alone, "app.js": text_of(*scripts).encode(), "app.css": styles.encode()}


def _versioned(name: str, content_hash: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    return f"{stem}.{content_hash}.{suffix}"


@cache
def _hash(name: str) -> str:
    return _hash_of(_files()[name])


def _hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


@cache
def _compressed(name: str, encoding: Encoding) -> bytes:
    return compressed(_files()[name], encoding, small=True)
