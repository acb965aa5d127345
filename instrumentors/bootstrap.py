"""Start of the instrumentation: connects the recorder to the agent, and instruments each known library on import.

The module of an instrumented library is loaded together with the library: a process that imports none of them loads none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NamedTuple

from ..core.import_lock import import_lock
from . import functions, recorder, scripts
from .config_file import apply_config_file
from .import_hooks import when_imported
from .instrumentor import Instrumentor, log_failure

# Comma-separated names of what `opentelemetry-instrument` leaves out.
DISABLED_VARIABLE: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
# Servers of ASGI and WSGI applications, frameworks of which the server needs the routes, and what serves metrics.
_SERVERS = (
    *("cheroot", "daphne", "gevent.pywsgi", "granian", "gunicorn.workers", "hypercorn", "uvicorn.protocols"),
    *("waitress", "werkzeug", "wsgiref", "blacksheep", "falcon", "pyramid", "quart", "tornado.wsgi"),
    "prometheus_client",
)


class Library(NamedTuple):
    trigger: str
    module: str
    name: str

    def names(self) -> set[str]:
        """Return the names by which `OTEL_PYTHON_DISABLED_INSTRUMENTATIONS` disables the library, such as "stagelens_flask"."""
        name = self.name.removesuffix("Instrumentor").lower()
        return {f"stagelens_{alias}" for alias in (self.module, self.trigger.replace(".", "_"), name)}

    def load(self) -> type[Instrumentor]:
        return getattr(import_module(f".libraries.{self.module}", __package__), self.name)


LIBRARIES = (
    *(Library(trigger, "servers", "ServerInstrumentor") for trigger in _SERVERS),
    Library("aiohttp", "aiohttp_client", "AiohttpClientInstrumentor"),
    Library("aiohttp.web", "aiohttp_server", "AioHttpServerInstrumentor"),
    Library("aiokafka", "catalog", "KafkaInstrumentor"),
    Library("bentoml", "bentoml", "BentoMLInstrumentor"),
    Library("botocore", "catalog", "BotocoreInstrumentor"),
    Library("catboost", "catalog", "CatBoostInstrumentor"),
    Library("concurrent.futures", "process_pools", "ProcessPoolInstrumentor"),
    Library("confluent_kafka.cimpl", "catalog", "KafkaInstrumentor"),
    Library("ctranslate2", "inference_runtimes", "CTranslate2Instrumentor"),
    Library("cv2", "catalog", "OpenCvInstrumentor"),
    Library("diffusers", "diffusers", "DiffusersInstrumentor"),
    Library("django", "django", "DjangoInstrumentor"),
    Library("flask", "flask", "FlaskInstrumentor"),
    Library("gradio", "gradio", "GradioInstrumentor"),
    Library("grpc", "grpc", "GrpcInstrumentor"),
    Library("grpc.aio", "grpc_server", "GrpcServerInstrumentor"),
    Library("gunicorn", "gunicorn", "GunicornInstrumentor"),
    Library("http.server", "web_frameworks", "HttpServerInstrumentor"),
    Library("httpx", "httpx", "HttpxInstrumentor"),
    Library("httpx2", "httpx", "HttpxInstrumentor"),
    Library("jax", "jax", "JaxInstrumentor"),
    Library("json", "catalog", "JsonInstrumentor"),
    Library("kafka", "catalog", "KafkaInstrumentor"),
    Library("keras", "tensorflow", "KerasInstrumentor"),
    Library("kserve", "open_inference", "KServeInstrumentor"),
    Library("librosa", "catalog", "LibrosaInstrumentor"),
    Library("lightgbm", "catalog", "LightGBMInstrumentor"),
    Library("litestar", "web_frameworks", "LitestarInstrumentor"),
    Library("litserve", "litserve", "LitServeInstrumentor"),
    Library("llama_cpp", "llama_cpp", "LlamaCppInstrumentor"),
    Library("asyncio", "locks", "LockInstrumentor"),
    Library("mlserver", "open_inference", "MLServerInstrumentor"),
    Library("multiprocessing", "process_pools", "ProcessPoolInstrumentor"),
    Library("numpy", "catalog", "NumpyInstrumentor"),
    Library("onnxruntime", "onnxruntime", "OnnxRuntimeInstrumentor"),
    Library("openai", "openai", "OpenAIInstrumentor"),
    Library("openvino", "inference_runtimes", "OpenVinoInstrumentor"),
    Library("opentelemetry.sdk.trace", "opentelemetry_sdk", "OpenTelemetrySdkInstrumentor"),
    Library("orjson", "catalog", "OrjsonInstrumentor"),
    Library("pandas", "preprocessing", "PandasInstrumentor"),
    Library("polars", "preprocessing", "PolarsInstrumentor"),
    Library("PIL", "catalog", "PillowInstrumentor"),
    Library("psycopg", "catalog", "PsycopgInstrumentor"),
    Library("pydantic", "catalog", "PydanticInstrumentor"),
    Library("queue", "queues", "QueueInstrumentor"),
    Library("ray.serve", "ray_serve", "RayServeInstrumentor"),
    Library("redis", "catalog", "RedisInstrumentor"),
    Library("requests", "urllib3", "RequestsInstrumentor"),
    Library("sanic", "web_frameworks", "SanicInstrumentor"),
    Library("sentence_transformers", "sentence_transformers", "SentenceTransformersInstrumentor"),
    Library("soundfile", "catalog", "SoundFileInstrumentor"),
    Library("sqlalchemy", "catalog", "SqlAlchemyInstrumentor"),
    Library("sklearn", "sklearn", "SklearnInstrumentor"),
    Library("starlette", "starlette", "StarletteInstrumentor"),
    Library("tensorflow", "tensorflow", "TensorFlowInstrumentor"),
    Library("threading", "executors", "ExecutorInstrumentor"),
    Library("tokenizers", "preprocessing", "TokenizersInstrumentor"),
    Library("torch", "torch", "TorchInstrumentor"),
    Library("torchaudio", "preprocessing", "TorchaudioInstrumentor"),
    Library("torchvision", "preprocessing", "TorchvisionInstrumentor"),
    Library("tornado", "web_frameworks", "TornadoInstrumentor"),
    Library("transformers", "transformers", "TransformersInstrumentor"),
    Library("tritonclient", "tritonclient", "TritonClientInstrumentor"),
    Library("urllib3", "urllib3", "Urllib3Instrumentor"),
    Library("uvicorn", "uvicorn", "UvicornInstrumentor"),
    Library("vllm", "vllm", "VllmInstrumentor"),
    Library("xgboost", "catalog", "XGBoostInstrumentor"),
)


def instrument() -> None:
    """Instrument all supported libraries that your code imports before or after this call. Repeated calls have no effect.

    `stagelens run` calls this function in every process of a command. Without it, call `instrument()` at the start of your program.

    Example:
        import stagelens

        stagelens.instrument()
    """
    # Read at the start, not by the first request that calls another service; later calls get the same settings.
    apply_config_file(os.environ)
    functions.FunctionInstrumentor().instrument()
    scripts.SocketInstrumentor().instrument()
    disabled = {name.strip() for name in os.environ.get(DISABLED_VARIABLE, "").split(",")}
    for library in LIBRARIES:
        if library not in _instrumented and disabled.isdisjoint(library.names()):
            _instrumented.add(library)
            when_imported(library.trigger, partial(_instrument_library, library))


class StagelensInstrumentor(Instrumentor):
    """The entry point by which `opentelemetry-instrument` loads Stagelens, because it replaces our `sitecustomize`."""

    def instrumentation_dependencies(self) -> Collection[str]:
        return ()

    def instrument(self, **_: Any) -> None:
        instrument()


_instrumented: set[Library] = set()


def _instrument_library(library: Library, _: ModuleType) -> None:
    try:
        library.load()().instrument()
    except Exception:
        log_failure(f"instrumenting {library.trigger}")


def _run_agent() -> None:
    # Imported on the background thread: HTTP, gzip and JSON are not loaded at the expense of the first request.
    with import_lock:
        with suppress(OSError):  # a daemon closes all files, also this one while it is read
            from .agent import worker  # noqa: PLC0415
        from .agent import worker  # noqa: PLC0415

    worker.run()


def _flush_agent(timeout_seconds: float) -> bool:
    with import_lock:
        from .agent import worker  # noqa: PLC0415 - see _run_agent

    return worker.flush(timeout_seconds)


_logger: Any = logging.getLogger("stagelens")


def _call_handlers(record: logging.LogRecord) -> None:
    # A handler of the host raises if it cannot even report its error: its stream and stderr are closed.
    with suppress(Exception):
        type(_logger).callHandlers(_logger, record)


_logger.callHandlers = _call_handlers
recorder.install_agent(_run_agent, _flush_agent)
