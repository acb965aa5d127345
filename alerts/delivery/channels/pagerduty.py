"""PagerDuty, by the Events API v2. The incident's id is the dedup key, so an event sent twice is one alert.

A ticket is severity `warning`, a page `critical`; a resolved incident resolves the alert, and one that was over before
PagerDuty could be told pages nobody: PagerDuty drops a resolve without an open alert. Somebody who looks after it
acknowledges the alert there, too. A new version of a service is a change event, which pages nobody and stands beside incidents.
PagerDuty fetches the chart itself, from a dashboard that it can reach.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ....core.errors import ChannelError
from ..channel import Refresh
from ..http import post
from ..message import Finding, Message
from ..message_text import basis, cause, chart_in_words, examples, facts, headline, impact, picture, small_print, table
from ..truncation import cut, line
from .releases import Release

# https://developer.pagerduty.com/docs/events-api-v2/trigger-events/
MAX_SUMMARY_CHARS = 1024
MAX_DEDUP_KEY_CHARS = 255
MAX_EVENT_BYTES = 512_000

# The only answer that means that PagerDuty has it.
ACCEPTED = 202

BASE_URL = "https://events.pagerduty.com"
_ACTIONS = {"resolved": "resolve", "acknowledged": "acknowledge"}
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
    refresh: Refresh | None = None

    def send(self, message: Message) -> str:
        """Enqueue *message* as an event; 202 means PagerDuty has it, and the dedup key is all there is to remember."""
        event = payload(message, self.routing_key)
        if len(_encoded(event)) > MAX_EVENT_BYTES:
            event["payload"].pop("custom_details", None)
        self._post("/v2/enqueue", event)
        return ""

    def announce(self, release: Release) -> None:
        """Enqueue *release* as a change event.

        Raises:
            ChannelError: It was not accepted.
        """
        self._post("/v2/change/enqueue", change(release, self.routing_key))

    def _post(self, path: str, event: dict[str, Any]) -> None:
        url = f"{self.base_url.rstrip('/')}{path}"
        answer = post(url, _encoded(event), {}, receiver="PagerDuty", secrets=[self.routing_key])
        if answer.status != ACCEPTED:
            msg = f"PagerDuty answered {answer.status} and not {ACCEPTED}; is something else at that address?"
            raise ChannelError(msg, permanent=False)


def payload(message: Message, routing_key: str) -> dict[str, Any]:
    """Return the event."""
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": _ACTIONS.get(message.transition, "trigger"),
        "dedup_key": message.incident[:MAX_DEDUP_KEY_CHARS],
        "client": "Stagelens",
        "payload": _alert(message),
        "links": _links(message),
    }
    if message.finding.link:
        event["client_url"] = message.finding.link
    if message.chart and picture(message):
        alt = line(chart_in_words(message.finding), MAX_SUMMARY_CHARS)
        event["images"] = [{"src": message.chart, "href": message.finding.link, "alt": alt}]
    return event


def change(release: Release, routing_key: str) -> dict[str, Any]:
    """Return the change event.

    https://developer.pagerduty.com/docs/events-api-v2/send-change-events/
    """
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "payload": {
            "summary": line(release.in_words(), MAX_SUMMARY_CHARS),
            "source": release.service,
            "timestamp": _iso(release.at),
            "custom_details": {"service": release.service, "version": release.version, "before": release.before},
        },
    }
    if release.link:
        event["links"] = [{"href": release.link, "text": "Before and after"}]
    return event


def _alert(message: Message) -> dict[str, Any]:
    finding = message.finding
    alert: dict[str, Any] = {
        "summary": line(headline(message), MAX_SUMMARY_CHARS),
        "source": finding.service,
        "severity": _SEVERITIES[finding.severity],
        "timestamp": _iso(message.at),
        "group": finding.service,
        "class": _class(finding),
        "custom_details": _details(message),
    }
    if finding.blamed is not None:
        alert["component"] = finding.blamed.stage
    return alert


def _class(finding: Finding) -> str:
    return f"{finding.kind} slo" if finding.burn else "tail regression" if finding.shift else "no data"


def _details(message: Message) -> dict[str, Any]:
    finding = message.finding
    details: dict[str, Any] = {
        "cause": cause(message),
        "impact": impact(finding),
        **dict(facts(message)),
        "slo": "; ".join(small_print(message)),
    }
    details |= {about: shape for shape, about in picture(message)}
    if finding.growth:
        details[f"stages ({basis(finding)})"] = {
            stage: f"{growth}, {share} of the excess" for stage, growth, share in table(finding)
        }
    if message.also:
        details["also"] = list(message.also)
    if finding.exemplars:
        details["slow requests"] = [f"{what} {link}".strip() for what, link in examples(finding)]
    if finding.version:
        details["version"] = finding.version
    if finding.description:
        details["description"] = finding.description
    return details


def _links(message: Message) -> list[dict[str, str]]:
    finding = message.finding
    links = [(finding.link, "Where the time goes"), (finding.runbook, "Runbook")]
    links += [(link, cut(what, MAX_SUMMARY_CHARS)) for what, link in examples(finding)]
    return [{"href": href, "text": text} for href, text in links if href]


def _encoded(event: dict[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False).encode()


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
