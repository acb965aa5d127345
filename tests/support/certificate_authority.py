"""Certificates of unknown authorities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

# Returns the authority of that name.
Authorities = Callable[[str], "Authority"]


@dataclass(frozen=True)
class Pem:
    certificate: Path
    key: Path

    def encrypt_key(self, path: Path) -> None:
        key = load_pem_private_key(self.key.read_bytes(), None)
        encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
        path.write_bytes(encrypted)


class Authority:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._signer = trustme.CA(organization_name=name)
        # Certificate to trust.
        self.file = folder / f"{name}.pem"
        self._signer.cert_pem.write_to_path(self.file)

    def sign(self, name: str, *hosts: str) -> Pem:
        """Return a certificate whose common name is *name*, for *hosts*: by default localhost, by its name and address."""
        issued = self._signer.issue_cert(*(hosts or ("localhost", "127.0.0.1")), common_name=name)
        pem = Pem(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(pem.certificate)
        issued.private_key_pem.write_to_path(pem.key)
        return pem
