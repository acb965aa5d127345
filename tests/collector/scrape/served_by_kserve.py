"""KServe model server with one model, for tests; run with a port by a Python with KServe."""

# ruff: noqa: ARG002 - KServe looks at the names of arguments

from __future__ import annotations

import sys
import time
from typing import Any

from kserve import Model, ModelServer  # pyright: ignore[reportMissingImports] - installed elsewhere


class Iris(Model):  # pyright: ignore[reportUntypedBaseClass]
    def __init__(self) -> None:
        super().__init__("iris")
        self.ready = True

    def preprocess(self, payload: Any, headers: Any = None) -> Any:
        time.sleep(0.002)
        return payload

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        time.sleep(0.020)
        return {"predictions": [sum(instance) for instance in payload["instances"]]}

    def postprocess(self, result: Any, headers: Any = None, response_headers: Any = None) -> Any:
        time.sleep(0.001)
        return result


if __name__ == "__main__":
    ModelServer(http_port=int(sys.argv[1]), enable_grpc=False, workers=1).start([Iris()])
