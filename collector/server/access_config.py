"""Access configuration: the section `access:` of the collector's file (docs/security.md), or the one token.

Without credentials the collector only listens on a loopback address, unless STAGELENS_COLLECTOR_OPEN allows more (`check_exposure`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from ...core.addresses import is_loopback
from ...core.errors import ConfigError
from ...core.settings.field_types import Amount, ExistingFile, Secret, Size, Text, reject, secret_from_env
from ...core.settings.section import Fault, Section, read_section
from ...core.settings.yaml_config import Document, Place

ENV_TOKEN = "STAGELENS_COLLECTOR_TOKEN"  # noqa: S105 - the name of the setting
ENV_TOKEN_FILE = "STAGELENS_COLLECTOR_TOKEN_FILE"  # noqa: S105
# 128 bits, the output of `openssl rand -hex 16`.
MIN_TOKEN_CHARS = 32
MAKE_ONE = "create one: openssl rand -hex 32"
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Rate limits of one client, averaged over `auth.BURST_SECONDS`; None for no limit."""

    requests_per_second: float | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Token:
    name: str  # name of its client; shown, unlike the token
    digest: bytes = field(repr=False)  # SHA-256 of the token; the token itself is not retained
    environment: str | None = None  # environment that replaces the one in the client's resources; None to accept theirs
    limits: RateLimits = RateLimits()


@dataclass(frozen=True, slots=True)
class Certificate:
    common_name: str  # common name of the certificate subject, used as the name of the client
    environment: str | None = None  # environment that replaces the one in the client's resources; None to accept theirs
    limits: RateLimits = RateLimits()


class ServerTlsFiles(Section):
    example = "certificate: /etc/stagelens/tls.crt"

    certificate: ExistingFile = Field(examples=["/etc/stagelens/tls.crt"])
    key: ExistingFile = Field(examples=["/etc/stagelens/tls.key"])
    client_ca: ExistingFile | None = Field(default=None, examples=["/etc/stagelens/clients.crt"])


@dataclass(frozen=True, slots=True)
class Access:
    tokens: tuple[Token, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    anonymous: RateLimits = RateLimits()
    tls: ServerTlsFiles | None = None

    @property
    def requires_credentials(self) -> bool:
        return bool(self.tokens) or (self.tls is not None and self.tls.client_ca is not None)


def _strong(token: Secret) -> Secret:
    if token.is_inline:
        fix = "put it into a file and write token_file: with its path, or write sha256: with its hash"
        reject(f"is written in this file, which others can read; {fix}")
    if token.lacking:
        reject(f"is missing: {token.lacking} is empty or not set; {MAKE_ONE}")
    if trouble := _token_fault(token.value):
        reject(f"{trouble}; {MAKE_ONE}")
    return token


def _digits(text: str) -> str:
    if not _SHA256.fullmatch(text):
        # The value may be the token itself, so the message does not repeat it.
        reject("is not a SHA-256 hash; write the 64 hexadecimal digits of `printf %s <token> | sha256sum`")
    return text


class _LimitsSection(Section):
    example = "requests_per_second: 5"

    requests_per_second: Amount | None = Field(default=None, examples=["50"])
    bytes_per_second: Size | None = Field(default=None, examples=["5MiB"])

    @property
    def limits(self) -> RateLimits:
        return RateLimits(self.requests_per_second, self.bytes_per_second)


class _TokenSection(_LimitsSection):
    example = "name: team-a"

    name: Text = Field(examples=["team-a"])
    token: Annotated[Secret, AfterValidator(_strong)] = Field(default=Secret(), examples=["TEAM_A_TOKEN"])
    sha256: Annotated[Text, AfterValidator(_digits)] | None = Field(default=None, repr=False)
    environment: Text | None = None

    def faults(self) -> Iterator[Fault]:
        if self.token.value and self.sha256:
            yield Fault("sha256", "and a token are both set; keep one")
        elif not self.token.value and not self.sha256:
            yield Fault("token_env", "is missing; add `token_env: TEAM_A_TOKEN`")

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.sha256) if self.sha256 else _digest(self.token.value)


