"""What is measured: each stack a service, each scenario a way to ask it, with the times that are planted."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Of the lognormal times: the 99th of a hundred takes 3.2 times as long as the median.
SIGMA = 0.5
MAX_FACTOR = 6.0
UVICORN = ("-m", "uvicorn", "--port", "{port}", "--no-access-log", "--log-level", "warning")
GUNICORN = ("-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--log-level", "warning")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way to ask a service.

    Args:
        path: The path, which is the route as well.
        plan: What a request asks for, by the median. [seconds]
        fixed: What every request asks for alike.
        clients: How many ask at once; None for as many as the command line says.
        queue: Between which of `sent`, `arrived`, `began` and `answered` a request waited, but for what it took meanwhile;
            () where the service says so itself.
        proxy: How long a request lay at a proxy before, by the median; 0 for no proxy. [seconds]
        compared: The stages, and what streams are like, that are held to the truth.
        averaged: Those of them that are averages of the moment: only their mean is.
        model: The model at Triton, whose own trace is a series of its own.
        gated: Whether `--gate` holds what is covered of it; it holds the stages in any case.
    """

    path: str
    plan: Mapping[str, float]
    fixed: Mapping[str, float] = field(default_factory=dict[str, float])
    clients: int | None = None
    queue: tuple[str, ...] = ()
    proxy: float = 0.0
    compared: tuple[str, ...] = ("forward",)
    averaged: tuple[str, ...] = ()
    model: str = ""
    gated: bool = True

    def draw(self, seed: int, number: int) -> dict[str, float]:
        """Return what request *number* asks for, and how long it lies at the proxy; the same for the same *seed*."""
        rng = random.Random(f"{seed} {self.path} {number}")
        medians = {**self.plan, **({"proxy": self.proxy} if self.proxy else {})}
        skewed = {key: median * _skewed(rng) for key, median in medians.items()}
        return {**skewed, **self.fixed}

    def truth(self, sent: int, answered: int, reported: Mapping[str, Any]) -> dict[str, int]:
        """Return the nanoseconds of each stage of a request, as the service has measured them.

        Args:
            sent: When the request was sent. [Unix nanoseconds]
            answered: When the service handed over its answer, 0 if it does not say. [Unix nanoseconds]
            reported: What the service says.
        """
        queue: dict[str, int] = {}
        if self.queue:
            at = {"sent": sent, "arrived": reported["arrived"], "began": reported["began"], "answered": answered}
            begin, end = self.queue
            queue["queue"] = at[end] - at[begin] - (sum(reported["spent"].values()) if end == "answered" else 0)
        return {key: spent for key, spent in {**reported["spent"], **queue}.items() if key in self.compared}


def _skewed(rng: random.Random) -> float:
    return min(math.exp(rng.gauss(0, SIGMA)), MAX_FACTOR)


@dataclass(frozen=True, slots=True)
class Stack:
    """One service.

    Args:
        title: What it is.
        command: What Python is started with; `{port}` is where it listens.
        scenarios: How it is asked, one after the other.
        stages: The service's own functions that are stages, as `--stage` takes them.
        upstream: Whether it asks another service.
        triton: Whether it asks Triton.
    """

    title: str
    command: tuple[str, ...]
    scenarios: tuple[Scenario, ...]
    stages: tuple[str, ...] = ()
    upstream: bool = False
    triton: bool = False


MS = 0.001
# Shorter requests miss the goal: too much of them is the framework itself. They are shown, and not gated.
GATED_FROM_MS = 20
ALL_THREE = ("preprocess", "forward", "postprocess")
SLOW_THREE = {"preprocess": 8 * MS, "forward": 20 * MS, "postprocess": 4 * MS}
FASTAPI_TORCH = (*UVICORN, "services.fastapi_torch:app")

