"""What people read: the sentences, and the very JSON each vendor gets (golden files beside this one)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagelens.alerts import pagerduty, slack, webhook
from stagelens.alerts.message import Finding, Message, facts, headline
from stagelens.alerts.regression import StageGrowth
from stagelens.alerts.words import TIMES

GOLDEN = Path(__file__).parent / "golden"
RENDERERS: dict[str, Callable[[Message], dict[str, Any]]] = {
    "slack": slack.payload,
    "pagerduty": lambda message: pagerduty.payload(message, "K" * 32),
    "webhook": webhook.payload,
}


def resolved(message: Message) -> Message:
    """Return the message that ends the incident, 14 minutes later."""
    return replace(message, sequence=2, transition="resolved", at=message.at + 14 * 60, ending="recovered", first=False)


@pytest.mark.parametrize("transition", ["opened", "resolved"])
@pytest.mark.parametrize("vendor", RENDERERS)
def test_the_vendor_gets_this(message: Message, vendor: str, transition: str) -> None:
    """The whole payload is the golden file's; a change of it is to be looked at, then written there."""
    shown = message if transition == "opened" else resolved(message)
    golden = json.loads((GOLDEN / f"{vendor}_{transition}.json").read_text(encoding="utf-8"))

    assert RENDERERS[vendor](shown) == golden


def test_the_headline_says_what_how_bad_and_which_stage(message: Message) -> None:
    """One sentence names service, burn rate, stage, milliseconds, share and release."""
    assert headline(message) == (
        f"magika-demo: latency SLO burning 31{TIMES} — preprocess grew +180 ms (92 % of the excess) since version 2"
    )


def test_without_a_release_the_headline_claims_no_growth(message: Message, finding: Finding) -> None:
    """Bad requests compared to good ones are called just that."""
    message = replace(message, finding=replace(finding, version="", quantile=0.0))

    assert headline(message).endswith("slow requests spend +180 ms (92 % of the excess) in preprocess")


def test_no_stage_stands_out_when_the_excess_is_spread(message: Message, finding: Finding) -> None:
    """A stage with a third of the excess is not the one to blame."""
    spread = tuple(StageGrowth(stage, 0.01, 1 / 3) for stage in ("queue", "forward", "network"))
    message = replace(message, finding=replace(finding, growth=spread, version=""))

    assert headline(message).endswith("no stage stands out")


def test_an_availability_slo_speaks_of_failures(message: Message, finding: Finding) -> None:
    """Failed requests have no slow stage."""
    message = replace(message, finding=replace(finding, kind="availability", growth=(), version=""))

    assert headline(message) == f"magika-demo: availability SLO burning 31{TIMES} — 31 % of requests fail"


def test_what_was_never_announced_ends_in_one_message(message: Message) -> None:
    """A channel that hears of an incident when it is over hears that it burned and recovered."""
    over = replace(resolved(message), first=True)

    assert headline(over).startswith(
        f"magika-demo: latency SLO burned 31{TIMES} for 26 minutes and recovered — preprocess"
    )


@pytest.mark.parametrize("ending", ["no_data", "removed"])
def test_an_unknown_end_is_not_called_good(message: Message, ending: Any) -> None:
    """No data is its own state, never a recovery."""
    over = replace(resolved(message), ending=ending)

    assert "without knowing" in headline(over)
    assert slack.payload(over)["text"].startswith("⚪")


def test_a_spent_budget_is_counted_in_requests(message: Message, finding: Finding) -> None:
    """When nothing is left, the message says by how many requests it is overspent."""
    spent = replace(finding, budget_left=-0.2, bad_left=-1200.0, exhausted_in_seconds=0.0)
    rows = dict(facts(replace(message, finding=spent)))

    assert rows["Error budget left of 30 days"] == "none; 1,200 requests over"
    assert rows["At this pace"] == "the budget is gone"


def test_slack_text_is_escaped(message: Message, finding: Finding) -> None:
    """A service called <!channel> wakes nobody."""
    message = replace(message, finding=replace(finding, service="<!channel>", description="a & b"))
    sent = json.dumps(slack.payload(message), ensure_ascii=False)

    assert "&lt;!channel&gt;" in sent
    assert "_a &amp; b_" in sent


def test_a_cut_never_leaves_half_an_escape() -> None:
    """Cutting inside &amp; takes the whole of it away."""
    assert [slack.cut("ab&amp;cd", limit) for limit in (4, 6, 8, 9)] == ["ab…", "ab…", "ab&amp;…", "ab&amp;cd"]


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6000)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(service=words, description=words, stages=st.lists(st.tuples(words, st.floats(-10, 10)), max_size=8))
def test_every_limit_holds_whatever_the_names(
    message: Message, finding: Finding, service: str, description: str, stages: list[tuple[str, float]]
) -> None:
    """Long and odd names are cut to what the vendors take, and the headline survives."""
    growth = tuple(StageGrowth(stage or "x", seconds, 0.5) for stage, seconds in stages)
    message = replace(message, finding=replace(finding, service=service, description=description, growth=growth))
    post, event = slack.payload(message), pagerduty.payload(message, "K" * 32)
    texts = [block["text"]["text"] for block in post["blocks"] if "text" in block]

    assert len(post["text"]) <= 4000
    assert len(json.dumps(post["blocks"], ensure_ascii=False).encode()) <= 13_200
    assert all(1 <= len(text) <= 3000 for text in texts)
    assert post["blocks"][0]["type"] == "header"
    assert len(texts[0]) <= 150
    assert 1 <= len(event["payload"]["summary"]) <= 1024


def test_a_finding_survives_the_database(message: Message) -> None:
    """What is kept as JSON comes back as it was."""
    assert Message.from_json(json.loads(json.dumps(message.to_json()))) == message
