"""Counts to the number it is given, 10 ms for each."""

import time
from typing import Any

import numpy as np
import triton_python_backend_utils as triton  # pyright: ignore[reportMissingImports] - part of the server


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            count = int(triton.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            for number in range(count):
                time.sleep(0.010)
                value = triton.Tensor("OUT", np.array([number], np.float32))
                sender.send(triton.InferenceResponse([value]))
            sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
