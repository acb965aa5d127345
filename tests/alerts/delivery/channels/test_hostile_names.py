"""Names and notes that attack a message: each receiver accepts the message, and shows the names as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import replace
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from html.parser import HTMLParser
from typing import Any

import pytest
from sqlalchemy import select

from stagelens.alerts import schema
from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.channel import Channel
from stagelens.alerts.delivery.message import Message, Transition
from stagelens.alerts.delivery.outbox import DeliveryWorker
from stagelens.analysis.comparison import StageGrowth
from stagelens.store import Store
from tests.alerts.alert_processes import channel_of
from tests.alerts.mail_server import MailServer
from tests.alerts.receiver import Moods
from tests.alerts.stored import about, open_incident
from tests.alerts.vendors import AlertmanagerApi, PagerDutyService, SignedHook, SlackHook

RECEIVERS: dict[str, Callable[[Moods], Any]] = {
    "email": MailServer,
    "slack": SlackHook,
    "pagerduty": PagerDutyService,
    "alertmanager": AlertmanagerApi,
    "webhook": SignedHook,
}
NAMES = {
    "header": "x\r\nBcc: eve@example.com\r\n\r\nbody",
    "nul": "a\0b\x07\x1b[31mred\x85\u2028next",
    "bidi": "safe\u202egnp.exe\u2066",
    "long": "n" * 10_000,
    "html": "<script>alert(1)</script><!-- </td>",
    "encoded word": "=?utf-8?q?x=0d=0aBcc:_eve=40example.com?=",
    "addresses": 'a, b <eve@example.com>, "c"; d:',
    "surrogate": "a\ud800b",
    "rtl": "שלום عربى",
    "emoji": "👩\u200d💻🔥" * 50,
    "percent": "%0d%0aBcc: eve@example.com",
    "dot": ".\r\n.\r\nQUIT\r\n",
    "blank": " \t\r\n",
    "marks": "*b* _i_ ~s~ `c` <!channel> @here [a](http://x)",
}
OURS = {"Auto-Submitted", "X-Stagelens-Incident"}
TRANSITIONS: tuple[Transition, ...] = ("opened", "acknowledged", "resolved")


class PageReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts, self.tags = list[str](), set[str]()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        self.tags.add(tag)


def named(message: Message, name: str, incident: str = "x") -> Message:
    growth = (StageGrowth(name, 0.4, 0.9), *message.finding.growth[1:])
    where = dict.fromkeys(("environment", "route", "model"), name)
    texts = dict.fromkeys(("name", "service", "promise", "description", "version", "stage"), name)
    hostile = about(message, **texts, growth=growth, where=where)
    return replace(hostile, incident=f"sl-{incident}", acked_by=name, note=name, also=(name,))


def send(store: Store, channel: Channel, message: Message) -> tuple[str, str]:
    message = replace(message, sequence=TRANSITIONS.index(message.transition) + 1)
    if message.sequence == 1:
        open_incident(store, about(message, service="shop"))
    with store.transaction() as connection:
        outbox.record_transition(connection, message, [channel.name])
    DeliveryWorker(store, channel, "me", clock=lambda: message.at).step()
    rows = schema.outbox.c
    mine = (rows.incident == message.incident) & (rows.sequence == message.sequence)
    with store.engine.connect() as connection:
        state, error = connection.execute(select(rows.state, rows.error).where(mine)).one()
    return state, error


@pytest.fixture
def receivers() -> Generator[dict[str, Any]]:
    with ExitStack() as stack:
        yield {kind: stack.enter_context(closing(receiver(Moods(failing=0.0)))) for kind, receiver in RECEIVERS.items()}


@pytest.mark.parametrize("kind", RECEIVERS)
def test_a_message_with_any_names_is_accepted(
    store: Store, message: Message, receivers: dict[str, Any], kind: str
) -> None:
    channel = channel_of(kind, receivers[kind].url)
    states = {
        (case, transition): send(store, channel, replace(named(message, name, case), transition=transition))
        for case, name in NAMES.items()
        for transition in TRANSITIONS
    }

    assert {case: state for case, state in states.items() if state != ("sent", "")} == {}
    assert receivers[kind].violations == []


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_mail_with_any_names_has_its_own_headers_only(message: Message, receivers: dict[str, Any], name: str) -> None:
    server = receivers["email"]
    channel_of("email", server.url).send(named(message, name))
    mail = BytesParser(EmailMessage, policy=policy.default).parsebytes(server.taken[0].as_bytes())
    assert isinstance(mail, EmailMessage)
    subject, text, page = str(mail["Subject"]), *(mail.get_body((kind,)).get_content() for kind in ("plain", "html"))  # type: ignore[union-attr]

    assert set(mail.keys()) == {"Message-ID", "Date", "From", "To", "Subject", "MIME-Version", "Content-Type", *OURS}
    assert len(mail.keys()) == 9
    assert (mail["To"], mail["From"]) == ("oncall@example.com", "alerts@example.com")
    read = PageReader()
    read.feed(page)
    for shown in (subject, *text.splitlines(), *"".join(read.texts).splitlines()):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e\u2066]", shown)
    assert "p" in read.tags or "td" in read.tags
    assert "script" not in read.tags
    assert len(subject) <= 210
    assert len(text) < 12_000
    words = re.findall(r"\w{3,}", name.replace("=?", " "))[:1]
    assert all(word[:20] in subject for word in words)
