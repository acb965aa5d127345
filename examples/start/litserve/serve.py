"""A LitServe server: one HTTP process, one worker process with the model."""

from __future__ import annotations

import time
from typing import Any

import litserve


class Square(litserve.LitAPI):
    def setup(self, device: str) -> None: ...

    def decode_request(self, request: dict[str, float]) -> float:
        return request["input"]

    def predict(self, x: float) -> float:
        time.sleep(0.005)
        return x**2

    def encode_response(self, output: Any) -> dict[str, float]:
        return {"output": output}


if __name__ == "__main__":
    litserve.LitServer(Square(), accelerator="cpu").run(port=8000, generate_client_file=False)
