"""`POST /api/v1/events`: what people say has happened. What is done about incidents is written beside it.

It is taken from our own pages, which prove it (`guard.is_proven`), and from programs that show the token.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields, replace

from flask import Flask, Response, request

from ..core.errors import StoreError
from ..store.events import MAX_TEXT, Event, event_from_json
from . import guard
from .query_params import AskError
from .replies import PREFIX, answer_json, explained
from .source import Source

PATH = f"{PREFIX}v1/events"
_MAX_BODY_BYTES = 16 * 1024
_FIELDS = tuple(each.name for each in fields(Event))
# What SQLite and PostgreSQL say where nothing may be written.
_READ_ONLY = ("readonly", "read-only", "permission denied")


def serve(server: Flask, source: Source) -> None:
    """Answer `PATH` on *server*."""

    def add() -> Response:
        check_proof()
        event = _signed(_read(source))
        with kept("POST /v1/events at the collector"):
            source.tell(event)
        return answer_json(event, 201)

    server.add_url_rule(PATH, "api events", explained(add), methods=["POST"])


def check_proof() -> None:
    """Refuse what neither one of our pages sent, nor a program that shows the token.

    Raises:
        AskError: It did not.
    """
    if not guard.is_proven():
        msg = "this request did not come from a page of this dashboard, or from one that is older than it"
        cure = f"reload the page; a program sends Authorization: Bearer, or {guard.PROOF_HEADER} as the page has it"
        raise AskError(msg, key=guard.PROOF_HEADER, cure=cure, status=403)


def _read(source: Source) -> Event:
    if request.mimetype != "application/json":
        msg = f"Content-Type is {request.mimetype[:60]!r}"
        raise AskError(msg, key="Content-Type", cure="application/json", status=415)
    if (request.content_length or 0) > _MAX_BODY_BYTES:
        msg = f"the body has {request.content_length} bytes"
        raise AskError(msg, cure=f"at most {_MAX_BODY_BYTES}", status=413)
    try:
        return event_from_json(request.get_data(), source.now())
    except ValueError as error:
        what, _, cure = str(error).partition("; ")
        named = what.partition(" ")[0]
        raise AskError(what, key=named if named in _FIELDS else "", cure=cure) from error


def _signed(event: Event) -> Event:
    """Return *event* with who told it, where readers have names; the text of advice is for the page to read."""
    name = "".join(each for each in guard.asker().name if each.isprintable())
    if not name or event.kind == "advice":
        return event
    by = f" (by {name})"
    return replace(event, text=event.text[: MAX_TEXT - len(by)] + by)


@contextmanager
def kept(otherwise: str) -> Generator[None]:
    """Explain why a database cannot be written to where it may only be read; *otherwise* is how else it can be told."""
    try:
        yield
    except StoreError as error:
        said = f"{error} {error.__cause__}".lower()
        if any(each in said for each in _READ_ONLY):
            msg = "the dashboard may only read this database"
            raise AskError(msg, cure=otherwise, status=409) from error
        raise
