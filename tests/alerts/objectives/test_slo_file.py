"""SLO file: content, all kinds of SLOs, and errors with line, key, value and fix."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.alerts.config import AlertsConfig
from stagelens.alerts.delivery.channels import KINDS
from stagelens.alerts.delivery.channels.pagerduty import PagerDutyChannel
from stagelens.alerts.delivery.channels.slack import SlackWebhook
from stagelens.alerts.objectives.slo_file import (
    EXAMPLE,
    EXAMPLE_SLO,
    LiveSloFile,
    read_slo_file,
    unwatched_line,
    why_unwatched,
)
from stagelens.alerts.serve import Alerts
from stagelens.core.errors import ConfigError
from stagelens.store import Store
from stagelens.store.selection import Indicator
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
EXAMPLE_FILE = Path(__file__).parents[3] / "examples" / "slo.yaml"
NOW = datetime(2026, 11, 20, tzinfo=UTC)
SERVICE = "apiVersion: openslo/v1\nkind: Service\nmetadata: {name: checkout}\nspec: {}\n"


def test_the_example_file_is_valid() -> None:
    definitions = read_slo_file(
        EXAMPLE_FILE, {"SLACK_WEBHOOK_URL": "https://hooks.example/x", "PAGERDUTY_ROUTING_KEY": "K" * 32}
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
        ("slos: 2026-99-99", "slo.yaml:1: a value is ambiguous: month must be in 1..12; put quotes around it"),
        ("slos:\n - a: b: c\n", "slo.yaml:2: this is not YAML: mapping values are not allowed here; check this line"),
        (GOOD + "regressions: never\n", "slo.yaml:7: regressions is 'never'; write on, off, or `ignore: [checkout]`"),
        (GOOD + "    objective: 0.9\n", "slo.yaml:7: slos[0].objective is written twice, first on line 4; keep one"),
        (GOOD.replace("250ms", "2h"), "slo.yaml:5: slos[0].threshold is longer than an hour; write the latency limit"),
    ],
)
def test_an_error_names_its_line_and_fix(problems: Problems, text: str, complaint: str) -> None:
    assert problems(text)[0].startswith(complaint)


@pytest.mark.parametrize(
    ("text", "services"),
    [
        ("", {"magika-demo"}),
        ("regressions: on", {"magika-demo", "shop"}),
        ("regressions: off", set[str]()),
        ("regressions:\n  ignore: [shop]", {"magika-demo"}),
    ],
)
def test_services_with_an_slo_are_watched_unless_the_file_says_else(
    read_slos: ReadSlos, text: str, services: set[str]
) -> None:
    found = read_slos(f"{GOOD}{text}\n").regressions

    assert {name for name in ("magika-demo", "shop") if found is not None and found.watches(name)} == services


def test_numbers_are_valid_texts(read_slos: ReadSlos) -> None:
    found = read_slos(GOOD + "    version: 2\nlabels:\n  checkout: {team: payments, tier: 1}\n")

    assert found.slos[0].version == "2"
    assert found.labels == {"checkout": {"team": "payments", "tier": "1"}}


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
    broken = capsys.readouterr().err
    slo_yaml.unlink()

    assert (status, command_line.run("check", slo_yaml)) == (1, 1)
    assert broken == f"{slo_yaml}:4: slos[0].objective is 99; write a ratio between 0 and 1, such as 0.99\n"
    assert "slo.yaml cannot be read: No such file or directory" in capsys.readouterr().err


def live(path: Path, text: str) -> LiveSloFile:
    path.write_text(text, encoding="utf-8")
    file = LiveSloFile(path, {})
    file.refresh(NOW)
    return file


@pytest.mark.parametrize("example", [EXAMPLE, EXAMPLE_SLO])
def test_the_example_of_the_fix_is_a_valid_file(example: str, slo_yaml: Path) -> None:
    file = live(slo_yaml, example)
    assert file.current is not None

    assert [slo.service for slo in file.current.slos] == ["checkout"]
    assert (why_unwatched(file), unwatched_line(file)) == (("", ""), "")


def test_each_reason_for_missing_slos_has_a_fix(tmp_path: Path) -> None:
    none, no_path = why_unwatched(None), why_unwatched(LiveSloFile(None, {}))
    broken = why_unwatched(live(tmp_path / "slo.yaml", "slos: [{name: a}]"))
    empty = why_unwatched(live(tmp_path / "open.yaml", SERVICE))

    assert none == no_path
    assert EXAMPLE_SLO in none[1]
    assert broken[0].endswith("slo.yaml cannot be read")
    assert f"stagelens check {tmp_path / 'slo.yaml'}" in broken[1]
    assert empty[0].endswith("open.yaml has no SLO")
    assert EXAMPLE_SLO in empty[1]


def test_missing_slos_are_logged_in_one_line_at_startup(
    slo_yaml: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    slo_yaml.write_text(EXAMPLE, encoding="utf-8")
    without, watched = Alerts(AlertsConfig(), store), Alerts(AlertsConfig(slo_file=slo_yaml), store)
    for alerts in (without, watched):
        alerts.start()
        alerts.stop()

    assert [message for message in caplog.messages if "no SLO is evaluated" in message] == [f"alerts: {without.place}"]
    assert without.place.startswith("no SLO is evaluated: there is no slo.yaml. ")
    assert "\n" not in without.place
    assert watched.place == str(slo_yaml)


BASE = """\
slos:
  - name: chat
    service: chat
    objective: 0.99
    window: 30d
