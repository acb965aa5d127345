"""The alerts service: start, evaluation, recovery and stop, and its metrics and probes."""

from __future__ import annotations

import json
import logging
import random
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from stagelens.alerts.config import AlertsConfig
from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.channels import ChannelEntry, heartbeat
from stagelens.alerts.delivery.channels.heartbeat import EVALUATED_LEASE
from stagelens.alerts.delivery.outbox import AlertsThread
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.objectives.slo_file import EXAMPLE, Definitions
from stagelens.alerts.serve import AlertMetrics, Alerts
from stagelens.collector.self_metrics import SelfMetrics
from stagelens.core.errors import ChannelError, ConfigError, StagelensError, StoreError
from stagelens.store import Store, lease
from tests.alerts.deadlines import wait_until
from tests.alerts.traffic import LATENCY, NOW, SLOW, Traffic
from tests.support import prometheus_tool
from tests.support.http_server import Request, Response, http_server

SECOND, MINUTE, TICK = timedelta(seconds=1), timedelta(minutes=1), timedelta(milliseconds=20)
WATCHED = EXAMPLE.replace("service: checkout", "service: magika-demo")


class Inbox:
    """What a webhook and a heartbeat receiver got."""

    def __init__(self) -> None:
        self.bodies, self.pings, self.url = list[dict[str, Any]](), list[str](), ""

    def take(self, request: Request) -> Response:
        if request.method == "POST":
            self.bodies.append(json.loads(request.body))
        else:
            self.pings.append(request.path)
        return 204, {}, b""

    @property
    def transitions(self) -> list[str]:
        return [body["transition"] for body in self.bodies]


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    with http_server(inbox.take) as server:
        inbox.url = server.url
        yield inbox


Open = Callable[..., Alerts]


@pytest.fixture
def open_alerts(store: Store, slo_yaml: Path, inbox: Inbox) -> Open:
    """Return the service with an SLO file of these channels."""

    def made(*channels: str, slos: str = WATCHED, store: Store = store, **config: Any) -> Alerts:
        url, ping = f'kind: webhook, url: "{inbox.url}"', f'kind: heartbeat, url: "{inbox.url}/ping"'
        known = {"webhook": url, "heartbeat": ping}
        written = "".join(f"  - {{{known.get(channel, channel)}}}\n" for channel in channels)
        slo_yaml.write_text(slos + (f"channels:\n{written}" if written else ""), encoding="utf-8")
        settings: dict[str, Any] = {"slo_file": slo_yaml, "interval": SECOND, **config}
        return Alerts(AlertsConfig(**settings), store)

    return made


@pytest.fixture
def slow(traffic: Traffic) -> Callable[[], None]:
    """Store ten minutes of slow requests until now."""
    return lambda: traffic(datetime.now(UTC) - 10 * MINUTE, 10 * MINUTE, {50: SLOW})


def run_until(condition: Callable[[], object], *running: Alerts) -> None:
    for alerts in running:
        alerts.start()
    wait_until(condition)
    for alerts in running:
        alerts.stop()


def test_a_high_burn_rate_is_notified_and_the_heartbeat_is_sent(
    open_alerts: Open, slow: Callable[[], None], inbox: Inbox
) -> None:
    slow()
    alerts = open_alerts("webhook", "heartbeat", dashboard_url="http://dash.example")
    run_until(lambda: inbox.bodies and inbox.pings, alerts)

    assert (inbox.transitions, set(inbox.pings)) == (["opened"], {"/ping"})
    assert inbox.bodies[0]["incident"]["link"].startswith("http://dash.example/s/magika-demo?p=99&from=")
    assert {row.channel for row in alerts.reader.incidents()[0].deliveries} == {"webhook"}


def test_an_invalid_file_at_reload_leaves_the_previous_slos(
    open_alerts: Open, slow: Callable[[], None], slo_yaml: Path, inbox: Inbox
) -> None:
    alerts = open_alerts("webhook")
    alerts.tick()
    slo_yaml.write_text("slos: [", encoding="utf-8")
    slow()
    alerts.tick()
    run_until(lambda: inbox.bodies, alerts)

    assert alerts.reader.file.errors[0].startswith(f"{slo_yaml}:1: this is not YAML")
    assert alerts.reader.incidents()[0].name == "checkout-latency"


