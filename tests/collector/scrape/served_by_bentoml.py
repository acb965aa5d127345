"""BentoML service that calls another one, for tests; run by a Python with BentoML."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUntypedClassDecorator=false
from __future__ import annotations

import time

import bentoml


@bentoml.service
class Model:
    """Model that adds one to each row of a batch."""

    @bentoml.api(batchable=True, max_batch_size=8, max_latency_ms=1000)
    def add(self, rows: list[int]) -> list[int]:
        time.sleep(0.020)
        return [row + 1 for row in rows]


@bentoml.service
class Front:
    model = bentoml.depends(Model)

    @bentoml.api
    async def predict(self, row: int) -> int:
        if row < 0:
            raise ValueError
        return (await self.model.to_async.add([row]))[0]
