"""Every client, with secrets in all that it sends and gets."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable
from typing import Any

import aiohttp
import grpc
import httpx
import httpx2
import numpy as np
import openai
import requests
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils
import urllib3
from planted import fail, secret

HEADERS = {
    "Authorization": f"Bearer {secret('outgoingauthorization')}",
    f"X-{secret('outgoingname')}": secret("outgoingvalue"),
    "baggage": f"user={secret('outgoingbaggage')}",
}
BODY = secret("outgoingbody")
PARAMETERS = {secret("outgoingkey"): secret("outgoingquery")}
METADATA = (("authorization", secret("metadata")), (f"{secret('metadatakey')}-bin", secret("metadata").encode()))
METHOD = f"/{secret('grpcservice')}/{secret('grpcmethod')}"
MODEL = "double"


class Clients:
    def __init__(self, http: str, rpc: str, triton_http: str, triton_grpc: str) -> None:
        self._url = f"http://{secret('user')}:{secret('password')}@{http}/{secret('outgoingpath')}"
        self._nowhere = f"http://{secret('user')}:{secret('password')}@127.0.0.1:1/{secret('outgoingpath')}"
        self._rpc = rpc
        self._triton_http = triton_http
        self._triton_grpc = triton_grpc

    def ways(self) -> dict[str, Callable[[], object]]:
        return {
            "requests": self.requests,
            "urllib3": self.urllib3,
            "httpx": lambda: self.httpx(httpx),
            "httpx2": lambda: self.httpx(httpx2),
            "aiohttp": lambda: asyncio.run(self.aiohttp()),
            "grpc": self.grpc,
            "openai": self.openai,
            "triton-http": self.triton_http,
            "triton-grpc": self.triton_grpc,
        }

    def requests(self) -> None:
        files = {secret("field"): (secret("uploadname"), io.BytesIO(BODY.encode()))}
        requests.post(self._url, params=PARAMETERS, headers=HEADERS, files=files, timeout=60)
        fail(requests.get, self._nowhere, headers=HEADERS, timeout=60)

    def urllib3(self) -> None:
        response = urllib3.PoolManager().request("POST", self._url, headers=HEADERS, body=BODY, preload_content=False)
        response.read()
        fail(urllib3.PoolManager().request, "GET", self._nowhere, retries=False)

    def httpx(self, module: Any) -> None:
        with module.Client(headers=HEADERS) as client:
            client.post(self._url, params=PARAMETERS, content=BODY)
            fail(client.get, self._nowhere)

        async def ask() -> None:
            async with module.AsyncClient(headers=HEADERS) as client:
                await client.post(self._url, params=PARAMETERS, content=BODY)

        asyncio.run(ask())

    async def aiohttp(self) -> None:
        # Either the password of the address or a header of one's own.
        headers = {name: value for name, value in HEADERS.items() if name != "Authorization"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.post(self._url, params=PARAMETERS, data=BODY) as response:
                await response.read()
            with contextlib.suppress(aiohttp.ClientError):
                await session.get(self._nowhere)

    def openai(self) -> None:
        messages: Any = [{"role": "user", "content": secret("prompt")}]
        more: Any = {"model": secret("modelasked"), "messages": messages, "user": secret("enduser")}
        with openai.OpenAI(base_url=self._url, api_key=secret("apikey"), default_headers=HEADERS) as client:
            list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **more))
            fail(client.chat.completions.create, **more)

    def grpc(self) -> None:
        with grpc.insecure_channel(self._rpc) as channel:
            call: Any = channel.unary_unary(METHOD)
            call(BODY.encode(), metadata=METADATA, timeout=60)
            fail(call, secret("refuse").encode(), metadata=METADATA, timeout=60)

        async def ask() -> None:
            async with grpc.aio.insecure_channel(self._rpc) as channel:
                again: Any = channel.unary_unary(METHOD)
                await again(BODY.encode(), metadata=METADATA, timeout=60)

        asyncio.run(ask())

    def triton_http(self) -> None:
        with tritonclient.http.InferenceServerClient(self._triton_http) as client:
            self._infer(tritonclient.http, client, HEADERS)

    def triton_grpc(self) -> None:
        with tritonclient.grpc.InferenceServerClient(self._triton_grpc) as client:
            self._infer(tritonclient.grpc, client, dict(METADATA[:1]))

    def _infer(self, module: Any, client: Any, headers: dict[str, str]) -> None:
        tensor = module.InferInput("IN", [3], "FP32")
        tensor.set_data_from_numpy(np.ones(3, np.float32))
        # The HTTP client adds to the dictionary that it is given.
        options = {"parameters": {secret("parameter"): secret("parametervalue")}, "headers": dict(headers)}
        for version in ("", "9"):
            # Where nobody answers, the first one fails as well.
            with contextlib.suppress(tritonclient.utils.InferenceServerException, OSError):
                client.infer(MODEL, [tensor], version, request_id=secret("requestid"), **options)
