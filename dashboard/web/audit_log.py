"""Audit log of the dashboard: one entry for each request that changes something, and for each sign-in.

The entry is written after the response, for every route, so that no route can omit it. A route adds its subject with `about`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import flask
from flask import Flask, Response, request
from sqlalchemy.exc import SQLAlchemyError

from ...core.errors import StoreError
from ...store import Store
from ...store.audit import AuditEntry, Outcome

# Actions by endpoint; another endpoint has its own name as the action.
_ACTIONS = {
    "api events": "add event",
    "api acknowledge": "acknowledge",
    "api unacknowledge": "undo acknowledgement",
    "api note": "add note",
    "api accept": "accept as baseline",
    "api silence": "silence",
    "api unsilence": "end silence",
}
# Start of the names of endpoints that read although a client may send a POST.
READS_BY_POST = "prometheus "
_REFUSED, _FAILED = (401, 403), 400
_UNNAMED = "a dashboard user"
# Failed sign-ins in a minute that get an entry: any client can cause them.
_MAX_FAILED_SIGN_INS, _MINUTE = 10, 60.0
_log = logging.getLogger(__name__)


class AuditLog:
    """Writes the entries of one dashboard. Thread-safe."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._failed_sign_ins: deque[float] = deque(maxlen=_MAX_FAILED_SIGN_INS)

    def add_to(self, server: Flask) -> None:
        def after(response: Response) -> Response:
            is_read = (request.endpoint or "").startswith(READS_BY_POST)
            is_write = request.method not in ("GET", "HEAD", "OPTIONS") and not is_read
            # Requests without a reader were refused, or have an entry of their own.
            if is_write and "stagelens_reader" in flask.g:
                self._write(_entry_of(response, self._now()))
            return response

        server.after_request(after)

    def signed_in(self, person: str) -> None:
        self._write(AuditEntry(self._now(), person or "the shared token", "dashboard", "sign in"))

    def sign_in_failed(self, person: str) -> None:
        now = self._clock()
        recent = self._failed_sign_ins
        if len(recent) == recent.maxlen and 0 <= now - recent[0] < _MINUTE:
            return
        recent.append(now)
        wrong = "wrong name, password or token"
        self._write(AuditEntry(self._now(), person, "dashboard", "sign in", outcome="refused", reason=wrong))

    def acted(self, entry: AuditEntry) -> None:
        self._write(replace(entry, at=self._now()))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _write(self, entry: AuditEntry) -> None:
        try:
            self._store.add_audit_entry(entry)
        except (StoreError, SQLAlchemyError) as error:
            what = f"{entry.person}: {entry.action} {entry.subject}".rstrip()
            _log.error("dashboard: the audit log cannot be written, so it lacks %r: %s", what, error)


def about(subject: str, service: str = "", environment: str = "") -> None:
    flask.g.stagelens_subject = subject, service, environment


def _entry_of(response: Response, at: datetime) -> AuditEntry:
    reader = flask.g.stagelens_reader
    unnamed = "the shared token" if reader.has_token else _UNNAMED
    named = (request.view_args or {}).get("name", "")
    subject, service, environment = flask.g.get("stagelens_subject", (named, "", ""))
    return AuditEntry(
        at=at,
        person=reader.name or unnamed,
        origin="api" if request.authorization else "dashboard",
        action=_ACTIONS.get(request.endpoint or "", request.endpoint or request.path),
        subject=subject,
        service=service,
        environment=environment,
        outcome=_outcome(response.status_code),
        reason=_reason(response) if response.status_code >= _FAILED else "",
    )


def _outcome(status: int) -> Outcome:
    if status < _FAILED:
        return "done"
    return "refused" if status in _REFUSED else "failed"


def _reason(response: Response) -> str:
    document: Any = response.get_json(silent=True) if response.mimetype == "application/json" else None
    text = document.get("error") if isinstance(document, dict) else None
    return str(text or f"status {response.status_code}")
