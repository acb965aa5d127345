"""A model of Triton's Python backend: the square of its input."""

from __future__ import annotations

import time
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Squares, in 5 ms a batch."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer the requests of one batch."""
        time.sleep(0.005)
        given = [pb_utils.get_input_tensor_by_name(each, "IN").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each**2)]) for each in given]
