"""Mail server for tests: SMTP by RFC 5321 with optional login and TLS, and random failures."""

from __future__ import annotations

import base64
import queue
import random
import socketserver
import ssl
import threading
from collections.abc import Mapping
from email import message_from_bytes
from email.message import Message

from tests.alerts.receiver import HOLD_SECONDS, Moods, await_close

_HELLO = ["250-mail.example greets you", "250-8BITMIME", "250-SMTPUTF8"]


class MailServer:
    """SMTP server that accepts mail for all recipients.

    Args:
        moods: Failures of the server.
        context: TLS context for STARTTLS; None to offer none.
        implicit: Whether the connection uses TLS from the start.
        password: Required password; empty for no authentication.
        replies: Replies that replace the usual ones, by command such as `RCPT`, or `.` after the text; the connection stays open.
    """

    def __init__(
        self,
        moods: Moods,
        *,
        context: ssl.SSLContext | None = None,
        implicit: bool = False,
        password: str = "",
        replies: Mapping[str, str] | None = None,
    ) -> None:
        self.violations: list[str] = []
        self.taken: list[Message] = []
        self.moods = moods
        self.context = context
        self.implicit = implicit
        self.password = password
        self.answers = replies or {}
        self.held: queue.Queue[MailServer] = queue.Queue()
        self.requests = self.refused = 0
        self.random = random.Random(moods.seed)
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), type("Talk", (_Talk,), {"mail": self}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    @property
    def ids(self) -> list[str]:
        return list(dict.fromkeys(str(mail["Message-ID"]) for mail in self.taken))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, body: bytes) -> None:
        mail = message_from_bytes(body)
        for wrong, broken in (
            ("a line over 998", any(len(word) > 998 for word in body.split(b"\r\n"))),
            ("a bare line feed", b"\n" in body.replace(b"\r\n", b"")),
            ("no id", not mail["Message-ID"]),
            ("no date", not mail["Date"]),
        ):
            if broken:
                self.violations.append(wrong)
        self.taken.append(mail)


class _HangsUpError(Exception):
    """The server closes the connection."""


class _Talk(socketserver.StreamRequestHandler):
    mail: MailServer

    def handle(self) -> None:
        self._signed_in = not self.mail.password
        self.mail.requests += 1
        self._number = self.mail.requests
        try:
            if self._number in self.mail.moods.lost:
                self._hold()
            if self.mail.implicit and self.mail.context is not None:
                self._shield(self.mail.context)
            self._reply("220 mail.example")
            while True:
                line = self.rfile.readline()
                if not line or not self._obey(line.decode("ascii", "replace").strip()):
                    return
        except (OSError, ValueError, _HangsUpError):
            return
        finally:
            # The TLS socket is a different object than the one that the server closes.
            self.connection.close()

    def _obey(self, line: str) -> bool:
        verb = line.partition(" ")[0].upper()
        if verb in self.mail.answers:
            self._reply(self.mail.answers[verb])
        elif verb == "EHLO":
            self._hello()
        elif verb == "STARTTLS" and self.mail.context is not None:
            self._reply("220 go ahead")
            self._shield(self.mail.context)
        elif verb == "AUTH":
            self._sign_in(line)
        elif verb in {"MAIL", "RCPT"}:
            self._maybe("250 ok" if self._signed_in else "530 sign in first")
        elif verb == "DATA":
            self._data()
        elif verb == "QUIT":
            self._reply("221 bye")
            return False
        else:
            self._reply("250 ok" if verb in {"RSET", "NOOP"} else "502 not known")
        return True

    def _hello(self) -> None:
        offers = list(_HELLO)
        if self.mail.context is not None and not isinstance(self.connection, ssl.SSLSocket):
            offers.append("250-STARTTLS")
        for offer in [*offers, "250 AUTH PLAIN"]:
            self._reply(offer)

    def _shield(self, context: ssl.SSLContext) -> None:
        self.connection = context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")

    def _sign_in(self, line: str) -> None:
        given = base64.b64decode(line.split(" ")[2])
        self._signed_in = given == f"\0stagelens\0{self.mail.password}".encode()
        self._reply("235 welcome" if self._signed_in else f"535 {self.mail.password} is not it")

    def _data(self) -> None:
        self._reply("354 go on")
        lines: list[bytes] = []
        while (line := self.rfile.readline()) != b".\r\n":
            if not line:
                raise _HangsUpError
            lines.append(line[1:] if line.startswith(b"..") else line)
        if "." in self.mail.answers:
            return self._reply(self.mail.answers["."])
        fate = self.mail.random.random()
        if fate >= self.mail.moods.failing or self.mail.moods.after:
            self.mail.take(b"".join(lines))
            if self._number in self.mail.moods.hold:
                self._hold()
        return self._maybe("250 queued", fate)

    def _hold(self) -> None:
        self.mail.held.put(self.mail)
        self.connection.settimeout(HOLD_SECONDS)
        await_close(self.connection)
        raise _HangsUpError

    def _maybe(self, text: str, fate: float | None = None) -> None:
        failing = self.mail.moods.failing
        chance = self.mail.random.random() * 4 if fate is None else fate
        if chance >= failing:
            self._reply(text)
            return
        self.mail.refused += 1
        if chance < failing / 2:
            raise _HangsUpError
        self._reply("451 not now")

    def _reply(self, text: str) -> None:
        if not text:
            raise _HangsUpError
        self.connection.sendall(text.encode() + b"\r\n")
