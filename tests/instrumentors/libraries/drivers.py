"""What `test_contracts.py` needs to know about each library: how it is called, and what of ours runs there.

Each driver imports its library when it is called, so that a process can be instrumented before.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from stagelens.instrumentors import recorder
from stagelens.instrumentors.instrumentor import Instrumentor
from tests.support.http_server import http_server


@contextmanager
def instrumenting(*instrumentors: Instrumentor) -> Generator[None]:
    """Instrument libraries until the block ends."""
    for instrumentor in instrumentors:
        instrumentor.instrument()
    try:
        yield
    finally:
        for instrumentor in reversed(instrumentors):
            instrumentor.uninstrument()


NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def get_by_urllib3(url: str, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
    import urllib3

    with urllib3.PoolManager() as pool:
        return pool.request("GET", url, headers=dict(headers), retries=False).data


def get_by_requests(url: str, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
    import requests

    with requests.Session() as session:
        return session.get(url, headers=dict(headers)).content


def get_by_httpx(url: str, headers: Mapping[str, str] = NO_HEADERS, module: str = "httpx") -> bytes:
    with import_module(module).Client(timeout=60) as client:
        return client.get(url, headers=headers).content


get_by_httpx2 = partial(get_by_httpx, module="httpx2")


def get_by_async_httpx(url: str, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
    import httpx

    async def get() -> bytes:
        async with httpx.AsyncClient(timeout=60) as client:
            return (await client.get(url, headers=headers)).content

    return asyncio.run(get())


def get_by_aiohttp(url: str, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
    import aiohttp

    async def get() -> bytes:
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
            return await response.read()

    return asyncio.run(get())


def calling(get: Callable[[str], bytes]) -> Callable[[], AbstractContextManager[Callable[[], Any]]]:
    @contextmanager
    def serve() -> Generator[Callable[[], Any]]:
        with http_server(lambda _: (200, {}, b"answer")) as server:
            yield lambda: get(f"{server.url}/plain")

    return serve


@contextmanager
def grpc_channel() -> Generator[Callable[[], Any]]:
    import grpc

    with grpc_echo() as address, grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/echo/Unary")
        yield lambda: call(b"abc", timeout=30)


@contextmanager
def grpc_aio_channel() -> Generator[Callable[[], Any]]:
    import grpc.aio

    async def call(address: str) -> Any:
        async with grpc.aio.insecure_channel(address) as channel:
            return await channel.unary_unary("/echo/Unary")(b"abc", timeout=30)

    with grpc_echo() as address:
        yield lambda: asyncio.run(call(address))


@contextmanager
def grpc_echo() -> Generator[str]:
    import grpc

    unary = grpc.unary_unary_rpc_method_handler(lambda message, _: message)
    server = grpc.server(ThreadPoolExecutor(2), [grpc.method_handlers_generic_handler("echo", {"Unary": unary})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


@contextmanager
def torch_module() -> Generator[Callable[[], Any]]:
    import torch

    torch.manual_seed(0)
    net, x = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()), torch.ones(1, 4)
    net(x)
    yield lambda: net(x).tolist()


@contextmanager
def transformers_pipeline() -> Generator[Callable[[], Any]]:
    from transformers import pipeline

    from tests.instrumentors.libraries.tiny_models import bert, tokenizer

    classify: Any = pipeline("text-classification", model=bert(), tokenizer=tokenizer(), device="cpu")
    classify("word1")
    yield lambda: classify("word1")


@contextmanager
def transformers_generate() -> Generator[Callable[[], Any]]:
    from tests.instrumentors.libraries.tiny_models import llama, tokenizer

    model, words = llama(), tokenizer()
    ids = words("word1 word2", return_tensors="pt")
    # Its first call in a request is a load.
    _, token = recorder.begin() or (None, None)
    model.generate(**ids, max_new_tokens=3)
    if token is not None:
        recorder.end(token)
    yield lambda: model.generate(**ids, max_new_tokens=3, do_sample=False).tolist()


@contextmanager
def sentence_transformers() -> Generator[Callable[[], Any]]:
    import tempfile

    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    from tests.instrumentors.libraries.tiny_models import bert, tokenizer

    with tempfile.TemporaryDirectory() as folder:
        bert().base_model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        embedder = SentenceTransformer(modules=[Transformer(folder), Pooling(32)])
    embedder.encode("word1")
    yield lambda: embedder.encode("word1").tolist()


@contextmanager
def onnxruntime_session() -> Generator[Callable[[], Any]]:
    import magika
    import numpy as np
    import onnxruntime

    path = next((Path(magika.__file__).parent / "models").rglob("*.onnx"))
    session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    shape = [size if isinstance(size, int) else 1 for size in session.get_inputs()[0].shape]
    feed = {session.get_inputs()[0].name: np.zeros(shape, np.int32)}
    session.run(None, feed)
    yield lambda: [output.tolist() for output in session.run(None, feed)]


@contextmanager
def thread_pool() -> Generator[Callable[[], Any]]:
    with ThreadPoolExecutor(1) as pool:
        yield lambda: pool.submit(int).result(30)


class Call(NamedTuple):
    """A library that is called in a request."""

    instrumentors: str
    """Modules and classes below `stagelens.instrumentors.libraries`."""
    make: Callable[[], AbstractContextManager[Callable[[], Any]]]
    """Give a call that has warmed up."""
    stages: tuple[str, ...]
    """Those of one call, in order of their names."""
    failing: str = ""
    """Function of ours that runs in the call."""


HTTP, PROPAGATION = ("dependency",), "trace_context.traceparent"
MODELS = "torch:TorchInstrumentor transformers:TransformersInstrumentor"
CALLS: Mapping[str, Call] = {
    "urllib3": Call("urllib3:Urllib3Instrumentor", calling(get_by_urllib3), HTTP, PROPAGATION),
    "requests": Call(
        "urllib3:Urllib3Instrumentor urllib3:RequestsInstrumentor", calling(get_by_requests), HTTP * 2, PROPAGATION
    ),
    "httpx": Call("httpx:HttpxInstrumentor", calling(get_by_httpx), HTTP, PROPAGATION),
    "httpx async": Call("httpx:HttpxInstrumentor", calling(get_by_async_httpx), HTTP, PROPAGATION),
    "httpx2": Call("httpx:HttpxInstrumentor", calling(get_by_httpx2), HTTP, PROPAGATION),
    "aiohttp": Call("aiohttp_client:AiohttpClientInstrumentor", calling(get_by_aiohttp), HTTP, PROPAGATION),
    "grpc": Call("grpc:GrpcInstrumentor", grpc_channel, HTTP, PROPAGATION),
    "grpc.aio": Call("grpc:GrpcInstrumentor", grpc_aio_channel, HTTP, PROPAGATION),
    "torch": Call("torch:TorchInstrumentor", torch_module, ("forward",), "libraries.torch.models.describe"),
    "pipeline": Call(
        "transformers:TransformersInstrumentor",
        transformers_pipeline,
        ("forward", "postprocess", "preprocess", "tokenize"),
        "libraries.transformers.describe",
    ),
    "generate": Call(
        "transformers:TransformersInstrumentor",
        transformers_generate,
        ("decode", "prefill"),
        "libraries.transformers._count_tokens",
    ),
    "sentence_transformers": Call(
        f"{MODELS} sentence_transformers:SentenceTransformersInstrumentor",
        sentence_transformers,
        ("forward", "postprocess", "preprocess", "preprocess", "tokenize"),
        "libraries.sentence_transformers.describe",
    ),
    "onnxruntime": Call(
        "onnxruntime:OnnxRuntimeInstrumentor",
        onnxruntime_session,
        ("forward",),
        "libraries.onnxruntime_session.describe",
    ),
    "threads": Call("executors:ExecutorInstrumentor", thread_pool, ("queue",)),
}


# Send a request with a path, and for POST an object.
Send = Callable[..., tuple[int, str]]


def response_to(item: str, body: Any = None) -> dict[str, Any]:
    if item == "broken":
        raise LookupError(item)
    return {"item": item, "body": body}


@contextmanager
def starlette_application() -> Generator[Send]:
    from fastapi import FastAPI, Request

    async def view(request: Request, item: str) -> dict[str, Any]:
        return response_to(item, await request.json() if request.method == "POST" else None)

    # FastAPI does not find the type by its name, which is local.
    view.__annotations__["request"] = Request
    app = FastAPI()
    app.add_api_route("/items/{item}", view, methods=["GET", "POST"])
    yield sending(request_asgi, app)


def request_asgi(app: Any, method: str, path: str, **options: Any) -> Any:
    import httpx

    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await client.request(method, path, **options)

    return asyncio.run(go())


def request_wsgi(app: Any, method: str, path: str, **options: Any) -> Any:
    from werkzeug.test import Client

    peer = {"REMOTE_ADDR": "127.0.0.1"}
    return Client(app).open(path, method=method, environ_base=peer, buffered=True, **options)


def sending(request: Callable[..., Any], app: Any) -> Send:
    def send(path: str, body: Any = None, headers: Mapping[str, str] = NO_HEADERS) -> tuple[int, str]:
        response = request(app, "GET" if body is None else "POST", path, json=body, headers=dict(headers))
        return response.status_code, response.text

    return send


@contextmanager
def flask_application() -> Generator[Send]:
    from flask import Flask, jsonify, request

    app = Flask(__name__, static_folder=None)

    @app.route("/items/<item>", methods=["GET", "POST"])
    def view(item: str) -> Any:
        return jsonify(response_to(item, request.get_json() if request.method == "POST" else None))

    yield sending(request_wsgi, app)


def configure_django() -> None:
    """Configure Django, which has one configuration in a process; tests override it."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(ROOT_URLCONF=(), ALLOWED_HOSTS=["*"], SECRET_KEY="-", MIDDLEWARE=[], LOGGING_CONFIG=None)  # noqa: S106 - signs nothing
        django.setup()


