"""Client script of a Triton server, whose address is its argument: one request for each line of its input."""

import sys

import numpy as np
import tritonclient.http

import stagelens

with tritonclient.http.InferenceServerClient(sys.argv[1]) as client:
    for _ in sys.stdin:
        with stagelens.request("predict"):
            tensor = tritonclient.http.InferInput("IN", [3], "FP32")
            tensor.set_data_from_numpy(np.ones(3, np.float32))
            client.infer("double", [tensor]).as_numpy("OUT")
        print(flush=True)
