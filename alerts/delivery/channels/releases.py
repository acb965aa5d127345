"""Releases, told to channels that want to know: one event for each new version of a watched service.

A release is told under a lease of its own: whoever holds it tells, and once it is told the lease lasts until nobody can see
the release any more. So it is told once however many processes run; a process that dies while it tells is followed by
another, and then the receiver may hear of it twice: it pages nobody.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Protocol
from urllib.parse import urlencode

from ....core.errors import ChannelError
from ....store import Store
from ... import lease
from ..loop import Loop

log = logging.getLogger(__name__)

# How often versions are looked for, and how long ago one may have come and still be news. [seconds]
EVERY_SECONDS, NEWS_SECONDS = 60.0, 3600.0
# Longer than telling one may take; what could not be told is tried again after so long, too. [seconds]
LEASE_SECONDS = 60.0
# Longer than a release is news, whatever the clocks say. [seconds]
TOLD_SECONDS = timedelta(days=7).total_seconds()
PREFIX = "release:"


@dataclass(frozen=True, slots=True)
class Release:
    """A version of a service that began to serve.

    Args:
        service: Whose.
        version: The new one.
        before: The newest one until then.
        at: Its first request. [Unix seconds]
        link: The page that compares the two; empty without a dashboard.
    """

    service: str
    version: str
    before: str
    at: float
    link: str = ""

    def in_words(self) -> str:
        """Say it as a sentence.

        >>> Release("shop", "2", "1", 0.0).in_words()
        'shop: version 2 began to serve, after 1'
        """
        return f"{self.service}: version {self.version} began to serve, after {self.before}"


class Announcer(Protocol):
    """A channel that wants to know of releases."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def announce(self, release: Release) -> None:
        """Tell the receiver of *release*.

        Raises:
            ChannelError: It was not accepted.
        """
        ...


class Herald(Loop):
    """Tells one channel of new versions.

    Args:
        store: Where versions are seen, and leases kept.
        channel: Whom to tell.
        watched: Says which services to look at, and where the dashboard is.
        clock: Says the time. [Unix seconds]
    """

    def __init__(
        self,
        store: Store,
        channel: Announcer,
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
        """Tell every release that is news and was not told."""
        services, dashboard_url = self._watched()
        for release in found(self._store, services, dashboard_url, self._clock()):
            self._tell(release)
        with self._store.transaction() as connection:
            lease.forget(connection, PREFIX, self._clock())
        return EVERY_SECONDS

    def _tell(self, release: Release) -> None:
        # A holder for each try: what was told must not look like ours to tell again.
        name, holder = _lease_of(self._channel.name, release), lease.new_holder()
        if not self._hold(name, holder, LEASE_SECONDS):
            return
        told_for = TOLD_SECONDS
        try:
            self._channel.announce(release)
        except ChannelError as refused:
            log.warning("alerts: %s did not accept a release: %s", self._channel.name, refused)
            told_for = TOLD_SECONDS if refused.permanent else max(LEASE_SECONDS, refused.retry_after_seconds or 0.0)
        self._hold(name, holder, told_for)

    def _hold(self, name: str, holder: str, seconds: float) -> bool:
        with self._store.transaction() as connection:
            return lease.hold(connection, name, holder, self._clock(), seconds)


def found(store: Store, services: Collection[str], dashboard_url: str, now: float) -> Iterator[Release]:
    """Return the releases of *services* that are news: a version that came within the hour, after another one."""
    frame = store.read.releases()
    for service in sorted(services):
        rows = frame[(frame["service"] == service) & (frame["version"] != "")]
        seen = [at.to_pydatetime().timestamp() for at in rows["first_seen"]]
        versions = list(zip(rows["version"].astype(str), seen, strict=True))
        for (before, _), (version, at) in pairwise(versions):
            if now - at <= NEWS_SECONDS:
                yield Release(service, version, before, at, _link(dashboard_url, service, before, version))


def _link(dashboard_url: str, service: str, before: str, version: str) -> str:
    """Return the page that compares two versions."""
    compared = urlencode({"svc": service, "a": before, "b": version})
    return f"{dashboard_url.rstrip('/')}/compare?{compared}" if dashboard_url else ""


def _lease_of(channel: str, release: Release) -> str:
    """Return the name of a release's lease: 64 characters at most, whatever the names are."""
    named = f"{channel}\0{release.service}\0{release.version}"
    return f"{PREFIX}{hashlib.sha256(named.encode()).hexdigest()[:40]}"
