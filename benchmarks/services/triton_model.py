"""A model of Triton's python backend that sleeps as long as it is told, and says when it began and how long it took."""

import time
from typing import Any

import numpy as np
import triton_python_backend_utils as triton  # pyright: ignore[reportMissingImports] - part of the server


class TritonPythonModel:
    """A model of Triton's python backend."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Take the time of all requests, then answer them: they come one by one, but nobody promises that."""
        began, start = time.time_ns(), time.perf_counter_ns()
        time.sleep(sum(_seconds(request) for request in requests))
        times = np.array([began, time.perf_counter_ns() - start], np.int64)
        return [triton.InferenceResponse([triton.Tensor("TIMES", times)]) for _ in requests]


def _seconds(request: Any) -> float:
    return float(triton.get_input_tensor_by_name(request, "SECONDS").as_numpy()[0])
