"""PagerDuty, by the Events API v2. The incident's id is the dedup key, so an event sent twice is one alert.

A ticket is severity `warning`, a page `critical`; a resolved incident resolves the alert, and one that was over before
PagerDuty could be told pages nobody: PagerDuty drops a resolve without an open alert.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from .channel import post
from .message import Message, basis, cause, facts, headline, impact, table
from .slack import cut

# https://developer.pagerduty.com/docs/events-api-v2/trigger-events/
MAX_SUMMARY_CHARS = 1024
MAX_DEDUP_KEY_CHARS = 255
MAX_EVENT_BYTES = 512_000

BASE_URL = "https://events.pagerduty.com"
_SEVERITIES = {"page": "critical", "ticket": "warning"}


@dataclass(frozen=True, slots=True)
class PagerDuty:
    """A PagerDuty service.

    Args:
        name: Its name in the outbox.
        routing_key: The service's integration key; a secret.
        base_url: Other than `BASE_URL` for accounts in the EU: https://events.eu.pagerduty.com.
    """

    name: str
    routing_key: str = field(repr=False)
    base_url: str = BASE_URL
    # https://developer.pagerduty.com/docs/events-api-v2/limits: about 120 a minute and key
    gap_seconds: float = 0.6

    def send(self, message: Message) -> None:
        """Enqueue *message* as an event; 202 means PagerDuty has it."""
        event = payload(message, self.routing_key)
        body = json.dumps(event, ensure_ascii=False).encode()
        if len(body) > MAX_EVENT_BYTES:
            event["payload"].pop("custom_details", None)
            body = json.dumps(event, ensure_ascii=False).encode()
        post(f"{self.base_url.rstrip('/')}/v2/enqueue", body, {}, receiver="PagerDuty")


def payload(message: Message, routing_key: str) -> dict[str, Any]:
    """Return the event."""
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "resolve" if message.resolved else "trigger",
        "dedup_key": message.incident[:MAX_DEDUP_KEY_CHARS],
        "client": "Stagelens",
        "payload": _alert(message),
        "links": _links(message),
    }
    if message.finding.link:
        event["client_url"] = message.finding.link
    return event


def _alert(message: Message) -> dict[str, Any]:
    finding = message.finding
    alert: dict[str, Any] = {
        "summary": cut(headline(message), MAX_SUMMARY_CHARS),
        "source": finding.service,
        "severity": _SEVERITIES[finding.severity],
        "timestamp": datetime.fromtimestamp(message.at, UTC).isoformat(timespec="milliseconds"),
        "group": finding.service,
        "class": f"{finding.kind} slo",
        "custom_details": _details(message),
    }
    if finding.blamed is not None:
        alert["component"] = finding.blamed.stage
    return alert


def _details(message: Message) -> dict[str, Any]:
    finding = message.finding
    details: dict[str, Any] = {
        "cause": cause(message),
        "impact": impact(finding),
        **dict(facts(message)),
        "slo": f"{finding.slo}: {finding.promise}",
    }
    if finding.growth:
        details[f"stages ({basis(finding)})"] = {
            stage: f"{growth}, {share} of the excess" for stage, growth, share in table(finding)
        }
    if finding.version:
        details["version"] = finding.version
    if finding.description:
        details["description"] = finding.description
    return details


def _links(message: Message) -> list[dict[str, str]]:
    finding = message.finding
    links = [(finding.link, "Where the time goes"), (finding.runbook, "Runbook")]
    return [{"href": href, "text": text} for href, text in links if href]
