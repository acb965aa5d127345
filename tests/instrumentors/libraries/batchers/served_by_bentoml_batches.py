"""A BentoML service with a batchable API, for tests: served by a Python that has BentoML."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUntypedClassDecorator=false
from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator

import bentoml
from doubling import double


@bentoml.service
class Model:
    # On a busy machine calls wait; what waits longer is refused.
    @bentoml.api(batchable=True, max_batch_size=3, max_latency_ms=60_000)
    def double(self, rows: list[int]) -> list[int]:
        return double(rows)

    @bentoml.api
    def triple(self, number: int) -> int:
        time.sleep(0.005)
        return number * 3

    @bentoml.api
    async def triple_later(self, number: int) -> int:
        await asyncio.sleep(0.006)
        return number * 3

    @bentoml.api
    async def triple_each(self, number: int) -> AsyncGenerator[str]:
        await asyncio.sleep(0.006)
        yield str(number * 3)

    @bentoml.api
    def triple_in_steps(self, number: int) -> Generator[str]:
        """Take a while in a stream, in a thread."""
        time.sleep(0.005)
        yield str(number * 3)
