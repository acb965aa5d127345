"""Traces of torch.profiler (Kineto), as `export_chrome_trace` writes them, also those vLLM makes with VLLM_TORCH_PROFILER_DIR.

A request is a `ProfilerStep#`; where there is none, an outermost range of `record_function` on its thread. Inside it,

- ranges called like a stage, such as `preprocess`, are that stage; waiting for a DataLoader is `preprocess`;
- modules and outermost operators are `forward`, unless they are in such a range;
- what they launched on a device belongs to the request whose thread launched it: copies to it are `h2d` and from it `d2h`, kernels
  are of the range they were launched in, or else `forward`.

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
from ..otlp.json_fields import Object
from .chrome import Event, events
from .source import ImportFileError, Source
from .spans import Interval, Request, exports

SERVICE = "torch"
KEYS = ("traceEvents", "schemaVersion", "deviceProperties", "baseTimeNanoseconds")
# What is kept of a trace while it is read takes some 300 bytes an event.
MAX_EVENTS = 1_000_000

_STEP, _LOADING, _MODULE = "ProfilerStep#", "enumerate(DataLoader)", "nn.Module: "
_RANGE, _OPERATOR, _PYTHON = "user_annotation", "cpu_op", "python_function"
_LAUNCHES = ("cuda_runtime", "cuda_driver", "privateuse1_runtime")
_COPY, _ON_DEVICE = "gpu_memcpy", ("kernel", "gpu_memcpy", "gpu_memset")
# Numbers in names such as ProfilerStep#12 or execute_context_1(64) tell no routes apart.
_NUMBER = re.compile(r"(?<=[#_(])\d+")
# Later than any profile that counts from its own start. [nanoseconds]
_DATED = 10**18


@dataclass(slots=True)
class _Trace:
    """What matters of a trace; times are its own."""

    ranges: list[Event] = field(default_factory=list[Event])
    work: list[Event] = field(default_factory=list[Event])
    launches: dict[Any, Event] = field(default_factory=dict[Any, Event])
    on_device: list[tuple[Event, Any, str]] = field(default_factory=list[tuple[Event, Any, str]])
    events: int = 0
    ended: int = 0


class Nested:
    """Ranges of one thread that lie within each other or apart; finds the outermost or innermost around a moment."""

    def __init__(self, ranges: Iterable[Event]) -> None:
        self.ranges = sorted(ranges, key=lambda each: (each.start, -each.end))
        self._starts = [each.start for each in self.ranges]
        # Of each, which one it began in; -1 for none.
        self._around: list[int] = []
        open_: list[int] = []
        for place, each in enumerate(self.ranges):
            while open_ and self.ranges[open_[-1]].end <= each.start:
                open_.pop()
            self._around.append(open_[-1] if open_ else -1)
            open_.append(place)

    def outermost(self) -> list[Event]:
        """Return those that lie in no other."""
        found: list[Event] = []
        for each in self.ranges:
            if not found or each.start >= found[-1].end:
                found.append(each)
        return found

    def around(self, at: int) -> Event | None:
        """Return the one that began last and has not ended *at* that moment."""
        place = bisect_right(self._starts, at) - 1
        while place >= 0 and self.ranges[place].end <= at:
            place = self._around[place]
        return self.ranges[place] if place >= 0 else None


def read(source: Source, service: str | None) -> Iterator[tuple[str, Object]]:
    """Yield the requests of *source* as spans.

    Raises:
        ImportFileError: It has no ranges, or too many events.
    """
    trace = _read(source)
    requests = _requests(trace.ranges)
    if not requests:
        broken = f"{source.told.broken[0]}; what is left " if source.told.broken else ""
        msg = (
            f"{source.path}: {broken}has no ranges that could be requests; call `profiler.step()` after each, with a schedule, or "
            'write `with torch.profiler.record_function("request"):` around it'
        )
        raise ImportFileError(msg)
    offset = _offset(source, trace.ended)
    for export in exports(_Requests(trace, requests, offset), service or SERVICE, source.digest):
        yield "", export


def _read(source: Source) -> _Trace:
    trace = _Trace()
    for event, item in events(source, "traceEvents.item"):
        trace.ended = max(trace.ended, event.end)
        _take(trace, event, item)
        if trace.events > MAX_EVENTS:
            msg = (
                f"{source.path}: has more than {MAX_EVENTS} events that matter; profile fewer steps, or without stacks"
            )
            raise ImportFileError(msg)
    return trace


def _take(trace: _Trace, event: Event, item: Object) -> None:
    args = item.get("args")
    told: Object = args if isinstance(args, dict) else {}
    if event.category == _RANGE:
        trace.ranges.append(event)
    elif event.category == _OPERATOR or (event.category == _PYTHON and event.name.startswith(_MODULE)):
        trace.work.append(event)
    elif event.category in _LAUNCHES and "correlation" in told:
        trace.launches[str(told["correlation"])] = event
    elif event.category in _ON_DEVICE:
        trace.on_device.append((event, str(told.get("correlation")), f"cuda:{told.get('device', 0)}"))
    else:
        return
    trace.events += 1


def _offset(source: Source, ended: int) -> int:
    """Return what makes Unix nanoseconds of the trace's times."""
    base = next((each for each in source.items("baseTimeNanoseconds", quiet=True) if type(each) is int), 0)
    if base or ended > _DATED:
        return base
    source.note_undated()
    return source.ended_ns - ended


