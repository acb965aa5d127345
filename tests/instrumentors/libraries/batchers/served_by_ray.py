"""Ray Serve with two deployments: a front that asks a model, which works in batches. The argument is the port.

As few processes as Ray can do with; they end with this one.
"""

# pyright: reportMissingImports=false, reportUntypedClassDecorator=false, reportUntypedFunctionDecorator=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false, reportArgumentType=false
from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from typing import Any

import ray
from doubling import double
from ray import serve

deployment = serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=10)


@deployment
class Model:
    @serve.batch(max_batch_size=3, batch_wait_timeout_s=0.5)
    async def double(self, numbers: list[int]) -> list[int]:
        return double(numbers)

    async def __call__(self, number: int) -> int:
        return await self.double(number)


@deployment
class Front:
    def __init__(self, model: Any) -> None:
        self.model = model

    async def __call__(self, request: Any) -> dict[str, int]:
        if request.method == "GET":
            return {}
        return {"output": await self.model.remote((await request.json())["input"])}


async def main(port: int) -> None:
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(Front.bind(Model.bind()), route_prefix="/double")
        await stopped.wait()
        ray.shutdown()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