@contextmanager
def django_application(by: str) -> Generator[Send]:
    configure_django()
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import HttpRequest, JsonResponse
    from django.test.utils import override_settings
    from django.urls import path

    def view(request: HttpRequest, item: str) -> JsonResponse:
        return JsonResponse(response_to(item, json.loads(request.body) if request.body else None))

    with override_settings(ROOT_URLCONF=(path("items/<item>", view),)):
        yield sending(request_wsgi, WSGIHandler()) if by == "wsgi" else sending(request_asgi, ASGIHandler())


def request_aiohttp(app: Any, method: str, path: str, **options: Any) -> tuple[int, str]:
    from aiohttp.test_utils import TestClient, TestServer

    async def go() -> tuple[int, str]:
        async with (
            asyncio.timeout(60),
            TestClient(TestServer(app)) as client,
            client.request(method, path, **options) as response,
        ):
            return response.status, await response.text()

    return asyncio.run(go())


@contextmanager
def aiohttp_application() -> Generator[Send]:
    from aiohttp import web

    async def view(request: web.Request) -> web.Response:
        body = await request.json() if request.method == "POST" else None
        return web.json_response(response_to(request.match_info["item"], body))

    def send(path: str, body: Any = None, headers: Mapping[str, str] = NO_HEADERS) -> tuple[int, str]:
        app = web.Application()
        app.add_routes([web.get("/items/{item}", view), web.post("/items/{item}", view)])
        return request_aiohttp(app, "GET" if body is None else "POST", path, json=body, headers=headers)

    yield send


