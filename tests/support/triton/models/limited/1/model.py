"""Doubles a vector after 100 ms."""

import time
from typing import Any

import triton_python_backend_utils as triton  # pyright: ignore[reportMissingImports] - part of the server


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        return [_doubled(request) for request in requests]


def _doubled(request: Any) -> Any:
    time.sleep(0.100)
    values = triton.get_input_tensor_by_name(request, "IN").as_numpy()
    return triton.InferenceResponse([triton.Tensor("OUT", 2 * values)])
