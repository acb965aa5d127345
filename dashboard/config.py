"""Settings of the dashboard, read from the environment at startup (documented in `core/settings/schema.py`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..collector.server.access_config import MIN_TOKEN_CHARS
from ..core.addresses import is_loopback
from ..core.errors import ConfigError

DEFAULT_PORT = 8600
MAX_PORT = 65_535
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class DashboardConfig:
    """Listening address, access rules and files of the dashboard.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 for any free port.
        token: Secret shared by all readers; None for none.
        behind_proxy: Whether a proxy in front authenticates readers, which permits listening on any address.
        users: File of user names and hashed passwords, see `users.Users`.
        proxy_header: Header in which a proxy sends the name of the reader.
        trusted_proxies: Proxies whose `proxy_header` is trusted.
        hosts: Host names of the dashboard, in addition to the names of this machine.
        prices: Price file, see `costs.Costs`; None without one.
        tracer: Address of a trace in another tracing backend, with the placeholder `{trace_id}`.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    token: str | None = None
    behind_proxy: bool = False
    users: Path | None = None
    proxy_header: str | None = None
    trusted_proxies: tuple[Network, ...] = ()
    hosts: tuple[str, ...] = ()
    prices: Path | None = None
    tracer: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= MAX_PORT:
            msg = f"STAGELENS_DASHBOARD_PORT is {self.port}; write a port between 0 and {MAX_PORT}"
            raise ConfigError(msg)
        if self.proxy_header and not self.trusted_proxies:
            msg = (
                f"STAGELENS_DASHBOARD_PROXY_HEADER is {self.proxy_header}, but any client can send that header.\n"
                "    Name the proxy in STAGELENS_DASHBOARD_TRUSTED_PROXIES, such as 10.0.0.5 or 10.0.0.0/24."
            )
            raise ConfigError(msg)
        if self.token and len(self.token) < MIN_TOKEN_CHARS and not is_loopback(self.host):
            msg = (
                f"STAGELENS_DASHBOARD_TOKEN has {len(self.token)} characters, too few for a dashboard that others reach on {self.host}.\n"
                f"    It needs at least {MIN_TOKEN_CHARS}: `openssl rand -hex 32` makes one."
            )
            raise ConfigError(msg)
        if not (is_loopback(self.host) or self.signs_in or self.behind_proxy):
            msg = (
                f"the dashboard would listen on {self.host}, where others can reach it, without authentication.\n"
                "    Set STAGELENS_DASHBOARD_TOKEN to a long secret that all readers share,\n"
                "    or STAGELENS_DASHBOARD_USERS to a file of names and passwords (stagelens dashboard --add-user NAME),\n"
                "    or STAGELENS_DASHBOARD_PROXY_HEADER to the header in which a proxy says who has signed in (OIDC),\n"
                "    or STAGELENS_DASHBOARD_BEHIND_PROXY=1 if only such a proxy can reach it,\n"
                "    or listen on 127.0.0.1."
            )
            raise ConfigError(msg)

    @property
    def signs_in(self) -> bool:
        """Whether a reader must authenticate."""
        return self.takes_secrets or self.proxy_header is not None

    @property
    def takes_secrets(self) -> bool:
        """Whether the dashboard itself accepts the token or a password."""
        return self.token is not None or self.users is not None

    @property
    def is_private(self) -> bool:
        """Whether the dashboard is reachable only from this machine, under the machine's own names."""
        return is_loopback(self.host) and not (self.behind_proxy or self.proxy_header or self.hosts)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> DashboardConfig:
        """Read the settings from the environment variables *env*.

        Raises:
            ConfigError: A value is invalid.
        """
        users = env.get("STAGELENS_DASHBOARD_USERS")
        return cls(
            host=env.get("STAGELENS_DASHBOARD_HOST") or "127.0.0.1",
            port=_port(env.get("STAGELENS_DASHBOARD_PORT") or str(DEFAULT_PORT)),
            token=_token(env),
            behind_proxy=_switch(env, "STAGELENS_DASHBOARD_BEHIND_PROXY"),
            users=Path(users) if users else None,
            proxy_header=env.get("STAGELENS_DASHBOARD_PROXY_HEADER") or None,
            trusted_proxies=tuple(_network(each) for each in _list(env, "STAGELENS_DASHBOARD_TRUSTED_PROXIES")),
            hosts=tuple(each.lower() for each in _list(env, "STAGELENS_DASHBOARD_HOSTS")),
            prices=_prices(env),
            tracer=_tracer(env),
        )


def _token(env: Mapping[str, str]) -> str | None:
    path = env.get("STAGELENS_DASHBOARD_TOKEN_FILE")
    if env.get("STAGELENS_DASHBOARD_TOKEN") or not path:
        return env.get("STAGELENS_DASHBOARD_TOKEN") or None
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"STAGELENS_DASHBOARD_TOKEN_FILE is {path}, which cannot be read: {error}"
        raise ConfigError(msg) from error
    if not token:
        msg = f"STAGELENS_DASHBOARD_TOKEN_FILE is {path}, which is empty; write the token into it"
        raise ConfigError(msg)
    return token


def _prices(env: Mapping[str, str]) -> Path | None:
    given = env.get("STAGELENS_PRICES")
    if given and not Path(given).is_file():
        msg = f"STAGELENS_PRICES is {given!r}, which is not a file; give the path of a file of prices, such as prices.yaml"
        raise ConfigError(msg)
    return Path(given) if given else None


def _tracer(env: Mapping[str, str]) -> str | None:
    given = env.get("STAGELENS_TRACER_URL")
    if given and not (given.startswith(("http://", "https://")) and "{trace_id}" in given):
        msg = (
            f"STAGELENS_TRACER_URL is {given!r}; write the address of a trace with {{trace_id}} in it, "
            "such as https://jaeger.example/trace/{trace_id}"
        )
        raise ConfigError(msg)
    return given or None


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        msg = f"STAGELENS_DASHBOARD_PORT is {text!r}; write a port between 0 and {MAX_PORT}, such as {DEFAULT_PORT}"
        raise ConfigError(msg)
    return int(text)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        msg = f"STAGELENS_DASHBOARD_TRUSTED_PROXIES holds {text!r}; write addresses or networks, such as 10.0.0.5,10.1.0.0/16"
        raise ConfigError(msg) from error


def _list(env: Mapping[str, str], key: str) -> list[str]:
    return [each.strip() for each in env.get(key, "").split(",") if each.strip()]


def _switch(env: Mapping[str, str], key: str) -> bool:
    text = env.get(key, "").strip().lower()
    if text not in _YES + _NO:
        msg = f"{key} is {text!r}; write 1 or 0"
        raise ConfigError(msg)
    return text in _YES
