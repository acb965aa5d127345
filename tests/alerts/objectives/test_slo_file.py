"""SLO file: content, and errors with line, key, value and fix."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.alerts.delivery.channels import KINDS
from stagelens.alerts.delivery.channels.pagerduty import PagerDutyChannel
from stagelens.alerts.delivery.channels.slack import SlackWebhook
from stagelens.alerts.objectives.slo_file import LiveSloFile, read_slo_file
from stagelens.core.errors import ConfigError
from tests.alerts.conftest import Problems, ReadSlos
from tests.support import command_line

GOOD = """\
slos:
  - name: magika-latency
    service: magika-demo
    objective: 0.99
    threshold: 250ms
    window: 30d
"""
EXAMPLE = Path(__file__).parents[3] / "examples" / "slo.yaml"
NOW = datetime(2026, 11, 20, tzinfo=UTC)


def test_the_example_file_is_valid() -> None:
    definitions = read_slo_file(
        EXAMPLE, {"SLACK_WEBHOOK_URL": "https://hooks.example/x", "PAGERDUTY_ROUTING_KEY": "K" * 32}
    )
    latency = definitions.slos[0]

    assert (latency.objective, latency.threshold, latency.window) == (
        0.99,
        timedelta(milliseconds=250),
        timedelta(days=30),
    )
    assert [type(entry.channel) for entry in definitions.channels] == [SlackWebhook, PagerDutyChannel, type(None)]
    assert definitions.channels[2].lacking.startswith("STATUS_PAGE_")


def test_all_errors_of_the_file_are_reported_together(problems: Problems) -> None:
    text = """\
slos:
  - name: checkout
    service: [a]
    objektive: 0.99
    objective: 99.9
    threshold: 250
    window: 3d
  - name: checkout
    service: shop
    objective: high
    window: 30d
    runbook: wiki/checkout
channels:
  - kind: slak
  - kind: slack
  - kind: pagerduty
    routing_key: abc
    routing_key_env: KEY
