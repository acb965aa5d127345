"""KServe: times the methods of a model.

The [Starlette and FastAPI](asgi.md) module counts the web requests, and the [gRPC (server)](grpc_server.md) module the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any, Final

from ..instrumentor import Hook, Instrumentor, log_failure, timed
from .server_common import is_users_code

STAGE_OF_METHOD: Final = {
    "preprocess": "preprocess",
    "predict": "handler",
    "explain": "handler",
    "postprocess": "postprocess",
}


class KServeInstrumentor(Instrumentor):
    """Instrumentor of the subclasses of `kserve.Model`."""

    library = "kserve"
    title = "KServe"
    stages = MappingProxyType(
        {
            "preprocess": "the time in `preprocess`",
            "handler": "the time in `predict` and `explain` that no other stage covers",
            "postprocess": "the time in `postprocess`",
        }
    )
    tested = MappingProxyType({"kserve": "0.21.0"})

    def hooks(self) -> Mapping[str, Hook]:
        return {"kserve.model": self._model}

    def _model(self, module: ModuleType) -> None:
        self.replace(module.Model, "__init__", self._init)

    def _init(self, original: Any) -> Any:
        def __init__(model: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - shown in tracebacks
            original(model, *args, **options)
            try:
                for owner in filter(is_users_code, type(model).__mro__[:-1]):
                    self._time_methods(owner)
            except Exception:
                log_failure("timing the methods of a model of KServe")

        return __init__

    def _time_methods(self, owner: type) -> None:
        for name, stage in STAGE_OF_METHOD.items():
            self.replace(owner, name, timed(stage))
