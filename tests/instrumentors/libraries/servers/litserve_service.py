"""LitServe with the routes of the service of FastAPI. The argument is the port."""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false
from __future__ import annotations

import sys
from typing import Any

import fastapi_service
import litserve


class Echo(litserve.LitAPI):
    def setup(self, device: str) -> None: ...

    def predict(self, x: Any) -> Any:
        return x


if __name__ == "__main__":
    server = litserve.LitServer(Echo(), accelerator="cpu")
    server.app.router.routes[:0] = fastapi_service.app.router.routes
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
