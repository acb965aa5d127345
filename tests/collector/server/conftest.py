"""TLS files of a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stagelens.collector.server.access_config import ServerTlsFiles

if TYPE_CHECKING:
    from tests.support.certificate_authority import Authorities


@pytest.fixture
def files(authority: Authorities, tmp_path: Path) -> ServerTlsFiles:
    server = authority("servers").sign("first")
    pairs = {"tls.crt": server.certificate, "tls.key": server.key, "ca.crt": authority("clients").file}
    for name, source in pairs.items():
        (tmp_path / name).write_bytes(source.read_bytes())
    return ServerTlsFiles(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key", client_ca=tmp_path / "ca.crt")