dashbord_url: http://127.0.0.1:8600
"""

    assert problems(text) == [
        "slo.yaml:3: slos[0].service is a list; write a text, such as checkout",
        "slo.yaml:4: slos[0].objektive is not known; did you mean objective?",
        "slo.yaml:5: slos[0].objective is 99.9; write a ratio between 0 and 1, such as 0.999",
        "slo.yaml:6: slos[0].threshold is 250; write a number and a unit, such as 250ms",
        "slo.yaml:7: slos[0].window is 3d; write a window from 7d to 90d, such as 30d",
        "slo.yaml:8: slos[1] has the same name 'checkout' as slos[0]; use a unique name, such as `name: checkout-2`",
        "slo.yaml:10: slos[1].objective is 'high'; write a ratio between 0 and 1, such as 0.99",
        "slo.yaml:12: slos[1].runbook is not a web address; it starts with https://",
        f"slo.yaml:14: channels[0].kind is 'slak'; write one of {', '.join(KINDS)}; did you mean slack?",
        "slo.yaml:15: channels[1].webhook_url_env is missing; add `webhook_url_env: SLACK_WEBHOOK_URL`",
        "slo.yaml:18: channels[2].routing_key is set twice; keep only routing_key_env",
        "slo.yaml:19: dashbord_url is not known; did you mean dashboard_url?",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "slo.yaml:1: the file is empty; write, for example:"),
        ("[1, 2]", "slo.yaml:1: the file is a list; write keys and values, such as `name: checkout-latency`"),
        ("slos: []", "slo.yaml:1: slos is empty; write at least one, such as `- name: checkout-latency`"),
        ("slos: &a [*a]", "slo.yaml:1: it is nested too deeply, or contains itself; write plain lists and keys"),
        (
            "slos: 2026-99-99",
            "slo.yaml:1: a value is ambiguous: month must be in 1..12; put quotes around it",
        ),
        ("slos: 7", "slo.yaml:1: slos is 7; write a list: one `- ` for each"),
        ("slos:\n  - 7\n", "slo.yaml:2: slos[0] is 7; write keys and values, such as `name: checkout-latency`"),
        (
            "slos:\n - a: b: c\n",
            "slo.yaml:2: this is not YAML: mapping values are not allowed here; check this line and the line above",
        ),
        (
            GOOD + "labels: {checkout: [payments]}\n",
            "slo.yaml:7: labels.checkout is a list; write keys and values, such as `",
        ),
        (GOOD + "labels:\n  checkout: {team: [a]}\n", "slo.yaml:8: labels.checkout.team is a list; write a text"),
        (GOOD + "    objective: 0.9\n", "slo.yaml:7: slos[0].objective is written twice, first on line 4; keep one"),
        (
            GOOD.replace("250ms", "0ms"),
            "slo.yaml:5: slos[0].threshold is '0ms'; it must be longer than zero, such as 250ms",
        ),
        (
            GOOD.replace("250ms", "2h"),
            "slo.yaml:5: slos[0].threshold is longer than an hour; write the latency limit of one request",
        ),
        (
            GOOD.replace("0.99", '"99.5 %"'),
            "slo.yaml:4: slos[0].objective is '99.5 %'; write a ratio between 0 and 1, such as 0.995",
        ),
        (GOOD.replace("0.99", "1"), "slo.yaml:4: slos[0].objective is 1; write a ratio between 0 and 1, such as 0.99"),
        (
            GOOD.replace("  - name: magika-latency\n    service", "  - service"),
            "slo.yaml:2: slos[0].name is missing; add `name: checkout-latency`",
        ),
    ],
)
def test_an_error_names_its_line_and_fix(problems: Problems, text: str, complaint: str) -> None:
    assert problems(text)[0].startswith(complaint)


def test_a_secret_is_never_in_an_error_or_repr(slo_yaml: Path, problems: Problems) -> None:
    text = GOOD + "channels:\n  - kind: slack\n    webhook_url: hooks.example/T0/SECRET\n"
    complaint = problems(text)
    slo_yaml.write_text(text.replace("hooks.", "https://hooks."), encoding="utf-8")

    assert complaint == ["slo.yaml:9: channels[0].webhook_url is not a web address; it starts with https://"]
    assert "SECRET" not in repr(read_slo_file(slo_yaml, {}))


def test_numbers_are_valid_versions(read_slos: ReadSlos) -> None:
    assert read_slos(GOOD + "    version: 2\n").slos[0].version == "2"


def test_services_have_labels(read_slos: ReadSlos) -> None:
    assert read_slos(GOOD + "labels:\n  checkout: {team: payments, tier: 1}\n").labels == {
        "checkout": {"team": "payments", "tier": "1"}
    }


@given(text=st.text(max_size=200) | st.binary(max_size=100))
def test_any_file_is_parsed_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str | bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))

    complaint = str(path)
    try:
        read_slo_file(path, {})
    except ConfigError as error:
        complaint = str(error)

    assert complaint.startswith(str(path))


def test_check_prints_each_slo_and_its_channels(slo_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unreachable = GOOD + "  - {name: rough, service: shop, objective: 0.9, window: 30d}\n"
    slo_yaml.write_text(
        unreachable + "channels: [{kind: slack, webhook_url_env: NOT_SET_ANYWHERE}]\n", encoding="utf-8"
    )
    status = command_line.run("check", slo_yaml)
    output = capsys.readouterr().out

    assert status == 0
    assert "magika-latency: 99 % of requests to magika-demo succeed within 250 ms, over 30 days" in output
    assert "skipped, the burn rate cannot exceed 10" in output
    assert "Notifications go to slack (deliveries are paused: NOT_SET_ANYWHERE is not set)" in output


def test_check_exits_1_with_every_problem(slo_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slo_yaml.write_text(GOOD.replace("0.99", "99"), encoding="utf-8")
    status = command_line.run("check", slo_yaml)

    assert (status, capsys.readouterr().err) == (
        1,
        f"{slo_yaml}:4: slos[0].objective is 99; write a ratio between 0 and 1, such as 0.99\n",
    )


def test_check_names_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = command_line.run("check", tmp_path / "none.yaml")

    assert status == 1
    assert "none.yaml cannot be read: No such file or directory" in capsys.readouterr().err


def test_an_invalid_file_leaves_the_last_valid_one_in_force(slo_yaml: Path, caplog: pytest.LogCaptureFixture) -> None:
    slo_yaml.write_text(GOOD, encoding="utf-8")
    live = LiveSloFile(slo_yaml, {})
    live.refresh(NOW)
    good = live.current
    slo_yaml.write_text(GOOD.replace("0.99", "99.99"), encoding="utf-8")
    with caplog.at_level(logging.ERROR):
        live.refresh(NOW)

    assert live.current is good
    assert live.errors == (f"{slo_yaml}:4: slos[0].objective is 99.99; write a ratio between 0 and 1, such as 0.9999",)
    assert "stay in force" in caplog.text

    # A different length, because within one tick of the file system's clock nothing else shows the change.
    slo_yaml.write_text(GOOD.replace("0.99", "0.9995"), encoding="utf-8")
    live.refresh(NOW)
    assert live.errors == ()
    assert live.current is not None
    assert live.current.slos[0].objective == 0.9995


def test_a_temporarily_missing_file_changes_nothing(slo_yaml: Path) -> None:
    slo_yaml.write_text(GOOD, encoding="utf-8")
    live = LiveSloFile(slo_yaml, {})
    live.refresh(NOW)
    slo_yaml.unlink()
    live.refresh(NOW)

    assert live.current is not None
    assert "cannot be read" in live.errors[0]
