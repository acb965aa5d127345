"""Asking a Triton server for a model's statistics, over the protocol and the TLS settings of the user's client.

The client itself is not asked: the HTTP one belongs to one thread, the asynchronous ones to one event loop. Headers of
the user's are not sent along: where a server asks for them, its statistics stay unread.

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

from __future__ import annotations

import json
import os
import ssl
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from ...export.http_post import limit

TIMEOUT_SECONDS = 1.0
MAX_SERVERS = 16
# A model's statistics are about 1 kB, more with many versions and batch sizes.
MAX_BODY_BYTES = 4 * 2**20
OK = 200


@dataclass(frozen=True, slots=True)
class Server:
    """A server as a client was told of it.

    Args:
        protocol: "http" or "grpc".
        url: The client's first argument: host, port and perhaps a path.
        arguments: All of the client's arguments, for what they say about TLS.
    """

    protocol: str
    url: str
    arguments: Mapping[str, Any] = field(compare=False, repr=False)


class Totals(NamedTuple):
    """Calls of a model that succeeded, and the nanoseconds that they took together."""

    calls: int
    whole: int
    h2d: int
    forward: int
    d2h: int

    def since(self, earlier: Totals) -> Totals:
        """Return what was added after an earlier reading."""
        return Totals(*(now - before for now, before in zip(self, earlier, strict=True)))


def ask(server: Server, model: str, version: str) -> Totals:
    """Return the totals of *model*, of all its versions where none is named.

    Raises:
        Exception: The server cannot be reached, does not allow it, or does not know the model.
    """
    statistics = (_http if server.protocol == "http" else _grpc)(server, model, version)
    return Totals(*(sum(each) for each in zip(*statistics, strict=True)))


def _http(server: Server, model: str, version: str) -> list[Totals]:
    address = urlsplit("//" + server.url)
    path = f"{address.path.rstrip('/')}/v2/models/{quote(model)}"
    path += f"/versions/{quote(version)}/stats" if version else "/stats"
    connection = _connection(server.arguments, address.hostname or "", address.port)
    try:
        limit(connection, TIMEOUT_SECONDS, max_bytes=2 * MAX_BODY_BYTES)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(MAX_BODY_BYTES)
    finally:
        connection.close()
    if response.status != OK:
        raise HTTPException(response.status)
    return [
        Totals(
            int(counted["success"]["count"]),
            *(int(counted[each]["ns"]) for each in ("success", "compute_input", "compute_infer", "compute_output")),
        )
        for counted in (each["inference_stats"] for each in json.loads(body)["model_stats"])
    ]


def _connection(arguments: Mapping[str, Any], host: str, port: int | None) -> HTTPConnection:
    if not arguments.get("ssl"):
        return HTTPConnection(host, port)
    context = arguments.get("ssl_context")
    if not isinstance(context, ssl.SSLContext):
        context = ssl.create_default_context(cafile=(arguments.get("ssl_options") or {}).get("ca_certs"))
        if arguments.get("insecure"):
            context.check_hostname = False
    return HTTPSConnection(host, port, context=context)


def _grpc(server: Server, model: str, version: str) -> list[Totals]:
    from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: PLC0415 - loaded already by the client this is about

    with _untraced():
        stub = service_pb2_grpc.GRPCInferenceServiceStub(_channel(server, os.getpid()))
        messages: Any = service_pb2  # made when it is imported
        request = messages.ModelStatisticsRequest(name=model, version=version)
        answer = stub.ModelStatistics(request, timeout=TIMEOUT_SECONDS)
    return [
        Totals(
            counted.success.count,
            counted.success.ns,
            counted.compute_input.ns,
            counted.compute_infer.ns,
            counted.compute_output.ns,
        )
        for counted in (each.inference_stats for each in answer.model_stats)
    ]


# A channel does not survive a fork: every process has its own.
@lru_cache(maxsize=MAX_SERVERS)
def _channel(server: Server, _process: int) -> Any:
    import grpc  # noqa: PLC0415 - as above

    arguments = server.arguments
    credentials = arguments.get("creds")
    if not credentials and arguments.get("ssl"):
        files = (arguments.get(name) for name in ("root_certificates", "private_key", "certificate_chain"))
        credentials = grpc.ssl_channel_credentials(
            *(None if file is None else Path(file).read_bytes() for file in files)
        )
    options = arguments.get("channel_args")
    if credentials:
        return grpc.secure_channel(server.url, credentials, options=options)
    return grpc.insecure_channel(server.url, options=options)


def forget() -> None:
    """Close all connections."""
    _channel.cache_clear()


@contextmanager
def _untraced() -> Generator[None]:
    """Keep an OpenTelemetry instrumentation of gRPC from reporting our calls as the user's."""
    context = sys.modules.get("opentelemetry.context")
    if context is None:
        yield
        return
    token = context.attach(context.set_value(context._SUPPRESS_INSTRUMENTATION_KEY, True))  # noqa: SLF001 - what its modules look at
    try:
        yield
    finally:
        context.detach(token)
