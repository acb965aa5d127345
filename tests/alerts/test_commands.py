"""`stagelens alerts`: incidents on the command line, and a sample incident that tests a channel."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stagelens.__main__ import main
from stagelens.alerts.commands import check_channel
from stagelens.alerts.delivery.channel import Channel
from stagelens.alerts.delivery.channels import ChannelEntry
from stagelens.alerts.delivery.channels.email import EmailChannel
from stagelens.alerts.delivery.channels.heartbeat import Heartbeat
from stagelens.alerts.delivery.channels.pagerduty import PagerDutyChannel
from stagelens.alerts.delivery.channels.slack import SlackBot, SlackWebhook
from stagelens.alerts.delivery.message import Finding
from stagelens.alerts.incidents.journal import IncidentError
from stagelens.alerts.objectives.slo_file import EXAMPLE
from stagelens.store import Store
from tests.alerts.mail_server import MailServer
from tests.alerts.receiver import Moods
from tests.alerts.slack_workspace import CHANNEL, TOKEN, SlackWorkspace
from tests.alerts.stored import SLOWER, notify_opening
from tests.alerts.traffic import NOW
from tests.alerts.vendors import PagerDutyService
from tests.support import command_line

NAME = "sl-0123456789abcdef0123"

Ask = Callable[..., str]


@pytest.fixture
def database(tmp_path: Path, finding: Finding) -> str:
    url = f"sqlite:///{tmp_path / 'stagelens.db'}"
    with closing(Store.open(url)) as store:
        notify_opening(store, NAME, replace(finding, since=NOW.timestamp()), "slo:x")
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
    name = "sl-00000000000000000002"
    slower = replace(finding, name="tail", since=NOW.timestamp(), **SLOWER)
    with closing(Store.open(database)) as store:
        notify_opening(store, name, slower, "tail:magika-demo")
    output = run_command("accept", name, "--why", "the new model")
    shown = run_command("show", name)

    assert output.startswith(f"ann accepted {name} as the new baseline of magika-demo; a new notification is sent only")
    assert run_command("accept", name, "--by", "bob") == output
    assert f"  {'state':<16}accepted by ann at 03:05 UTC on 20 November\n" in shown
    assert re.search(r"accepted +by ann: the new model", shown)
    assert name not in run_command("list")
    with pytest.raises(IncidentError, match="change the objective or threshold"):
        run_command("accept", NAME)


def test_a_silence_is_created_listed_and_ended(run_command: Ask) -> None:
    made = run_command(
        *["silence", "--service", "magika-demo", "--severity", "ticket", "--for", "90m", "--comment", "disks"]
    )
    name = made.partition(":")[0]
    line = run_command("silences").splitlines()[1]
    ended = run_command("unsilence", name, later=timedelta(minutes=2))

    assert made == (
        f"{name}: service=magika-demo, severity=ticket is silenced by ann until 04:35 UTC on 20 November: disks\n"
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
        (("silence", "--service", "x", "--for", "soon"), "--for is 'soon'; write a number and a unit"),
        (("silence", "--service", "x", "--for", "0s"), "which is not after its start; choose a later end"),
        (("silence", "--service", "x", "--for", "1000d"), "--for is '1000d'; the longest silence is 395d"),
        (("silence", "--severity", "loud"), "severity is 'loud'; write page or ticket"),
        (("silence", "--service", "x", "--from", "monday"), "--from is 'monday'; write a time such as"),
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
    slo_yaml: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slo_yaml.write_text(f"{EXAMPLE}channels: [{{kind: slack, webhook_url_env: NO_SUCH_URL}}]\n", encoding="utf-8")
    monkeypatch.setenv("STAGELENS_SLO_FILE", str(slo_yaml))
    tried = main(["alerts", "test", "slack"])
    output = capsys.readouterr().out
    mistaken = main(["alerts", "test", "slac"])

    assert (tried, mistaken) == (1, 1)
    assert output == "failed: NO_SUCH_URL is not set, so slack cannot send; set it and try again\n"
    assert "has no channel 'slac'; known channels: slack" in capsys.readouterr().err


Open = Callable[..., Any]


@pytest.fixture
def receiver() -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda kind, **more: stack.enter_context(closing(kind(Moods(failing=0.0), **more)))


def lines(kind: str, channel: Channel) -> list[str]:
    return list(check_channel(ChannelEntry(kind, kind, channel)))


def test_a_sample_is_opened_and_resolved(receiver: Open) -> None:
    service = receiver(PagerDutyService)
    output = lines("pagerduty", PagerDutyChannel("pagerduty", "K" * 32, service.url, 0.0))

    assert output[0].startswith("to pagerduty (pagerduty): stagelens-test: latency SLO burning 6.2")
    assert output[1:] == [
        "opened: accepted",
        "resolved: accepted",
        "ok: pagerduty accepted both; check how it displays them",
    ]
    assert list(service.created.values()) == list(service.resolved.values()) == [1]


def test_a_sample_is_one_thread_in_slack(receiver: Open) -> None:
    workspace = receiver(SlackWorkspace)
    output = lines("slack", SlackBot("slack", TOKEN, CHANNEL, base_url=f"{workspace.url}/api", gap_seconds=0.0))

    assert output[1] == f"opened: accepted as {CHANNEL}:1795143840.000000:F000000000"
    assert [len(workspace.parents), len(workspace.replies)] == [1, 1]


def test_a_common_error_is_printed_with_its_fix(receiver: Open) -> None:
    workspace = receiver(SlackWorkspace)
    workspace.refuse_once = ["not_in_channel"]
    output = lines("slack", SlackBot("slack", TOKEN, CHANNEL, base_url=f"{workspace.url}/api", gap_seconds=0.0))

    assert output[1:] == [
        "opened: not accepted (would not be retried): Slack responded not_in_channel to chat.postMessage",
        "failed: The bot is not in the channel: write /invite @<its name> there.",
    ]


def test_a_sample_with_unknown_outcome_is_resolved(receiver: Open) -> None:
    server = receiver(MailServer, replies={".": ""})
    output = lines(
        "email", EmailChannel("email", "127.0.0.1", "a@b.example", ("c@d.example",), security="none", port=server.port)
    )

    assert [line.partition(":")[0] for line in output[1:]] == ["opened", "resolved", "failed"]
    assert output[3] == "failed: The receiver sent no response: check there whether the message arrived."


def test_a_refused_connection_is_printed_with_a_hint() -> None:
    nowhere = "http://127.0.0.1:9/x"
    heartbeat = ChannelEntry("pulse", "heartbeat", None, heartbeat=Heartbeat("pulse", nowhere))
    message, (title, ping) = lines("slack", SlackWebhook("slack", nowhere)), check_channel(heartbeat)

    assert title == "to pulse (heartbeat): one ping"
    assert message[-1].startswith("failed: Nothing listens at")
    assert ping.startswith("failed: Nothing listens at")
