"""Channel for Prometheus Alertmanager, API v2: an incident becomes one alert, routed, grouped and silenced as usual.

Alertmanager resolves an alert that is not repeated. A firing alert is therefore sent with an end time in the near future and
repeated before that time. A resolved alert is repeated for some time, in case Alertmanager was down. Labels identify an alert, so
they contain no numbers. A ticket that becomes a page is a new alert, and the alert of the ticket expires.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from ....core.settings.field_types import SecretAddress
from ...formatting import cut, iso_time, line
from ..channel import ChannelKind, ChannelSection, Refresh, encode_json, post_json
from ..message import Message
from ..message_text import cause_text, headline, impact_text, message_facts, slow_requests, small_print, sparkline_of

# https://prometheus.io/docs/alerting/latest/clients/: clients repeat firing alerts
REFRESH = Refresh(every_seconds=60.0, after_end_seconds=300.0)
# Three repeats may be lost before Alertmanager resolves it. [seconds]
ENDS_AFTER_SECONDS = 240.0
# Alertmanager has no limit; templates should stay readable.
MAX_ANNOTATION_CHARS = 2000
# Error responses of the receiver, and their fixes.
HINTS = (
    (
        "responded 404",
        "Set the URL of Alertmanager, such as http://alertmanager:9093, with its route prefix if it has one.",
    ),
    ("responded 401", "A proxy requires a password: add it to the URL, https://user:password@host."),
    ("responded 410", "This Alertmanager supports API v1 only: use 0.16 or later."),
)


@dataclass(frozen=True, slots=True)
class AlertmanagerChannel:
    name: str
    url: str = field(repr=False)
    gap_seconds: float = 0.0
    refresh: Refresh | None = REFRESH
    clock: Callable[[], float] = field(default=time.time, repr=False)

    def send(self, message: Message) -> str:
        """Post *message* as one alert and return no reference, because its labels identify the alert."""
        body = encode_json([alert_payload(message, self.clock())])
        post_json(f"{self.url.rstrip('/')}/api/v2/alerts", body, {}, receiver="Alertmanager")
        return ""


def alert_payload(message: Message, now: float) -> dict[str, Any]:
    """Return the alert for *message* at *now* (Unix seconds)."""
    finding = message.finding
    end = message.at if message.resolved else now + ENDS_AFTER_SECONDS
    named = {"alertname": finding.name, "job": "stagelens", "service": finding.service}
    named |= {"severity": finding.severity, "kind": finding.kind}
    alert: dict[str, Any] = {
        "labels": {**{key: value for key, value in finding.where.items() if value}, **named},
        "annotations": _annotations(message),
        "startsAt": iso_time(min(finding.since, message.opened_at, end)),
        "endsAt": iso_time(end),
    }
    if finding.link:
        alert["generatorURL"] = finding.link
    return alert


def _annotations(message: Message) -> dict[str, str]:
    finding = message.finding
    lines = [impact_text(finding), *(f"{name}: {value}" for name, value in message_facts(message))]
    lines += [f"Also: {incident_title}" for incident_title in message.also]
    lines += [f"{shape} {about}" for shape, about in sparkline_of(message)]
    lines += [f"{what} {link}".strip() for what, link in slow_requests(finding)]
    annotations = {
        "summary": line(headline(message), MAX_ANNOTATION_CHARS),
        "description": "\n".join(line(text, MAX_ANNOTATION_CHARS) for text in [*lines, *small_print(message)]),
        "cause": line(cause_text(message), MAX_ANNOTATION_CHARS),
        "incident": message.incident,
        "version": finding.version,
        "dashboard": finding.link,
        "runbook_url": finding.runbook,
        "note": cut(finding.description, MAX_ANNOTATION_CHARS),
    }
    return {name: value for name, value in annotations.items() if value}


class _Section(ChannelSection):
    url: SecretAddress = Field(examples=["ALERTMANAGER_URL"])

    def build(self, name: str) -> AlertmanagerChannel:
        return AlertmanagerChannel(name, self.url.value)


KIND = ChannelKind(_Section, HINTS)