def test_messages_of_a_channel_without_its_secret_wait(
    open_alerts: Open, slow: Callable[[], None], inbox: Inbox
) -> None:
    slow()
    without = open_alerts("kind: webhook, url_env: HOOK")
    without.tick()
    run_until(lambda: True, without)
    waiting = [row.state for row in without.reader.incidents()[0].deliveries]
    run_until(lambda: inbox.bodies, open_alerts("kind: webhook, url_env: HOOK", env={"HOOK": inbox.url}))

    assert waiting == ["waiting"]


def test_a_channel_uses_its_rotated_secret(
    open_alerts: Open, slow: Callable[[], None], tmp_path: Path, inbox: Inbox
) -> None:
    secret = tmp_path / "url"
    secret.write_text("http://127.0.0.1:9/nobody", encoding="utf-8")
    alerts = open_alerts(f"kind: webhook, url_file: {secret}")
    alerts.tick()
    secret.write_text(inbox.url, encoding="utf-8")
    slow()
    alerts.tick()
    run_until(lambda: inbox.bodies, alerts)

    assert inbox.transitions == ["opened"]


def test_a_failing_store_is_retried(
    store: Store, open_alerts: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store.transaction

    def broken() -> Any:
        msg = "the disk is full"
        raise StoreError(msg)

    monkeypatch.setattr(store, "transaction", broken)
    alerts = open_alerts("webhook", interval=TICK)
    with caplog.at_level(logging.INFO):
        alerts.start()
        wait_until(lambda: "the disk is full" in caplog.text)
        monkeypatch.setattr(store, "transaction", real)
        wait_until(lambda: "alerts: recovered" in caplog.text)
        alerts.stop()

    assert caplog.text.count("the disk is full") == 1


def test_a_failing_evaluation_stops_the_heartbeat(
    open_alerts: Open, inbox: Inbox, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluator, "tick", lambda *_: 1 / 0)
    monkeypatch.setattr(heartbeat, "START_GRACE_SECONDS", 0.0)
    alerts = open_alerts("webhook", "heartbeat", interval=TICK)
    run_until(lambda: "no heartbeat to heartbeat: no evaluation succeeded recently" in caplog.text, alerts)

    assert inbox.pings == []


def test_a_process_without_the_lease_records_no_evaluation(store: Store, open_alerts: Open) -> None:
    first, second = (open_alerts("webhook", "heartbeat") for _ in range(2))
    first.tick()
    with store.transaction() as connection:
        lease.release(connection, EVALUATED_LEASE, first.holder)
    second.tick()
    now = datetime.now(UTC).timestamp()
    with store.engine.connect() as connection:
        vouched = lease.holder_of(connection, EVALUATED_LEASE, now)
    run_until(lambda: True, first, second)

    assert vouched is None


def test_the_settings_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bare = AlertsConfig.from_env({})
    (tmp_path / "slo.yaml").touch()
    given = AlertsConfig.from_env(
        {
            "STAGELENS_ALERT_INTERVAL": "30s",
            "STAGELENS_DASHBOARD_URL": "https://d.example/",
            "STAGELENS_ALERTS_METRICS_HOST": "0.0.0.0",
            "STAGELENS_ALERTS_METRICS_PORT": "9464",
        }
    )

    assert (bare.slo_file, bare.interval) == (None, timedelta(seconds=10))
    assert (bare.metrics_host, bare.metrics_port) == ("127.0.0.1", None)
    assert (given.metrics_host, given.metrics_port) == ("0.0.0.0", 9464)
    assert (given.slo_file, given.interval, given.dashboard_url) == (Path("slo.yaml"), 30 * SECOND, "https://d.example")


@pytest.mark.parametrize(
    ("setting", "value", "complaint"),
    [
        ("STAGELENS_SLO_FILE", "/none.yaml", "is '/none.yaml', which is not a file"),
        ("STAGELENS_ALERT_INTERVAL", "1ms", "is 0.001s; write at least 1s"),
        ("STAGELENS_MAY_CALL", "https://hooks.slack.com", "has 'https://hooks.slack.com'"),
        ("STAGELENS_DASHBOARD_URL", "localhost", "is 'localhost'; write a web address"),
    ],
)
def test_an_invalid_setting_names_the_fix(setting: str, value: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^{setting} {complaint}"):
        AlertsConfig.from_env({setting: value})


CHANNELS = tuple(ChannelEntry(name, "webhook", None, "URL") for name in ("pager", "slack", "mail"))
NOTHING = {
    'open_incidents{severity="page"}': 0,
    'open_incidents{severity="ticket"}': 0,
    "oldest_page_wait_seconds": 0,
    "last_evaluation_timestamp_seconds": 0,
}


def exposed(store: Store, at: datetime) -> dict[str, float]:
    return samples(exposition(AlertMetrics(store, at.timestamp)))


def exposition(metrics: AlertMetrics) -> str:
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


def samples(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("stagelens_alerts_")]
    return {name.removeprefix("stagelens_alerts_"): float(value) for name, _, value in lines}


@pytest.fixture
def burning(traffic: Traffic, evaluator: Evaluator) -> Store:
    """Store with an incident that is to be sent to three channels."""
    traffic(NOW - 10 * MINUTE, 10 * MINUTE, {50: SLOW})
    evaluator.tick(Definitions((LATENCY,), CHANNELS), NOW)
    return traffic.store


def test_messages_are_counted_by_channel_and_state(burning: Store) -> None:
    errors = {"slack": ChannelError("no_service", permanent=True), "mail": ChannelError("greylisted", permanent=False)}
    at = NOW.timestamp()
    for channel in ("pager", *errors):
        with burning.transaction() as connection:
            claimed = outbox.claim_message(connection, channel, "me", at, 60)
        assert claimed is not None
        # A message that is being sent counts as waiting.
        assert exposed(burning, NOW)[f'messages{{channel="{channel}",state="waiting"}}'] == 1
        with burning.transaction() as connection:
            if channel in errors:
                outbox.mark_failed(connection, claimed, errors[channel], at, random.Random(1))
            else:
                outbox.mark_sent(connection, claimed, at)
    counts = {"mail": (1, 0, 0), "pager": (0, 1, 0), "slack": (0, 0, 1)}

    assert exposed(burning, NOW + MINUTE) == {
        **NOTHING,
        'open_incidents{severity="page"}': 1,
        "oldest_page_wait_seconds": 60,
        **{
            f'messages{{channel="{channel}",state="{state}"}}': number
            for channel, numbers in counts.items()
            for state, number in zip(("waiting", "sent", "dead"), numbers, strict=True)
        },
    }


def test_counts_are_zero_before_the_first_message(store: Store, open_alerts: Open) -> None:
    alerts = open_alerts("webhook")
    alerts.file.refresh(datetime.now(UTC))

    assert exposed(store, NOW) == NOTHING
    assert samples(exposition(alerts.metrics))['messages{channel="webhook",state="dead"}'] == 0


def test_only_a_complete_evaluation_updates_the_time(
    store: Store, open_alerts: Open, slo_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_alerts()
    at = [NOW, NOW + MINUTE]
    alerts = Alerts(AlertsConfig(slo_file=slo_yaml), store, clock=lambda: at[0])
    alerts.tick()
    del at[0]
    monkeypatch.setattr("stagelens.alerts.evaluation.evaluator.evaluate_slo", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        alerts.tick()

    assert exposed(store, NOW + MINUTE)["last_evaluation_timestamp_seconds"] == NOW.timestamp()


@pytest.mark.stacks
def test_alert_metrics_pass_promtool(burning: Store) -> None:
    assert prometheus_tool.run("check", "metrics", given=exposition(AlertMetrics(burning)).encode()) == (0, "")


def test_an_unreadable_database_leaves_other_metrics(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with store.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE outbox")
    beside = SelfMetrics()
    beside.include(AlertMetrics(store))
    found = beside.exposition().decode()

    assert "stagelens_collector_healthy 1.0" in found
    assert "stagelens_alerts_" not in found
    assert "alerts: their metrics cannot be read" in caplog.text


def get(alerts: Alerts, path: str) -> httpx.Response:
    return httpx.get(alerts.place.rpartition(" ")[2].replace("/metrics", path), timeout=60)


def status(alerts: Alerts, path: str) -> tuple[int, str]:
    response = get(alerts, path)
    return response.status_code, response.text


def test_alerts_serve_metrics_on_the_configured_port(store: Store) -> None:
    alerts = Alerts(AlertsConfig(metrics_port=0), store)
    alerts.start()
    found = samples(get(alerts, "/metrics").text)
    alerts.stop()

    assert "metrics on http://127.0.0.1:" in alerts.place
    assert found['open_incidents{severity="page"}'] == 0
    with pytest.raises(httpx.ConnectError):
        get(alerts, "/metrics")


def test_probes_report_a_failure_and_its_end(store: Store, open_alerts: Open) -> None:
    alerts = open_alerts(interval=TICK, metrics_port=0)
    with store.transaction() as connection:
        connection.exec_driver_sql("ALTER TABLE leases RENAME TO gone")
    alerts.start()
    # Until the first evaluation.
    wait_until(lambda: "store cannot be used" in get(alerts, "/readyz").text)
    sick, living = status(alerts, "/readyz"), status(alerts, "/livez")
    with store.transaction() as connection:
        connection.exec_driver_sql("ALTER TABLE gone RENAME TO leases")
    wait_until(lambda: get(alerts, "/readyz").status_code == 200)
    alerts.stop()

    assert (sick[0], living) == (503, (200, "ok\n"))


def test_alerts_without_a_valid_file_are_not_ready(open_alerts: Open) -> None:
    alerts = open_alerts(slos="slos: [{name: no-service}]\n", metrics_port=0)
    alerts.start()
    living, (ready, text) = status(alerts, "/livez"), status(alerts, "/readyz")
    alerts.stop()

    assert (living, ready) == ((200, "ok\n"), 503)
    assert "the SLO file has errors" in text


@pytest.mark.parametrize(("ended", "name"), [(Alerts, "stagelens-alerts"), (AlertsThread, "stagelens-alerts-webhook")])
def test_a_stopped_thread_fails_the_probes(
    open_alerts: Open, monkeypatch: pytest.MonkeyPatch, ended: type, name: str
) -> None:
    monkeypatch.setattr(ended, "_run", lambda _thread: None)
    alerts = open_alerts("webhook", metrics_port=0)
    alerts.tick()
    alerts.start()
    wait_until(lambda: get(alerts, "/livez").status_code == 503)
    found = [status(alerts, path) for path in ("/livez", "/readyz")]
    alerts.stop()

    assert found == [(503, f"threads stopped: {name}; see the log and restart the alerts\n")] * 2


def test_a_standby_process_is_ready(open_alerts: Open) -> None:
    first, second = (open_alerts(metrics_port=0) for _ in range(2))
    first.tick()
    for alerts in (first, second):
        alerts.start()
    found = [status(alerts, "/readyz") for alerts in (first, second)]
    first.stop()
    alone = status(second, "/readyz")
    second.stop()

    assert found == [(200, "ok\n"), (200, "ok; standing by, another process evaluates\n")]
    assert alone == (200, "ok\n")


def test_probes_contain_no_database_address(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    alerts = Alerts(AlertsConfig(metrics_port=0), store)
    with store.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE leases")
    alerts.start()
    found = status(alerts, "/readyz")
    alerts.stop()

    assert found == (503, "the store cannot be read; see the log of the alerts\n")
    assert "leases" in caplog.text


def test_a_port_in_use_is_explained(store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StagelensError, match=rf"127.0.0.1:{port}(.|\n)*STAGELENS_ALERTS_METRICS_PORT"):
            Alerts(AlertsConfig(metrics_port=port), store).start()
