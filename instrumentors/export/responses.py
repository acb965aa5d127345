"""Responses of the collector: when to try again, what it rejected, and why, as text for the log."""

from __future__ import annotations

import email.utils
import re
from urllib.parse import urljoin

from .http_post import HttpResponse, origin
from .protobuf import parse_fields

REDIRECT_STATUSES = range(300, 400)
# A server that requests a longer delay is misconfigured; by then the outbox has already evicted batches.
MAX_RETRY_AFTER_SECONDS = 600.0
MAX_SHOWN_CHARS = 300
ADDRESS_FIX = "Set OTEL_EXPORTER_OTLP_ENDPOINT to the address of the collector"
_TITLED = "a web page with the title"
_PAGE = re.compile(rb"\s*<(?:!doctype html|html)\b", re.IGNORECASE)
_TITLE = re.compile(rb"<title>([^<]{1,80})", re.IGNORECASE)
_UNDECODABLE = "\N{REPLACEMENT CHARACTER}"


def retry_after(text: str | None, now: float) -> float | None:
    """Parse `Retry-After` (seconds or a date) into seconds from *now*; None if it is missing or invalid."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - now
        except ValueError:
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS) if seconds == seconds else None  # noqa: PLR0124 - not NaN


def refused_part(body: bytes) -> str:
    partial = _fields(body).get(1)
    fields = _fields(partial) if isinstance(partial, bytes) else {}
    count, message = fields.get(1, 0), fields.get(2)
    return printable_text(f"{count} rejected: {_text(message)}") if count or message else ""


def explanation(body: bytes) -> str:
    """Return the explanation in an error body: the message of a `google.rpc.Status`, or the text itself."""
    page = web_page(body)
    if page.startswith(_TITLED):
        return page
    # A plain text is never mistaken for a status: it has no control characters, but the message field starts with one.
    return printable_text(_text(_fields(body).get(2, body[:MAX_SHOWN_CHARS])))


def web_page(body: bytes) -> str:
    """Return that *body* is a web page, such as that of a login, with its title; "" if it is none."""
    if not _PAGE.match(body):
        return ""
    title = _TITLE.search(body)
    return f"{_TITLED} {printable_text(_text(title[1]))}" if title else "a web page"


def redirect(url: str, response: HttpResponse) -> str:
    location = response.headers.get("Location")
    if not location or response.status not in REDIRECT_STATUSES:
        return ""
    try:
        target = printable_text(origin(urljoin(url, location)))
    except ValueError:
        target = "nowhere"
    return f"redirects to {target}. {ADDRESS_FIX}"


def _fields(message: bytes) -> dict[int, int | bytes]:
    try:
        return parse_fields(message)
    except ValueError:
        return {}


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def printable_text(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " for char in text[:MAX_SHOWN_CHARS])
    # Such as a compressed body.
    return "" if shown.count(_UNDECODABLE) * 5 > len(shown) else shown.strip()
