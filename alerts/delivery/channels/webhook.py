"""Channel for a generic webhook: sends the incident as signed JSON, with a key that is the same in all retries.

The receiver verifies `X-Stagelens-Signature: sha256=<hex>`: HMAC-SHA256 with the shared secret over the timestamp header, a
dot and the raw body. The receiver should refuse a timestamp more than five minutes off, and ignore a message whose
`Idempotency-Key` was received before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from ....analysis.profile import FunctionGrowth
from ....core.settings.field_types import Secret, SecretAddress
from ..channel import ChannelKind, ChannelSection, Refresh, encode_json, post_json
from ..message import Burn, Message
from ..message_text import cause_text, headline

SIGNATURE_HEADER = "X-Stagelens-Signature"
TIMESTAMP_HEADER = "X-Stagelens-Timestamp"
KEY_HEADER = "Idempotency-Key"
# Version of the payload: incremented when a field changes its meaning or is removed, but not when a field is added.
FORMAT = 1
# Error responses of the receiver, and their fixes.
HINTS = (
    ("responded 401", "The receiver does not accept the signature: set the same secret on both sides."),
    ("responded 403", "The receiver does not accept the signature: set the same secret on both sides."),
    ("responded 404", "Not found: check the path of the URL."),
    ("responded 405", "The URL does not accept POST: check its path."),
)


@dataclass(frozen=True, slots=True)
class WebhookChannel:
    name: str
    url: str = field(repr=False)
    secret: str = field(default="", repr=False)
    gap_seconds: float = 0.0
    refresh: Refresh | None = None
    clock: Callable[[], float] = field(default=time.time, repr=False)

    def send(self, message: Message) -> str:
        """Post *message* and return no reference; any 2xx response means that the receiver accepted it."""
        body = encode_json(webhook_payload(message))
        headers = {KEY_HEADER: message.key}
        if self.secret:
            stamp = str(int(self.clock()))
            headers |= {TIMESTAMP_HEADER: stamp, SIGNATURE_HEADER: sign_body(self.secret, stamp, body)}
        post_json(self.url, body, headers, receiver="the webhook", secrets=[self.secret])
        return ""


def sign_body(secret: str, timestamp: str, body: bytes) -> str:
    digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"sha256={digest.hexdigest()}"


def webhook_payload(message: Message) -> dict[str, Any]:
    finding = message.finding
    return {
        "format": FORMAT,
        "key": message.key,
        "transition": message.transition,
        "at": _iso(message.at),
        "headline": headline(message),
        "incident": {
            "id": message.incident,
            "state": "resolved" if message.resolved else "open",
            "ending": message.ending,
            "acknowledged_by": message.acked_by,
            "severity": finding.severity,
            "opened_at": _iso(message.opened_at),
            "since": _iso(finding.since),
            "service": finding.service,
            "where": dict(finding.where),
            "slo": finding.name,
            "promise": finding.promise,
            "kind": finding.kind,
            "cause": cause_text(message),
            "cause_kind": finding.cause_kind,
            "silent_since": None if finding.silent_since is None else _iso(finding.silent_since),
            "version": finding.version,
            "description": finding.description,
            "runbook": finding.runbook,
            "link": finding.link,
        },
        "burn": finding.burn and _burn(finding.burn),
        "budget": finding.burn and _budget(finding.burn),
        "shift": finding.shift and {**dataclasses.asdict(finding.shift), "ratio": finding.shift.ratio},
        "absence": finding.absence and dataclasses.asdict(finding.absence),
        "stages": [{"stage": row.stage, "seconds": row.seconds, "share": row.share} for row in finding.growth],
        "failures": finding.failures and dataclasses.asdict(finding.failures),
        "functions": [_function(function_time) for function_time in finding.functions],
        "overruns": [dataclasses.asdict(overrun) for overrun in finding.overruns],
        "replica": finding.replica,
        "record": finding.record,
        "shared": [dataclasses.asdict(attribute) for attribute in finding.shared],
        "also": list(message.also),
        "exemplars": [dataclasses.asdict(exemplar) for exemplar in finding.exemplars],
        "no_exemplars": finding.no_exemplars,
    } | ({"called": finding.called} if finding.called else {})


def _burn(burn: Burn) -> dict[str, float]:
    return {
        "rate": burn.rate,
        "fires_at": burn.threshold,
        "long_window_seconds": burn.long_seconds,
        "short_window_seconds": burn.short_seconds,
        "bad": burn.bad,
        "total": burn.total,
    }


def _budget(burn: Burn) -> dict[str, float | None]:
    return {
        "left": burn.budget_left,
        "bad_requests_left": burn.bad_left,
        "window_seconds": burn.window_seconds,
        "exhausted_in_seconds": burn.exhausted_in_seconds,
    }


def _function(grown: FunctionGrowth) -> dict[str, float | str]:
    return {
        "stage": grown.stage,
        "function": grown.title,
        "before_seconds": grown.before_ms / 1e3,
        "after_seconds": grown.after_ms / 1e3,
        "share": grown.share,
    }


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


class _Section(ChannelSection):
    url: SecretAddress = Field(examples=["ALERTS_URL"])
    secret: Secret = Secret()

    def build(self, name: str) -> WebhookChannel:
        return WebhookChannel(name, self.url.value, self.secret.value)


KIND = ChannelKind(_Section, HINTS)
