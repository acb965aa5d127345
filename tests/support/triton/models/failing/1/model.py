"""Refuses every request."""

from typing import Any

import triton_python_backend_utils as triton  # pyright: ignore[reportMissingImports] - part of the server


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        return [triton.InferenceResponse([], triton.TritonError("planted")) for _ in requests]
