"""The dashboard's settings, read once at the start.

STAGELENS_DASHBOARD_HOST          127.0.0.1
STAGELENS_DASHBOARD_PORT          8600
STAGELENS_DASHBOARD_TOKEN         none; needed to listen on anything but loopback
STAGELENS_DASHBOARD_BEHIND_PROXY  0; 1 says that a proxy in front asks who is there
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from ..core.errors import ConfigError

DEFAULT_PORT = 8600
MAX_PORT = 65_535
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


@dataclass(frozen=True, slots=True)
class DashboardConfig:
    """Where the dashboard listens and who may read it.

    Args:
        host: The address to listen on.
        port: The port; 0 takes a free one.
        token: The secret a reader brings once as `?token=`; None asks for nothing, which only loopback allows.
        behind_proxy: Whether a proxy in front decides who may read, so that any address may be listened on.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str | None = None
    behind_proxy: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= MAX_PORT:
            msg = f"STAGELENS_DASHBOARD_PORT is {self.port}; write a port between 0 and {MAX_PORT}"
            raise ConfigError(msg)
        if not (is_loopback(self.host) or self.token or self.behind_proxy):
            msg = (
                f"the dashboard would listen on {self.host}, where others can reach it, and asks nobody who they are.\n"
                "    Set STAGELENS_DASHBOARD_TOKEN to a long secret (open the page once with ?token=<secret>),\n"
                "    or put a proxy that signs people in before it and set STAGELENS_DASHBOARD_BEHIND_PROXY=1,\n"
                "    or listen on 127.0.0.1."
            )
            raise ConfigError(msg)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> DashboardConfig:
        """Read the settings from *env*.

        Raises:
            ConfigError: A value is not what its key allows.
        """
        return cls(
            host=env.get("STAGELENS_DASHBOARD_HOST") or "127.0.0.1",
            port=_port(env.get("STAGELENS_DASHBOARD_PORT") or str(DEFAULT_PORT)),
            token=env.get("STAGELENS_DASHBOARD_TOKEN") or None,
            behind_proxy=_switch(env, "STAGELENS_DASHBOARD_BEHIND_PROXY"),
        )


def is_loopback(host: str) -> bool:
    """Say whether *host* can be reached from this machine only.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        msg = f"STAGELENS_DASHBOARD_PORT is {text!r}; write a port between 0 and {MAX_PORT}, such as {DEFAULT_PORT}"
        raise ConfigError(msg)
    return int(text)


def _switch(env: Mapping[str, str], key: str) -> bool:
    text = env.get(key, "").strip().lower()
    if text not in _YES + _NO:
        msg = f"{key} is {text!r}; write 1 or 0"
        raise ConfigError(msg)
    return text in _YES
