"""Access control of a running collector over HTTP and gRPC: permitted and refused clients."""

from __future__ import annotations

import functools
import hashlib
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub

from stagelens.collector.config import LiveConfig
from stagelens.collector.serve import Collector
from stagelens.collector.server import rate_limits, service_shares, tls_listener
from stagelens.core.errors import ConfigError
from stagelens.store import Store
from tests.collector.traces.otlp import attributes

if TYPE_CHECKING:
    from tests.collector.conftest import Bodies
    from tests.support.certificate_authority import Authorities, Pem

A, B = "a3f1" * 16, "77b0" * 16
TOKENS = f"""\
access:
  tokens:
    - {{name: team-a, sha256: {hashlib.sha256(A.encode()).hexdigest()}, environment: prod}}
    - {{name: team-b, sha256: {hashlib.sha256(B.encode()).hexdigest()}, requests_per_second: 0.002}}
"""


@dataclass
class Site:
    collector: Collector
    verify: ssl.SSLContext | bool = True
    scheme: str = "http"

    def client(self) -> httpx.Client:
        base = f"{self.scheme}://localhost:{self.collector.address[1]}"
        return httpx.Client(base_url=base, verify=self.verify, timeout=60)

    def post(self, body: Any, token: str = "", path: str = "/v1/metrics", **headers: str) -> httpx.Response:
        named = {"content-type": "application/json", **headers}
        if token:
            named["authorization"] = f"Bearer {token}"
        with self.client() as client:
            return client.post(path, content=json.dumps(body), headers=named)

    def export(self, token: str = "", credentials: grpc.ChannelCredentials | None = None) -> grpc.StatusCode:
        address = f"localhost:{self.collector.grpc_port}"
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = (
            grpc.secure_channel(address, credentials, options)
            if credentials
            else grpc.insecure_channel(address, options)
        )
        with channel:
            metadata = [("authorization", f"Bearer {token}")] if token else None
            try:
                MetricsServiceStub(channel).Export(ExportMetricsServiceRequest(), metadata=metadata, timeout=60)
            except grpc.RpcError as error:
                refused: Any = error
                return refused.code()
        return grpc.StatusCode.OK


@pytest.fixture
def site(serve: Callable[..., Any], tmp_path: Path) -> Callable[..., Site]:
    def start(text: str, host: str = "127.0.0.1") -> Site:
        file = tmp_path / "collector.yaml"
        file.write_text(text)
        return Site(serve(LiveConfig(file, {}), host=host, grpc_port=0).collector)

    return start


@pytest.fixture
def guarded(site: Callable[..., Site]) -> Site:
    return site(TOKENS)


@pytest.fixture
def sealed(site: Callable[..., Site], authority: Authorities) -> Site:
    own = authority("servers").sign("collector")
    tls = f"{{certificate: {own.certificate}, key: {own.key}, client_ca: {authority('clients').file}}}"
    return site(f"access:\n  tls: {tls}\n  certificates: [{{common_name: checkout, environment: prod}}]\n")


def environments(store: Store) -> Iterator[str]:
    with store.engine.connect() as connection:
        yield from connection.exec_driver_sql("SELECT environment FROM series").scalars()


def server_of(site: Site) -> Any:
    collector: Any = site.collector
    return collector._server


def limits_of(site: Site) -> Any:
    return server_of(site).limits


def as_client(sealed: Site, authority: Authorities, client: Pem | None) -> Site:
    context = ssl.create_default_context(cafile=authority("servers").file)
    if client:
        context.load_cert_chain(client.certificate, client.key)
    return Site(sealed.collector, context, "https")


