"""Bodies: their memory is limited, waiting ones are decoded together, and each gets a separate result."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest

from stagelens.collector.ingest.writer import FullError
from stagelens.collector.self_metrics import SelfMetrics
from stagelens.collector.server.bodies import SMALL_BYTES, BodyReader, DecoderPool, identity
from stagelens.core.errors import WireError

THREADS = 2


def test_bodies_together_cannot_exceed_the_limit_but_a_single_one_may() -> None:
    reader = BodyReader(max_body_bytes=1000, max_held_bytes=100, metrics=SelfMetrics())
    with reader.held() as first, reader.held() as second:
        first(60)
        second(40)
        with pytest.raises(FullError, match="60 bytes of other requests are being read"):
            second(1)
        with pytest.raises(FullError, match="40 bytes of other requests"):
            first(1)
    # They free their memory at their end.
    with reader.held() as first:
        first(50)
        with suppress(KeyError), reader.held() as failed:
            failed(50)
            raise KeyError
        with reader.held() as second:
            second(50)
    with reader.held() as single:
        single(60)
        single(900)


class Reading:
    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.groups: list[Sequence[bytes]] = []

    def wait(self, body: bytes) -> bytes:
        self.begun.release()
        assert self.go.wait(60)
        return body

    def together(self, bodies: Sequence[bytes]) -> list[bytes]:
        self.groups.append(bodies)
        if b"bad" in bodies:
            msg = "bad"
            raise WireError(msg)
        return [body.upper() for body in bodies]


async def _occupied(parser: Reading, decoders: DecoderPool) -> list[asyncio.Task[bytes]]:
    tasks = [asyncio.create_task(decoders.read(b"first", "", parser.wait, parser.together)) for _ in range(THREADS)]
    for _ in tasks:
        assert await asyncio.to_thread(parser.begun.acquire, timeout=60)
    return tasks


def test_a_failing_body_does_not_affect_others() -> None:
    parser, decoders = Reading(), DecoderPool(2 * SMALL_BYTES)

    async def run() -> list[bytes | BaseException]:
        first = await _occupied(parser, decoders)
        waiting = [decoders.read(body, "", bytes, parser.together) for body in (b"a", b"b", b"bad", b"c", b"d")]
        later = asyncio.gather(*first, *waiting, decoders.read(b"e", "gzip", bytes, identity), return_exceptions=True)
        await asyncio.sleep(0)
        parser.go.set()
        return await later

    *results, damaged = asyncio.run(run())
    decoders.stop()

    assert [repr(one) for one in results] == [
        *(repr(body) for body in (b"FIRST", b"FIRST", b"A", b"B")),
        repr(WireError("bad")),
        *(repr(body) for body in (b"C", b"D")),
    ]
    assert isinstance(damaged, WireError)
    assert max(map(len, parser.groups)) > 1


def test_bodies_of_disconnected_clients_are_not_parsed() -> None:
    parser, decoders = Reading(), DecoderPool(2 * SMALL_BYTES)

    async def run() -> bytes:
        first = await _occupied(parser, decoders)
        gone = asyncio.create_task(decoders.read(b"gone", "", bytes, parser.together))
        await asyncio.sleep(0)
        gone.cancel()
        last = asyncio.create_task(decoders.read(b"last", "", bytes, parser.together))
        await asyncio.sleep(0)
        parser.go.set()
        await asyncio.gather(*first, gone, return_exceptions=True)
        return await last

    assert asyncio.run(run()) == b"LAST"
    decoders.stop()
    assert not any(b"gone" in group for group in parser.groups)


@pytest.mark.parametrize("most", [SMALL_BYTES // 2, 4 * SMALL_BYTES])
def test_bodies_over_the_maximum_size_are_refused(most: int) -> None:
    parser, decoders = Reading(), DecoderPool(most)
    body = b"x" * (most - 1)

    async def run() -> list[bytes | BaseException]:
        sent = (gzip.compress(one) for one in (body, body + b"xx"))
        return await asyncio.gather(
            *(decoders.read(one, "gzip", bytes, parser.together) for one in sent), return_exceptions=True
        )

    read, refused = asyncio.run(run())
    decoders.stop()
    assert read == body.upper()
    assert "bytes" in str(refused)
    assert isinstance(refused, WireError)
