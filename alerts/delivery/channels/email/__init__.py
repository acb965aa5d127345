"""Channel for e-mail over SMTP: text and HTML (`body.html`) with the chart; all mails of an incident form one thread.

The message id consists of incident and transition, so mail programs can detect a mail that was sent twice. This module resolves
the name of the mail server and checks the address against the egress allow-list; TLS verifies the name.
"""

from __future__ import annotations

import os
import smtplib
import socket
import ssl
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from functools import cache
from importlib.resources import files
from typing import BinaryIO, Literal

from jinja2 import Environment, Template
from pydantic import Field, field_validator

from .....core.egress import EgressDeniedError, EgressPolicy
from .....core.errors import ChannelError
from .....core.settings.field_types import MAX_PORT, Secret, Text, Texts, reject
from .....core.settings.section import Fault
from ....formatting import line
from ... import message_text
from ...channel import ChannelKind, ChannelSection, OutcomeUnknownError, Refresh, redact
from ...chart import WIDTH, message_chart
from ...message import Finding, Message

# Maximum length of a table cell; the list of facts is never truncated.
MAX_CELL_CHARS = 300
_COLOURS = {"🔴": "#b3261e", "🟠": "#a34a00", "👀": "#3b5b92", "🟢": "#1b6e3c", "⚪": "#555b66"}
# Deadline for the SMTP session, because a server that sends byte by byte never exceeds the timeout of a read. [seconds]
DEADLINE_SECONDS = 30.0
_MAX_REPLY_BYTES = 1_000_000
# RFC 5322, 2.1.1: a line has at most 998 characters; phones show far fewer characters of a subject.
MAX_SUBJECT_CHARS = 200
# Timeout of each step; the lease of an outbox row is longer than all steps together. [seconds]
TIMEOUT_SECONDS = 8.0
# RFC 5321, 4.2.1: permanent errors start here.
_PERMANENT = 500
# Error responses of the mail server, and their fixes.
HINTS = (
    ("responded 535", "Wrong user or password; Gmail and others require an app password."),
    ("responded 530", "The server requires authentication: set user and password_env."),
    ("responded 550", "The server rejects that recipient or sender."),
    ("responded 553", "The user must not send from that address: set `from` to the address of the user."),
    ("responded 554", "The server does not relay for this machine: set user and password_env."),
    ("STARTTLS", "The server offers no STARTTLS: set security to tls (port 465), or to none in a trusted network."),
    ("WRONG_VERSION", "The port does not start with TLS: set security to starttls (port 587)."),
    ("certificate", "Use the host name of the certificate; add a private CA with SSL_CERT_FILE."),
)


def mail_text(message: Message) -> str:
    finding = message.finding
    parts = [
        [_line(message_text.headline(message))],
        _cause_and_impact(message),
        [f"{name}: {_line(value)}" for name, value in message_text.message_facts(message)],
    ]
    parts.append([f"{shape}  {_line(about)}" for shape, about in message_text.sparkline_of(message)])
    if message.also:
        parts.append(["Also:", *(f"  {_line(incident_title)}" for incident_title in message.also)])
    if finding.growth and not message.resolved:
        rows = [f"  {_line(stage)}: {growth} ({share})" for stage, growth, share in message_text.stage_table(finding)]
        parts.append([f"Stages that grew ({_line(message_text.comparison_basis(finding))}):", *rows])
    if not message.resolved and (shown := message_text.slow_requests(finding)):
        rows = [f"  {_line(what)} {link}".rstrip() for what, link in shown]
        parts.append([f"{message_text.exemplars_title([exemplar.failed for exemplar in finding.exemplars])}:", *rows])
    parts.append([f"{name}: {href}" for name, href in _links(message)])
    parts.append([*(_line(note) for note in message_text.small_print(message)), f"Incident {_line(message.incident)}"])
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def mail_html(message: Message, chart: str = "") -> str:
    finding, is_open = message.finding, not message.resolved
    return _template().render(
        headline=message_text.headline(message),
        colour=_COLOURS[message_text.icon(message)],
        title=message_text.title(message),
        paragraphs=_cause_and_impact(message),
        facts=message_text.message_facts(message),
        also=[(incident_title, "") for incident_title in message.also],
        chart=chart,
        chart_in_words=message_text.chart_in_words(finding) if chart else "",
        chart_width=WIDTH,
        sparklines=[] if chart else message_text.sparkline_of(message),
        basis=message_text.comparison_basis(finding),
        stages=_stages_with_percent(finding) if is_open else [],
        requests=message_text.slow_requests(finding) if is_open else [],
        requests_title=message_text.exemplars_title([exemplar.failed for exemplar in finding.exemplars]),
        links=_links(message),
        small_print=[*message_text.small_print(message), f"Incident {message.incident}"],
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True)
    environment.filters["cell"] = _line
    return environment.from_string((files(__package__ or "") / "body.html").read_text(encoding="utf-8"))


