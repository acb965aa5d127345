"""Metrics and probes of the alerts service, read from the database at each scrape."""

from __future__ import annotations

import logging
import random
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from stagelens.alerts.config import AlertsConfig
from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.channels import ChannelEntry
from stagelens.alerts.delivery.outbox import AlertsThread
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.objectives.slo_file import EXAMPLE, Definitions
from stagelens.alerts.serve import AlertMetrics, Alerts
from stagelens.collector.health import Health
from stagelens.collector.self_metrics import SelfMetrics
from stagelens.core.errors import ChannelError, StagelensError
from stagelens.store import Store
from tests.alerts.traffic import NOW, SLOW, Traffic
from tests.support import prometheus_tool

MINUTE = timedelta(minutes=1)
LATENCY = Slo("latency", "magika-demo", 0.99, timedelta(days=30), timedelta(milliseconds=250))
CHANNELS = tuple(ChannelEntry(name, "webhook", None, "URL") for name in ("pager", "slack", "mail"))
WITHOUT_CHANNELS = EXAMPLE.partition("channels:")[0]
DEFINITIONS = Definitions((LATENCY,), CHANNELS)


def exposed(store: Store, at: datetime) -> dict[str, float]:
    return samples(exposition(AlertMetrics(store, at.timestamp)))


def exposition(metrics: AlertMetrics) -> str:
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


def samples(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("stagelens_alerts_")]
    return {name.removeprefix("stagelens_alerts_"): float(value) for name, _, value in lines}


def settle(store: Store, channel: str, error: ChannelError | None) -> None:
    with store.transaction() as connection:
        claimed = outbox.claim_message(connection, channel, "me", NOW.timestamp(), 60)
        assert claimed is not None
        if error is None:
            outbox.mark_sent(connection, claimed, NOW.timestamp())
        else:
            outbox.mark_failed(connection, claimed, error, NOW.timestamp(), random.Random(1))


def test_an_empty_database_has_zero_counts(store: Store) -> None:
    assert exposed(store, NOW) == {
        'open_incidents{severity="page"}': 0,
        'open_incidents{severity="ticket"}': 0,
        "oldest_page_wait_seconds": 0,
        "last_evaluation_timestamp_seconds": 0,
    }


def test_messages_are_counted_by_channel_and_state(store: Store, traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {50: SLOW})
    evaluator.tick(DEFINITIONS, NOW)
    settle(store, "pager", None)
    settle(store, "slack", ChannelError("no_service", permanent=True))
    settle(store, "mail", ChannelError("greylisted", permanent=False))

    assert exposed(store, NOW + MINUTE) == {
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
        "last_evaluation_timestamp_seconds": 0,
    }


def test_a_channel_has_zero_counts_before_its_first_message(store: Store, slo_yaml: Path) -> None:
    slo_yaml.write_text(WITHOUT_CHANNELS + 'channels: [{kind: webhook, url: "http://127.0.0.1:9"}]\n')
    alerts = Alerts(AlertsConfig(slo_file=slo_yaml), store)
    alerts.file.refresh(datetime.now(UTC))

    assert samples(exposition(alerts.metrics))['messages{channel="webhook",state="dead"}'] == 0


def test_only_a_complete_evaluation_updates_the_time(
    store: Store, slo_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slo_yaml.write_text(WITHOUT_CHANNELS)
    at = [NOW, NOW + MINUTE]
    alerts = Alerts(AlertsConfig(slo_file=slo_yaml), store, clock=lambda: at[0])
    alerts.tick()
    del at[0]

    def broken(*_: object, **_more: object) -> None:
        msg = "one SLO cannot be judged"
        raise ValueError(msg)

    monkeypatch.setattr("stagelens.alerts.evaluation.evaluator.evaluate_slo", broken)
    with pytest.raises(ValueError, match="cannot be judged"):
        alerts.tick()

    assert exposed(store, NOW + MINUTE)["last_evaluation_timestamp_seconds"] == NOW.timestamp()


def test_a_message_being_sent_counts_as_waiting(store: Store, traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {50: SLOW})
    evaluator.tick(DEFINITIONS, NOW)
    with store.transaction() as connection:
        outbox.claim_message(connection, "pager", "me", NOW.timestamp(), 60)

    assert exposed(store, NOW)['messages{channel="pager",state="waiting"}'] == 1


@pytest.mark.stacks
def test_alert_metrics_pass_promtool(store: Store, traffic: Traffic, evaluator: Evaluator) -> None:
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {50: SLOW})
    evaluator.tick(DEFINITIONS, NOW)
    checked = prometheus_tool.run("check", "metrics", given=exposition(AlertMetrics(store)).encode())

    assert checked == (0, "")


