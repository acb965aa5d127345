"""FastAPI that has Triton run the model, by HTTP and by gRPC; the model says when it began and how long it took."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from fastapi import FastAPI, Request

from .planted import ARRIVED, Plan, noting_arrival

HTTP, GRPC = (f"127.0.0.1:{os.environ.get(name, '0')}" for name in ("TRITON_HTTP_PORT", "TRITON_GRPC_PORT"))


class Clients(threading.local):
    """A thread's own: the HTTP client is for one."""

    def __init__(self) -> None:
        self.http: Any = tritonclient.http.InferenceServerClient(HTTP)
        self.grpc: Any = tritonclient.grpc.InferenceServerClient(GRPC)


clients = Clients()


def _infer(plan: Plan, module: Any, client: Any, model: str) -> None:
    seconds = module.InferInput("SECONDS", [1], "FP64")
    seconds.set_data_from_numpy(np.array([plan.asked["forward"]]))
    sent = time.time_ns()
    began, spent = client.infer(model, [seconds]).as_numpy("TIMES").tolist()
    plan.add("forward", spent)
    # With the way there, which takes a fraction of a millisecond.
    plan.add("queue", began - sent)


def by_http(request: Request, asked: dict[str, float]) -> dict[str, Any]:
    """Ask by HTTP."""
    plan = Plan(asked, request.scope["state"][ARRIVED])
    _infer(plan, tritonclient.http, clients.http, "by_http")
    return plan.answer()


def by_grpc(request: Request, asked: dict[str, float]) -> dict[str, Any]:
    """Ask by gRPC."""
    plan = Plan(asked, request.scope["state"][ARRIVED])
    _infer(plan, tritonclient.grpc, clients.grpc, "by_grpc")
    return plan.answer()


api = FastAPI()
api.post("/http")(by_http)
api.post("/grpc")(by_grpc)
app = noting_arrival(api)
