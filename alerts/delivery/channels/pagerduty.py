"""Channel for PagerDuty, Events API v2, with alerts for incidents and change events for releases.

The incident's id is the dedup key, so an event sent twice becomes one alert. A ticket has severity `warning`, a page `critical`.
A resolved incident resolves the alert. An incident that ended before its first event was sent creates no alert, because
PagerDuty drops a resolve event without an open alert. An acknowledgement acknowledges the alert. PagerDuty fetches the chart
from the dashboard if it can reach it.

A new version of a service becomes a change event, which sends no page and is shown beside incidents. Each release is sent under
a lease that lasts until the release is too old to be sent. So several processes send a release once, or twice if a process dies
while sending.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any, Protocol
from urllib.parse import urlencode

from pydantic import Field

from ....core.errors import ChannelError
from ....core.settings.field_types import Secret, WebAddress
from ....store import Store, lease
from ...formatting import cut, iso_time, line
from .. import message_text
from ..channel import ChannelKind, ChannelSection, Refresh, SigningSecret, encode_json, post_json
from ..message import Message
from ..outbox import AlertsThread

log = logging.getLogger(__name__)

# Check interval, and maximum age of a release to send. [seconds]
EVERY_SECONDS, NEWS_SECONDS = 60.0, 3600.0
# Lease during an attempt, longer than the attempt takes; also the delay of a retry. [seconds]
LEASE_SECONDS = 60.0
# Lease after an attempt, longer than the maximum age of a release, with margin for clock differences. [seconds]
REMEMBERED_SECONDS = timedelta(days=7).total_seconds()
PREFIX = "release:"
# https://developer.pagerduty.com/docs/events-api-v2/trigger-events/
MAX_SUMMARY_CHARS = 1024
MAX_DEDUP_KEY_CHARS = 255
MAX_EVENT_BYTES = 512_000
# HTTP status of an accepted event.
ACCEPTED = 202
BASE_URL = "https://events.pagerduty.com"
_ACTIONS = {"resolved": "resolve", "acknowledged": "acknowledge"}
_SEVERITIES = {"page": "critical", "ticket": "warning"}
# Error responses of the receiver, and their fixes.
_WRONG_KEY = "PagerDuty does not know the routing key: use the Integration Key of an Events API v2 integration."
HINTS = (
    ("responded 400", _WRONG_KEY),
    ("responded 403", _WRONG_KEY),
    ("responded 404", "Accounts in the EU set base_url: https://events.eu.pagerduty.com"),
)


@dataclass(frozen=True, slots=True)
class ReleaseNotice:
    service: str
    version: str
    before: str
    at: float
    link: str = ""

    def in_words(self) -> str:
        """Return the notice as a sentence.

        >>> ReleaseNotice("shop", "2", "1", 0.0).in_words()
        'shop: version 2 started serving (before: 1)'
        """
        return f"{self.service}: version {self.version} started serving (before: {self.before})"


class ReleaseChannel(Protocol):
    @property
    def name(self) -> str: ...

    def announce(self, release: ReleaseNotice) -> None: ...


class ReleaseAnnouncer(AlertsThread):
    def __init__(
        self,
        store: Store,
        channel: ReleaseChannel,
        watched: Callable[[], tuple[Collection[str], str]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(f"{channel.name}-releases", EVERY_SECONDS)
        self._store = store
        self._channel = channel
        self._watched = watched
        self._clock = clock

    def step(self) -> float:
        """Send each recent release that was not sent before; return the wait before the next step in seconds."""
        services, dashboard_url = self._watched()
        for release in recent_releases(self._store, services, dashboard_url, self._clock()):
            self._announce_release(release)
        with self._store.transaction() as connection:
            lease.forget(connection, PREFIX, self._clock())
        return EVERY_SECONDS

    def _announce_release(self, release: ReleaseNotice) -> None:
        # A new holder per attempt, so that the lease of a release that was sent is not renewed.
        name, holder = _lease_of(self._channel.name, release), lease.new_holder()
        if not self._hold(name, holder, LEASE_SECONDS):
            return
        remembered_for = REMEMBERED_SECONDS
        try:
            self._channel.announce(release)
        except ChannelError as refused:
            log.warning("alerts: %s did not accept a release: %s", self._channel.name, refused)
            remembered_for = (
                REMEMBERED_SECONDS if refused.permanent else max(LEASE_SECONDS, refused.retry_after_seconds or 0.0)
            )
        self._hold(name, holder, remembered_for)

    def _hold(self, name: str, holder: str, seconds: float) -> bool:
        with self._store.transaction() as connection:
            return lease.hold(connection, name, holder, self._clock(), seconds, longest=REMEMBERED_SECONDS)


def recent_releases(store: Store, services: Collection[str], dashboard_url: str, now: float) -> Iterator[ReleaseNotice]:
    """Return the releases of *services* within the last hour, except the first version of a service."""
    frame = store.read.releases()
    for service in sorted(services):
        rows = frame[(frame["service"] == service) & (frame["version"] != "")]
        seen = [at.to_pydatetime().timestamp() for at in rows["first_seen"]]
        versions = list(zip(rows["version"].astype(str), seen, strict=True))
        for (before, _), (version, at) in pairwise(versions):
            if now - at <= NEWS_SECONDS:
                yield ReleaseNotice(
                    service, version, before, at, _comparison_link(dashboard_url, service, before, version)
                )


def _comparison_link(dashboard_url: str, service: str, before: str, version: str) -> str:
    compared = urlencode({"svc": service, "a": before, "b": version})
    return f"{dashboard_url.rstrip('/')}/compare?{compared}" if dashboard_url else ""


def _lease_of(channel: str, release: ReleaseNotice) -> str:
    named = f"{channel}\0{release.service}\0{release.version}"
    return f"{PREFIX}{hashlib.sha256(named.encode()).hexdigest()[:40]}"


@dataclass(frozen=True, slots=True)
class PagerDutyChannel:
    name: str
    routing_key: str = field(repr=False)
    base_url: str = BASE_URL
    # https://developer.pagerduty.com/docs/events-api-v2/limits: about 120 a minute and key
    gap_seconds: float = 0.6
    refresh: Refresh | None = None

    def send(self, message: Message) -> str:
        """Enqueue *message* as an event and return no reference, because the dedup key identifies the alert."""
        event = event_payload(message, self.routing_key)
        if len(encode_json(event)) > MAX_EVENT_BYTES:
            event["payload"].pop("custom_details", None)
        self._post("/v2/enqueue", event)
        return ""

    def announce(self, release: ReleaseNotice) -> None:
        self._post("/v2/change/enqueue", change_event(release, self.routing_key))

    def _post(self, path: str, event: dict[str, Any]) -> None:
        url = f"{self.base_url.rstrip('/')}{path}"
        response = post_json(url, encode_json(event), {}, receiver="PagerDuty", secrets=[self.routing_key])
        if response.status != ACCEPTED:
            msg = f"PagerDuty responded {response.status} instead of {ACCEPTED}; check the URL"
            raise ChannelError(msg, permanent=False)


def event_payload(message: Message, routing_key: str) -> dict[str, Any]:
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
    if message.chart and message_text.sparkline_of(message):
        alt = line(message_text.chart_in_words(message.finding), MAX_SUMMARY_CHARS)
        event["images"] = [{"src": message.chart, "href": message.finding.link, "alt": alt}]
    return event


def change_event(release: ReleaseNotice, routing_key: str) -> dict[str, Any]:
    """Return the change event for *release*.

    https://developer.pagerduty.com/docs/events-api-v2/send-change-events/
    """
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "payload": {
            "summary": line(release.in_words(), MAX_SUMMARY_CHARS),
            "source": release.service,
            "timestamp": iso_time(release.at),
            "custom_details": {"service": release.service, "version": release.version, "before": release.before},
        },
    }
    if release.link:
        event["links"] = [{"href": release.link, "text": "Before and after"}]
    return event


def _alert(message: Message) -> dict[str, Any]:
    finding = message.finding
    alert: dict[str, Any] = {
        "summary": line(message_text.headline(message), MAX_SUMMARY_CHARS),
        "source": finding.service,
        "severity": _SEVERITIES[finding.severity],
        "timestamp": iso_time(message.at),
        "group": finding.service,
        "class": f"{finding.kind} slo" if finding.burn else "tail regression" if finding.shift else "no data",
        "custom_details": _details(message),
    }
    if finding.blamed is not None:
        alert["component"] = finding.blamed.stage
    return alert


def _details(message: Message) -> dict[str, Any]:
    finding = message.finding
    details: dict[str, Any] = {
        "cause": message_text.cause_text(message),
        "impact": message_text.impact_text(finding),
        **dict(message_text.message_facts(message)),
        "slo": "; ".join(message_text.small_print(message)),
    }
    details |= {about: shape for shape, about in message_text.sparkline_of(message)}
    if finding.growth:
        details[f"stages ({message_text.comparison_basis(finding)})"] = {
            stage: f"{growth}, {share} of the excess" for stage, growth, share in message_text.stage_table(finding)
        }
    if message.also:
        details["also"] = list(message.also)
    if finding.exemplars:
        details[message_text.exemplars_title([exemplar.failed for exemplar in finding.exemplars]).lower()] = [
            f"{what} {link}".strip() for what, link in message_text.slow_requests(finding)
        ]
    if finding.version:
        details["version"] = finding.version
    if finding.description:
        details["description"] = finding.description
    return details


def _links(message: Message) -> list[dict[str, str]]:
    finding = message.finding
    links = [(finding.link, message_text.link_title(finding)), (finding.runbook, "Runbook")]
    links += [(link, cut(what, MAX_SUMMARY_CHARS)) for what, link in message_text.slow_requests(finding)]
    return [{"href": href, "text": text} for href, text in links if href]


class _Section(ChannelSection):
    routing_key: Secret = Field(examples=["PAGERDUTY_ROUTING_KEY"])
    base_url: WebAddress = BASE_URL
    webhook_secret: SigningSecret = SigningSecret()

    def build(self, name: str) -> PagerDutyChannel:
        return PagerDutyChannel(name, self.routing_key.value, self.base_url)


KIND = ChannelKind(_Section, HINTS)
