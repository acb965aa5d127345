"""LitServe with two APIs, or with OpenAI's: one takes requests one by one, one in batches. The argument is the port."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportUntypedBaseClass=false
# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

import sys
import time
from collections.abc import Generator
from typing import Any

import litserve
from doubling import double

import stagelens


class One(litserve.LitAPI):
    def setup(self, device: str) -> None: ...

    def decode_request(self, request: dict[str, int]) -> int:
        return request["input"]

    def predict(self, x: int) -> int:
        """Double it, in a stage of its own; fail where it is negative."""
        with stagelens.stage(f"item-{x}"):
            time.sleep(0.005)
        if x < 0:
            raise ValueError(x)
        return x * 2

    def encode_response(self, output: Any) -> dict[str, int]:
        return {"output": output}


class Many(One):
    def predict(self, x: list[int]) -> list[int]:
        return double(x)


class Chat(litserve.LitAPI):
    def setup(self, device: str) -> None: ...

    def predict(self, prompt: Any) -> Generator[str]:
        """Return it in two parts, within a custom stage."""
        with stagelens.stage("thinking"):
            time.sleep(0.005)
        yield "hello "
        yield prompt.messages[0].content


if __name__ == "__main__":
    if "--openai" in sys.argv:
        apis = [Chat(spec=litserve.OpenAISpec())]
    else:
        apis = [One(api_path="/one"), Many(api_path="/many", max_batch_size=3, batch_timeout=0.5)]
    server = litserve.LitServer(apis, accelerator="cpu", fast_queue="--fast" in sys.argv)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
