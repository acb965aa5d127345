"""KServe with a custom batcher, written as in docs/batches.md. The arguments are the ports of HTTP and gRPC."""

# ruff: noqa: ARG002 - KServe looks at the names of arguments
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from doubling import double
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer

import stagelens

if TYPE_CHECKING:
    from stagelens.instrumentors.tickets import Ticket

BATCH = 3


class Doubling(Model):
    def __init__(self) -> None:
        super().__init__("doubling")
        self.ready = True
        self.jobs: asyncio.Queue[tuple[int, asyncio.Future[int], Ticket]] = asyncio.Queue()
        self.batcher: asyncio.Task[None] | None = None

    def preprocess(self, payload: InferRequest, headers: Any = None) -> int:
        """Take the number out, in the request's own context."""
        time.sleep(0.001)
        return int(payload.inputs[0].data[0])

    async def predict(self, payload: int, headers: Any = None, response_headers: Any = None) -> int:
        loop = asyncio.get_running_loop()
        # The task begins in the context of the first request, and goes on in it for ever.
        self.batcher = self.batcher or loop.create_task(self.work())
        future: asyncio.Future[int] = loop.create_future()
        self.jobs.put_nowait((payload, future, stagelens.ticket()))
        return await future

    def postprocess(self, result: int, headers: Any = None, response_headers: Any = None) -> InferResponse:
        time.sleep(0.001)
        return InferResponse("", self.name, [InferOutput("doubled", [1, 1], "INT64", [result])])

    async def work(self) -> None:
        """Take up to three out of the queue, or as many as come in half a second."""
        while True:
            jobs = [await self.jobs.get()]
            try:
                async with asyncio.timeout(0.5):
                    while len(jobs) < BATCH:
                        jobs.append(await self.jobs.get())
            except TimeoutError:
                pass
            self.double(jobs)

    def double(self, jobs: list[tuple[int, asyncio.Future[int], Ticket]]) -> None:
        numbers, futures, tickets = zip(*jobs, strict=True)
        try:
            with stagelens.batch(tickets):
                doubled = double(numbers)
        except ValueError as error:
            for future in futures:
                future.set_exception(error)
        else:
            for future, result in zip(futures, doubled, strict=True):
                future.set_result(result)


if __name__ == "__main__":
    http, grpc = map(int, sys.argv[1:])
    ModelServer(http_port=http, grpc_port=grpc, workers=1).start([Doubling()])
