"""Slack channel with a bot token: one message per incident with its thread, and charts that are added later.

A chart is added after the message is accepted, and never a reason for a failed message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from stagelens.alerts.delivery import chart
from stagelens.alerts.delivery.channel import OutcomeUnknownError
from stagelens.alerts.delivery.channels.slack import SlackBot
from stagelens.alerts.delivery.channels.slack.api import (
    REST_SECONDS,
    UPLOAD_TIMEOUT_SECONDS,
    WAITS_SECONDS,
    ChartUploads,
    SlackError,
)
from stagelens.alerts.delivery.message import Message, Transition
from stagelens.alerts.formatting import TIMES
from stagelens.core.errors import ChannelError
from tests.alerts.receiver import Moods
from tests.alerts.slack_workspace import CHANNEL, TOKEN, SlackWorkspace
from tests.alerts.stored import about

UPLOAD = ["files.getUploadURLExternal", "upload", "files.completeUploadExternal"]


@dataclass
class Watch:
    now: float = 0.0
    waits: list[float] = field(default_factory=list[float])

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def uploads(self) -> ChartUploads:
        return ChartUploads(clock=lambda: self.now, sleep=self.sleep)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def slack() -> Iterator[SlackWorkspace]:
    # Two messages per page, so that a search reads several pages.
    workspace = SlackWorkspace(Moods(failing=0.0), page=2)
    yield workspace
    workspace.close()
    assert workspace.violations == []


@pytest.fixture
def bot(slack: SlackWorkspace, watch: Watch) -> SlackBot:
    return SlackBot("slack", TOKEN, CHANNEL, buttons=True, base_url=f"{slack.url}/api", pictures=watch.uploads())


def stamp_of(reference: str) -> str:
    return reference.split(":")[1]


def later(message: Message, transition: Transition, reference: str = "") -> Message:
    return replace(
        message,
        sequence=message.sequence + 1,
        transition=transition,
        ending="recovered" if transition == "resolved" else "",
        first=False,
        reference=reference,
    )


def test_an_incident_is_one_message_with_a_thread(slack: SlackWorkspace, bot: SlackBot, message: Message) -> None:
    reference = bot.send(message)
    again = bot.send(later(message, "resolved", reference))

    assert again == reference == f"{CHANNEL}:{slack.parents[0]['ts']}:F000000000"
    assert [len(slack.parents), len(slack.replies)] == [1, 1]
    assert slack.replies[0]["thread_ts"] == slack.parents[0]["ts"]
    assert slack.parents[0]["said"][-1]["text"].startswith("🟢")


def test_a_possible_repeat_is_searched_before_sending(slack: SlackWorkspace, bot: SlackBot, message: Message) -> None:
    mine = bot.send(message)
    for number in range(3):
        bot.send(replace(message, incident=f"sl-other-{number}"))
    found = bot.send(replace(message, repeat=True))
    over = later(message, "resolved", mine)
    bot.send(over)
    bot.send(replace(over, repeat=True))

    assert stamp_of(found) == stamp_of(mine)
    assert [len(slack.parents), len(slack.replies)] == [4, 1]
    bot.send(replace(message, incident="sl-lost", repeat=True))
    assert "may be a duplicate" not in str(slack.parents[4]["said"])


def test_a_bot_without_the_read_scope_notes_a_possible_duplicate(
    slack: SlackWorkspace, bot: SlackBot, message: Message
) -> None:
    slack.scopes = frozenset({"chat:write"})
    reference = bot.send(message)
    bot.send(replace(message, repeat=True))
    bot.send(replace(later(message, "resolved", reference), repeat=True))

    assert ["may be a duplicate" in str(parent["said"][0]) for parent in slack.parents] == [False, True]
    assert "may be a duplicate" in str(slack.replies)
    assert "may be a duplicate" not in str(slack.parents[0]["said"])


def test_a_later_transition_updates_the_message_of_a_lost_response(
    slack: SlackWorkspace, bot: SlackBot, message: Message
) -> None:
    bot.send(message)
    reference = bot.send(later(message, "resolved"))

    assert [len(slack.parents), len(slack.replies)] == [1, 1]
    assert reference == f"{CHANNEL}:{slack.parents[0]['ts']}"


def test_a_deleted_message_is_posted_again(slack: SlackWorkspace, bot: SlackBot, message: Message) -> None:
    reference = bot.send(later(message, "updated", f"{CHANNEL}:1.000000"))

    assert stamp_of(reference) == slack.parents[0]["ts"]
    assert slack.replies == []


def test_refused_slack_blocks_become_text_once(slack: SlackWorkspace, bot: SlackBot, message: Message) -> None:
    slack.refuse_once = ["invalid_blocks"]
    bot.send(message)
    slack.refuse_once = ["invalid_blocks", "no_text"]
    with pytest.raises(ChannelError, match="no_text") as refused:
        bot.send(message)

    assert "blocks" not in slack.parents[0]["said"][0]
    assert message.finding.link.replace("&", "&amp;") in slack.parents[0]["said"][0]["text"]
    assert refused.value.permanent


@pytest.mark.parametrize(
    ("word", "permanent"), [("invalid_auth", True), ("msg_too_long", True), ("ratelimited", False)]
)
def test_a_200_with_ok_false_is_a_refusal(
    slack: SlackWorkspace, bot: SlackBot, message: Message, word: str, permanent: bool
) -> None:
    slack.refuse_once = [word, word]
    with pytest.raises(ChannelError, match=word) as refused:
        bot.send(message)

    assert refused.value.permanent is permanent
    assert not isinstance(refused.value, OutcomeUnknownError)


def shown(payload: dict[str, Any]) -> str:
    images = [block["slack_file"]["id"] for block in payload.get("blocks", ()) if block["type"] == "image"]
    return images[0] if images else "bars" if "█" in str(payload.get("blocks")) else ""


def test_the_message_is_sent_before_its_chart(slack: SlackWorkspace, bot: SlackBot, message: Message) -> None:
    reference = bot.send(message)
    file = slack.files["F000000000"]

    assert slack.calls == ["chat.postMessage", *UPLOAD, "chat.update"]
    assert [shown(payload) for payload in slack.parents[0]["said"]] == ["bars", "F000000000"]
    assert file.png == chart.message_chart(message)
    assert f"alerts from 14.4{TIMES}" in file.alt
    assert reference == f"{CHANNEL}:{slack.parents[0]['ts']}:F000000000"


@pytest.mark.parametrize(
    "trouble",
    [
        (UPLOAD[0], "", "missing_scope to files.getUploadURLExternal (needs files:write). The app lacks a scope"),
        (UPLOAD[0], "file_uploads_disabled", "file_uploads_disabled"),
        (UPLOAD[1], "500", "Slack responded 500"),
        (UPLOAD[2], "file_not_found", "file_not_found"),
        ("chat.update", "ratelimited", "ratelimited"),
    ],
)
def test_a_failed_upload_leaves_the_message_unchanged(
    slack: SlackWorkspace,
    bot: SlackBot,
    message: Message,
    caplog: pytest.LogCaptureFixture,
    trouble: tuple[str, str, str],
) -> None:
    method, word, logged = trouble
    if word:
        slack.refuse = {method: word}
    else:
        slack.scopes = frozenset({"chat:write", "channels:history"})
    with caplog.at_level(logging.WARNING):
        references = [bot.send(replace(message, incident=f"sl-{number}")) for number in range(3)]

    assert references == [f"{CHANNEL}:{parent['ts']}" for parent in slack.parents]
    assert [shown(parent["said"][-1]) for parent in slack.parents] == ["bars"] * 3
    assert slack.calls.count(UPLOAD[0]) == 1
    assert len(caplog.records) == 1
    assert logged in caplog.text
    assert TOKEN not in caplog.text


def test_charts_resume_after_a_pause(
    slack: SlackWorkspace, bot: SlackBot, watch: Watch, message: Message, caplog: pytest.LogCaptureFixture
) -> None:
    slack.refuse = {"upload": "500"}
    seen: list[str] = []
    for number, refused in enumerate([True, True, False, True]):
        slack.refuse = {"upload": "500"} if refused else {}
        bot.send(replace(message, incident=f"sl-{number}"))
        seen.append(shown(slack.parents[-1]["said"][-1]))
        watch.now += REST_SECONDS

    assert seen == ["bars", "bars", "F000000002", "bars"]
    assert len(caplog.records) == 2


@pytest.mark.parametrize("case", [(2, "F000000000"), (99, "bars")])
def test_a_file_still_processed_by_slack_is_retried(
    slack: SlackWorkspace, bot: SlackBot, watch: Watch, message: Message, case: tuple[int, str]
) -> None:
    slack.looks_at_files, end = case
    bot.send(message)

    assert watch.waits == list(WAITS_SECONDS[: case[0]])
    assert shown(slack.parents[0]["said"][-1]) == end
    assert len(slack.files) == 1


def test_a_slow_upload_times_out(watch: Watch) -> None:
    def upload() -> str:
        watch.now += UPLOAD_TIMEOUT_SECONDS
        return "F000000000"

    def show(file: str) -> None:
        word = "invalid_blocks"
        raise SlackError(word, file)

    assert watch.uploads().put("slack", upload, show) == ""
    assert watch.waits == []


def test_retry_after_pauses_uploads(watch: Watch) -> None:
    pictures = watch.uploads()

    def refused() -> str:
        msg = "Slack responded 429"
        raise ChannelError(msg, permanent=False, retry_after_seconds=30.0)

    pictures.put("slack", refused, print)
    seen: list[str] = []
    for watch.now in (29.0, 30.0):
        seen.append(pictures.put("slack", lambda: "F000000000", lambda _: None))

    assert seen == ["", "F000000000"]


def test_an_update_uploads_a_new_chart(slack: SlackWorkspace, bot: SlackBot, message: Message) -> None:
    reference = bot.send(message)
    for transition in ("acknowledged", "updated", "resolved"):
        reference = bot.send(later(message, transition, reference))

    assert [shown(payload) for payload in slack.parents[0]["said"]] == [
        *("bars", "F000000000"),  # opened
        "F000000000",  # acknowledged
        *("F000000000", "F000000001"),  # updated
        "",  # resolved
    ]
    assert [shown(reply["said"][0]) for reply in slack.replies] == [""] * 3


def test_a_deleted_chart_is_replaced_by_the_sparkline(slack: SlackWorkspace, bot: SlackBot, message: Message) -> None:
    reference = bot.send(message)
    slack.files.clear()
    bot.send(later(message, "acknowledged", reference))

    assert shown(slack.parents[0]["said"][-1]) == "bars"


def test_retries_upload_no_chart(slack: SlackWorkspace, bot: SlackBot, message: Message) -> None:
    slack.refuse = {"chat.postMessage": "ratelimited"}
    for _ in range(3):
        with pytest.raises(ChannelError, match="ratelimited"):
            bot.send(message)
    before = len(slack.files)
    slack.refuse = {}
    bot.send(message)
    again = bot.send(replace(message, repeat=True))

    assert (before, len(slack.files), len(slack.parents)) == (0, 2, 1)
    assert again.endswith(":F000000001")


def test_a_finding_without_a_time_series_has_no_chart(slack: SlackWorkspace, bot: SlackBot, message: Message) -> None:
    bot.send(about(message, course=None))

    assert slack.calls == ["chat.postMessage"]