def _cause_and_impact(message: Message) -> list[str]:
    why = _line(message_text.cause_text(message))
    lines = [why[:1].upper() + why[1:] + "."]
    if not message.resolved:
        lines.append(_line(message_text.impact_text(message.finding)))
    if message.finding.description:
        lines.append(_line(message.finding.description))
    return lines


def _links(message: Message) -> list[tuple[str, str]]:
    links = [(message_text.link_title(message.finding), message.finding.link), ("Runbook", message.finding.runbook)]
    return [(name, href) for name, href in links if href]


def _stages_with_percent(finding: Finding) -> list[tuple[tuple[str, str, str], int]]:
    rows = zip(message_text.stage_table(finding), finding.growth, strict=False)
    return [(row, max(1, min(100, round(100 * grown.share)))) for row, grown in rows]


def _line(raw: str) -> str:
    return line(raw, MAX_CELL_CHARS)


class CheckedSmtp(smtplib.SMTP):
    """SMTP client that connects to permitted addresses only, with limits of time and of reply size."""

    # A second handle of the connection, because `sock` is the closed plain socket during a TLS handshake.
    _line: socket.socket | None = None
    _deadline: threading.Timer | None = None

    def close(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._line is not None:
            self._line.close()
        super().close()

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _Replies(self.sock.makefile("rb"))
        return super().getreply()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        connected = self._connected(host, port, timeout)
        self._line = connected.dup()
        self._deadline = threading.Timer(DEADLINE_SECONDS, self._hang_up)
        self._deadline.daemon = True
        self._deadline.start()
        return connected

    def _hang_up(self) -> None:
        # Not closed: another thread reads from it and sees the end of the connection.
        if self._line is not None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)

    def _connected(self, host: str, port: int, timeout: float) -> socket.socket:
        egress_policy = EgressPolicy.from_env(os.environ)
        egress_policy.check(host, [host])
        try:
            addresses = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except UnicodeError as error:
            msg = f"{host} is not a host name"
            raise OSError(msg) from error
        egress_policy.check(host, addresses)
        for address in addresses[:-1]:
            try:
                return socket.create_connection((address, port), timeout)
            except OSError:
                continue
        return socket.create_connection((addresses[-1], port), timeout)


class CheckedSmtpTls(smtplib.SMTP_SSL, CheckedSmtp):
    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        try:
            return super()._get_socket(host, port, timeout)
        except BaseException:
            # A failed handshake leaves no other owner of the connection.
            self.close()
            raise


