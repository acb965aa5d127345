"""Link previews: tags in the head of a page, signed URLs of preview images, and blocks for Slack.

    GET /previews/<signature>.png?path=<address with a fixed window>&until=<Unix seconds>[&env=<environment>...]

The signature is an HMAC of the parameters with a key in the database, so every dashboard on the database accepts it. It gives
access to the image of one view until it expires, with the environments that the signer may see. URLs exist only on https.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from html import escape, unescape
from typing import Any
from urllib.parse import urlencode, urlsplit

from sqlalchemy import insert, select
from sqlalchemy.exc import SQLAlchemyError

from ...alerts.delivery.channels.slack.blocks import MAX_ALT_CHARS, MAX_URL_CHARS, escape_entities, escape_mrkdwn
from ...alerts.formatting import line
from ...alerts.schema import keys
from ...core.errors import StoreError
from ..access import Grant, ReaderAccess
from ..pages.page import Context
from ..source import Source
from ..view import View, parse
from .preview_image import HEIGHT, WIDTH, ViewPreview, preview_of, preview_png, view_title, view_window
from .routing import OF_ADMINS, context_of
from .signed_endpoints import PREVIEW_PATH, SignedImage

_KEY_NAME = "previews"
_DAY = 86_400
# Validity of a URL; rounded up to whole days, so that equal views have equal URLs. [days]
_VALID_DAYS = 7
_HTTPS = "https://"
# Images of these pages show the present state; those of other pages change only while data of their window may arrive.
_PAGES_OF_NOW = ("/incidents", "/slo")
_CHANGING_SECONDS, _SETTLED = 60, timedelta(hours=1)
# https://docs.slack.dev/reference/events/link_shared: number of links of one message that are answered.
_MOST_LINKS = 5


class PreviewLinks:
    """Signed URLs of preview images. Thread-safe."""

    def __init__(self, source: Source, requested_url: Callable[[], str]) -> None:
        self._source, self._requested_url = source, requested_url
        self._key = ""

    def base_urls(self) -> list[str]:
        """Return the base URLs of the dashboard: the configured ones, then that of the current request."""
        definitions, config = self._source.definitions(), self._source.config
        named = (definitions.dashboard_url if definitions else "", config.url if config else "")
        return [each.rstrip("/") for each in (*named, self._requested_url()) if each]

    def image_url(self, view: View, access: ReaderAccess, bases: Sequence[str]) -> str:
        """Return the URL of the image of *view* for a reader with *access*; "" without https or without a key."""
        base = next((each for each in bases if each.startswith(_HTTPS)), "")
        is_shown = base and "".join(view.parts[:1]) not in OF_ADMINS and access.environments != frozenset()
        key = self._signing_key() if is_shown else ""
        if not key:
            return ""
        until = str((int(self._source.clock()) // _DAY + _VALID_DAYS + 1) * _DAY)
        path, environments = view.with_window(view.start, view.end), sorted(access.environments or ())
        query = [("path", path), ("until", until), *(("env", name) for name in environments)]
        return f"{base}{PREVIEW_PATH}/{_signature(key, path, until, environments)}.png?{urlencode(query)}"

    def image(self, signature: str, path: str, until: str, environments: Sequence[str]) -> SignedImage | None:
        """Return the image of a URL; None for an invalid or expired signature."""
        key = self._key = self._key or self._stored_key()
        valid = _signature(key, path, until, environments) if key else ""
        is_valid, now = bool(valid) and hmac.compare_digest(signature.encode(), valid.encode()), self._source.now()
        if not is_valid or int(until) <= now.timestamp():
            return None
        page, _, query = path.partition("?")
        changes = page.startswith(_PAGES_OF_NOW) or parse(page, query, now).end > now - _SETTLED
        version = now.timestamp() // (_CHANGING_SECONDS if changes else _SETTLED.total_seconds())
        return SignedImage(("preview", path, *environments), version, lambda: self._draw(path, environments))

    def _draw(self, path: str, environments: Sequence[str]) -> bytes | None:
        access = ReaderAccess(frozenset({Grant("viewer", frozenset(environments) if environments else None)}))
        found = preview_of(_context(self._source.of_reader(access), path))
        return None if found is None else preview_png(found)

    def tags(self, context: Context) -> str:
        """Return the tags of a link preview for the head of the page; computed without the data of the page."""
        view = context.view
        title, about = view_title(view), f"Where requests spend their time, {view_window(view)}"
        image = self.image_url(view, context.source.access, self.base_urls())
        tags = [
            ("property", "og:site_name", "Stagelens"),
            ("property", "og:type", "website"),
            ("property", "og:title", title),
            ("property", "og:description", about),
            ("name", "twitter:card", "summary_large_image" if image else "summary"),
        ]
        if image:
            size = (("width", WIDTH), ("height", HEIGHT))
            tags += [("property", "og:image", image), ("property", "og:image:alt", f"{title}, {view_window(view)}")]
            tags += [("property", f"og:image:{name}", str(value)) for name, value in size]
        return "\n".join(f'<meta {kind}="{name}" content="{escape(value)}">' for kind, name, value in tags)

    def unfurls(self, source: Source, urls: Sequence[str], bases: Sequence[str]) -> dict[str, Any]:
        """Return the argument `unfurls` of Slack's `chat.unfurl`, for links to views of this dashboard that have data."""
        hosts, made = {urlsplit(each).netloc for each in bases}, dict[str, Any]()
        for url in urls[:_MOST_LINKS]:
            plain = unescape(url)
            address = urlsplit(plain)
            if address.netloc not in hosts:
                continue
            context = _context(source, f"{address.path}?{address.query}")
            found = preview_of(context)
            if found is not None and found.headline:
                image = self.image_url(context.view, source.access, bases)
                made[url] = {"blocks": _blocks(found, plain, image)}
        return made

    def _signing_key(self) -> str:
        # The page itself reports that the store does not respond.
        with suppress(StoreError, SQLAlchemyError):
            self._key = self._key or self._stored_key()
            if not self._key:
                # The database may be read-only, or another dashboard was first.
                with suppress(StoreError, SQLAlchemyError), self._source.store.transaction() as connection:
                    connection.execute(insert(keys).values(name=_KEY_NAME, value=secrets.token_hex(32)))
                self._key = self._stored_key()
        return self._key

    def _stored_key(self) -> str:
        with self._source.store.engine.connect() as connection:
            return connection.execute(select(keys.c.value).where(keys.c.name == _KEY_NAME)).scalar() or ""


