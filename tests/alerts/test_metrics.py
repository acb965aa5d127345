"""The alerts' own metrics: what is on record, read when Prometheus asks, from whichever process."""

from __future__ import annotations

import logging
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from stagelens.alerts.config import AlertsConfig
from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.channels import ChannelEntry
from stagelens.alerts.evaluate import Evaluator
from stagelens.alerts.metrics import AlertMetrics
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.objectives.slo_file import Definitions
from stagelens.alerts.serve import Alerts
from stagelens.collector.health import Health
from stagelens.collector.selfmetrics import SelfMetrics
from stagelens.collector.store import Store
from stagelens.core.errors import ChannelError, StagelensError

MINUTE = timedelta(minutes=1)
SLOW = {"forward": 0.020, "preprocess": 0.390}
LATENCY = Slo("latency", "magika-demo", 0.99, timedelta(days=30), timedelta(milliseconds=250))
CHANNELS = tuple(ChannelEntry(name, "webhook", None, "URL") for name in ("pager", "slack", "mail"))
DEFINITIONS = Definitions((LATENCY,), CHANNELS)

# The fixture of conftest.py; its class cannot be imported from there.
Traffic = Callable[..., None]


def exposed(store: Store, at: datetime) -> dict[str, float]:
    """Return every sample there is at *at*, by its name and labels, without the common beginning."""
    return samples(said(AlertMetrics(store, at.timestamp)))


def said(metrics: AlertMetrics) -> str:
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


def samples(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("stagelens_alerts_")]
    return {name.removeprefix("stagelens_alerts_"): float(value) for name, _, value in lines}


def settle(store: Store, channel: str, now: datetime, error: ChannelError | None) -> None:
    """Send the next message of *channel*, with *error* or without."""
    with store.transaction() as connection:
        claimed = outbox.claim(connection, channel, "me", now.timestamp(), 60)
        assert claimed is not None
        if error is None:
            outbox.sent(connection, claimed, now.timestamp())
        else:
            outbox.failed(connection, claimed, error, now.timestamp(), random.Random(1))


def test_an_empty_database_has_its_zeros(store: Store, now: datetime) -> None:
    """Nothing open, nothing waits, never evaluated: each is said, so that an alert on it has something to compare."""
    assert exposed(store, now) == {
        'open_incidents{severity="page"}': 0,
        'open_incidents{severity="ticket"}': 0,
        "oldest_page_wait_seconds": 0,
        "last_evaluation_timestamp_seconds": 0,
    }


def test_what_became_of_messages_is_told_by_channel(store: Store, traffic: Traffic, now: datetime) -> None:
    """Accepted, refused for good, or still to be sent; and since when a page waits for somebody to take it."""
    traffic(now - 10 * MINUTE, 10 * MINUTE, {50: SLOW})
    Evaluator(store, "me", lease_seconds=30).tick(DEFINITIONS, now)
    settle(store, "pager", now, None)
    settle(store, "slack", now, ChannelError("no_service", permanent=True))
    settle(store, "mail", now, ChannelError("greylisted", permanent=False))

    assert exposed(store, now + MINUTE) == {
        'messages{channel="mail",state="waiting"}': 1,
        'messages{channel="mail",state="sent"}': 0,
        'messages{channel="mail",state="dead"}': 0,
        'messages{channel="pager",state="waiting"}': 0,
        'messages{channel="pager",state="sent"}': 1,
        'messages{channel="pager",state="dead"}': 0,
        'messages{channel="slack",state="waiting"}': 0,
        'messages{channel="slack",state="sent"}': 0,
        'messages{channel="slack",state="dead"}': 1,
        'open_incidents{severity="page"}': 1,
        'open_incidents{severity="ticket"}': 0,
        "oldest_page_wait_seconds": 60,
        "last_evaluation_timestamp_seconds": now.timestamp(),
    }


def test_what_is_being_sent_waits_still(store: Store, traffic: Traffic, now: datetime) -> None:
    """Whether a receiver takes it is not known before it has."""
    traffic(now - 10 * MINUTE, 10 * MINUTE, {50: SLOW})
    Evaluator(store, "me", lease_seconds=30).tick(DEFINITIONS, now)
    with store.transaction() as connection:
        outbox.claim(connection, "pager", "me", now.timestamp(), 60)

    assert exposed(store, now)['messages{channel="pager",state="waiting"}'] == 1


def test_prometheus_likes_them(store: Store, traffic: Traffic, now: datetime) -> None:
    """Names, units and help are as `promtool check metrics` wants them."""
    promtool = shutil.which("promtool")
    if promtool is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no promtool; `apt-get install prometheus` has it")
    traffic(now - 10 * MINUTE, 10 * MINUTE, {50: SLOW})
    Evaluator(store, "me", lease_seconds=30).tick(DEFINITIONS, now)
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=said(AlertMetrics(store)),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_a_database_that_cannot_be_read_leaves_the_others(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """The collector's own metrics are there all the same, and the log says what is wrong."""
    with store.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE outbox")
    beside = SelfMetrics(Health())
    beside.include(AlertMetrics(store))
    with caplog.at_level(logging.WARNING):
        found = beside.exposition().decode()

    assert "stagelens_collector_healthy 1.0" in found
    assert "stagelens_alerts_" not in found
    assert "alerts: their metrics cannot be read" in caplog.text


def test_alerts_serve_them_where_they_are_told_to(store: Store) -> None:
    """A port of their own, for a process that has no other server; nothing listens once they have stopped."""
    alerts = Alerts(AlertsConfig(metrics_port=0), store)
    alerts.start()
    url = alerts.place.rpartition(" ")[2]
    found = samples(httpx.get(url).text)
    alerts.stop()

    assert url.startswith("http://127.0.0.1:")
    assert found['open_incidents{severity="page"}'] == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_a_taken_port_is_explained(store: Store) -> None:
    """Which address, and which setting to change."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StagelensError, match=rf"127.0.0.1:{port}(.|\n)*STAGELENS_ALERTS_METRICS_PORT"):
            Alerts(AlertsConfig(metrics_port=port), store).start()
