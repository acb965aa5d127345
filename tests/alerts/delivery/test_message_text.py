"""Text of messages, and the exact JSON payload for each vendor (golden files beside this module)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagelens.alerts.delivery.channels import alertmanager, email, pagerduty, slack, webhook
from stagelens.alerts.delivery.channels.email import compose_mail
from stagelens.alerts.delivery.channels.slack import blocks as slack_blocks
from stagelens.alerts.delivery.message import BudgetOverrun, Exemplar, Finding, Message, MissingTraffic, SharedAttribute
from stagelens.alerts.delivery.message_text import (
    headline,
    icon,
    impact_text,
    message_facts,
    of_the_excess,
    small_print,
    stage_table,
)
from stagelens.alerts.formatting import TIMES
from stagelens.analysis.comparison import StageGrowth
from stagelens.analysis.profile import FunctionGrowth
from tests.alerts.blockkit import check_blocks
from tests.alerts.stored import REGRESSION, SLOWER, about

GOLDEN = Path(__file__).parent / "golden"
RENDERERS: dict[str, Callable[[Message], Any]] = {
    "slack": slack.webhook_payload,
    "slack_bot": lambda message: slack_blocks.incident_blocks(message, buttons=True),
    "slack_reply": slack_blocks.reply_blocks,
    "pagerduty": lambda message: pagerduty.event_payload(message, "K" * 32),
    "alertmanager": lambda message: alertmanager.alert_payload(message, message.at),
    "webhook": webhook.webhook_payload,
    "mail": lambda message: email.mail_text(message).splitlines(),
}
SLOW_REPLICA = "web-7 is 3 times slower than the other 11 since 14:02 UTC on 20 November: Forward +38 ms."
LARGE = SharedAttribute("request size 1 MB and more", 0.06, 0.71)
RESIZE = FunctionGrowth("preprocess", "resize (serve.py:41)", 2.0, 166.0, 178.0, is_cause=True)
GROWN = "preprocess grew +178 ms, 92 % in resize (serve.py:41)"
TURNS = ("opened", "acknowledged", "resolved")


def resolved(message: Message) -> Message:
    return replace(message, sequence=2, transition="resolved", at=message.at + 14 * 60, ending="recovered", first=False)


def acknowledged(message: Message) -> Message:
    return replace(message, sequence=2, transition="acknowledged", at=message.at + 120, acked_by="Ana", first=False)


def turn(message: Message, transition: str) -> Message:
    return {"opened": message, "acknowledged": acknowledged(message), "resolved": resolved(message)}[transition]


@pytest.mark.parametrize("transition", TURNS)
@pytest.mark.parametrize("vendor", RENDERERS)
def test_the_payload_equals_the_golden_file(message: Message, vendor: str, transition: str) -> None:
    golden = json.loads((GOLDEN / f"{vendor}_{transition}.json").read_text(encoding="utf-8"))

    assert RENDERERS[vendor](turn(message, transition)) == golden


BURNS = f"magika-demo: latency SLO burning 31{TIMES} in 5 minutes — "


def test_the_headline_names_what_is_known(message: Message) -> None:
    spread = tuple(StageGrowth(stage, 0.01, 1 / 3) for stage in ("queue", "forward", "network"))
    in_preprocess = "slow requests spend +180 ms (92 % of the excess) in preprocess"
    spent, grown = in_preprocess.replace("spend", "spent"), GROWN.replace("grew", "had grown")
    shown = [
        headline(each)
        for each in (
            about(message, version=""),
            about(message, growth=spread, version=""),
            about(message, kind="availability", growth=(), version=""),
            about(message, functions=(replace(RESIZE, is_cause=False),)),
            about(message, functions=(replace(RESIZE, stage="queue"),)),
            replace(resolved(message), first=True),
            resolved(about(message, functions=(RESIZE,))),
        )
    ]

    assert shown == [
        f"{BURNS}{in_preprocess}",
        f"{BURNS}no dominant stage",
        f"magika-demo: availability SLO burning 31{TIMES} in 5 minutes — 31 % of requests fail",
        f"{BURNS}{in_preprocess} since version 2",
        f"{BURNS}{in_preprocess} since version 2",
        f"magika-demo: latency SLO burned 31{TIMES} in 5 minutes for 26 minutes and recovered — {spent} since version 2",
        f"magika-demo: latency SLO recovered after 26 minutes — {grown} since version 2",
    ]


@pytest.mark.parametrize("ending", ["no_data", "removed"])
def test_an_unknown_end_is_not_called_recovered(message: Message, ending: Any) -> None:
    over = replace(resolved(message), ending=ending)

    assert "unknown outcome" in headline(over)
    assert slack.webhook_payload(over)["text"].startswith("⚪")


def test_a_spent_budget_is_counted_in_requests(message: Message) -> None:
    assert message.finding.burn is not None
    spent = replace(message.finding.burn, budget_left=-0.2, bad_left=-1200.0, exhausted_in_seconds=0.0)
    rows = dict(message_facts(about(message, burn=spent)))

    assert rows["Error budget left of 30 days"] == "none; 1,200 requests too many"
    assert rows["At this rate"] == "the budget is spent"


def test_slack_text_is_escaped(message: Message) -> None:
    odd = replace(RESIZE, title="<!channel> & <b>")
    sent = json.dumps(
        slack.webhook_payload(about(message, service="<!channel>", description="a & b", functions=(odd,)))
    )

    assert "&lt;!channel&gt;: " in sent
    assert "_a &amp; b_" in sent
    assert "&lt;!channel&gt; &amp; &lt;b&gt;" in sent


def test_mail_html_is_escaped(message: Message) -> None:
    odd = about(message, service="<script>", runbook='https://x/"><b>', functions=(replace(RESIZE, title="<b>"),))
    page = email.mail_html(replace(odd, also=("{{ 7 }}",)), '"><i>')

    assert "&lt;script&gt;" in page
    assert "{{ 7 }}" in page
    assert not any(text in page for text in ("<script>", "<b>", "<i>"))


def test_slack_marks_in_names_are_shown(message: Message) -> None:
    sent = slack.webhook_payload(about(message, growth=(StageGrowth("a*b~`", 0.2, 0.9),)))
    shown = json.dumps(sent, ensure_ascii=False)

    assert "a\N{ASTERISK OPERATOR}b\N{TILDE OPERATOR}'" in shown
    assert "a*b" not in shown.split("```")[0]


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6000)
LINK = "https://dash.example/s/x?from=1&to=2"


@st.composite
def hostile(draw: st.DrawFn, message: Message, finding: Finding) -> Message:
    growth = tuple(StageGrowth(stage or "x", 0.1, 0.5) for stage in draw(st.lists(words, max_size=8)))
    exemplars = tuple(Exemplar("t", 1.0, stage or "x", 0.5, LINK) for stage in draw(st.lists(words, max_size=3)))
    functions = tuple(FunctionGrowth(each.stage, draw(words), 1.0, 90.0, 100.0, is_cause=True) for each in growth[:1])
    finding = replace(
        finding,
        service=draw(words) or "x",
        name=draw(words) or "x",
        promise=draw(words),
        description=draw(words),
        version=draw(words),
        growth=growth,
        exemplars=exemplars,
        functions=functions,
        shared=tuple(SharedAttribute(each, 0.1, 0.9) for each in draw(st.lists(words, max_size=3))),
        replica=draw(words),
        link=LINK,
    )
    turned = turn(replace(message, finding=finding), draw(st.sampled_from(TURNS)))
    also = tuple(draw(st.lists(words, max_size=7)))
    return replace(turned, acked_by=draw(words), also=also, repeat=draw(st.booleans()))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30, deadline=None
)
@given(data=st.data())
def test_every_limit_holds_whatever_the_names(message: Message, finding: Finding, data: st.DataObject) -> None:
    shown = data.draw(hostile(message, finding))
    mail = compose_mail(shown, "Stagelens <stagelens@example.com>", ("oncall@example.com",))
    event = pagerduty.event_payload(shown, "K" * 32)
    alert = alertmanager.alert_payload(shown, shown.at)

    for blocks in (slack_blocks.incident_blocks(shown), slack_blocks.incident_blocks(shown, buttons=True)):
        check_blocks(blocks)
        assert blocks[0]["type"] == "header"
        assert "dash.example" in json.dumps(blocks)
    check_blocks(slack_blocks.reply_blocks(shown))
    assert 1 <= len(slack_blocks.notification_text(shown)) <= 4000
    assert 1 <= len(slack_blocks.plain_text(shown)) <= 4000
    assert "dash.example" in slack_blocks.plain_text(shown)
    assert 1 <= len(event["payload"]["summary"]) <= 1024
    assert event["links"][0]["href"] == LINK
    assert alert["annotations"]["dashboard"] == LINK
    assert alert["annotations"]["summary"]
    assert "\n" not in str(mail["Subject"])
    assert all(len(each) <= 998 for each in mail.as_bytes().splitlines())
    assert LINK in email.mail_text(shown)
    assert "https://dash.example/s/x?from=1&amp;to=2" in email.mail_html(shown)


ABSENT = {"usual": 1240.0, "before_seconds": 86_400.0, "window_seconds": 900.0}


@pytest.mark.parametrize(
    ("changes", "text", "sent"),
    [
        (
            {"shared": (LARGE,)},
            "request size 1 MB and more (71 % of slow requests, 6 % of all)",
            [{"label": "request size 1 MB and more", "share_all": 0.06, "share_slow": 0.71}],
        ),
        ({"replica": SLOW_REPLICA}, SLOW_REPLICA, SLOW_REPLICA),
        (
            {"functions": (RESIZE,)},
            GROWN,
            [
                {
                    "stage": "preprocess",
                    "function": "resize (serve.py:41)",
                    "before_seconds": 0.002,
                    "after_seconds": 0.166,
                    "share": pytest.approx(0.92, abs=0.01),
                }
            ],
        ),
        (
            {"overruns": (BudgetOverrun("preprocess", 0.412, 0.2),)},
            "preprocess 412 ms of 200 ms",
            [{"stage": "preprocess", "seconds": 0.412, "budget_seconds": 0.2}],
        ),
        ({"absence": MissingTraffic(**ABSENT), "burn": None}, "no request in 15 minutes", ABSENT),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_every_channel_names_the_evidence(message: Message, changes: dict[str, Any], text: str, sent: object) -> None:
    explained = about(message, **changes)
    shown = {name: json.dumps(render(explained), ensure_ascii=False) for name, render in RENDERERS.items()}
    found = {name for name, each in shown.items() if text.lower() in each.lower()}
    key = next(iter(changes))

    # A reply to a thread does not repeat it, and the fields of a webhook have no text of what requests share.
    assert {*RENDERERS} - found <= ({"slack_reply", "webhook"} if key in ("shared", "overruns") else {"slack_reply"})
    assert webhook.webhook_payload(explained)[key] == sent
    stored = json.dumps(explained.to_json())
    assert json.dumps(Message.from_json(json.loads(stored)).to_json()) == stored


@pytest.mark.parametrize(
    ("share", "text", "cell"),
    [
        (0.92, "92 % of the excess", "92 %"),
        (1.02, "100 % of the excess", "100 %"),
        (1.3, "100 % of the excess, other stages shrank", "100 %"),
    ],
)
def test_the_share_of_a_stage_is_at_most_100_percent_of_the_excess(
    finding: Finding, share: float, text: str, cell: str
) -> None:
    grown = StageGrowth("preprocess", 0.424, share)

    assert of_the_excess(grown) == text
    assert stage_table(replace(finding, growth=(grown,)))[0] == ("Preprocess", "+424 ms", cell)


def test_an_accepted_incident_names_the_person_and_is_not_called_recovered(message: Message) -> None:
    over = replace(about(message, **SLOWER), transition="resolved", ending="accepted", acked_by="ann")

    assert headline(over) == (
        "magika-demo: p99 is slower than on previous days: 252 ms → 312 ms (+24 %), ann accepted it as the new baseline"
        " — preprocess grew +180 ms (92 % of the excess) since version 2"
    )
    assert icon(over) == "⚪"
    assert "Accepted by ann: the new model" in small_print(replace(over, note="ann: the new model"))
    assert not [line for line in small_print(replace(over, note="ann")) if line.startswith("Accepted")]
    assert Message.from_json(replace(over, note="ann").to_json()) == replace(over, note="ann")


def test_a_latency_regression_names_values_before_and_after(message: Message) -> None:
    mixed = replace(REGRESSION, mix="route /search has 41 % of requests, before 12 %")
    slower = about(message, **SLOWER | {"shift": mixed})
    record = "11 of the last 12 such alerts of this service were right."
    known = about(slower, record=record)

    assert headline(slower) == (
        "magika-demo: p99 is slower than on previous days: 252 ms → 312 ms (+24 %) — preprocess grew +180 ms (92 % of the excess) since version 2"
    )
    assert impact_text(slower.finding) == (
        "+18 % to +31 % is likely, based on 48,210 requests in 30 minutes. "
        "The traffic also changed: route /search has 41 % of requests, before 12 %."
    )
    assert impact_text(known.finding) == f"{impact_text(slower.finding)} {record}"
    assert dict(message_facts(slower))["Deviation"] == "9.3 times the variation of the baseline"
    assert Message.from_json(slower.to_json()) == slower
    for render in RENDERERS.values():
        assert "252 ms → 312 ms" in json.dumps(render(slower), ensure_ascii=False)
        assert record in json.dumps(render(known), ensure_ascii=False)
