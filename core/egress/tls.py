"""How one who is called over https is believed to be itself, and how it is told who we are; and what may be a header."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from ..settings.yaml_fields import Fields


@dataclass(frozen=True, slots=True)
class CallTls:
    """Files in PEM; None for the system's own authorities, and for no certificate of ours."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return what to call with; the files are read anew each time, so that they can be replaced.

        Raises:
            OSError: One of them cannot be used (`ssl.SSLError` is one).
        """
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file is not None:
            # Without a password, one would be asked for on the terminal.
            context.load_cert_chain(self.cert_file, self.key_file, password="")
        return context


def read(fields: Fields) -> CallTls:
    """Read the key `tls` of *fields*; what is wrong with it is in the document's problems."""
    inner = fields.mapping("tls", example="ca_file: /etc/ca.pem") if fields.has("tls") else None
    if inner is None or inner.broken:
        return CallTls()
    found = CallTls(file_at(inner, "ca_file"), file_at(inner, "cert_file"), file_at(inner, "key_file"))
    if (found.cert_file is None) != (found.key_file is None):
        inner.complain(f"{inner.name('cert_file')} and key_file belong together; write both")
    inner.finish()
    return found


def file_at(fields: Fields, key: str) -> Path | None:
    """Return the file that *key* of *fields* names, None for none; one that is not there is a problem."""
    written = fields.text(key)
    if not written:
        return None
    path = Path(written)
    if not path.is_file():
        fields.complain(f"{fields.name(key)} is {written!r}, which is no file here", key)
    return path


def is_header(name: str, value: str) -> bool:
    """Say whether *name* and *value* can be sent as a header."""
    return name.isascii() and value.isascii() and (name + value).isprintable() and ":" not in name and " " not in name
