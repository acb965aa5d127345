"""Device times of a request: `forward` and copies by the clock of the device, and the `queue` before them.

A GPU executes work later than its host launches it. Before and after each piece of work an event is recorded on its stream,
except while the stream is capturing a CUDA graph. The background thread queries the events after the request, so that nothing
ever waits for a device. After the request `DeviceTimes` reports

- for a model: when the device ran it (`forward@gpu`), beside when the host launched it (`forward@launch`);
- for a copy: when the device made it (`d2h@gpu`). The host starts a copy early and waits in that call for the model; this
  wait does not count as copy;
- how long work waited for work of another request on the same stream (`queue@gpu`).

Work without device times is timed by its launch alone.

Events only report the time between two of them. `Timeline` maps them to the host's clock: no event can have happened before
its request, and on an idle device it happened at that moment. So the event with the least delay in the last second defines
the offset of the clocks. After a copy for which the host waits there is always such an event.

A thread that queries events must have the context of a device in use (`Driver`): otherwise it would get the context of the
first device, which may have to be created and takes half a gigabyte of device memory
(https://github.com/pytorch/pytorch/pull/135273). During a stream capture queries are forbidden for all threads except
those in relaxed mode.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from ...instrumentor import log_failure
from ...records import OPEN, START, STATE, Marks, clock, has_capacity, report_limit

# cudaStreamCaptureModeRelaxed. https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html
RELAXED = 2
# Lifetime of a reference event: `elapsed_time` is a 32-bit float, accurate to 0.1 us in a second, and the clocks drift apart.
REFERENCE_NS = 1_000_000_000
# Beyond this distance an old reference is not used for the next one.
FORGET_NS = 10_000_000_000
# Maximum drift of a device's clock. While the device is never idle, the offset is not updated and its error grows by
# 20 us per second. [parts per million]
DRIFT_PPM = 20
MAX_FREE_EVENTS = 4096
# PyTorch uses pools of 32 streams; only a program that keeps wrapping its own streams has more.
MAX_STREAMS = 1024
# Limit per request and thread; further work is timed by its launch.
MAX_WORKS = 1024
COPIES: Final = ("h2d", "d2h")


class Driver:
    def __init__(self, library: str, prefix: str) -> None:
        self._library = library
        self._prefix = prefix
        self._prepared = threading.local()

    def prepare(self, device: int) -> None:
        if getattr(self._prepared, "done", False):
            return
        context, handle = ctypes.c_void_p(), ctypes.c_int()
        self._call("CtxGetCurrent", ctypes.byref(context))
        if not context:
            self._call("DeviceGet", ctypes.byref(handle), device)
            self._call("DevicePrimaryCtxRetain", ctypes.byref(context), handle)
            self._call("CtxSetCurrent", context)
        self._call("ThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(RELAXED)))
        self._prepared.done = True

    def _call(self, name: str, *args: object) -> None:
        function = f"{self._prefix}{name}"
        error = getattr(ctypes.CDLL(self._library), function)(*args)
        if error:
            message = f"{function} must return 0 before events can be used, got {error}"
            raise RuntimeError(message)


class StreamEvent(Protocol):
    """Event in the work queue of a stream, like `torch.cuda.Event(enable_timing=True)`."""

    def record(self, stream: Any) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any) -> float: ...


class EventSource(Protocol):
    def stream(self, device: Any) -> Any:
        """Return the current stream of this thread on *device*, None while it is capturing a graph."""
        ...

    def event(self) -> StreamEvent: ...

    def prepare(self, device: Any) -> None: ...


class TorchEvents:
    def __init__(self, backend: Any, driver: Driver | None, current_id: Callable[[int], Any] | None = None) -> None:
        self._backend = backend
        self._driver = driver
        self._current_id = current_id
        self._streams: dict[Any, Any] = {}
        self._is_capturing = getattr(backend, "is_current_stream_capturing", bool)

    def stream(self, device: Any) -> Any:
        if self._is_capturing():
            return None
        if self._current_id is None or device.index is None:
            return self._backend.current_stream(device)
        # `current_stream` creates an object at every call: 2.8 us on the host of an H200, against 0.1 us for the id.
        stream_id = self._current_id(device.index)
        stream = self._streams.get(stream_id)
        if stream is None:
            if len(self._streams) >= MAX_STREAMS:
                self._streams.clear()
            stream = self._streams[stream_id] = self._backend.current_stream(device)
        return stream

    def event(self) -> StreamEvent:
        return self._backend.Event(enable_timing=True)

    def prepare(self, device: Any) -> None:
        if self._driver is not None:
            self._driver.prepare(device.index)


def event_source(torch: Any, kind: str) -> EventSource | None:
    if kind == "cuda":
        driver = Driver("libcuda.so.1", "cu") if torch.version.hip is None else Driver("libamdhip64.so", "hip")
        # The function that `current_stream` calls.
        return TorchEvents(torch.cuda, driver, getattr(torch._C, "_cuda_getCurrentStream", None))  # noqa: SLF001
    return TorchEvents(torch.xpu, None) if kind == "xpu" else None


class DeviceEvent:
    __slots__ = ("asked", "at", "event")

    def __init__(self, event: StreamEvent, asked: int) -> None:
        # None once `at` is known.
        self.event: StreamEvent | None = event
        self.asked = asked
        self.at = 0


class Timeline:
    """Mapping of one device's event times to `clock`. Only `record` may be called outside of the background thread."""

    def __init__(self, source: EventSource, device: Any) -> None:
        self.source = source
        self._device = device
        # Request and end of the last finished work, by stream.
        self.last: dict[Any, tuple[int, DeviceEvent]] = {}
        self._free: list[StreamEvent] = []
        self._reference: DeviceEvent | None = None
        self._reference_ns = 0

    def record(self, stream: Any) -> DeviceEvent:
        try:
            event = self._free.pop()
        except IndexError:
            event = self.source.event()
        asked = clock()
        event.record(stream)
        return DeviceEvent(event, asked)

    def prepare(self) -> None:
        self.source.prepare(self._device)

    def learn(self, stamp: DeviceEvent) -> None:
        reference = self._reference
        if reference is None or abs(stamp.asked - reference.asked) > REFERENCE_NS:
            self._refer_to(stamp)
        else:
            self._reference_ns = max(self._reference_ns, stamp.asked - self._from_reference(stamp))

    def place(self, stamp: DeviceEvent) -> int:
        return stamp.at or self._reference_ns + self._from_reference(stamp)

    def release(self, stamp: DeviceEvent) -> None:
        stamp.at = self.place(stamp)
        if stamp is not self._reference:
            self._take_back(stamp)

    def _refer_to(self, stamp: DeviceEvent) -> None:
        old, reference_ns = self._reference, stamp.asked
        if old is not None:
            passed = self._from_reference(stamp)
            if abs(passed) < FORGET_NS:
                reference_ns = max(reference_ns, self._reference_ns + passed - abs(passed) * DRIFT_PPM // 1_000_000)
        self._reference, self._reference_ns = stamp, reference_ns
        if old is not None and old.at:
            self._take_back(old)

    def _from_reference(self, stamp: DeviceEvent) -> int:
        reference: Any = self._reference
        # Not every device supports a negative time.
        if stamp.asked >= reference.asked:
            return round(reference.event.elapsed_time(stamp.event) * 1e6)
        event: Any = stamp.event
        return -round(event.elapsed_time(reference.event) * 1e6)

    def _take_back(self, stamp: DeviceEvent) -> None:
        event, stamp.event = stamp.event, None
        if event is not None and len(self._free) < MAX_FREE_EVENTS:
            self._free.append(event)


class DeviceWork:
    """Piece of work of a request on a device; creating it records its start."""

    __slots__ = ("_before", "_request", "_stage", "_stream", "end", "start", "timeline")

    def __init__(self, timeline: Timeline, stream: Any, request: int) -> None:
        self.timeline = timeline
        self._stream = stream
        self._request = request
        self._stage = ""
        # Only the end of the previous work is stored: a reference to the work would keep the chain of all earlier work alive.
        self._before = timeline.last.get(stream)
        self.start = timeline.record(stream)
        # None until `finish`, while the host is still queuing work.
        self.end: DeviceEvent | None = None

    def finish(self, stage: str) -> None:
        self._stage = stage
        self.end = self.timeline.record(self._stream)
        self.timeline.last[self._stream] = self._request, self.end

    def is_done(self) -> bool:
        return self.end is not None and (self.end.event is None or self.end.event.query())

    def learn(self) -> None:
        """Update the timeline from the events of finished work. This and all following methods need finished work."""
        self.timeline.learn(self.start)
        self.timeline.learn(self._ended())

    def interval(self) -> tuple[int, int]:
        return self.timeline.place(self.start), self.timeline.place(self._ended())

    def marks(self, free_at: int) -> Marks:
        """Return the marks of work that the device has reported; the previous work of the request ended at *free_at*."""
        asked, returned = self.start.asked, self._ended().asked
        start, end = self.interval()
        if self._stage not in COPIES:
            return [*self._queue(max(returned, free_at), start), f"{self._stage}@gpu", start, end]
        if start > returned:
            return [*self.launch(), f"{self._stage}@gpu", start, end]
        # A copy for which the host waited ends when the host continues.
        return [*self._queue(max(asked, free_at), start), f"{self._stage}@gpu", start, max(end, returned)]

    def launch(self) -> Marks:
        """Return the marks of work without device times: the launch of a copy, none for a model (already recorded)."""
        if self.end is None or self._stage not in COPIES:
            return []
        return [f"{self._stage}@launch", self.start.asked, self.end.asked]

    def release(self) -> None:
        self._before = None
        self.timeline.release(self.start)
        self.timeline.release(self._ended())

    def _queue(self, since: int, start: int) -> Marks:
        if self._before is None or self._before[0] == self._request:
            return []
        until = min(start, self.timeline.place(self._before[1]))
        return ["queue@gpu", since, until] if until > since else []

    def _ended(self) -> DeviceEvent:
        return self.end or self.start


class DeviceTimes:
    """Device times of one request and thread, as a `records.Late`."""

    __slots__ = ("_timelines", "_waiting", "works")

    def __init__(self) -> None:
        self.works: list[DeviceWork] = []
        self._waiting: list[DeviceWork] = []
        # Empty before the first query, and if queries fail.
        self._timelines: set[Timeline] = set()

    def ready(self) -> bool:
        try:
            if not self._timelines:
                self._timelines = {work.timeline for work in self.works}
                self._waiting = self.works[:]
            self._prepare()
            # The last work first: as long as it is not finished, no other event is queried.
            while self._waiting and self._waiting[-1].is_done():
                self._waiting.pop()
        except Exception:
            log_failure("reading the times of a device")
            self._timelines.clear()
            return True
        return not self._waiting

    def marks(self) -> Marks:
        try:
            self._prepare()
            return self._marks({work for work in self.works if work.is_done()} if self._timelines else set())
        except Exception:
            log_failure("placing a device's times")
            return [mark for work in self.works for mark in work.launch()]

    def _prepare(self) -> None:
        """Prepare this thread, because at exit another thread than usual queries the events."""
        for timeline in self._timelines:
            timeline.prepare()

    def _marks(self, done: set[DeviceWork]) -> Marks:
        for work in done:
            work.learn()
        marks: Marks = []
        free_at = 0
        for work in self.works:
            if work in done:
                marks += work.marks(free_at)
                free_at = max(free_at, work.interval()[1])
            else:
                marks += work.launch()
        for work in done:
            work.release()
        return marks


class Capture(Enum):
    """Result of `Devices.begin` while the stream is capturing a graph and nothing may be recorded."""

    RUNNING = 1


# A constant, because the lookup of an enum member is slow.
CAPTURING: Final = Capture.RUNNING
StartedWork: TypeAlias = DeviceWork | Capture | None


class _Here(threading.local):
    marks: Marks | None = None
    times: DeviceTimes | None = None


_here = _Here()


class Devices:
    """All devices of the process that work for requests.

    Attributes:
        sources: Event source by kind of device, None for a kind without events.
        in_use: Whether a tensor or module was ever used on a device.
    """

    def __init__(self) -> None:
        self.torch: Any = None
        self.sources: dict[str, EventSource | None] = {}
        self.timelines: dict[Any, Timeline] = {}
        self.in_use = False

    def begin(self, device: Any, marks: Marks) -> StartedWork:
        """Record the start of work of a request on *device*, and return it; None if device times are not available."""
        self.in_use = True
        if marks[STATE] != OPEN:
            # The events of a finished request would never be read.
            return None
        try:
            source = self._source(device.type)
            if source is None:
                return None
            stream = source.stream(device)
            if stream is None:
                return CAPTURING
            timeline = self.timelines.get(stream.device)
            if timeline is None:
                timeline = self.timelines.setdefault(stream.device, Timeline(source, stream.device))
            return DeviceWork(timeline, stream, marks[START])
        except Exception:
            log_failure("recording an event before work of a device")
            return None

    def finish(self, work: DeviceWork, stage: str, marks: Marks) -> None:
        if not has_capacity(marks):
            return
        try:
            work.finish(stage)
            _add(work, marks)
        except Exception:
            log_failure("recording an event after work of a device")

    def _source(self, kind: str) -> EventSource | None:
        if kind not in self.sources:
            self.sources[kind] = event_source(self.torch, kind)
        return self.sources[kind]


def _add(work: DeviceWork, marks: Marks) -> None:
    times = _here.times
    if times is None or _here.marks is not marks:
        times = DeviceTimes()
        _here.marks, _here.times = marks, times
        marks.extend(("@late", times, 0))
    if len(times.works) < MAX_WORKS:
        times.works.append(work)
    else:
        report_limit("has more than 1,024 runs on a device; further ones are timed by their launch")


devices = Devices()
