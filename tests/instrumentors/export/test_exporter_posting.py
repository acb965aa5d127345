"""One POST: the response is complete, and a slow response does not exceed the deadline."""

from __future__ import annotations

import ssl
from http.client import HTTPConnection

import pytest

from stagelens.instrumentors.export.http_post import limit_connection, post
from tests.instrumentors.export.conftest import Sink
from tests.support.trickle import trickling


@pytest.mark.parametrize(
    "beginning", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"]
)
def test_a_trickling_response_times_out(beginning: bytes) -> None:
    with trickling(beginning) as port, pytest.raises(TimeoutError):
        post(f"http://127.0.0.1:{port}/v1/metrics", b"body", {}, 0.3, ssl.create_default_context)


def test_a_response_is_read_completely(sink: Sink) -> None:
    sink.answers.append((503, {"Retry-After": "7"}, b"full"))
    response = post(f"{sink.url}/v1/metrics?a=b", b"body", {"X-Stagelens-Batch": "a:1"}, 60, ssl.create_default_context)

    assert (response.status, response.headers["Retry-After"], response.body) == (503, "7", b"full")
    assert [(each.path, each.body) for each in sink.posts] == [("/v1/metrics?a=b", b"body")]


def test_a_proxy_receives_the_full_url(sink: Sink) -> None:
    proxy = sink.url.replace("http://", "http://ada:s3cret@")
    post("http://collector.example/v1/events", b"body", {}, 60, ssl.create_default_context, proxy=proxy)

    assert [each.path for each in sink.posts] == ["http://collector.example/v1/events"]
    assert sink.posts[0].headers["proxy-authorization"] == "Basic YWRhOnMzY3JldA=="


def test_a_long_response_needs_an_explicit_limit(sink: Sink) -> None:
    sink.answers.extend([(200, {}, b"x" * 500_000)] * 2)
    connection = HTTPConnection("127.0.0.1", int(sink.url.rpartition(":")[2]))
    limit_connection(connection, 60, max_bytes=1_000_000)
    connection.request("POST", "/", b"")

    assert len(connection.getresponse().read()) == 500_000

    connection.close()
    limit_connection(connection, 60)
    connection.request("POST", "/", b"")
    with pytest.raises(OSError, match="too long"):
        connection.getresponse().read()
    connection.close()
