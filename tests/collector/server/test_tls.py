"""TLS of HTTP and gRPC servers: client verification and replaced files."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from stagelens.collector.server.access_config import ServerTlsFiles
from stagelens.collector.server.connections import certificate_of
from stagelens.collector.server.tls import GrpcTls, HttpTls
from stagelens.core.errors import ConfigError

if TYPE_CHECKING:
    from tests.support.certificate_authority import Authorities, Pem


def put(source: Pem, files: ServerTlsFiles) -> None:
    for new, place in ((source.certificate, files.certificate), (source.key, files.key)):
        shutil.copyfile(new, place)
        # Change the modification time, because two changes within one tick of the file system's clock look like one.
        os.utime(place, ns=(place.stat().st_atime_ns, place.stat().st_mtime_ns + 1))


def connect_https(tls: HttpTls, trusted: Path, client: Pem | None = None) -> tuple[str, str]:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(f"you are {certificate_of(writer.transport)}\n".encode())
        writer.close()

    async def ask() -> tuple[str, str]:
        context = ssl.create_default_context(cafile=trusted)
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        async with await asyncio.start_server(respond, "127.0.0.1", 0, ssl=tls.context) as server:
            port: int = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(b"who am I?\n")
            # With TLS 1.3 a client learns only at the first read that it was refused.
            received = (await reader.readline()).decode()
            if not received:
                raise ConnectionResetError
            shown: Any = writer.get_extra_info("peercert")
            writer.close()
        return dict(pair for (pair,) in shown["subject"])["commonName"], received.removeprefix("you are").strip()

    return asyncio.run(ask())


@pytest.fixture
def connect_grpc() -> Generator[Callable[[GrpcTls, Path, Pem | None], str]]:
    def say(_request: bytes, context: grpc.ServicerContext) -> bytes:
        names: Any = context.auth_context().get("x509_common_name", [])
        return b"".join(names)

    handler = grpc.method_handlers_generic_handler("test", {"Say": grpc.unary_unary_rpc_method_handler(say)})
    servers: dict[int, tuple[grpc.Server, int]] = {}

    def connect(tls: GrpcTls, trusted: Path, client: Pem | None) -> str:
        if id(tls) not in servers:
            server = grpc.server(ThreadPoolExecutor(1))
            server.add_generic_rpc_handlers((handler,))
            port = server.add_secure_port("127.0.0.1:0", tls.credentials)
            server.start()
            servers[id(tls)] = server, port
        own = (client.key.read_bytes(), client.certificate.read_bytes()) if client else (None, None)
        credentials = grpc.ssl_channel_credentials(trusted.read_bytes(), *own)
        # A separate channel, because gRPC shares connections between equal ones.
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(f"127.0.0.1:{servers[id(tls)][1]}", credentials, options) as channel:
            response: bytes = channel.unary_unary("/test/Say")(b"", timeout=60)
        return response.decode()

    yield connect
    for server, _ in servers.values():
        server.stop(None).wait()


def test_without_a_client_ca_certificates_identify_no_client(authority: Authorities, files: ServerTlsFiles) -> None:
    tls = HttpTls(files.model_copy(update={"client_ca": None}))

    assert connect_https(tls, authority("servers").file, authority("strangers").sign("checkout")) == ("first", "")


def test_replaced_files_apply_to_new_connections(
    authority: Authorities, files: ServerTlsFiles, connect_grpc: Callable[[GrpcTls, Path, Pem | None], str]
) -> None:
    https, overgrpc = HttpTls(files), GrpcTls(files)
    old, new = (authority(name).sign("checkout") for name in ("clients", "strangers"))
    trusted = authority("servers").file
    before = connect_https(https, trusted, old), connect_grpc(overgrpc, trusted, old)
    assert files.client_ca is not None
    put(authority("renewed").sign("second"), files)
    shutil.copyfile(authority("strangers").file, files.client_ca)
    renewed = authority("renewed").file

    assert before == (("first", "checkout"), "checkout")
    assert connect_https(https, renewed, new) == ("second", "checkout")
    assert connect_grpc(overgrpc, renewed, new) == "checkout"

    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        connect_https(https, renewed, old)
    with pytest.raises(grpc.RpcError):
        connect_grpc(overgrpc, renewed, old)


def test_an_invalid_file_leaves_the_last_valid_certificate_in_use(
    authority: Authorities, files: ServerTlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    tls, trusted = HttpTls(files), authority("servers").file
    files.key.write_text("half a k")
    connected = connect_https(tls, trusted)
    connect_https(tls, trusted)

    assert connected == ("first", "")
    assert len([line for line in caplog.messages if "the previous certificate stays in use" in line]) == 1

    put(authority("renewed").sign("second"), files)

    assert connect_https(tls, authority("renewed").file) == ("second", "")


@pytest.mark.parametrize("make", [HttpTls, GrpcTls])
@pytest.mark.parametrize(
    ("name", "fix"), [("certificate", "its own key"), ("key", "its own key"), ("client_ca", "PEM")]
)
def test_unusable_files_prevent_the_start(
    files: ServerTlsFiles, make: Callable[[ServerTlsFiles], object], name: str, fix: str
) -> None:
    broken: Path = getattr(files, name)
    broken.write_text("no certificate")

    with pytest.raises(ConfigError, match=rf"{broken}.*{fix}"):
        make(files)


def test_an_encrypted_key_prevents_the_start_without_a_prompt(
    authority: Authorities, files: ServerTlsFiles, tmp_path: Path
) -> None:
    authority("servers").sign("locked").encrypt_key(tmp_path / "locked.key")

    with pytest.raises(ConfigError, match="without a password"):
        HttpTls(files.model_copy(update={"key": tmp_path / "locked.key"}))


def test_tls_1_1_is_refused(files: ServerTlsFiles) -> None:
    assert HttpTls(files).context.minimum_version == ssl.TLSVersion.TLSv1_2
