"""Statistics over TLS: the statistics connection trusts the authorities of the user's client only."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.http.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from stagelens.instrumentors.libraries.tritonclient import TritonClientInstrumentor
from stagelens.instrumentors.libraries.tritonclient.calls import SERVER
from stagelens.instrumentors.libraries.tritonclient.statistics import Totals, fetch_totals
from tests.support.certificate_authority import Authorities, Pem
from tests.support.http_server import http_server

INSTRUMENTOR = TritonClientInstrumentor
pytestmark = [pytest.mark.stacks, pytest.mark.usefixtures("instrumented")]

messages: Any = service_pb2
STATISTICS = (
    '{"model_stats": [{"inference_stats": {"success": {"count": 4, "ns": 40}, "compute_input": {"count": 4, "ns": 1},'
    ' "compute_infer": {"count": 4, "ns": 20}, "compute_output": {"count": 4, "ns": 2}}}]}'
)
EXPECTED = Totals(4, 40, 1, 20, 2)


@pytest.fixture
def own(authority: Authorities) -> Pem:
    return authority("servers").sign("triton", "localhost")


@pytest.fixture
def trusted(authority: Authorities) -> Path:
    return authority("servers").file


@pytest.fixture
def https(own: Pem) -> Generator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    with http_server(lambda _: (200, {}, STATISTICS.encode()), context=context) as server:
        yield server.url.removeprefix("https://")


@pytest.fixture
def grpcs(own: Pem) -> Generator[str]:
    class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
        def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the service's names
            times = {"compute_input": 1, "compute_infer": 20, "compute_output": 2}
            duration = messages.StatisticDuration
            counted = {name: duration(count=4, ns=ns) for name, ns in times.items()}
            statistics = messages.InferStatistics(success=duration(count=4, ns=40), **counted)
            return messages.ModelStatisticsResponse(model_stats=[messages.ModelStatistics(inference_stats=statistics)])

    server = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(), server)
    credentials = grpc.ssl_server_credentials([(own.key.read_bytes(), own.certificate.read_bytes())])
    port = server.add_secure_port("localhost:0", credentials)
    server.start()
    yield f"localhost:{port}"
    server.stop(None).wait()


def statistics_of(client: Any) -> Totals:
    return fetch_totals(getattr(client, SERVER), "m", "")


def test_https_uses_the_certificate_authorities_of_the_client(https: str, trusted: Path) -> None:
    options = {"ca_certs": str(trusted)}
    context = ssl.create_default_context(cafile=trusted)

    async def awaited() -> Totals:
        async with tritonclient.http.aio.InferenceServerClient(https, ssl=True, ssl_context=context) as client:
            return statistics_of(client)

    with tritonclient.http.InferenceServerClient(https, ssl=True, ssl_options=options) as client:
        assert statistics_of(client) == EXPECTED
    assert asyncio.run(awaited()) == EXPECTED


def test_https_refuses_other_certificate_authorities(https: str) -> None:
    with (
        tritonclient.http.InferenceServerClient(https, ssl=True, insecure=True) as client,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        statistics_of(client)


def test_grpc_uses_the_certificate_authorities_of_the_client(grpcs: str, trusted: Path) -> None:
    credentials = grpc.ssl_channel_credentials(trusted.read_bytes())

    with tritonclient.grpc.InferenceServerClient(grpcs, ssl=True, root_certificates=str(trusted)) as client:
        assert statistics_of(client) == EXPECTED
    INSTRUMENTOR().uninstrument()
    INSTRUMENTOR().instrument()
    with tritonclient.grpc.InferenceServerClient(grpcs, creds=credentials) as client:
        assert statistics_of(client) == EXPECTED


def test_grpc_refuses_other_certificate_authorities(grpcs: str) -> None:
    with (
        tritonclient.grpc.InferenceServerClient(grpcs, ssl=True) as client,
        pytest.raises(grpc.RpcError, match="UNAVAILABLE"),
    ):
        statistics_of(client)
