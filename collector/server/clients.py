"""Who may send to the collector, as its configuration says it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one client may send, over `rates.BURST_SECONDS`; None for as much as it likes.

    Args:
        requests_per_second: Exports and events.
        bytes_per_second: Bodies, as they come.
    """

    requests_per_second: float | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token.

    Args:
        name: What its client is called; shown, unlike the token.
        digest: The SHA-256 of the token: the token itself is kept nowhere.
        environment: What takes the place of the environment that a resource claims, or None.
        limits: How much may be sent with it.
    """

    name: str
    digest: bytes = field(repr=False)
    environment: str | None = None
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Certificate:
    """A client certificate that is let in.

    Args:
        common_name: The common name of its subject; the client is called so.
        environment: What takes the place of the environment that a resource claims, or None.
        limits: How much may be sent with it.
    """

    common_name: str
    environment: str | None = None
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a TLS server.

    Args:
        certificate: Its certificate, followed by those between it and an authority.
        key: The private key, without a password.
        client_ca: The authorities that sign clients' certificates; None asks for none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Who may send, and how much.

    Args:
        tokens: The tokens that are good.
        certificates: The client certificates that are let in; empty for all that `client_ca` signed.
        anonymous: How much an address may send that shows neither, where that is allowed.
        tls: The files to speak TLS with; None speaks plain text.
    """

    tokens: tuple[Token, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    anonymous: Limits = Limits()
    tls: TlsFiles | None = None

    @property
    def asks(self) -> bool:
        """Whether a client must show who it is."""
        return bool(self.tokens) or (self.tls is not None and self.tls.client_ca is not None)
