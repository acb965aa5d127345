"""Processes that deliver or evaluate alerts until a test kills them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path

import httpx

from stagelens.alerts.delivery import channel
from stagelens.alerts.delivery.channel import Channel, Refresh
from stagelens.alerts.delivery.channels.alertmanager import AlertmanagerChannel
from stagelens.alerts.delivery.channels.email import EmailChannel
from stagelens.alerts.delivery.channels.pagerduty import PagerDutyChannel
from stagelens.alerts.delivery.channels.slack import SlackBot, SlackWebhook
from stagelens.alerts.delivery.channels.webhook import WebhookChannel
from stagelens.alerts.delivery.outbox import DeliveryWorker
from stagelens.store import Store
from stagelens.store.lease import new_holder
from tests.support.forked_processes import ForkedProcesses

# Longer than a slow response takes, so that only a missing response is an unknown outcome. [seconds]
TIMEOUT_SECONDS = 60.0
# Shorter than the real interval of one minute. [seconds]
REMINDED = Refresh(every_seconds=1.0, after_end_seconds=5.0)


class Hurried(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return min(super().uniform(a, b) / 20, 0.5)


class AlertProcesses(ForkedProcesses):
    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(Path(os.devnull) if quiet else None)

    def start(
        self,
        database: str,
        receivers: Mapping[str, str],
        lease_seconds: float = 1.0,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> int:
        return self.fork(deliver, database, dict(receivers), lease_seconds, timeout_seconds)

    def watch(self, environment: Mapping[str, str]) -> int:
        return self.stagelens("alerts", **environment)


def channel_of(kind: str, url: str) -> Channel:
    host, port = "127.0.0.1", int(url.rpartition(":")[2])
    channels: dict[str, Channel] = {
        "slack": SlackWebhook("slack", f"{url}/services/T0/B0/x", gap_seconds=0.0),
        "slack_bot": SlackBot("slack_bot", "xoxb-1-2-secret", "C0123456789", base_url=f"{url}/api", gap_seconds=0.0),
        "pagerduty": PagerDutyChannel("pagerduty", "K" * 32, url, gap_seconds=0.0),
        "alertmanager": AlertmanagerChannel("alertmanager", url, refresh=REMINDED),
        "email": EmailChannel("email", host, "alerts@example.com", ("oncall@example.com",), security="none", port=port),
        "webhook": WebhookChannel("webhook", f"{url}/alerts", "s3cret"),
    }
    return channels[kind]


def deliver(database: str, receivers: Mapping[str, str], lease_seconds: float, timeout_seconds: float) -> None:
    channel.TIMEOUT = httpx.Timeout(timeout_seconds)
    store, holder = Store.open(database), new_holder()
    for kind, url in receivers.items():
        DeliveryWorker(store, channel_of(kind, url), holder, lease_seconds=lease_seconds, rng=Hurried()).start()
    signal.pause()