def received_by(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


def test_only_a_valid_token_permits_exports(guarded: Site, bodies: Bodies, store: Store) -> None:
    body = bodies.metrics(bodies.point())
    responses = [guarded.post(body, token) for token in ("", "wrong", A[:-1], A)]

    assert [response.status_code for response in responses] == [401, 401, 401, 200]
    assert all(response.headers["www-authenticate"] == "Bearer" for response in responses[:3])
    assert "OTEL_EXPORTER_OTLP_HEADERS" in responses[0].text
    assert [guarded.export(token) for token in ("", "wrong", A)] == [
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.OK,
    ]
    assert list(environments(store)) == ["prod"]
    event = {"text": "v2 is out"}
    assert [guarded.post(event, token, path="/v1/events").status_code for token in ("", A)] == [401, 200]
    # Probes need no token.
    with guarded.client() as client:
        for path, status in (("/metrics", 401), ("/livez", 200), ("/readyz", 200), ("/", 200)):
            assert client.get(path).status_code == status
            assert client.get(path, headers={"authorization": f"Bearer {A}"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/metrics", "/v1/traces"])
def test_the_token_determines_the_environment_of_points(guarded: Site, bodies: Bodies, store: Store, path: str) -> None:
    trace, metrics = bodies.spans(*bodies.trace({"forward": 10**7})), bodies.metrics(bodies.point())
    body = metrics if path == "/v1/metrics" else trace
    (resource,) = body["resourceMetrics" if path == "/v1/metrics" else "resourceSpans"]
    # The current name of the environment, and the former one.
    claimed = {"deployment.environment.name": "staging", "deployment.environment": "staging"}
    resource["resource"]["attributes"] += attributes(claimed)

    assert guarded.post(body, A, path=path).status_code == 200
    assert list(environments(store)) == ["prod"]


def test_the_rate_limit_of_a_token_ignores_headers(
    guarded: Site, bodies: Bodies, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two requests; the third is permitted after eight minutes, which is longer than the test.
    monkeypatch.setattr(rate_limits, "BURST_SECONDS", 1000.0)
    body = bodies.metrics()
    statuses = [
        guarded.post(body, B, **{"x-forwarded-for": f"10.0.0.{n}", "forwarded": f"for=10.0.0.{n}"}) for n in range(4)
    ]
    refused = statuses[-1]

    assert [response.status_code for response in statuses] == [200, 200, 429, 429]
    assert int(refused.headers["retry-after"]) in range(1, 501)
    assert guarded.export(B) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert guarded.post(body, A).status_code == 200


def test_only_a_listed_certificate_permits_exports(
    sealed: Site, authority: Authorities, bodies: Bodies, store: Store
) -> None:
    as_ = functools.partial(as_client, sealed, authority)
    known, unlisted = (authority("clients").sign(name) for name in ("checkout", "unlisted"))
    body = bodies.metrics(bodies.point())

    assert as_(known).post(body).status_code == 200
    assert list(environments(store)) == ["prod"]
    assert as_(unlisted).post(body).status_code == 403
    assert as_(None).post(body).status_code == 401
    with as_(None).client() as client:
        assert client.get("/livez").status_code == 200
    with pytest.raises(httpx.HTTPError):
        as_(authority("strangers").sign("checkout")).post(body)


def test_grpc_requires_the_same_certificate(sealed: Site, authority: Authorities) -> None:
    root = authority("servers").file.read_bytes()

    def code(client: Pem | None) -> grpc.StatusCode:
        own = (client.key.read_bytes(), client.certificate.read_bytes()) if client else (None, None)
        return sealed.export(credentials=grpc.ssl_channel_credentials(root, *own))

    assert code(authority("clients").sign("checkout")) == grpc.StatusCode.OK
    assert code(authority("clients").sign("unlisted")) == grpc.StatusCode.PERMISSION_DENIED
    assert code(None) == code(authority("strangers").sign("checkout")) == grpc.StatusCode.UNAVAILABLE


def test_idle_tls_connections_do_not_block_others(sealed: Site, authority: Authorities, bodies: Bodies) -> None:
    limits = limits_of(sealed)
    limits.most_of_one, limits.surplus = 2, 0
    checkout = as_client(sealed, authority, authority("clients").sign("checkout"))
    with ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(socket.create_connection(sealed.collector.address, timeout=60))
        taken = checkout.post(bodies.metrics(bodies.point()))

    assert taken.status_code == 200


def test_a_tls_handshake_has_a_deadline(
    sealed: Site, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.setattr(tls_listener, "MAX_HANDSHAKE_SECONDS", 0.1)
    with socket.create_connection(sealed.collector.address, timeout=60) as silent:
        # The beginning of a hello.
        silent.sendall(b"\x16\x03\x01\x02\x00\x01")

        assert received_by(silent) == b""
    until(lambda: not limits_of(sealed)._owners)


def test_a_tls_port_does_not_respond_to_plain_text(sealed: Site) -> None:
    with socket.create_connection(sealed.collector.address, timeout=60) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")

        assert not received_by(connection).startswith(b"HTTP")


def test_only_a_collector_with_access_control_listens_on_all_interfaces(site: Callable[..., Site]) -> None:
    with pytest.raises(ConfigError, match="STAGELENS_COLLECTOR_TOKEN"):
        site("access: {}", host="0.0.0.0")

    assert site(TOKENS, host="0.0.0.0").post({}, A).status_code == 200


def test_a_replaced_connection_is_closed_immediately(
    sealed: Site, authority: Authorities, until: Callable[..., None]
) -> None:
    limits, server = limits_of(sealed), server_of(sealed)
    limits.most_of_one, limits.surplus = 3, 0
    context = ssl.create_default_context(cafile=authority("servers").file)
    with ExitStack() as stack:
        for _ in range(12):
            plain = stack.enter_context(socket.create_connection(sealed.collector.address, timeout=60))
            stack.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
        until(lambda: len(server.server_state.connections) <= 3)


def test_greedy_senders_leave_a_place_to_the_next_one(site: Callable[..., Site], store: Store, bodies: Bodies) -> None:
    tokens = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "b", "c")}
    entries = "".join(f"\n    - {{name: {name}, sha256: {digest}}}" for name, digest in tokens.items())
    collector = site(f"access:\n  tokens:{entries}\n")
    for restart in range(3):
        for token in ("a", "b"):
            named = [f"{token}-{restart}-{number}" for number in range(300)]
            resources = [bodies.metrics(bodies.point(), service=each)["resourceMetrics"][0] for each in named]
            collector.post({"resourceMetrics": resources}, token)
        collector = site(f"access:\n  tokens:{entries}\n")
    filled = set(store.services())
    for service in (f"c-{number}" for number in range(service_shares.MIN_SERVICES)):
        collector.post(bodies.metrics(bodies.point(), service=service), "c")
    returned = [bodies.metrics(bodies.point(), service=each)["resourceMetrics"][0] for each in sorted(filled)]
    collector.post({"resourceMetrics": returned}, "c", **{"x-stagelens-batch": "c:returned"})

    assert len(filled) > service_shares.SERVICES * 0.9
    assert set(store.services()) == filled | {f"c-{number}" for number in range(service_shares.MIN_SERVICES)}
