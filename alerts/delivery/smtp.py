"""SMTP to a server at an address that was looked up and judged here: what is judged is what is called, and TLS believes in the name."""

from __future__ import annotations

import os
import smtplib
import socket
import threading
from contextlib import suppress

from ...collector.calling.addresses import MayCall

# Deadline for the whole session: a server that responds byte by byte stays within the timeout of each read. [seconds]
DEADLINE_SECONDS = 30.0


class CheckedSmtp(smtplib.SMTP):
    """Calls whom the process may call, which is in its environment, and hangs up `DEADLINE_SECONDS` later.

    Making one raises NotCalledError where that is not the mail server, and else what `smtplib.SMTP` does.
    """

    _deadline: threading.Timer | None = None

    def close(self) -> None:
        """Hang up."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().close()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        """Connect; smtplib has this to be overridden, as its own TLS does."""
        connected = self._connected(host, port, timeout)
        self._deadline = threading.Timer(DEADLINE_SECONDS, self._hang_up)
        self._deadline.daemon = True
        self._deadline.start()
        return connected

    def _hang_up(self) -> None:
        # Not closed: another thread reads it, and learns by this that nothing more comes.
        if (connected := self.sock) is not None:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def _connected(self, host: str, port: int, timeout: float) -> socket.socket:
        """Return a connection to the first of the host's addresses that answers."""
        may_call = MayCall.from_env(os.environ)
        may_call.check(host, [host])
        try:
            found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except UnicodeError as error:
            msg = f"{host} is no name of a host"
            raise OSError(msg) from error
        may_call.check(host, found)
        for address in found[:-1]:
            try:
                return socket.create_connection((address, port), timeout)
            except OSError:
                continue
        return socket.create_connection((found[-1], port), timeout)


class CheckedSmtpTls(smtplib.SMTP_SSL, CheckedSmtp):
    """The same, within TLS from the first byte on."""