STACKS: Mapping[str, Stack] = {
    "fastapi-torch": Stack(
        "FastAPI on uvicorn, a torch model, two functions",
        FASTAPI_TORCH,
        (
            Scenario("/async", SLOW_THREE, compared=(*ALL_THREE, "queue"), queue=("sent", "arrived"), proxy=5 * MS),
            Scenario("/def", SLOW_THREE, compared=ALL_THREE),
        ),
        (
            "preprocess=services.fastapi_torch:prepare",
            "preprocess=services.fastapi_torch:prepare_async",
            "postprocess=services.fastapi_torch:finish",
            "postprocess=services.fastapi_torch:finish_async",
        ),
    ),
    "cliff": Stack(
        "FastAPI on uvicorn, 80 clients at the 40 threads of AnyIO",
        FASTAPI_TORCH,
        tuple(
            Scenario(
                path,
                {**SLOW_THREE, "forward": 120 * MS},
                clients=80,
                queue=("arrived", "answered"),
                compared=(*ALL_THREE, "queue"),
            )
            for path in ("/def/unchecked", "/def")
        ),
        ("preprocess=services.fastapi_torch:prepare", "postprocess=services.fastapi_torch:finish"),
    ),
    "durations": Stack(
        "FastAPI on uvicorn: how much of short requests is covered, one client",
        FASTAPI_TORCH,
        tuple(
            Scenario(
                f"/{kind}/{duration}ms", {}, {"forward": duration * MS}, clients=1, gated=duration >= GATED_FROM_MS
            )
            for kind in ("async", "def")
            for duration in (1, 2, 5, 20, 100)
        ),
    ),
    "fastapi-onnx": Stack(
        "FastAPI on uvicorn, magika and silero-vad in ONNX Runtime",
        (*UVICORN, "services.fastapi_onnx:app"),
        (
            Scenario("/def", {"preprocess": 20 * MS, "files": 3}, clients=3, compared=("preprocess", "forward")),
            Scenario("/async", {"files": 3}, clients=2),
            # What a run costs more by being recorded is part of the truth here, and a request is short.
            Scenario("/runs", {"chunks": 40}, clients=2, gated=False),
        ),
        ("preprocess=services.fastapi_onnx:prepare",),
    ),
    "flask-gunicorn": Stack(
        "Flask on gunicorn with 6 threads, a torch model, a function",
        (*GUNICORN, "--worker-class", "gthread", "--threads", "6", "services.flask_torch:app"),
        (
            Scenario("/predict", SLOW_THREE, clients=4, compared=("preprocess", "forward")),
            Scenario(
                "/overload",
                SLOW_THREE,
                clients=18,
                queue=("sent", "began"),
                compared=("preprocess", "forward", "queue"),
            ),
        ),
        ("preprocess=services.flask_torch:prepare",),
    ),
    "django-gunicorn": Stack(
        "Django on gunicorn with 4 processes, three functions",
        (*GUNICORN, "--workers", "4", "services.django_functions:application"),
        (Scenario("/predict", SLOW_THREE, clients=4, compared=ALL_THREE),),
        (
            "preprocess=services.django_functions:prepare",
            "forward=services.django_functions:rank",
            "postprocess=services.django_functions:finish",
        ),
    ),
    "aiohttp": Stack(
        "aiohttp, another service asked by httpx or aiohttp, an executor of 3 threads",
        ("-m", "aiohttp.web", "-H", "127.0.0.1", "-P", "{port}", "services.aiohttp_dependency:make"),
        tuple(
            Scenario(
                path,
                {"head": 12 * MS, "body": 6 * MS, "forward": 15 * MS},
                compared=("forward", "dependency", "queue"),
            )
            for path in ("/httpx", "/aiohttp")
        ),
        ("forward=services.aiohttp_dependency:rank",),
        upstream=True,
    ),
    "transformers": Stack(
        "FastAPI on uvicorn, a pipeline and `generate` of transformers",
        (*UVICORN, "services.transformers_tiny:app"),
        (
            Scenario("/pipeline", SLOW_THREE, clients=4, compared=ALL_THREE),
            Scenario(
                "/generate",
                {"prefill": 30 * MS, "per_token": 8 * MS},
                clients=4,
                compared=("prefill", "decode", "first_token", "per_token"),
            ),
        ),
    ),
    "triton": Stack(
        "FastAPI on uvicorn, a model at Triton, by its statistics and by its own trace",
        (*UVICORN, "services.triton_client:app"),
        tuple(
            Scenario(
                path,
                {"forward": 50 * MS},
                clients=4,
                compared=("forward", "queue"),
                averaged=("forward", "queue"),
                model=model,
            )
            for path, model in (("/http", "by_http"), ("/grpc", "by_grpc"))
        ),
        triton=True,
    ),
    "streaming": Stack(
        "FastAPI on uvicorn that answers bit by bit",
        (*UVICORN, "services.streaming:app"),
        tuple(
            Scenario(path, {"decode": 12 * MS}, compared=("decode", "first_token", "gap"))
            for path in ("/async", "/def")
        ),
        ("decode=services.streaming:think", "decode=services.streaming:think_in_thread"),
    ),
}