def _context(source: Source, address: str) -> Context:
    path, _, query = address.partition("?")
    return context_of(source.whole(parse(path, query, source.now())), source)


def _signature(key: str, path: str, until: str, environments: Sequence[str]) -> str:
    signed = json.dumps([path, until, list(environments)]).encode()
    return hmac.new(bytes.fromhex(key), signed, hashlib.sha256).hexdigest()


def _blocks(found: ViewPreview, url: str, image: str) -> list[dict[str, Any]]:
    link = f"<{escape_entities(url)}|{escape_mrkdwn(found.title)}>"
    about = " · ".join(filter(None, (found.window, found.state[0])))
    made = [
        _block("headline", "section", text=_mrkdwn(f"*{link}*\n{escape_mrkdwn(found.headline)}")),
        _block("about", "context", elements=[_mrkdwn(escape_mrkdwn(about))]),
    ]
    if image and len(image) <= MAX_URL_CHARS:
        alt = line(f"{found.title}: {found.headline}", MAX_ALT_CHARS)
        made.append(_block("image", "image", image_url=image, alt_text=alt))
    return made


def _block(name: str, kind: str, **content: Any) -> dict[str, Any]:
    return {"type": kind, "block_id": name, **content}


def _mrkdwn(text: str) -> dict[str, str]:
    return {"type": "mrkdwn", "text": text}
