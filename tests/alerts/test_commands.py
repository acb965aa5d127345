"""`stagelens alerts`: incidents on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from stagelens.__main__ import main
from stagelens.alerts.delivery.message import Finding, LatencyRegression
from stagelens.alerts.incidents import journal
from stagelens.alerts.incidents.journal import IncidentError
from stagelens.alerts.incidents.lifecycle import IncidentRecord
from stagelens.alerts.incidents.notification_rules import IncidentUpdate
from stagelens.store import Store
from tests.alerts.traffic import NOW
from tests.support import command_line

NAME = "sl-0123456789abcdef0123"

Ask = Callable[..., str]


@pytest.fixture
def database(tmp_path: Path, finding: Finding) -> str:
    url = f"sqlite:///{tmp_path / 'stagelens.db'}"
    store = Store.open(url)
    at = NOW.timestamp()
    record = IncidentRecord(NAME, "slo:x", finding, at, at, at, sequence=1, peak=31.2, heard="open", story=NAME)
    with store.transaction() as connection:
        journal.write_update(connection, IncidentUpdate(record, "opened", notifies=True), ("slack",), at)
    store.close()
    return url


@pytest.fixture
def run_command(database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    def run(*words: str, later: timedelta = timedelta(minutes=1)) -> str:
        environment = {"STAGELENS_DATABASE": database, "USER": "ann"}
        monkeypatch.setattr("stagelens.cli.incidents._now", lambda: NOW + later)
        command_line.run("alerts", *words, environment=environment)
        return capsys.readouterr().out

    return run


def test_open_incidents_are_listed(run_command: Ask) -> None:
    head, line = run_command("list").splitlines()

    assert head.split() == ["id", "state", "severity", "opened", "(UTC)", "owner", "incident"]
    assert line.split()[:7] == [NAME, "open", "page", "2026-11-20", "03:04:00", "none", "magika-demo:"]
    assert json.loads(run_command("list", "--json"))[0]["id"] == NAME


def test_show_prints_a_complete_incident(run_command: Ask) -> None:
    text = run_command("show", NAME)

    assert text.splitlines()[0].startswith(f"{NAME}: magika-demo: latency SLO burning 31")
    assert "  acknowledged by none" in text
    assert "2026-11-20 03:04:00   opened   1 channel" in text
    assert "slack     opened    waiting   0       2026-11-20 03:04:00" in text
    assert json.loads(run_command("show", NAME, "--json"))["deliveries"][0]["channel"] == "slack"


def test_an_incident_is_acknowledged(run_command: Ask) -> None:
    output = run_command("ack", NAME)
    run_command("ack", NAME, "--by", "bob")

    assert output == f"ann acknowledged {NAME}: magika-latency of magika-demo\n"
    assert "   bob   " in run_command("list")
    assert "by ann" in run_command("show", NAME)
    assert "by bob" in run_command("show", NAME)


def test_a_latency_regression_is_accepted(database: str, run_command: Ask, finding: Finding) -> None:
    name, at = "sl-00000000000000000002", NOW.timestamp()
    shift = LatencyRegression(0.99, 0.252, 0.312, 1.18, 1.31, 48_210, 1800.0, 9.3)
    slower = replace(finding, name="tail", kind="tail", burn=None, shift=shift)
    incident = IncidentRecord(
        name, "tail:magika-demo", slower, at, at, at, sequence=1, peak=1.2, heard="open", story=name
    )
    with closing(Store.open(database)) as store, store.transaction() as connection:
        journal.write_update(connection, IncidentUpdate(incident, "opened", notifies=True), ("slack",), at)
    output = run_command("accept", name, "--why", "the new model")
    shown = run_command("show", name)

    assert (
        output
        == f"ann accepted {name} as the new baseline of magika-demo; a new notification is sent only if latency rises further\n"
    )
    assert run_command("accept", name, "--by", "bob") == output
    assert f"  {'state':<16}accepted by ann at 03:05 UTC on 20 November\n" in shown
    assert re.search(r"accepted +by ann: the new model", shown)
    assert name not in run_command("list")
    with pytest.raises(IncidentError, match="change the objective or threshold"):
        run_command("accept", NAME)


def test_a_silence_is_created_listed_and_ended(run_command: Ask) -> None:
    made = run_command(
        "silence", "--service", "magika-demo", "--severity", "ticket", "--for", "90m", "--comment", "moving disks"
    )
    name = made.partition(":")[0]
    line = run_command("silences").splitlines()[1]
    ended = run_command("unsilence", name, later=timedelta(minutes=2))

    assert made == (
        f"{name}: service=magika-demo, severity=ticket is silenced by ann until 04:35 UTC on 20 November: moving disks\n"
    )
    assert line.split()[:3] == [name, "active", "2026-11-20"]
    assert ended == f"{name} has ended: notifications for service=magika-demo, severity=ticket resume\n"
    assert run_command("silences", later=timedelta(minutes=3)) == "No silence is active or planned.\n"
    assert "ended" in run_command("silences", "--all", later=timedelta(minutes=3))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("show", "sl-1"), "there is no incident 'sl-1'; `stagelens alerts list --all` lists all incidents"),
        (("accept", "sl-1"), "there is no incident 'sl-1'; `stagelens alerts list` lists open incidents"),
        (("ack", "sl-1"), "there is no incident 'sl-1'; `stagelens alerts list` lists open incidents"),
        (("silence",), "a silence needs at least one of service, slo, environment"),
        (("silence", "--service", "x", "--for", "soon"), "--for is 'soon'; write a number and a unit"),
        (("silence", "--service", "x", "--for", "0s"), "which is not after its start; choose a later end"),
        (("silence", "--service", "x", "--for", "1000d"), "--for is '1000d'; the longest silence is 395d"),
        (("silence", "--severity", "loud"), "severity is 'loud'; write page or ticket"),
        (("silence", "--service", "x", "--from", "monday"), "--from is 'monday'; write a time such as"),
        (("unsilence", "si-1"), "there is no silence 'si-1'; `stagelens alerts silences` lists all silences"),
    ],
)
def test_a_mistake_is_reported_with_its_fix(
    database: str,
    words: tuple[str, ...],
    error: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAGELENS_DATABASE", database)
    code = main(["alerts", *words])

    assert code == 1
    assert error in capsys.readouterr().err


def test_a_missing_store_is_not_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["alerts", "list", "--database", f"sqlite:///{tmp_path / 'none.db'}"])

    assert code == 1
    assert "set the right one with --database or STAGELENS_DATABASE" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_channel_is_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text(
        "slos: [{name: a, service: shop, objective: 0.99, window: 30d}]\nchannels: [{kind: slack, webhook_url_env: NO_SUCH_URL}]\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("STAGELENS_SLO_FILE", str(file))
    tried = main(["alerts", "test", "slack"])
    output = capsys.readouterr().out
    mistaken = main(["alerts", "test", "slac"])

    assert (tried, mistaken) == (1, 1)
    assert output.startswith("failed: NO_SUCH_URL is not set")
    assert "has no channel 'slac'; known channels: slack" in capsys.readouterr().err
