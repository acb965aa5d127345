"""A LitServe server: one HTTP process, one worker process with the model."""

from __future__ import annotations

import time
from typing import Any

import litserve


class Square(litserve.LitAPI):
    """Squares, in 5 ms."""

    def setup(self, device: str) -> None:
        """Load nothing."""

    def decode_request(self, request: dict[str, float]) -> float:
        """Take the number out."""
        return request["input"]

    def predict(self, x: float) -> float:
        """Square it."""
        time.sleep(0.005)
        return x**2

    def encode_response(self, output: Any) -> dict[str, float]:
        """Name the result."""
        return {"output": output}


if __name__ == "__main__":
    litserve.LitServer(Square(), accelerator="cpu").run(port=8000, generate_client_file=False)
