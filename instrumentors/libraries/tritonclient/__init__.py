"""Triton's client: `serialize`, `network`, and the stages that the server reports: `queue`, `h2d`, `forward`, `d2h`.

- `traceparent` is sent by the `headers` of a call, in a copy of the user's: the single plugin of the client stays free.
  A server with tracing then adds its spans to the trace of the request.
- The stages of the server are averages from its statistics, read on the background thread.
- A call that was rejected, cancelled or timed out is a fact of the request: Triton itself does not count them.

Tested against Triton 2.51 (24.10).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any

from ...instrumentor import Hook, Instrumentor, timed
from . import calls, statistics, streams
from .calls import GRPC_HEADERS, HTTP_HEADERS


class TritonClientInstrumentor(Instrumentor):
    """The four clients of `tritonclient`: HTTP and gRPC, each for threads and for asyncio."""

    library = "tritonclient"
    title = "Triton Inference Server (client)"
    stages = MappingProxyType(
        {
            "serialize": "`set_data_from_numpy`, `as_numpy`, copies into and out of system shared memory, building the request",
            "network": "`infer`, `async_infer` and streams: from the call to its answer, less what the server says of itself",
            "queue": "waiting in the server: average of the moment, from its statistics",
            "h2d": "the server's `compute_input`: average of the moment",
            "forward": "the server's `compute_infer`: average of the moment",
            "d2h": "the server's `compute_output`: average of the moment",
        }
    )
    facts = ("model", "model_version", "first_token", "gap", "failed_calls")
    not_timed = (
        "the server's part of the first call to a model, and of a call that failed: all of it is `network`",
        "the server's part behind a proxy or a PyTriton that asks for a header: all of it is `network`",
        "clients made before instrumenting: their calls are `network` only",
        "compression, and protobuf's encoding on the wire, which are `network`",
        "CUDA shared memory",
        "`traceparent` in a gRPC stream that was started outside the request",
        "the server's own trace of about 4 % of calls over gRPC: Triton 24.10 does not heed their `traceparent`",
        "calls of several requests without a `request_id` in one gRPC stream: nothing tells their answers apart",
    )
    tested = MappingProxyType({"tritonclient": "2.73.0"})

    def hooks(self) -> Mapping[str, Hook]:
        """Return the patch functions by module."""
        return {
            "tritonclient.http._client": self._http,
            "tritonclient.http.aio": self._http_aio,
            "tritonclient.grpc._client": self._grpc,
            "tritonclient.grpc.aio": self._grpc_aio,
            "tritonclient.http._infer_input": self._input,
            "tritonclient.grpc._infer_input": self._input,
            "tritonclient.http._infer_result": self._result,
            "tritonclient.grpc._infer_result": self._result,
            "tritonclient.utils.shared_memory": self._shared_memory,
        }

    def uninstrument(self, **options: Any) -> None:
        """Restore the originals, and forget the servers."""
        super().uninstrument(**options)
        statistics.known = statistics.Known()
        statistics.close_channels()

    def _http(self, module: ModuleType) -> None:
        client = module.InferenceServerClient
        self.replace(client, "__init__", partial(calls.init, protocol="http"))
        self.replace(client, "infer", partial(calls.infer, place=HTTP_HEADERS))
        self.replace(client, "async_infer", calls.async_infer_http)
        self.replace(client, "_post", calls.post)
        self.replace(module.InferAsyncRequest, "get_result", calls.get_result)
        self.replace(module, "_get_inference_request", calls.building)

    def _http_aio(self, module: ModuleType) -> None:
        client = module.InferenceServerClient
        self.replace(client, "__init__", partial(calls.init, protocol="http"))
        self.replace(client, "infer", partial(calls.infer_aio, place=HTTP_HEADERS))
        self.replace(module, "_get_inference_request", calls.building)

    def _grpc(self, module: ModuleType) -> None:
        client = module.InferenceServerClient
        self.replace(client, "__init__", partial(calls.init, protocol="grpc"))
        self.replace(client, "infer", partial(calls.infer, place=GRPC_HEADERS))
        self.replace(client, "async_infer", calls.async_infer_grpc)
        self.replace(client, "start_stream", streams.start_stream)
        self.replace(client, "async_stream_infer", streams.async_stream_infer)
        self.replace(client, "stop_stream", streams.stop_stream)
        self.replace(module, "_get_inference_request", calls.building)

    def _grpc_aio(self, module: ModuleType) -> None:
        client = module.InferenceServerClient
        self.replace(client, "__init__", partial(calls.init, protocol="grpc"))
        self.replace(client, "infer", partial(calls.infer_aio, place=GRPC_HEADERS))
        self.replace(client, "stream_infer", streams.stream_infer)
        self.replace(module, "_get_inference_request", calls.building)

    def _input(self, module: ModuleType) -> None:
        self.replace(module.InferInput, "set_data_from_numpy", timed("serialize"))

    def _result(self, module: ModuleType) -> None:
        self.replace(module.InferResult, "as_numpy", timed("serialize"))

    def _shared_memory(self, module: ModuleType) -> None:
        self.replace(module, "set_shared_memory_region", timed("serialize"))
        self.replace(module, "get_contents_as_numpy", timed("serialize"))
