"""E-mail channel over real SMTP: content, retries and threading."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from stagelens.alerts.delivery import chart
from stagelens.alerts.delivery.channel import OutcomeUnknownError
from stagelens.alerts.delivery.channels import email as smtp
from stagelens.alerts.delivery.channels.email import EmailChannel
from stagelens.alerts.delivery.message import Message
from stagelens.core.egress import ENV
from stagelens.core.errors import ChannelError
from tests.alerts.mail_server import MailServer
from tests.alerts.receiver import Moods
from tests.alerts.stored import about
from tests.support.certificate_authority import Authorities, Pem
from tests.support.trickle import trickling

RIGHT, WRONG = "right-password", "wrong-password"
Open = Callable[..., MailServer]


@pytest.fixture
def server() -> Iterator[Open]:
    opened: list[MailServer] = []

    def open_one(**settings: Any) -> MailServer:
        opened.append(MailServer(Moods(failing=0.0), **settings))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
        assert one.violations == []


def mail_at(port: int, **settings: Any) -> EmailChannel:
    chosen: dict[str, Any] = {
        "security": "none",
        "sender": "Stagelens <alerts@example.com>",
        "recipients": ("a@example.com",),
        **settings,
    }
    return EmailChannel("email", "localhost", port=port, **chosen)


def mail(server: MailServer, **settings: Any) -> EmailChannel:
    return mail_at(server.port, **settings)


def context_of(own: Pem) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    return context


def test_an_incident_is_one_mail_thread(server: Open, message: Message) -> None:
    one = server()
    channel = mail(one, recipients=("a@example.com", "B <b@example.com>"))
    reference = channel.send(message)
    again = channel.send(replace(message, sequence=2, transition="resolved", ending="recovered", reference=reference))
    channel.send(replace(message, repeat=True))
    first, second, repeated = one.taken

    assert (
        repeated["Message-ID"] == reference == again == first["Message-ID"] == "<sl-0123456789abcdef0123.1@example.com>"
    )
    assert second["In-Reply-To"] == second["References"] == first["Message-ID"]
    assert [part.get_content_type() for part in second.walk()] == ["multipart/alternative", "text/plain", "text/html"]
    assert first["To"] == "a@example.com, B <b@example.com>"


def content(part: Any) -> bytes:
    found = part.get_payload(decode=True)
    assert isinstance(found, bytes)
    return found


def test_the_chart_is_related_to_the_html_part(server: Open, message: Message) -> None:
    one = server()
    mail(one).send(message)
    mail(one).send(about(message, course=None))
    whole, text, related, page, image = one.taken[0].walk()
    names = re.findall(r'src="cid:([^"]+)"', content(page).decode())

    assert [part.get_content_type() for part in (whole, related)] == ["multipart/alternative", "multipart/related"]
    assert image["Content-ID"] == f"<{names[0]}>"
    assert len(names) == 1
    assert image.get_content_disposition() == "inline"
    assert content(image) == chart.message_chart(message)
    assert [part.get_content_type() for part in one.taken[1].walk()][-1] == "text/html"
    assert "cid:" not in str(one.taken[1])
    assert 'alt="Chart: burn rate of the last 27 minutes' in content(page).decode()
    assert "▁▁ ▁▁▆███" in content(text).decode()
    assert "cid:" not in content(text).decode()


@pytest.mark.parametrize(
    ("replies", "permanent", "error"),
    [
        ({"MAIL": "451 busy"}, False, "451: busy"),
        ({"RCPT": "550 no such user"}, True, "550: no such user"),
        ({"RCPT": "450 greylisted"}, False, "450: greylisted"),
        ({"DATA": "554 spam"}, True, "554: spam"),
        ({"EHLO": "421 too many", "HELO": "421 too many"}, False, "421: too many"),
    ],
)
def test_4xx_is_retried_and_5xx_is_not(
    server: Open, message: Message, replies: dict[str, str], permanent: bool, error: str
) -> None:
    with pytest.raises(ChannelError, match=error) as refused:
        mail(server(replies=replies)).send(message)

    assert refused.value.permanent is permanent
    assert not isinstance(refused.value, OutcomeUnknownError)


def test_a_connection_lost_after_the_text_is_an_unknown_outcome(server: Open, message: Message) -> None:
    with pytest.raises(OutcomeUnknownError, match="sent no response"):
        mail(server(replies={".": ""})).send(message)
    closed = server()
    closed.close()
    with pytest.raises(ChannelError, match="cannot be reached") as refused:
        mail(closed).send(message)

    assert not isinstance(refused.value, OutcomeUnknownError)


def test_login_works_with_the_right_password(server: Open, message: Message) -> None:
    one = server(password=RIGHT)
    mail(one, user="stagelens", password=RIGHT).send(message)
    wrong = mail(server(replies={"AUTH": f"535 {WRONG} is wrong"}), user="stagelens", password=WRONG)
    with pytest.raises(ChannelError) as refused:
        wrong.send(message)

    assert len(one.taken) == 1
    assert (str(refused.value), refused.value.permanent) == ("the mail server responded 535: … is wrong", True)
    assert WRONG not in repr(wrong)


def test_starttls_is_required(server: Open, message: Message) -> None:
    with pytest.raises(ChannelError, match="STARTTLS") as refused:
        mail(server(), security="starttls").send(message)

    assert refused.value.permanent


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_the_certificate_of_an_unknown_authority_is_refused(
    server: Open, message: Message, authority: Authorities, monkeypatch: pytest.MonkeyPatch, security: str
) -> None:
    one = server(context=context_of(authority("mail").sign("mail", "localhost")), implicit=security == "tls")
    with pytest.raises(ChannelError, match="certificate is not valid"):
        mail(one, security=security).send(message)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority("mail").file))
    mail(one, security=security).send(message)
    with pytest.raises(ChannelError, match="certificate is not valid"):
        replace(mail(one, security=security), host="127.0.0.1").send(message)

    assert len(one.taken) == 1


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_mail_server_denied_by_the_egress_policy_is_not_called(
    server: Open, message: Message, monkeypatch: pytest.MonkeyPatch, security: str
) -> None:
    one = mail(server(), security=security)
    real = socket.getaddrinfo
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 25)) for each in ("127.0.0.1", "169.254.169.254")]
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: found if host == "mx.example" else real(host, *rest, **more)
    )
    with pytest.raises(
        ChannelError, match=r"^the mail server was not contacted: mx.example \(169.254.169.254\)"
    ) as refused:
        replace(one, host="mx.example").send(message)
    with pytest.raises(ChannelError, match=r"not contacted: 169\.254\.169\.254 is an address"):
        replace(one, host="169.254.169.254").send(message)
    monkeypatch.setenv(ENV, "public, mx.example")
    with pytest.raises(ChannelError, match=r"localhost \(.*\) is this machine, which is not allowed"):
        one.send(message)

    assert not refused.value.permanent


def test_the_next_address_of_a_mail_server_is_tried(
    server: Open, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = server()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, one.port)) for each in ("127.0.0.2", "127.0.0.1")]
    with pytest.raises(ChannelError, match=r"cannot be reached: mail\.\.example is not a host name"):
        replace(mail(one), host="mail..example").send(message)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    mail(one).send(message)

    assert len(one.taken) == 1


@pytest.mark.parametrize(
    ("beginning", "more", "security"),
    [
        (b"220-mail.example\r\n", b"220-busy\r\n", "none"),
        # Header of a TLS record of 16 kB.
        (b"\x16\x03\x03\x40\x00", b"x", "tls"),
    ],
)
def test_a_trickling_server_does_not_hold_the_channel(
    message: Message, monkeypatch: pytest.MonkeyPatch, beginning: bytes, more: bytes, security: str
) -> None:
    monkeypatch.setattr(smtp, "DEADLINE_SECONDS", 0.3)
    with (
        trickling(beginning, more, listens_first=security == "tls") as port,
        pytest.raises(ChannelError, match="cannot be reached") as caught,
    ):
        mail_at(port, security=security).send(message)

    assert not caught.value.permanent


def test_an_endless_reply_does_not_fill_the_memory(message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smtp, "_MAX_REPLY_BYTES", 10_000)
    reply = b"220-busy\r\n" * 2000
    with trickling(reply, listens_first=False) as port, pytest.raises(ChannelError, match="too long"):
        mail_at(port).send(message)


def test_a_failed_tls_handshake_leaves_no_timer(message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smtp, "DEADLINE_SECONDS", 3600.0)
    with trickling(b"no TLS at all\r\n") as port, pytest.raises(ChannelError):
        mail_at(port, security="tls").send(message)
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    for timer in timers:
        timer.join(60)

    assert [timer for timer in timers if timer.is_alive()] == []