"""


@pytest.mark.parametrize(
    ("keys", "indicator", "promise"),
    [
        ("threshold: 250ms", Indicator("latency", 0.25), "99 % of requests to chat succeed within 250 ms"),
        ("kind: availability", Indicator("availability"), "99 % of requests to chat succeed"),
        ("kind: ttft, threshold: 500ms", Indicator("ttft", 0.5), "have their first token within 500 ms"),
        (
            "kind: tpot, threshold: 50ms, definition: first_chunk, model: llama",
            Indicator("tpot", 0.05, "first_chunk"),
            "chat, model llama, definition first_chunk need at most 50 ms per token after the first",
        ),
        ("stage: queue, threshold: 50ms", Indicator("stage", 0.05, "queue"), "spend at most 50 ms in queue"),
        ("kind: coverage", Indicator("coverage"), "stages cover 99 % of the time of requests to chat"),
        (
            "kind: freshness, threshold: 5m",
            Indicator("freshness", 300.0),
            "99 % of the time, the newest data of chat is at most 5 minutes old",
        ),
    ],
)
def test_every_kind_of_slo_is_parsed(read_slos: ReadSlos, keys: str, indicator: Indicator, promise: str) -> None:
    found = read_slos(BASE + "".join(f"    {key}\n" for key in keys.split(", "))).slos[0]

    assert found.indicator == indicator
    assert found.in_words().endswith(f"{promise}, over 30 days")


def test_several_thresholds_are_several_slos(read_slos: ReadSlos) -> None:
    text = BASE.replace("    objective: 0.99\n", "") + (
        "    thresholds:\n"
        "      - {objective: 0.95, threshold: 200ms}\n"
        "      - {objective: 0.99, threshold: 1s, name: at worst}\n"
    )
    found = read_slos(text).slos

    assert [(slo.name, slo.objective, slo.threshold_seconds) for slo in found] == [
        ("chat (200 ms)", 0.95, 0.2),
        ("chat (at worst)", 0.99, 1.0),
    ]


def test_a_budget_is_split_among_stages_and_counted_from_its_reset(read_slos: ReadSlos) -> None:
    keys = ("threshold: 450ms", "budgets: {queue: 150ms, forward: 300ms}", "reset: 2026-11-01T01:00+01:00")
    found = read_slos(BASE + "".join(f"    {key}\n" for key in keys)).slos[0]

    assert found.budgets == (("queue", timedelta(seconds=0.15)), ("forward", timedelta(seconds=0.3)))
    assert found.reset == datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ("kind: ttft", "2: slos[0].threshold is missing; add `threshold: 500ms`"),
        ("kind: stage", "2: slos[0].stage is missing; add `stage: queue`"),
        ("kind: coverage\n    threshold: 1s", "7: slos[0].threshold is not valid with kind coverage; remove it"),
        ("kind: ttft\n    stage: queue\n    threshold: 1s", "7: slos[0].stage is not valid with kind ttft; write"),
        ("threshold: 1s\n    definition: generate", "7: slos[0].definition is valid only with kind ttft and tpot;"),
        ("kind: freshness\n    threshold: 30s", "7: slos[0].threshold is not between 1m and 7d; write the maximum"),
        ("threshold: 500ms\n    budgets: {queue: 300ms, forward: 300ms}", "7: slos[0].budgets add up to 600 ms, more"),
        ("budgets: {queue: 300ms}", "6: slos[0].budgets are valid only with kind latency; remove them"),
        ("budgets: {queue: 300ms}\n    kind: coverage", "6: slos[0].budgets are valid only with kind latency; remove"),
        ("thresholds: [{objective: 0.9, threshold: 1s}]", "4: slos[0].objective is set next to thresholds; move it"),
    ],
)
def test_invalid_combinations_are_reported(problems: Problems, keys: str, complaint: str) -> None:
    found = problems(BASE + f"    {keys}\n")

    assert any(line.startswith(f"slo.yaml:{complaint}") for line in found), found


def test_duplicate_thresholds_are_errors(problems: Problems) -> None:
    bare = BASE.replace("    objective: 0.99\n", "")
    twice = bare + "    thresholds: [{objective: 0.9, threshold: 1s}, {objective: 0.99, threshold: 1s}]\n"

    assert problems(twice)[0].endswith(
        "slos[0].thresholds[1].threshold is listed twice; write one objective for each threshold"
    )
    assert problems(bare + "    thresholds: []\n") == [
        "slo.yaml:5: slos[0].thresholds is empty; write `- {objective: 0.99, threshold: 250ms}`"
    ]


def test_a_stage_similar_to_a_known_one_gets_a_warning(slo_yaml: Path, read_slos: ReadSlos) -> None:
    found = read_slos(BASE + "    stage: queu\n    threshold: 1s\n")

    assert found.slos[0].stage == "queu"
    assert found.warnings == (
        f"{slo_yaml}:6: slos[0].stage names 'queu', which is not a built-in stage; did you mean queue?",
    )


def test_maintenance_applies_to_the_named_slos(read_slos: ReadSlos) -> None:
    text = """\
