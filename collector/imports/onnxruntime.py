"""Profiles of ONNX Runtime (`SessionOptions.enable_profiling`): a list of Chrome trace events of one session.

Each `model_run` is a request whose time is `forward`, but for the copies from and to the device. Making the session is a request
of its own, all `load`, under the route `session start`. Times count from when profiling began: the file's own tells when it ended.

Source: https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ...core import names
from ..otlp.json_fields import Object
from .chrome import events, read_event
from .source import Source
from .spans import Interval, Request, exports

SERVICE = "onnxruntime"
_RUN, _START = "model_run", "session start"
# Reading the model (`model_loading_uri`, `_array`, …), then making the session of it.
_READING, _MAKING = "model_loading_", "session_initialization"
# The operators that copy between host and device, as the graph has them.
_COPIES = {"MemcpyFromHost": "h2d", "MemcpyToHost": "d2h"}
# Copies whose run has not ended yet, at most.
_MOST_COPIES = 100_000


def read(source: Source, service: str | None) -> Iterator[tuple[str, Object]]:
    """Yield the runs of *source* as spans."""
    latest = max((event.end for item in source.items("item", quiet=True) if (event := read_event(item))), default=0)
    source.note_undated()
    for export in exports(_requests(source, source.ended_ns - latest), service or SERVICE, source.digest):
        yield "", export


def _requests(source: Source, offset: int) -> Iterator[Request]:
    copies: defaultdict[tuple[str, str], list[Interval]] = defaultdict(list)
    began = 0
    for event, item in events(source, "item"):
        start, end, held = event.start + offset, event.end + offset, copies[event.lane]
        stage = _COPIES.get(_operator(item))
        if stage and len(held) < _MOST_COPIES:
            held.append(Interval(stage, start, end, event.name))
        elif event.name == _RUN:
            inside = [copy for copy in held if start <= copy.start <= end]
            device = "cuda" if inside else "cpu"
            values = {names.ROUTE: _RUN, names.DEVICE: device}
            yield Request(_RUN, start, end, [Interval("forward", start, end), *inside], values)
            held.clear()
        elif event.name.startswith(_READING):
            began = start
        elif event.name == _MAKING:
            begin = began or start
            yield Request(_START, begin, end, [Interval("load", begin, end)], {names.ROUTE: _START})
            began = 0


def _operator(item: Object) -> str:
    args = item.get("args")
    return str(args.get("op_name", "")) if isinstance(args, dict) else ""
