"""Attacks on the collector at a port, each with what it gets as a response."""

from __future__ import annotations

import gzip
import http.client
import json
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any, NamedTuple

import zstandard

from stagelens.core.histogram import bucket_bounds

HOST = "127.0.0.1"
JSON = {"Content-Type": "application/json"}
_PROTOBUF = {"Content-Type": "application/x-protobuf"}
_MEGABYTE = 1024**2
_TIMEOUT_SECONDS = 30.0
# Of the first bucket: 0.1 s at scale 5.
_OFFSET = -107


class Sent(NamedTuple):
    """Status of the response, 0 for none; whether it has a retry delay; and its duration."""

    status: int
    advised: bool
    seconds: float


Attack = Callable[[int, random.Random], Sent]
NOTHING = Sent(0, advised=False, seconds=0.0)


def send(
    port: int, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, source: str = HOST
) -> Sent:
    started = time.monotonic()
    connection = http.client.HTTPConnection(HOST, port, timeout=_TIMEOUT_SECONDS, source_address=(source, 0))
    try:
        connection.request("GET" if body is None else "POST", path, body, headers or {})
        response = connection.getresponse()
        response.read()
        advised = response.getheader("Retry-After") is not None
        return Sent(response.status, advised, time.monotonic() - started)
    except (OSError, http.client.HTTPException):
        return Sent(0, advised=False, seconds=time.monotonic() - started)
    finally:
        connection.close()


def export(items: Sequence[Any], service: str = "flood") -> bytes:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    scope = {
        "scope": {"name": "stagelens"},
        "metrics": [{"name": "inference.request.duration", **_metric_points(items)}],
    }
    return json.dumps({"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}).encode()


def _metric_points(items: Sequence[Any]) -> dict[str, Any]:
    return {"exponentialHistogram": {"aggregationTemporality": 1, "dataPoints": items}}


def point(attributes: dict[str, str], counts: Sequence[str] = ("1",), scale: int = 5) -> dict[str, Any]:
    now = time.time_ns()
    return {
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()],
        "startTimeUnixNano": str(now - 10**9),
        "timeUnixNano": str(now),
        "count": str(sum(map(int, counts))),
        "sum": sum(int(count) * bucket_bounds(_OFFSET + number, scale)[1] for number, count in enumerate(counts)),
        "scale": scale,
        "positive": {"offset": _OFFSET, "bucketCounts": counts},
    }


def gzip_bombs(port: int, _rng: random.Random) -> Sent:
    return send(port, "/v1/metrics", _bomb("gzip"), _PROTOBUF | {"Content-Encoding": "gzip"})


def zstd_bombs(port: int, _rng: random.Random) -> Sent:
    """The same in the other encoding, at a thirtieth of the size."""
    return send(port, "/v1/traces", _bomb("zstd"), JSON | {"Content-Encoding": "zstd"})


@cache
def _bomb(encoding: str) -> bytes:
    plain = bytes(128 * _MEGABYTE)
    return gzip.compress(plain, 9) if encoding == "gzip" else zstandard.compress(plain)


def full_bodies(port: int, rng: random.Random) -> Sent:
    """Bodies of the maximum size with content that uses most memory when parsed: objects, lists, numbers."""
    body, headers = rng.choice(_largest())
    return send(port, rng.choice(("/v1/metrics", "/v1/traces")), body, headers)


@cache
def _largest() -> list[tuple[bytes, dict[str, str]]]:
    size = 60 * _MEGABYTE
    texts = (
        b'{"resourceMetrics":[' + b"{}," * (size // 3) + b"{}]}",
        b'{"resourceSpans":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":[' + b"1," * (size // 2) + b"1]}",
        b'{"a":"' + b"\\u00e9" * (size // 6) + b'"}',
    )
    packed = [(gzip.compress(body, 6), JSON | {"Content-Encoding": "gzip"}) for body in texts]
    return [*packed, (gzip.compress(b"\x0a\x00" * (size // 2)), _PROTOBUF | {"Content-Encoding": "gzip"})]


def plain_bodies(port: int, rng: random.Random) -> Sent:
    return send(port, "/v1/metrics", rng.randbytes(8 * _MEGABYTE - 1), _PROTOBUF)


def new_series(port: int, rng: random.Random) -> Sent:
    items = [
        point({"http.route": f"/{rng.getrandbits(64):x}", "inference.model.name": f"{rng.getrandbits(64):x}"})
        for _ in range(2000)
    ]
    return send(port, "/v1/metrics", export(items, f"s{rng.getrandbits(24):x}"), JSON)


def huge_attributes(port: int, rng: random.Random) -> Sent:
    items = [point({"http.route": "r" * 100_000, **{f"k{number}": "v" * 1000 for number in range(200)}})] * 20
    return send(port, "/v1/metrics", export(items, "x" * rng.randint(1, 100_000)), JSON)


def wide_histograms(port: int, _rng: random.Random) -> Sent:
    items = [point({"http.route": f"/{number}"}, ("1",) * 20_000, scale=10) for number in range(12)]
    return send(port, "/v1/metrics", export(items), JSON)


def half_requests(port: int, rng: random.Random) -> Sent:
    with ExitStack() as stack:
        for _ in range(60):
            with suppress(OSError):
                found = stack.enter_context(socket.create_connection((HOST, port), timeout=5))
                found.sendall(b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n")
                if rng.random() < 0.5:
                    found.sendall(b"\r\n" + bytes(rng.randrange(300_000)))
        time.sleep(rng.uniform(0.1, 1))
    return NOTHING


def slow_readers(port: int, _rng: random.Random) -> Sent:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1) as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(2000):
            found.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    return NOTHING


ATTACKS: tuple[Attack, ...] = (
    gzip_bombs,
    zstd_bombs,
    full_bodies,
    plain_bodies,
    new_series,
    huge_attributes,
    wide_histograms,
    half_requests,
    slow_readers,
)
