"""Chrome traces of ONNX Runtime (`SessionOptions.enable_profiling`).

Each `model_run` is a request with the stage `forward`, except for copies from and to the device. Creating the session is a request of
its own with the stage `load` and the route `session start`. Times count from the start of profiling; the modification time of the
file is the end.

Source: https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ...core import names
from ..otlp.json_encoding import Object
from .chrome_events import complete_events, read_event
from .source import ImportFile
from .spans import ImportedRequest, StageInterval, span_exports

ONNXRUNTIME_SERVICE = "onnxruntime"
_RUN, _START = "model_run", "session start"
# Events of loading the model (`model_loading_uri`, `_array`, …) and of creating the session.
_READING, _MAKING = "model_loading_", "session_initialization"
# Names of the graph operators that copy between host and device.
_COPIES = {"MemcpyFromHost": "h2d", "MemcpyToHost": "d2h"}
# Maximum number of copies whose run has not ended yet.
_MAX_COPIES = 100_000


def read_onnxruntime(source: ImportFile, service: str | None) -> Iterator[tuple[str, Object]]:
    latest = max((event.end for item in source.items("item", quiet=True) if (event := read_event(item))), default=0)
    source.note_undated()
    for export in span_exports(
        _onnxruntime_requests(source, source.ended_ns - latest), service or ONNXRUNTIME_SERVICE, source.digest
    ):
        yield "", export


def _onnxruntime_requests(source: ImportFile, offset: int) -> Iterator[ImportedRequest]:
    copies: defaultdict[tuple[str, str], list[StageInterval]] = defaultdict(list)
    began = 0
    for event, item in complete_events(source, "item"):
        start, end, held = event.start + offset, event.end + offset, copies[event.lane]
        stage = _COPIES.get(_operator(item))
        if stage and len(held) < _MAX_COPIES:
            held.append(StageInterval(stage, start, end, event.name))
        elif event.name == _RUN:
            inside = [copy for copy in held if start <= copy.start <= end]
            device = "cuda" if inside else "cpu"
            values = {names.ROUTE: _RUN, names.DEVICE: device}
            yield ImportedRequest(_RUN, start, end, [StageInterval("forward", start, end), *inside], values)
            held.clear()
        elif event.name.startswith(_READING):
            began = start
        elif event.name == _MAKING:
            begin = began or start
            yield ImportedRequest(_START, begin, end, [StageInterval("load", begin, end)], {names.ROUTE: _START})
            began = 0


def _operator(item: Object) -> str:
    args = item.get("args")
    return str(args.get("op_name", "")) if isinstance(args, dict) else ""