def test_an_unreadable_database_leaves_other_metrics(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with store.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE outbox")
    beside = SelfMetrics(Health())
    beside.include(AlertMetrics(store))
    with caplog.at_level(logging.WARNING):
        found = beside.exposition().decode()

    assert "stagelens_collector_healthy 1.0" in found
    assert "stagelens_alerts_" not in found
    assert "alerts: their metrics cannot be read" in caplog.text


def test_alerts_serve_metrics_on_the_configured_port(store: Store) -> None:
    alerts = Alerts(AlertsConfig(metrics_port=0), store)
    alerts.start()
    url = alerts.place.rpartition(" ")[2]
    found = samples(httpx.get(url, timeout=60).text)
    alerts.stop()

    assert url.startswith("http://127.0.0.1:")
    assert found['open_incidents{severity="page"}'] == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_probes_report_a_failure_and_its_end(store: Store, slo_yaml: Path) -> None:
    slo_yaml.write_text(EXAMPLE)
    alerts = Alerts(AlertsConfig(slo_file=slo_yaml, interval=timedelta(milliseconds=20), metrics_port=0), store)
    with store.transaction() as connection:
        connection.exec_driver_sql("ALTER TABLE leases RENAME TO gone")
    alerts.start()
    with httpx.Client(base_url=alerts.place.rpartition(" ")[2].removesuffix("/metrics"), timeout=60) as client:
        # Until the first evaluation.
        while "store cannot be used" not in (sick := client.get("/readyz")).text:
            pass
        living = client.get("/livez")
        with store.transaction() as connection:
            connection.exec_driver_sql("ALTER TABLE gone RENAME TO leases")
        while client.get("/readyz").status_code == 503:  # until the next evaluation
            pass
    alerts.stop()

    assert sick.status_code == 503
    assert (living.status_code, living.text) == (200, "ok\n")


def test_alerts_without_a_valid_file_are_not_ready(store: Store, slo_yaml: Path) -> None:
    slo_yaml.write_text("slos: [{name: no-service}]\n")
    alerts = Alerts(AlertsConfig(slo_file=slo_yaml, metrics_port=0), store)
    alerts.start()
    base = alerts.place.rpartition(" ")[2].removesuffix("/metrics")
    living, ready = (httpx.get(f"{base}/{probe}", timeout=60) for probe in ("livez", "readyz"))
    alerts.stop()

    assert (living.status_code, ready.status_code) == (200, 503)
    assert "the SLO file has errors" in ready.text


def test_a_stopped_evaluation_thread_fails_the_liveness_probe(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Alerts, "_run", lambda _alerts: None)
    alerts = Alerts(AlertsConfig(metrics_port=0), store)
    alerts.start()
    end_of("stagelens-alerts")
    found = probed(alerts, "/livez"), probed(alerts, "/readyz")
    alerts.stop()

    for response in found:
        assert response.status_code == 503
        assert response.text == ("threads stopped: stagelens-alerts; see the log and restart the alerts\n")


def test_a_stopped_channel_thread_fails_the_liveness_probe(
    store: Store, slo_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slo_yaml.write_text(WITHOUT_CHANNELS + 'channels: [{kind: webhook, url: "http://127.0.0.1:9"}]\n')
    monkeypatch.setattr(AlertsThread, "_run", lambda _loop: None)
    alerts = Alerts(AlertsConfig(slo_file=slo_yaml, metrics_port=0), store)
    alerts.tick()
    end_of("stagelens-alerts-webhook")
    alerts.start()
    found = probed(alerts, "/livez")
    alerts.stop()

    assert found.status_code == 503
    assert "threads stopped: stagelens-alerts-webhook" in found.text


def test_a_standby_process_is_ready(store: Store, slo_yaml: Path) -> None:
    slo_yaml.write_text(WITHOUT_CHANNELS)
    first, second = (Alerts(AlertsConfig(slo_file=slo_yaml, metrics_port=0), store) for _ in range(2))
    first.tick()
    for alerts in (first, second):
        alerts.start()
    found = [probed(alerts, "/readyz") for alerts in (first, second)]
    first.stop()
    alone = probed(second, "/readyz")
    second.stop()

    assert [response.status_code for response in (*found, alone)] == [200, 200, 200]
    assert found[0].text == alone.text == "ok\n"
    assert "standing by" in found[1].text


def test_probes_contain_no_database_address(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    alerts = Alerts(AlertsConfig(metrics_port=0), store)
    with store.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE leases")
    alerts.start()
    found = probed(alerts, "/readyz")
    alerts.stop()

    assert (found.status_code, found.text) == (
        503,
        "the store cannot be read; see the log of the alerts\n",
    )
    assert "leases" in caplog.text


def probed(alerts: Alerts, path: str) -> httpx.Response:
    return httpx.get(alerts.place.rpartition(" ")[2].replace("/metrics", path), timeout=60)


def end_of(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join()


def test_a_port_in_use_is_explained(store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StagelensError, match=rf"127.0.0.1:{port}(.|\n)*STAGELENS_ALERTS_METRICS_PORT"):
            Alerts(AlertsConfig(metrics_port=port), store).start()