class _CertificateSection(_LimitsSection):
    example = "common_name: checkout.prod"

    common_name: Text = Field(examples=["checkout.prod"])
    environment: Text | None = None


class AccessSection(Section):
    example = "tokens: [{name: team-a, token_env: TEAM_A_TOKEN}]"

    tokens: tuple[_TokenSection, ...] = ()
    certificates: tuple[_CertificateSection, ...] = ()
    anonymous: _LimitsSection = _LimitsSection()
    tls: ServerTlsFiles | None = None

    def faults(self) -> Iterator[Fault]:
        if self.certificates and not (self.tls and self.tls.client_ca):
            fix = "set the CA under tls:, such as client_ca: /etc/stagelens/clients.crt"
            yield Fault("certificates", f"has names, but no CA verifies certificates; {fix}")
        yield from _duplicates("tokens", [token.name for token in self.tokens], "has the same name {!r} as")
        yield from _duplicates("tokens", [token.digest for token in self.tokens], "has the same token as")
        common_names = [certificate.common_name for certificate in self.certificates]
        yield from _duplicates("certificates", common_names, "has the same name {!r} as")

    @property
    def access(self) -> Access:
        return Access(
            tuple(Token(token.name, token.digest, token.environment, token.limits) for token in self.tokens),
            tuple(
                Certificate(section.common_name, section.environment, section.limits) for section in self.certificates
            ),
            self.anonymous.limits,
            self.tls,
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """Files with secrets; the configuration is read again when one of them changes."""
        return tuple(token.token.file for token in self.tokens if token.token.file)


def _duplicates(key: str, values: Sequence[str | bytes], text: str) -> Iterator[Fault]:
    for position, value in enumerate(values):
        if (first := values.index(value)) < position:
            yield Fault((key, position), f"{text.format(value)} {key}[{first}]; make each unique")


def read_access(
    document: Document, path: Place, value: Any, env: Mapping[str, str], held: dict[str, str]
) -> AccessSection:
    """Read the section `access:`; errors are added to the document's problems. `Secret` describes *held*."""
    return read_section(AccessSection, document, path, value, {"env": env, "held": held}) or AccessSection()


def tokens_from_env(env: Mapping[str, str]) -> tuple[Token, ...]:
    """Return the token in STAGELENS_COLLECTOR_TOKEN or in the file STAGELENS_COLLECTOR_TOKEN_FILE, if any.

    Raises:
        ConfigError: The token cannot be read, or is too short.
    """
    text = secret_from_env(env, ENV_TOKEN, ENV_TOKEN_FILE)
    if not text:
        return ()
    if trouble := _token_fault(text):
        msg = f"{ENV_TOKEN if env.get(ENV_TOKEN) else ENV_TOKEN_FILE} {trouble}; {MAKE_ONE}"
        raise ConfigError(msg)
    return (Token("token", _digest(text)),)


def _token_fault(text: str) -> str:
    if len(text) < MIN_TOKEN_CHARS:
        return f"has {len(text)} characters, which is too short; it needs at least {MIN_TOKEN_CHARS}"
    return "" if text.isascii() and text.isprintable() and " " not in text else "must be one word of ASCII characters"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def check_exposure(host: str, access: Access, *, is_open: bool) -> None:
    """Refuse to listen on a *host* that other machines can reach if no credentials are required."""
    if is_loopback(host) or access.requires_credentials or is_open:
        return
    msg = (
        f"the collector would listen on {host}, where others can reach it, without authentication.\n"
        "    Set STAGELENS_COLLECTOR_TOKEN to a long secret that agents share (openssl rand -hex 32),\n"
        "    or add tokens or a client_ca under access: in the file STAGELENS_COLLECTOR_CONFIG,\n"
        "    or set STAGELENS_COLLECTOR_OPEN=true if only permitted senders can reach it,\n"
        "    or listen on 127.0.0.1."
    )
    raise ConfigError(msg)
