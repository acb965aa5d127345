"""MLServer with one runtime, in batches, in a worker process. The arguments are the ports of HTTP and gRPC."""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false
from __future__ import annotations

import asyncio
import sys

import numpy as np
from doubling import double
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Doubling(MLModel):
    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        numbers: list[int] = NumpyCodec.decode_input(payload.inputs[0])[:, 0].tolist()
        doubled = np.array(double(numbers)).reshape(-1, 1)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("doubled", doubled)])


async def main(http: int, grpc: int) -> None:
    settings = Settings(
        host="127.0.0.1", http_port=http, grpc_port=grpc, metrics_endpoint=None, parallel_workers=1, debug=False
    )
    model = ModelSettings(name="doubling", implementation=Doubling, max_batch_size=3, max_batch_time=0.5)
    await MLServer(settings).start([model])


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
