"""TLS verification for outbound calls, client certificates, and valid header values."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from ..settings.yaml_fields import Fields


@dataclass(frozen=True, slots=True)
class CallTls:
    """PEM files of outbound TLS; without `ca_file` the system's authorities verify, without `cert_file` no certificate is sent."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return a new TLS context; each call reads the files again, so they can be replaced.

        Raises:
            OSError: A file cannot be used; `ssl.SSLError` is a subclass.
        """
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file is not None:
            # Without the argument, OpenSSL would ask for a password on the terminal.
            context.load_cert_chain(self.cert_file, self.key_file, password="")
        return context


def read(fields: Fields) -> CallTls:
    """Read the key `tls` of *fields*; errors are added to the document's problems."""
    inner = fields.mapping("tls", example="ca_file: /etc/ca.pem") if fields.has("tls") else None
    if inner is None or inner.broken:
        return CallTls()
    found = CallTls(file_at(inner, "ca_file"), file_at(inner, "cert_file"), file_at(inner, "key_file"))
    if (found.cert_file is None) != (found.key_file is None):
        inner.complain(f"{inner.name('cert_file')} and key_file belong together; write both")
    inner.finish()
    return found


def file_at(fields: Fields, key: str) -> Path | None:
    """Return the path at *key* of *fields*, None without the key; a missing file is a problem of the document."""
    written = fields.text(key)
    if not written:
        return None
    path = Path(written)
    if not path.is_file():
        fields.complain(f"{fields.name(key)} is {written!r}, which is no file here", key)
    return path


def is_header(name: str, value: str) -> bool:
    """Return whether *name* and *value* form a valid header."""
    return name.isascii() and value.isascii() and (name + value).isprintable() and ":" not in name and " " not in name
