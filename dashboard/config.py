"""Settings of the dashboard, read from the environment at startup (documented in `core/settings/schema.py`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ..collector.server.access_config import MIN_TOKEN_CHARS
from ..core.addresses import is_loopback
from ..core.errors import ConfigError
from ..core.settings.field_types import ExistingFile, Port, reject_value, secret_from_env
from ..core.settings.section import Settings

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_CODE = ("line", "version", "service", "module", "function")


def _items(value: Any) -> Any:
    return [part.strip() for part in value.lower().split(",") if part.strip()] if isinstance(value, str) else value


def _networks(value: Any) -> tuple[Network, ...]:
    try:
        return tuple(map(ipaddress.ip_network, _items(value)))
    except ValueError:
        reject_value("write addresses or networks")


def _trace_address(address: str) -> str:
    if not address.startswith(("http://", "https://")) or "{trace_id}" not in address:
        reject_value("write the address of a trace with {trace_id} in it")
    return address


def _source_address(address: str) -> str:
    fix = f"write an http(s) URL with {{file}} in it; its other placeholders are {', '.join(f'{{{placeholder}}}' for placeholder in _CODE)}"
    try:
        used = {name for _, name, form, turn in Formatter().parse(address) if name is not None and not (form or turn)}
        filled = urlsplit(address.format(file="x", **dict.fromkeys(_CODE, "x")))
    except (ValueError, KeyError, AttributeError, IndexError, TypeError):
        reject_value(fix)
    if not (address.startswith(("http://", "https://")) and filled.hostname and "file" in used):
        reject_value(fix)
    return address


class DashboardConfig(Settings):
    host: str = Field(default="127.0.0.1", validation_alias="STAGELENS_DASHBOARD_HOST")
    port: Port = Field(default=8600, validation_alias="STAGELENS_DASHBOARD_PORT", examples=["8600"])
    token: str | None = Field(default=None, validation_alias="STAGELENS_DASHBOARD_TOKEN", repr=False)
    behind_proxy: bool = Field(default=False, validation_alias="STAGELENS_DASHBOARD_BEHIND_PROXY")
    users: Path | None = Field(default=None, validation_alias="STAGELENS_DASHBOARD_USERS")
    proxy_header: str | None = Field(default=None, validation_alias="STAGELENS_DASHBOARD_PROXY_HEADER")
    proxy_groups_header: str | None = Field(
        default=None, validation_alias="STAGELENS_DASHBOARD_PROXY_GROUPS_HEADER", examples=["X-Forwarded-Groups"]
    )
    trusted_proxies: Annotated[tuple[Network, ...], BeforeValidator(_networks)] = Field(
        default=(), validation_alias="STAGELENS_DASHBOARD_TRUSTED_PROXIES", examples=["10.0.0.5,10.1.0.0/16"]
    )
    hosts: Annotated[tuple[str, ...], BeforeValidator(_items)] = Field(
        default=(), validation_alias="STAGELENS_DASHBOARD_HOSTS"
    )
    access: ExistingFile | None = Field(
        default=None, validation_alias="STAGELENS_DASHBOARD_ACCESS", examples=["access.yaml"]
    )
    prices: ExistingFile | None = Field(default=None, validation_alias="STAGELENS_PRICES", examples=["prices.yaml"])
    tracer: Annotated[str, AfterValidator(_trace_address)] | None = Field(
        default=None, validation_alias="STAGELENS_TRACER_URL", examples=["https://jaeger.example/trace/{trace_id}"]
    )
    source_url: Annotated[str, AfterValidator(_source_address)] | None = Field(
        default=None,
        validation_alias="STAGELENS_SOURCE_URL",
        examples=["https://github.com/acme/shop/blob/{version}/{file}#L{line}"],
    )

    @model_validator(mode="after")
    def _check_access(self) -> Self:
        if self.proxy_header and not self.trusted_proxies:
            msg = (
                f"STAGELENS_DASHBOARD_PROXY_HEADER is {self.proxy_header}, but any client can send that header.\n"
                "    Name the proxy in STAGELENS_DASHBOARD_TRUSTED_PROXIES, such as 10.0.0.5 or 10.0.0.0/24."
            )
        elif self.proxy_groups_header and not self.proxy_header:
            msg = (
                f"STAGELENS_DASHBOARD_PROXY_GROUPS_HEADER is {self.proxy_groups_header}, but no header has the name of the reader.\n"
                "    Set STAGELENS_DASHBOARD_PROXY_HEADER, such as X-Forwarded-User."
            )
        elif self.token and len(self.token) < MIN_TOKEN_CHARS and not is_loopback(self.host):
            msg = (
                f"STAGELENS_DASHBOARD_TOKEN has {len(self.token)} characters, too few for a dashboard that others can reach on {self.host}.\n"
                f"    It needs at least {MIN_TOKEN_CHARS}: `openssl rand -hex 32` makes one."
            )
        elif not (is_loopback(self.host) or self.signs_in or self.behind_proxy):
            msg = (
                f"the dashboard would listen on {self.host}, where others can reach it, without authentication.\n"
                "    Set STAGELENS_DASHBOARD_TOKEN to a long secret that all readers share,\n"
                "    or STAGELENS_DASHBOARD_USERS to a file of names and passwords (stagelens dashboard --add-user NAME),\n"
                "    or STAGELENS_DASHBOARD_PROXY_HEADER to the header in which a proxy sends the user name (OIDC),\n"
                "    or STAGELENS_DASHBOARD_BEHIND_PROXY=1 if only an authenticating proxy can reach it,\n"
                "    or listen on 127.0.0.1."
            )
        else:
            return self
        raise ConfigError(msg)

    @property
    def signs_in(self) -> bool:
        return self.takes_secrets or self.proxy_header is not None

    @property
    def takes_secrets(self) -> bool:
        return self.token is not None or self.users is not None

    @property
    def is_private(self) -> bool:
        return is_loopback(self.host) and not (self.behind_proxy or self.proxy_header or self.hosts)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        token = secret_from_env(env, "STAGELENS_DASHBOARD_TOKEN", "STAGELENS_DASHBOARD_TOKEN_FILE")
        return super().from_env({**env, "STAGELENS_DASHBOARD_TOKEN": token})
