"""Pages of a source, as tests read them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from stagelens.dashboard.pages.page import Context, Page
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import text_of
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.routing import context_of, page_of
from tests.dashboard.served_versions import NOW


def context_at(source: Source, address: str, now: datetime = NOW) -> Context:
    path, _, search = address.partition("?")
    return context_of(parse(path, search, now), source)


def page_at(source: Source, address: str, now: datetime = NOW) -> Page:
    page = page_of(context_at(source, address, now))
    assert page is not None
    return page


def shown(source: Source, address: str, now: datetime = NOW) -> str:
    """Return the words of a page, every kind of space a plain one."""
    return " ".join(text_of(node) for node in page_at(source, address, now).body)


def links_in(node: Any) -> dict[str, str]:
    """Return the addresses of the links in *node* by their text; of equal texts the first."""
    links = {text_of(node): str(node.href)} if getattr(node, "href", None) else {}
    inside = node if isinstance(node, list) else getattr(node, "children", None)
    for child in inside if isinstance(inside, list) else [inside]:
        if child is not None and not isinstance(child, str):
            links = links_in(child) | links
    return links
