"""A batch of requests to a Triton server: its address and how many follow the script's name."""

import sys
import time

import numpy as np
import tritonclient.http

import stagelens

address, count = sys.argv[1], int(sys.argv[2])
with tritonclient.http.InferenceServerClient(address) as client:
    for _ in range(count):
        with stagelens.request("predict"):
            tensor = tritonclient.http.InferInput("IN", [3], "FP32")
            tensor.set_data_from_numpy(np.ones(3, np.float32))
            client.infer("double", [tensor]).as_numpy("OUT")
        # Several readings of the server's statistics, one a second, have to fall in between.
        time.sleep(0.2)
