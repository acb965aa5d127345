"""A BentoML service with a batchable API, for tests: served by a Python that has BentoML."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUntypedClassDecorator=false
from __future__ import annotations

import bentoml
from doubling import double


@bentoml.service
class Model:
    """Doubles each row of a batch."""

    # On a busy machine calls wait; what waits longer is refused.
    @bentoml.api(batchable=True, max_batch_size=3, max_latency_ms=60_000)
    def double(self, rows: list[int]) -> list[int]:
        """Double all."""
        return double(rows)
