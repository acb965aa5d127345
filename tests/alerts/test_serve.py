"""The alerts service: start, evaluation, recovery and stop."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stagelens.alerts.config import AlertsConfig
from stagelens.alerts.delivery.channels import heartbeat
from stagelens.alerts.delivery.channels.heartbeat import EVALUATED_LEASE
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.serve import Alerts
from stagelens.core.errors import ConfigError, StoreError
from stagelens.store import Store, lease
from tests.alerts.traffic import SLOW, Traffic
from tests.support.http_server import Request, Response, http_server

SECOND = timedelta(seconds=1)
TIMEOUT_SECONDS = 90


class Inbox:
    """What a webhook and a heartbeat receiver got."""

    def __init__(self) -> None:
        self.bodies, self.pings = list[dict[str, Any]](), list[str]()
        self._came = threading.Condition()

    def take(self, request: Request) -> Response:
        with self._came:
            if request.method == "POST":
                self.bodies.append(json.loads(request.body))
            else:
                self.pings.append(request.path)
            self._came.notify_all()
        return 204, {}, b""

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self._came:
            assert self._came.wait_for(condition, TIMEOUT_SECONDS), "it did not come within the deadline"


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def inbox_url(inbox: Inbox) -> Iterator[str]:
    with http_server(inbox.take) as server:
        yield server.url


WATCHED = """\
slos:
  - {name: latency, service: magika-demo, objective: 0.99, threshold: 250ms, window: 30d}
