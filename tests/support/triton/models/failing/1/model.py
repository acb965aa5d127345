"""Refuses every request."""

from typing import Any

import triton_python_backend_utils as triton  # pyright: ignore[reportMissingImports] - part of the server


class TritonPythonModel:
    """A model of Triton's python backend."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request with an error."""
        return [triton.InferenceResponse([], triton.TritonError("planted")) for _ in requests]
