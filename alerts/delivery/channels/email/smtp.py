"""SMTP to a server at an address that was looked up and judged here: what is judged is what is called, and TLS believes in the name."""

from __future__ import annotations

import os
import smtplib
import socket
import threading
from contextlib import suppress
from typing import BinaryIO

# Deadline for the whole session: a server that responds byte by byte stays within the timeout of each read. [seconds]
DEADLINE_SECONDS = 30.0
_MAX_REPLY_BYTES = 1_000_000


class CheckedSmtp(smtplib.SMTP):
    """SMTP client that connects to permitted addresses only, and closes after `DEADLINE_SECONDS` or `_MAX_REPLY_BYTES`.

    Raises EgressDeniedError if the mail server may not be called, and else what `smtplib.SMTP` does.
    """

    # A second handle of the connection: during a TLS handshake `sock` is the closed one from before.
    _line: socket.socket | None = None
    _deadline: threading.Timer | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._line is not None:
            self._line.close()
        super().close()

    def getreply(self) -> tuple[int, bytes]:
        """Return the next reply of the server."""
        if self.file is None and self.sock is not None:
            self.file = _Replies(self.sock.makefile("rb"))
        return super().getreply()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        """Connect; smtplib has this to be overridden, as its own TLS does."""
        connected = self._connected(host, port, timeout)
        self._line = connected.dup()
        self._deadline = threading.Timer(DEADLINE_SECONDS, self._hang_up)
        self._deadline.daemon = True
        self._deadline.start()
        return connected

    def _hang_up(self) -> None:
        # Not closed: another thread reads from it, and gets the end of the connection by this.
        if self._line is not None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)

    def _connected(self, host: str, port: int, timeout: float) -> socket.socket:
        """Return a connection to the first of the host's addresses that answers."""
        egress_policy = EgressPolicy.from_env(os.environ)
        egress_policy.check(host, [host])
        try:
            found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except UnicodeError as error:
            msg = f"{host} is no name of a host"
            raise OSError(msg) from error
        egress_policy.check(host, found)
        for address in found[:-1]:
            try:
                return socket.create_connection((address, port), timeout)
            except OSError:
                continue
        return socket.create_connection((found[-1], port), timeout)


class CheckedSmtpTls(smtplib.SMTP_SSL, CheckedSmtp):
    """The same with TLS from the first byte on."""

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        """Connect and start TLS."""
        try:
            return super()._get_socket(host, port, timeout)
        except BaseException:
            # A failed handshake; nobody else has the connection.
            self.close()
            raise


class _Replies:
    """The replies of a server, limited to `_MAX_REPLY_BYTES` in all: smtplib collects the lines of a reply without a limit."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._read_bytes = 0

    def readline(self, limit: int) -> bytes:
        """Return the next line.

        Raises:
            OSError: The server has sent too much.
        """
        line = self._file.readline(limit)
        self._read_bytes += len(line)
        if self._read_bytes > _MAX_REPLY_BYTES:
            msg = "the reply is too long"
            raise OSError(msg)
        return line

    def close(self) -> None:
        """Close the file."""
        self._file.close()