channels:
"""


@pytest.fixture
def slo_yaml(tmp_path: Path, inbox_url: str) -> Path:
    path = tmp_path / "slo.yaml"
    path.write_text(f'{WATCHED}  - {{kind: webhook, url: "{inbox_url}"}}\n', encoding="utf-8")
    return path


@pytest.fixture
def slow(traffic: Traffic) -> Callable[[], None]:
    """Store ten minutes of slow requests until now."""
    return lambda: traffic(datetime.now(UTC) - timedelta(minutes=10), timedelta(minutes=10), {50: SLOW})


class AlertLog(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []
        self._more = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._more:
            self._lines.append(record.getMessage())
            self._more.notify_all()

    def wait_for(self, text: str) -> None:
        with self._more:
            assert self._more.wait_for(lambda: any(text in line for line in self._lines), TIMEOUT_SECONDS), self._lines


@pytest.fixture
def alert_log() -> Iterator[AlertLog]:
    handler, logger = AlertLog(), logging.getLogger("stagelens")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_a_high_burn_rate_is_notified(store: Store, slow: Callable[[], None], slo_yaml: Path, inbox: Inbox) -> None:
    slow()
    alerts = Alerts(AlertsConfig(slo_file=slo_yaml, interval=SECOND, dashboard_url="http://dash.example"), store)
    alerts.start()
    inbox.wait_for(lambda: inbox.bodies)
    alerts.stop()

    assert [body["transition"] for body in inbox.bodies] == ["opened"]
    assert inbox.bodies[0]["incident"]["link"].startswith("http://dash.example/s/magika-demo?p=99&from=")


def test_two_alert_processes_send_one_message(
    store: Store, slow: Callable[[], None], slo_yaml: Path, inbox: Inbox
) -> None:
    slow()
    second_store = Store.open(str(store.engine.url))
    pair = [
        Alerts(AlertsConfig(slo_file=slo_yaml, interval=timedelta(milliseconds=50)), each)
        for each in (store, second_store)
    ]
    for alerts in pair:
        alerts.start()
    inbox.wait_for(lambda: inbox.bodies)
    for alerts in pair:
        alerts.stop()
    second_store.close()

    assert len(pair[0].reader.incidents()) == 1
    assert [body["transition"] for body in inbox.bodies] == ["opened"]


def test_an_invalid_file_at_reload_leaves_the_previous_slos(
    store: Store, slow: Callable[[], None], slo_yaml: Path, inbox: Inbox
) -> None:
    alerts = Alerts(AlertsConfig(slo_file=slo_yaml), store)
    alerts.tick()
    slo_yaml.write_text("slos: [", encoding="utf-8")
    slow()
    alerts.tick()
    inbox.wait_for(lambda: inbox.bodies)
    alerts.start()
    alerts.stop()

    assert alerts.reader.file.errors[0].startswith(f"{slo_yaml}:1: this is not YAML")
    assert alerts.reader.incidents()[0].name == "latency"


def test_without_a_file_alerts_are_idle(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    alerts = Alerts(AlertsConfig(), store)
    with caplog.at_level(logging.INFO):
        alerts.start()
        alerts.stop()

    assert "no SLO is evaluated: there is no slo.yaml" in caplog.text
    assert alerts.reader.slos() == []


def test_messages_of_a_channel_without_its_secret_wait(
    store: Store, slow: Callable[[], None], tmp_path: Path, inbox: Inbox, inbox_url: str
) -> None:
    path = tmp_path / "waiting.yaml"
    path.write_text(WATCHED + "  - {kind: webhook, url_env: HOOK}\n", encoding="utf-8")
    slow()
    without = Alerts(AlertsConfig(slo_file=path), store)
    without.tick()
    without.start()
    without.stop()
    waiting = [row.state for row in without.reader.incidents()[0].deliveries]
    alerts = Alerts(AlertsConfig(slo_file=path, env={"HOOK": inbox_url}), store)
    alerts.start()
    inbox.wait_for(lambda: inbox.bodies)
    alerts.stop()

    assert waiting == ["waiting"]


def test_a_channel_uses_its_rotated_secret(
    store: Store, slow: Callable[[], None], tmp_path: Path, inbox: Inbox, inbox_url: str
) -> None:
    path, secret = tmp_path / "rotating.yaml", tmp_path / "url"
    secret.write_text("http://127.0.0.1:9/nobody", encoding="utf-8")
    path.write_text(f"{WATCHED}  - {{kind: webhook, url_file: {secret}}}\n", encoding="utf-8")
    alerts = Alerts(AlertsConfig(slo_file=path), store)
    alerts.tick()
    secret.write_text(inbox_url, encoding="utf-8")
    slow()
    alerts.tick()
    inbox.wait_for(lambda: inbox.bodies)
    alerts.start()
    alerts.stop()

    assert inbox.bodies[0]["transition"] == "opened"


def test_a_failing_store_is_retried(
    store: Store, slo_yaml: Path, alert_log: AlertLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = store.transaction, threading.Event()

    def transaction() -> Any:
        if broken.is_set():
            msg = "the disk is full"
            raise StoreError(msg)
        return real()

    monkeypatch.setattr(store, "transaction", transaction)
    broken.set()
    alerts = Alerts(AlertsConfig(slo_file=slo_yaml, interval=timedelta(milliseconds=20)), store)
    with caplog.at_level(logging.INFO):
        alerts.start()
        alert_log.wait_for("the disk is full")
        broken.clear()
        alert_log.wait_for("alerts: recovered")
        alerts.stop()

    assert caplog.text.count("the disk is full") == 1


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
    ("env", "complaint"),
    [
        ({"STAGELENS_SLO_FILE": "/none.yaml"}, "STAGELENS_SLO_FILE is '/none.yaml', which is not a file"),
        ({"STAGELENS_ALERT_INTERVAL": "10"}, "STAGELENS_ALERT_INTERVAL is '10'; write a number and a unit"),
        ({"STAGELENS_ALERT_INTERVAL": "1ms"}, "STAGELENS_ALERT_INTERVAL is 0.001s; write at least 1s"),
        ({"STAGELENS_ALERTS_METRICS_PORT": "many"}, "STAGELENS_ALERTS_METRICS_PORT is 'many'; write a whole number"),
        (
            {"STAGELENS_ALERTS_METRICS_PORT": "70000"},
            "STAGELENS_ALERTS_METRICS_PORT is '70000'; write at most 65535",
        ),
        ({"STAGELENS_DASHBOARD_URL": "localhost"}, "STAGELENS_DASHBOARD_URL is 'localhost'; write a web address"),
    ],
)
def test_an_invalid_setting_names_the_fix(env: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=r".") as caught:
        AlertsConfig.from_env(env)

    assert str(caught.value).startswith(complaint)


@pytest.fixture
def beating(slo_yaml: Path, inbox_url: str) -> Path:
    with slo_yaml.open("a", encoding="utf-8") as file:
        file.write(f'  - {{kind: heartbeat, url: "{inbox_url}/ping"}}\n')
    return slo_yaml


def test_a_heartbeat_reaches_its_receiver(store: Store, slow: Callable[[], None], beating: Path, inbox: Inbox) -> None:
    slow()
    alerts = Alerts(AlertsConfig(slo_file=beating, interval=SECOND), store)
    alerts.start()
    inbox.wait_for(lambda: inbox.pings and inbox.bodies)
    alerts.stop()

    assert set(inbox.pings) == {"/ping"}
    assert {row.channel for row in alerts.reader.incidents()[0].deliveries} == {"webhook"}


def test_a_failing_evaluation_stops_the_heartbeat(
    store: Store, beating: Path, inbox: Inbox, alert_log: AlertLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> list[Any]:
        msg = "one SLO cannot be judged"
        raise ValueError(msg)

    monkeypatch.setattr(Evaluator, "tick", broken)
    monkeypatch.setattr(heartbeat, "START_GRACE_SECONDS", 0.0)
    alerts = Alerts(AlertsConfig(slo_file=beating, interval=timedelta(milliseconds=20)), store)
    alerts.start()
    alert_log.wait_for("no heartbeat to heartbeat: no evaluation succeeded recently")
    alerts.stop()

    assert inbox.pings == []


def test_a_process_without_the_lease_records_no_evaluation(store: Store, beating: Path) -> None:
    first, second = Alerts(AlertsConfig(slo_file=beating), store), Alerts(AlertsConfig(slo_file=beating), store)
    first.tick()
    with store.transaction() as connection:
        lease.release(connection, EVALUATED_LEASE, first.holder)
    second.tick()
    now = datetime.now(UTC).timestamp()
    with store.engine.connect() as connection:
        vouched = lease.holder_of(connection, EVALUATED_LEASE, now)
    for alerts in (first, second):
        alerts.start()
        alerts.stop()

    assert vouched is None
