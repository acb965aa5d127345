"""One POST: what was said comes back whole, and no answer holds who waits for it, however slowly it comes."""

from __future__ import annotations

import ssl

import pytest

from stagelens.instrumentors.posting import post
from tests.instrumentors.delivery.conftest import Sink
from tests.support.trickle import trickling


@pytest.mark.parametrize(
    "beginning", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"]
)
def test_an_answer_that_trickles_is_given_up(beginning: bytes) -> None:
    """Each byte of head or body comes in time; the answer does not."""
    with trickling(beginning) as port, pytest.raises(TimeoutError):
        post(f"http://127.0.0.1:{port}/v1/metrics", b"body", {}, 0.3, ssl.create_default_context)


def test_an_answer_comes_whole(sink: Sink) -> None:
    """Status, headers and body, also of an answer that ends with its connection."""
    sink.answers.append((503, {"Retry-After": "7"}, b"full"))
    answer = post(f"{sink.url}/v1/metrics?a=b", b"body", {"X-Stagelens-Batch": "a:1"}, 60, ssl.create_default_context)

    assert (answer.status, answer.headers["Retry-After"], answer.body) == (503, "7", b"full")
    assert [(each.path, each.body) for each in sink.posts] == [("/v1/metrics?a=b", b"body")]
