"""A deployment of BentoML: a front, and a model behind it that answers in batches."""

from __future__ import annotations

import time

import bentoml


@bentoml.service
class Model:
    """Adds one to each row of a batch."""

    @bentoml.api(batchable=True, max_batch_size=8, max_latency_ms=1000)
    def add(self, rows: list[int]) -> list[int]:
        time.sleep(0.005)
        return [row + 1 for row in rows]


@bentoml.service
class Front:
    model = bentoml.depends(Model)

    @bentoml.api
    async def predict(self, row: int) -> int:
        return (await self.model.to_async.add([row]))[0]
