"""Chrome traces of torch.profiler (Kineto, including vLLM's VLLM_TORCH_PROFILER_DIR).

A request is a `ProfilerStep#`, or without steps an outermost range of `record_function` on its thread. Inside it,

- ranges with the name of a stage, such as `preprocess`, are that stage; waiting for a DataLoader is `preprocess`;
- modules and outermost operators are `forward`, unless they are in a range of a stage;
- device work belongs to the request whose thread launched it: copies to the device are `h2d`, copies from the device are `d2h`,
  and kernels belong to the stage of the range in which they were launched, or else to `forward`.

Source: https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from ...core import names, stages
from ..otlp.json_encoding import Object
from .chrome_events import ChromeEvent, complete_events
from .source import ImportFile, ImportFileError
from .spans import ImportedRequest, StageInterval, span_exports

KINETO_SERVICE = "torch"
KINETO_KEYS = ("traceEvents", "schemaVersion", "deviceProperties", "baseTimeNanoseconds")
# Maximum number of relevant events; an event takes about 300 bytes in memory.
MAX_EVENTS = 1_000_000

_STEP, _LOADING, _MODULE = "ProfilerStep#", "enumerate(DataLoader)", "nn.Module: "
_RANGE_CATEGORY, _OPERATOR, _PYTHON = "user_annotation", "cpu_op", "python_function"
_LAUNCHES = ("cuda_runtime", "cuda_driver", "privateuse1_runtime")
_COPY, _ON_DEVICE = "gpu_memcpy", ("kernel", "gpu_memcpy", "gpu_memset")
# Numbers in names such as ProfilerStep#12 or execute_context_1(64) are not part of the route.
_NUMBER = re.compile(r"(?<=[#_(])\d+")
# Later times are Unix times; earlier times count from the start of the profile. [nanoseconds]
_DATED = 10**18


@dataclass(slots=True)
class _KinetoTrace:
    ranges: list[ChromeEvent] = field(default_factory=list[ChromeEvent])
    work: list[ChromeEvent] = field(default_factory=list[ChromeEvent])
    launches: dict[Any, ChromeEvent] = field(default_factory=dict[Any, ChromeEvent])
    on_device: list[tuple[ChromeEvent, Any, str]] = field(default_factory=list[tuple[ChromeEvent, Any, str]])
    events: int = 0
    ended: int = 0


class Nested:
    """Nested ranges of one thread, with lookup of the outermost ranges and of the innermost range at a time."""

    def __init__(self, ranges: Iterable[ChromeEvent]) -> None:
        self.ranges = sorted(ranges, key=lambda event: (event.start, -event.end))
        self._starts = [event.start for event in self.ranges]
        # Index of the enclosing range of each range, -1 for none.
        self._around: list[int] = []
        open_: list[int] = []
        for index, event in enumerate(self.ranges):
            while open_ and self.ranges[open_[-1]].end <= event.start:
                open_.pop()
            self._around.append(open_[-1] if open_ else -1)
            open_.append(index)

    def outermost(self) -> list[ChromeEvent]:
        events: list[ChromeEvent] = []
        for event in self.ranges:
            if not events or event.start >= events[-1].end:
                events.append(event)
        return events

    def around(self, at: int) -> ChromeEvent | None:
        """Return the innermost range at the time *at*; None outside of all ranges."""
        index = bisect_right(self._starts, at) - 1
        while index >= 0 and self.ranges[index].end <= at:
            index = self._around[index]
        return self.ranges[index] if index >= 0 else None


def read_kineto(source: ImportFile, service: str | None) -> Iterator[tuple[str, Object]]:
    trace = _read_trace(source)
    requests = _kineto_requests(trace.ranges)
    if not requests:
        broken = f"{source.diagnostics.broken[0]}; the rest " if source.diagnostics.broken else ""
        msg = (
            f"{source.path}: {broken}has no ranges of requests; call `profiler.step()` after each request, with a schedule, or "
            'write `with torch.profiler.record_function("request"):` around each request'
        )
        raise ImportFileError(msg)
    offset = _unix_offset(source, trace.ended)
    for export in span_exports(_KinetoRequests(trace, requests, offset), service or KINETO_SERVICE, source.digest):
        yield "", export


def _read_trace(source: ImportFile) -> _KinetoTrace:
    trace = _KinetoTrace()
    for event, item in complete_events(source, "traceEvents.item"):
        trace.ended = max(trace.ended, event.end)
        _take(trace, event, item)
        if trace.events > MAX_EVENTS:
            msg = f"{source.path}: has more than {MAX_EVENTS} relevant events; profile fewer steps, or without stacks"
            raise ImportFileError(msg)
    return trace


def _take(trace: _KinetoTrace, event: ChromeEvent, item: Object) -> None:
    args = item.get("args")
    arguments: Object = args if isinstance(args, dict) else {}
    if event.category == _RANGE_CATEGORY:
        trace.ranges.append(event)
    elif event.category == _OPERATOR or (event.category == _PYTHON and event.name.startswith(_MODULE)):
        trace.work.append(event)
    elif event.category in _LAUNCHES and "correlation" in arguments:
        trace.launches[str(arguments["correlation"])] = event
    elif event.category in _ON_DEVICE:
        trace.on_device.append((event, str(arguments.get("correlation")), f"cuda:{arguments.get('device', 0)}"))
    else:
        return
    trace.events += 1


def _unix_offset(source: ImportFile, ended: int) -> int:
    """Return the offset to add to the times of the trace for Unix nanoseconds."""
    base = next(
        (nanoseconds for nanoseconds in source.items("baseTimeNanoseconds", quiet=True) if type(nanoseconds) is int), 0
    )
    if base or ended > _DATED:
        return base
    source.note_undated()
    return source.ended_ns - ended


def _kineto_requests(ranges: Sequence[ChromeEvent]) -> list[ChromeEvent]:
    steps = [event for event in ranges if event.name.startswith(_STEP)]
    if steps:
        return steps
    outer = [event for lane in _by_lane(ranges).values() for event in lane.outermost()]
    # A range with the name of a stage is a request only if there are no other ranges.
    return [event for event in outer if not _stage_of(event)] or outer


def _stage_of(event: ChromeEvent) -> str:
    if event.name.startswith(_LOADING):
        return "preprocess"
    name = event.name.lower()
    return name if name in stages.BY_KEY and name != stages.OVERHEAD else ""


class _KinetoRequests:
    def __init__(self, trace: _KinetoTrace, requests: list[ChromeEvent], offset: int) -> None:
        self._offset = offset
        self._found: list[tuple[ChromeEvent, list[StageInterval], set[str]]] = [
            (request, [], set()) for request in requests
        ]
        self._number = {id(request): number for number, request in enumerate(requests)}
        self._places = _by_lane(requests)
        self._stages = _by_lane([interval for interval in trace.ranges if _stage_of(interval)])
        for lane in self._stages.values():
            for interval in lane.ranges:
                self._add(_stage_of(interval), interval, interval)
        # A range around requests, such as the module that serves them, is not part of a request.
        for lane in _by_lane(interval for interval in trace.work if self._around(interval)).values():
            for interval in lane.outermost():
                if not self._stage_around(interval):
                    self._add("forward", interval, interval)
        for event, correlation, device in trace.on_device:
            launched = trace.launches.get(correlation)
            if launched is not None:
                stage = _copy_stage(event) or self._stage_around(launched) or "forward"
                self._add(stage, event, launched, device)

    def __iter__(self) -> Iterator[ImportedRequest]:
        for event, intervals, devices in self._found:
            values = {names.ROUTE: _NUMBER.sub("*", event.name), names.DEVICE: min(devices, default="cpu")}
            start, end = event.start + self._offset, event.end + self._offset
            yield ImportedRequest(event.name, start, end, _merge_touching(intervals, start, end), values)

    def _add(self, stage: str, event: ChromeEvent, launched: ChromeEvent, device: str = "") -> None:
        around = self._around(launched)
        if around is not None:
            _, intervals, devices = self._found[self._number[id(around)]]
            intervals.append(StageInterval(stage, event.start + self._offset, event.end + self._offset, event.name))
            devices.update({device} if device else ())

    def _around(self, event: ChromeEvent) -> ChromeEvent | None:
        return self._places[event.lane].around(event.start) if event.lane in self._places else None

    def _stage_around(self, event: ChromeEvent) -> str:
        inside = self._stages[event.lane].around(event.start) if event.lane in self._stages else None
        return _stage_of(inside) if inside else ""


def _copy_stage(event: ChromeEvent) -> str:
    if event.category != _COPY:
        return ""
    return "h2d" if "HtoD" in event.name else "d2h" if "DtoH" in event.name else ""


def _by_lane(events: Iterable[ChromeEvent]) -> dict[tuple[str, str], Nested]:
    lanes: defaultdict[tuple[str, str], list[ChromeEvent]] = defaultdict(list)
    for event in events:
        lanes[event.lane].append(event)
    return {lane: Nested(lane_events) for lane, lane_events in lanes.items()}


def _merge_touching(intervals: list[StageInterval], start: int, end: int) -> list[StageInterval]:
    merged: list[StageInterval] = []
    last: dict[str, int] = {}
    for interval in sorted(intervals, key=attrgetter("start")):
        begin, stop = max(interval.start, start), min(interval.end, end)
        if begin >= stop:
            continue
        index = last.get(interval.stage)
        if index is not None and merged[index].end >= begin and interval.stage in ("forward", "h2d", "d2h"):
            previous = merged[index]
            merged[index] = StageInterval(previous.stage, previous.start, max(previous.end, stop), previous.name)
        else:
            last[interval.stage] = len(merged)
            merged.append(StageInterval(interval.stage, begin, stop, interval.name))
    return merged
