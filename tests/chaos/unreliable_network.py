"""A network with faults between senders and collectors: connections break at any byte, also within responses."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

_CHUNK_BYTES = 65_536
# Closes with a reset, not with an end: l_onoff and l_linger of socket(7).
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class ConnectionFaults:
    cut: float = 0.0
    lost: float = 0.0
    stalled: float = 0.0


NO_FAULTS = ConnectionFaults()
CONNECTION_FAULTS = (
    NO_FAULTS,
    ConnectionFaults(cut=0.3),
    ConnectionFaults(lost=0.5),
    ConnectionFaults(stalled=0.3),
    ConnectionFaults(cut=0.2, lost=0.3, stalled=0.2),
)


@dataclass(slots=True)
class _Fate:
    """How many bytes may pass each way, None for all, and how long nothing does."""

    request_bytes: int | None = None
    answer_bytes: int | None = None
    stall_seconds: float = 0.0


class Network:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._turn = 0
        self.faults = NO_FAULTS
        self.down = False
        self.broken = 0
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def listen(self, ports: Sequence[int]) -> int:
        async def start() -> asyncio.Server:
            return await asyncio.start_server(lambda reader, writer: self._carry(ports, reader, writer), "127.0.0.1", 0)

        self._servers.append(asyncio.run_coroutine_threadsafe(start(), self._loop).result())
        return int(self._servers[-1].sockets[0].getsockname()[1])

    def cut(self) -> None:
        self.down = True
        self._loop.call_soon_threadsafe(lambda: [self._reset(writer) for writer in [*self._open]])

    def mend(self) -> None:
        self.down = False

    def close(self) -> None:
        self.cut()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        carrying = asyncio.all_tasks() - {asyncio.current_task()}
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)

    def _fate(self) -> _Fate:
        rng, faults = self._rng, self.faults
        fate = _Fate()
        if rng.random() < faults.cut:
            fate.request_bytes = rng.randint(0, 20_000)
        if rng.random() < faults.lost:
            fate.answer_bytes = rng.choice((0, 0, rng.randint(1, 600)))
        if rng.random() < faults.stalled:
            fate.stall_seconds = rng.uniform(0.2, 2.0)
        return fate

    async def _carry(self, ports: Sequence[int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fate = self._fate()
        ends = [writer]
        self._open.add(writer)
        self._turn += 1
        try:
            _check(not self.down)
            upstream, beyond = await asyncio.open_connection("127.0.0.1", ports[self._turn % len(ports)])
            ends.append(beyond)
            self._open.add(beyond)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, beyond, fate.request_bytes, 0.0))
                group.create_task(_pump(upstream, writer, fate.answer_bytes, fate.stall_seconds))
        except* OSError:
            self.broken += 1
            for end in ends:
                self._reset(end)
        finally:
            for end in ends:
                end.close()
                self._open.discard(end)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        found = writer.get_extra_info("socket")
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()


def _check(up: bool) -> None:
    if not up:
        raise ConnectionResetError


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, budget_bytes: int | None, stall_seconds: float
) -> None:
    sink.transport.set_write_buffer_limits(0)  # `drain` returns when all is with the kernel
    while data := await source.read(_CHUNK_BYTES):
        await asyncio.sleep(stall_seconds)
        stall_seconds = 0.0
        passing = data if budget_bytes is None else data[:budget_bytes]
        sink.write(passing)
        await sink.drain()
        _check(len(passing) == len(data))
        if budget_bytes is not None:
            budget_bytes -= len(passing)
    sink.write_eof()