class _Replies:
    """Replies of a mail server, limited to `_MAX_REPLY_BYTES` in total, because smtplib has no limit."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._read_bytes = 0

    def readline(self, limit: int) -> bytes:
        line = self._file.readline(limit)
        self._read_bytes += len(line)
        if self._read_bytes > _MAX_REPLY_BYTES:
            msg = "the reply is too long"
            raise OSError(msg)
        return line

    def close(self) -> None:
        self._file.close()


Security = Literal["starttls", "tls", "none"]
PORTS: dict[Security, int] = {"starttls": 587, "tls": 465, "none": 25}


@dataclass(frozen=True, slots=True)
class EmailChannel:
    name: str
    host: str
    sender: str
    recipients: tuple[str, ...]
    security: Security = "starttls"
    port: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    gap_seconds: float = 0.0
    refresh: Refresh | None = None

    def send(self, message: Message) -> str:
        """Send *message* through the mail server.

        Returns:
            Message id of the incident's first mail; later mails are replies to it.
        """
        mail = compose_mail(message, self.sender, self.recipients)
        with self._server() as server, self._errors(sent=True):
            server.send_message(mail)
        return message.reference or str(mail["Message-ID"])

    @contextmanager
    def _server(self) -> Generator[smtplib.SMTP]:
        with self._errors(sent=False):
            server = self._connect()
        try:
            with self._errors(sent=False):
                self._greet(server)
            yield server
        finally:
            try:
                server.quit()
            except (smtplib.SMTPException, OSError):
                server.close()

    def _connect(self) -> smtplib.SMTP:
        port = self.port or PORTS[self.security]
        if self.security == "tls":
            return CheckedSmtpTls(self.host, port, timeout=TIMEOUT_SECONDS, context=ssl.create_default_context())
        return CheckedSmtp(self.host, port, timeout=TIMEOUT_SECONDS)

    def _greet(self, server: smtplib.SMTP) -> None:
        if self.security == "starttls":
            server.starttls(context=ssl.create_default_context())
        if self.user:
            server.login(self.user, self.password)

    @contextmanager
    def _errors(self, *, sent: bool) -> Generator[None]:
        try:
            yield
        except EgressDeniedError as error:
            # Not permanent: the name may resolve differently, or the setting may be fixed.
            msg = f"the mail server was not contacted: {error}"
            raise ChannelError(msg, permanent=False) from error
        except smtplib.SMTPRecipientsRefused as error:
            replies = [(code, raw) for code, raw in error.recipients.values()]
            raise self._refused(min(replies, default=(0, b""))) from error
        except smtplib.SMTPResponseException as error:
            raw = error.smtp_error
            raise self._refused((error.smtp_code, raw if isinstance(raw, bytes) else str(raw).encode())) from error
        except smtplib.SMTPNotSupportedError as error:
            msg = f"the mail server does not support a required command: {error}"
            raise ChannelError(msg, permanent=True) from error
        except ssl.SSLCertVerificationError as error:
            msg = f"the mail server's certificate is not valid: {error.verify_message}"
            raise ChannelError(msg, permanent=False) from error
        except (smtplib.SMTPException, OSError) as error:
            if sent:
                msg = f"the mail server received the message and sent no response: {type(error).__name__}"
                raise OutcomeUnknownError(msg) from error
            msg = f"the mail server cannot be reached: {redact(str(error), [self.password])}"
            raise ChannelError(msg, permanent=False) from error

    def _refused(self, reply: tuple[int, bytes]) -> ChannelError:
        code, raw = reply
        text = redact(raw.decode(errors="replace"), [self.password])
        return ChannelError(f"the mail server responded {code}: {text}", permanent=code >= _PERMANENT)


def compose_mail(message: Message, sender: str, recipients: tuple[str, ...]) -> EmailMessage:
    mail = EmailMessage()
    subject = line(f"{message_text.icon(message)} {message_text.headline(message)}", MAX_SUBJECT_CHARS)
    # RFC 2047: `=?` starts an encoded word, which would be decoded, also to a line break.
    mail["Subject"] = subject.replace("=?", "= ?")
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Date"] = format_datetime(datetime.fromtimestamp(message.at, UTC))
    mail["Message-ID"] = _message_id(message.key, sender)
    if message.reference:
        mail["In-Reply-To"] = mail["References"] = message.reference
    # RFC 3834: prevents automatic replies.
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Stagelens-Incident"] = line(message.incident, MAX_SUBJECT_CHARS)
    mail.set_content(mail_text(message), cte="quoted-printable")
    png = message_chart(message)
    name = _message_id(f"{message.key}.chart", sender)
    # RFC 2392: the URL of a part of the same mail is the part's id without brackets.
    page = mail_html(message, f"cid:{name.strip('<>')}" if png else "")
    mail.add_alternative(page, subtype="html", cte="quoted-printable")
    if png:
        _html_part(mail).add_related(png, "image", "png", cid=name, disposition="inline", filename="chart.png")
    return mail


def _html_part(mail: EmailMessage) -> EmailMessage:
    """Return the HTML part of *mail*; mail programs that show text do not list parts related to it."""
    page = mail.get_body(("html",))
    assert isinstance(page, EmailMessage)  # noqa: S101 - it was just added
    return page


def _message_id(key: str, sender: str) -> str:
    domain = sender.rstrip("> ").rpartition("@")[2] or "stagelens"
    return f"<{key.replace(':', '.')}@{domain}>"


def is_address(text: str) -> bool:
    """Return whether *text* is a mail address, with or without a name.

    >>> is_address("On call <oncall@example.com>"), is_address("oncall")
    (True, False)
    """
    bare = text.rpartition("<")[2].rstrip("> ")
    try:
        address = Address(addr_spec=bare)
    except (ValueError, IndexError):
        return False
    return bool(address.username and address.domain) and text.isprintable()


class _Section(ChannelSection):
    to: Texts = Field(examples=["oncall@example.com"])
    sender: Text = Field(alias="from", examples=["stagelens@example.com"])
    security: Security = "starttls"
    port: int = Field(default=0, ge=1, le=MAX_PORT, strict=True, examples=["587"])
    user: Text = ""
    password: Secret = Field(default=Secret(), examples=["SMTP_PASSWORD"])
    host: Text = Field(examples=["smtp.example.com"])

    @field_validator("to", "sender")
    @classmethod
    def _are_addresses(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        wrong = [
            repr(address) for address in ((value,) if isinstance(value, str) else value) if not is_address(address)
        ]
        if wrong:
            reject(f"has {', '.join(wrong)}; write a mail address, such as oncall@example.com")
        return value

    def faults(self) -> Iterator[Fault]:
        if self.user and self.password == Secret():
            yield Fault("password_env", "is missing; add `password_env: SMTP_PASSWORD`")
        if not (self.user + self.password.value).isascii():
            fix = "SMTP authentication supports only ASCII; choose another password"
            yield Fault("user", f"or its password has a non-ASCII letter; {fix}")

    def build(self, name: str) -> EmailChannel:
        account = self.user, self.password.value
        return EmailChannel(name, self.host, self.sender, self.to, self.security, self.port, *account)


KIND = ChannelKind(_Section, HINTS)
