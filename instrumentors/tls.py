"""TLS towards the collector: whom to trust, and what to show of oneself, by OpenTelemetry's own settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class Trust:
    """The files for TLS, in PEM.

    Args:
        certificate: The authorities to trust; None for the system's.
        client_certificate: What to show of oneself, for mTLS; None for nothing.
        client_key: Its private key, without a password.
    """

    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            OSError: One cannot be read or is not what it should be (an `ssl.SSLError` is one).
        """
        import ssl  # noqa: PLC0415 - a host that exports nothing needs none

        context = ssl.create_default_context(cafile=self.certificate)
        if self.client_certificate is not None:
            # Without this, a key with a password would ask for it on the terminal of the host.
            context.load_cert_chain(self.client_certificate, self.client_key, password="")
        return context
