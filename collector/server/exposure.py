"""Nobody listens where others can reach it without asking who they are, unless told so."""

from __future__ import annotations

from ...core.addresses import is_loopback
from ...core.errors import ConfigError
from .clients import Access


def check_exposure(host: str, access: Access, *, is_open: bool) -> None:
    """Refuse to listen on *host* where it can be reached from elsewhere and nobody is asked who they are.

    Args:
        host: The address to listen on.
        access: Who may send.
        is_open: STAGELENS_COLLECTOR_OPEN: whether that was asked for.

    Raises:
        ConfigError: It would; what to do about it.
    """
    if is_loopback(host) or access.asks or is_open:
        return
    msg = (
        f"the collector would listen on {host}, where others can reach it, and asks nobody who they are.\n"
        "    Set STAGELENS_COLLECTOR_TOKEN to a long secret that agents share (openssl rand -hex 32),\n"
        "    or name tokens or a client_ca under access: in the file STAGELENS_COLLECTOR_CONFIG names,\n"
        "    or set STAGELENS_COLLECTOR_OPEN=true if nobody but those who may send can reach it,\n"
        "    or listen on 127.0.0.1."
    )
    raise ConfigError(msg)
