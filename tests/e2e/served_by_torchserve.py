"""Handler of TorchServe with a small model, written as in docs/batches.md, for tests."""

# pyright: reportMissingImports=false, reportUntypedBaseClass=false
from __future__ import annotations

from typing import Any

import torch
from ts.torch_handler.base_handler import BaseHandler

import stagelens


class Sums(BaseHandler):
    def initialize(self, context: Any) -> None:  # noqa: ARG002 - TorchServe passes it
        self.device = torch.device("cpu")
        self.model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(self.model.weight)
        self.initialized = True

    def handle(self, data: Any, context: Any) -> Any:
        with stagelens.request("handle", traceparent=context.get_request_header(0, "traceparent") or ""):
            return super().handle(data, context)

    def preprocess(self, data: list[dict[str, list[float]]]) -> torch.Tensor:
        return torch.tensor([row["body"] for row in data], dtype=torch.float32)

    def postprocess(self, data: torch.Tensor) -> Any:
        return data[:, 0].tolist()