slos:
  - {name: a, service: shop, objective: 0.99, window: 30d}
  - {name: b, service: chat, window: 30d, thresholds: [{objective: 0.9, threshold: 1s}, {objective: 0.99, threshold: 2s}]}
maintenance:
  - {from: 2026-11-28T02:00Z, to: 2026-11-28T04:00Z, services: [shop]}
  - {every: [saturday, sunday], from: "02:00", to: 12:30, zone: Europe/Berlin, slos: [b], why: index rebuild}
  - {every: day, from: "23:30", to: "00:30", zone: UTC}
"""
    planned = {slo.name: slo.maintenance.planned for slo in read_slos(text).slos}

    assert [len(planned[name]) for name in ("a", "b (1 s)", "b (2 s)")] == [2, 2, 2]
    assert planned["a"][0].why == ""
    assert planned["b (1 s)"][0].why == "index rebuild"


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("{from: 2026-11-28T02:00Z, to: 2026-11-28T01:00Z}", "maintenance[0].to is not after `from`; write a later"),
        ('{every: sundays, from: "02:00", to: "04:00", zone: UTC}', "maintenance[0].every is 'sundays'; write one of"),
        ('{every: sunday, from: "25:00", to: "04:00", zone: UTC}', "maintenance[0].from is '25:00'; write a time of"),
        ('{every: sunday, from: "02:00", to: "04:00"}', "maintenance[0].zone is missing; add `zone: Europe/Berlin`"),
        (
            '{every: sunday, from: "02:00", to: "04:00", zone: Europe/Berln}',
            "maintenance[0].zone is 'Europe/Berln', which is not a known time zone; write one such as Europe/Berlin or UTC; did you mean Europe/Berlin?",
        ),
        ('{every: sunday, from: "02:00", to: "02:00", zone: UTC}', "maintenance[0].to is equal to `from`; write the"),
        (
            '{every: sunday, from: "02:00", to: "03:00", zone: UTC, services: chatt}',
            "maintenance[0].services has 'chatt', but this file has no such service; did you mean chat?",
        ),
    ],
)
def test_errors_in_maintenance_windows_are_reported(problems: Problems, entry: str, complaint: str) -> None:
    found = problems(f"{BASE}maintenance:\n  - {entry}\n")

    assert len(found) == 1
    assert found[0].startswith(f"slo.yaml:7: {complaint}")


def test_a_changed_included_file_reloads_the_slo_file(slo_yaml: Path) -> None:
    included = slo_yaml.with_name("open.yaml")
    included.write_text((Path(__file__).parent / "openslo.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    file = live(slo_yaml, f"{BASE}include: [open.yaml]\n")
    good = file.current
    included.write_text("kind: [", encoding="utf-8")
    file.refresh(NOW)
    broken = file.errors
    included.write_text(SERVICE, encoding="utf-8")
    file.refresh(NOW)

    assert good is not None
    assert len(good.slos) == 3
    assert broken[0].startswith(f"{included}:")
    assert file.errors == ()
    assert file.current is not None
    assert len(file.current.slos) == 1