class Server(NamedTuple):
    """A framework whose requests are counted, with a service of one route that returns what it is sent."""

    instrumentor: str
    make: Callable[[], AbstractContextManager[Send]]
    route: str
    stages: tuple[str, ...]
    failing: str
    """Functions of ours that run in a request, below `stagelens.instrumentors.libraries`."""
    theirs: str
    """Class of OpenTelemetry below `opentelemetry.instrumentation`."""


WEB = ("framework", "handler", "serialize")
SERVERS: Mapping[str, Server] = {
    "fastapi": Server(
        "starlette:StarletteInstrumentor",
        starlette_application,
        "/items/{item}",
        (*WEB, "network"),
        "asgi.AsgiExchange._sent_body asgi.AsgiExchange._read_head",
        "fastapi:FastAPIInstrumentor",
    ),
    "flask": Server(
        "flask:FlaskInstrumentor",
        flask_application,
        "/items/<item>",
        WEB,
        "wsgi.WsgiExchange.hand_over_all flask._name_route flask._name_error",
        "flask:FlaskInstrumentor",
    ),
    "django wsgi": Server(
        "django:DjangoInstrumentor",
        lambda: django_application("wsgi"),
        "/items/<item>",
        WEB,
        "django._exchange_of",
        "django:DjangoInstrumentor",
    ),
    "django asgi": Server(
        "django:DjangoInstrumentor",
        lambda: django_application("asgi"),
        "/items/<item>",
        WEB,
        "django._exchange_of",
        "django:DjangoInstrumentor",
    ),
    "aiohttp": Server(
        "aiohttp_server:AioHttpServerInstrumentor",
        aiohttp_application,
        "/items/{item}",
        (*WEB, "network"),
        "aiohttp_server.AiohttpExchange.read_head aiohttp_server.AiohttpExchange._template",
        "aiohttp_server:AioHttpServerInstrumentor",
    ),
}


def stages_of(marks: list[Any]) -> list[str]:
    """Return the stages of a request in order of their names, without those that name a part of a stage."""
    return sorted(key for key in marks[::3] if "@" not in key)


def use(name: str) -> str:
    """Return what a process has recorded of the library *name*, as soon as it has imported it."""
    recorder.background.wake_at = 99
    if name in SERVERS:
        with SERVERS[name].make() as send:
            send("/items/1")
        records = [record for record in recorder.pending if record[3] == SERVERS[name].route]
        return " ".join(stages_of(records[0][0])) if len(records) == 1 else repr(records)
    with CALLS[name].make() as call:
        marks, token = recorder.begin() or ([], None)
        call()
        recorder.end(token)  # type: ignore[arg-type]
        return " ".join(stages_of(marks))
