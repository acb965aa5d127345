"""SMTP to a server at an address that was looked up and judged here: what is judged is what is called, and TLS believes in the name."""

from __future__ import annotations

import os
import smtplib
import socket

from ...collector.calling.addresses import MayCall


class CheckedSmtp(smtplib.SMTP):
    """Calls whom the process may call, which is in its environment.

    Making one raises NotCalledError where that is not the mail server, and else what `smtplib.SMTP` does.
    """

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        """Connect to the first of the host's addresses that answers; smtplib has this to be overridden, as its own TLS does."""
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