def _requests(ranges: Sequence[Event]) -> list[Event]:
    steps = [each for each in ranges if each.name.startswith(_STEP)]
    if steps:
        return steps
    outer = [each for lane in _by_lane(ranges).values() for each in lane.outermost()]
    # A stage beside the requests is none of them, unless there is nothing else.
    return [each for each in outer if not _stage_of(each)] or outer


def _stage_of(event: Event) -> str:
    if event.name.startswith(_LOADING):
        return "preprocess"
    name = event.name.lower()
    return name if name in stages.BY_KEY and name != stages.OVERHEAD else ""


class _Requests:
    """Requests, and what is found in them.

    Args:
        trace: What is read of the file.
        requests: The ranges that are requests.
        offset: What makes Unix nanoseconds of the trace's times.
    """

    def __init__(self, trace: _Trace, requests: list[Event], offset: int) -> None:
        self._offset = offset
        self._found: list[tuple[Event, list[Interval], set[str]]] = [(each, [], set()) for each in requests]
        self._number = {id(each): place for place, each in enumerate(requests)}
        self._places = _by_lane(requests)
        self._stages = _by_lane([each for each in trace.ranges if _stage_of(each)])
        for lane in self._stages.values():
            for each in lane.ranges:
                self._add(_stage_of(each), each, each)
        # What is around a request, such as the module that answers them all, is none of it.
        for lane in _by_lane(each for each in trace.work if self._around(each)).values():
            for each in lane.outermost():
                if not self._stage_around(each):
                    self._add("forward", each, each)
        for event, correlation, device in trace.on_device:
            launched = trace.launches.get(correlation)
            if launched is not None:
                stage = _copied(event) or self._stage_around(launched) or "forward"
                self._add(stage, event, launched, device)

    def __iter__(self) -> Iterator[Request]:
        for event, intervals, devices in self._found:
            values = {names.ROUTE: _NUMBER.sub("*", event.name), names.DEVICE: min(devices, default="cpu")}
            start, end = event.start + self._offset, event.end + self._offset
            yield Request(event.name, start, end, _merged(intervals, start, end), values)

    def _add(self, stage: str, event: Event, launched: Event, device: str = "") -> None:
        """Add *event* to the request in whose range it was *launched*."""
        around = self._around(launched)
        if around is not None:
            _, intervals, devices = self._found[self._number[id(around)]]
            intervals.append(Interval(stage, event.start + self._offset, event.end + self._offset, event.name))
            devices.update({device} if device else ())

    def _around(self, event: Event) -> Event | None:
        """Return the request that *event* began in."""
        return self._places[event.lane].around(event.start) if event.lane in self._places else None

    def _stage_around(self, event: Event) -> str:
        inside = self._stages[event.lane].around(event.start) if event.lane in self._stages else None
        return _stage_of(inside) if inside else ""


def _copied(event: Event) -> str:
    if event.category != _COPY:
        return ""
    return "h2d" if "HtoD" in event.name else "d2h" if "DtoH" in event.name else ""


def _by_lane(events: Iterable[Event]) -> dict[tuple[str, str], Nested]:
    lanes: defaultdict[tuple[str, str], list[Event]] = defaultdict(list)
    for each in events:
        lanes[each.lane].append(each)
    return {lane: Nested(found) for lane, found in lanes.items()}


def _merged(intervals: list[Interval], start: int, end: int) -> list[Interval]:
    """Return *intervals*, cut to the request; those of a stage that touch become one."""
    found: list[Interval] = []
    last: dict[str, int] = {}
    for each in sorted(intervals, key=attrgetter("start")):
        begin, stop = max(each.start, start), min(each.end, end)
        if begin >= stop:
            continue
        place = last.get(each.stage)
        if place is not None and found[place].end >= begin and each.stage in ("forward", "h2d", "d2h"):
            known = found[place]
            found[place] = Interval(known.stage, known.start, max(known.end, stop), known.name)
        else:
            last[each.stage] = len(found)
            found.append(Interval(each.stage, begin, stop, each.name))
    return found
