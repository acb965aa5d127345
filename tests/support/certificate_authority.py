"""Certificates of unknown authorities, made by openssl."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_REQUEST = (
    "[req]\ndistinguished_name = name\nprompt = no\nx509_extensions = kind\n[name]\nCN = {name}\n[kind]\n{kind}\n"
)
_AUTHORITY = "basicConstraints = critical, CA:TRUE\nkeyUsage = critical, keyCertSign\nsubjectKeyIdentifier = hash"
_LEAF = "basicConstraints = critical, CA:FALSE\nsubjectAltName = DNS:localhost, IP:127.0.0.1\nauthorityKeyIdentifier = keyid"


# Returns the authority of that name.
Authorities = Callable[[str], "Authority"]


@dataclass(frozen=True)
class Pem:
    """A certificate and its key, each in a file."""

    certificate: Path
    key: Path


class Authority:
    """An authority that signs what it is asked to."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.pem = _make(folder, name, _AUTHORITY)

    @property
    def file(self) -> Path:
        """Certificate to trust."""
        return self.pem.certificate

    def sign(self, name: str) -> Pem:
        """Return a certificate for localhost whose common name is *name*."""
        return _make(self._folder, name, _LEAF, "-CA", self.pem.certificate, "-CAkey", self.pem.key)


def _make(folder: Path, name: str, kind: str, *options: str | Path) -> Pem:
    config = folder / f"{name}.cnf"
    config.write_text(_REQUEST.format(name=name, kind=kind))
    pem = Pem(folder / f"{name}.pem", folder / f"{name}.key")
    what = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    files = ["-config", config, "-keyout", pem.key, "-out", pem.certificate]
    subprocess.run(["openssl", *what.split(), *files, *options], check=True, capture_output=True)
    return pem
