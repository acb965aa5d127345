"""Times of the devices for a request: `forward` and copies by the device's own clock, and the `queue` before them.

A GPU works later than its host asks. Before and after each piece of work an event is recorded on its stream, except while the
stream is capturing a CUDA graph, and the background thread queries the events after the request: nothing ever waits for a
device. After the request `DeviceTimes` reports

- for a model: when the device ran it (`forward@gpu`), beside when the host launched it (`forward@launch`);
- for a copy: when the device made it (`d2h@gpu`). The host starts a copy early and waits in it for the model, which is
  not part of it;
- how long work waited for that of another request on the same stream (`queue@gpu`).

Work without device times is timed by its launch alone.

Events only report their distance. To place them on the host's clock (`Timeline`): no event can have happened before it was
requested, and on an idle device it happened just then. So of all events of the last second the one with the least delay
defines the offset of the clocks. After a copy that the host waits for, there always is such an event.

A thread that queries events must have the context of a device that is in use (`Driver`): without one it would get that of
the first device, which may have to be created and takes half a gigabyte of its memory
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
from ...records import MAX_MARKS, OPEN, Marks, clock

# cudaStreamCaptureModeRelaxed. https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html
RELAXED = 2


class Driver:
    """The driver's library; AMD's has the same functions with other names.

    Args:
        library: Its file.
        prefix: What its functions begin with.
    """

    def __init__(self, library: str, prefix: str) -> None:
        self._library = library
        self._prefix = prefix
        self._prepared = threading.local()

    def prepare(self, device: int) -> None:
        """Prepare this thread for querying events, once.

        Args:
            device: The index of one that is in use.

        Raises:
            AttributeError: The library lacks a function.
            OSError: There is no such library.
            RuntimeError: It refused.
        """
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


# The reference is changed so often: `elapsed_time` is a 32-bit float, 0.1 us in a second, and the clocks drift apart.
REFERENCE_NS = 1_000_000_000
# Past it a reference says nothing about the next one.
FORGET_NS = 10_000_000_000
# By how much a device's clock may gain on the host's. Where nothing is learnt because the device is never idle, placing
# gets worse by as much: 20 us a second. [parts per million]
DRIFT_PPM = 20
MAX_FREE_EVENTS = 4096
# PyTorch takes its streams from pools of 32; only a program that wraps its own again and again has more.
MAX_STREAMS = 1024


class StreamEvent(Protocol):
    """A point of a stream, as in `torch.cuda.Event(enable_timing=True)`."""

    def record(self, stream: Any) -> None:
        """Put it behind all work of *stream*."""
        ...

    def query(self) -> bool:
        """Return, without blocking, whether the device has come past it."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Return how much later *end_event* is, in milliseconds."""
        ...


class EventSource(Protocol):
    """Where the events of a kind of device come from."""

    def stream(self, device: Any) -> Any:
        """Return the stream that this thread's work on *device* goes to, None while it is capturing."""
        ...

    def event(self) -> StreamEvent:
        """Return a new event."""
        ...

    def prepare(self, device: Any) -> None:
        """Prepare this thread for querying events; *device* is one that has some."""
        ...


class TorchEvents:
    """The events of `torch.cuda`, which is also AMD's, or `torch.xpu`.

    Args:
        backend: That module.
        driver: What has to be asked before events are; None where nothing has.
        current_id: Returns what identifies the current stream of the device with an index; None where that cannot be asked.
    """

    def __init__(self, backend: Any, driver: Driver | None, current_id: Callable[[int], Any] | None = None) -> None:
        self._backend = backend
        self._driver = driver
        self._current_id = current_id
        self._streams: dict[Any, Any] = {}
        self._is_capturing = getattr(backend, "is_current_stream_capturing", bool)

    def stream(self, device: Any) -> Any:
        """Return the current stream of *device*, None while it is capturing."""
        if self._is_capturing():
            return None
        if self._current_id is None or device.index is None:
            return self._backend.current_stream(device)
        # `current_stream` makes a new object each time: 2.8 us on the host of an H200, its id 0.1 us.
        stream_id = self._current_id(device.index)
        stream = self._streams.get(stream_id)
        if stream is None:
            if len(self._streams) >= MAX_STREAMS:
                self._streams.clear()
            stream = self._streams[stream_id] = self._backend.current_stream(device)
        return stream

    def event(self) -> StreamEvent:
        """Return a new event."""
        return self._backend.Event(enable_timing=True)

    def prepare(self, device: Any) -> None:
        """Prepare this thread for querying events, as `Driver.prepare` does."""
        if self._driver is not None:
            self._driver.prepare(device.index)


def event_source(torch: Any, kind: str) -> EventSource | None:
    """Return the source of events for a *kind* of device such as "cuda", None where there are none."""
    if kind == "cuda":
        driver = Driver("libcuda.so.1", "cu") if torch.version.hip is None else Driver("libamdhip64.so", "hip")
        # What `current_stream` itself asks.
        return TorchEvents(torch.cuda, driver, getattr(torch._C, "_cuda_getCurrentStream", None))  # noqa: SLF001
    return TorchEvents(torch.xpu, None) if kind == "xpu" else None


class DeviceEvent:
    """An event, the time of its recording, and its device time, once that is known.

    Args:
        event: Recorded a moment ago.
        asked: By `clock`, just before. [nanoseconds]
    """

    __slots__ = ("asked", "at", "event")

    def __init__(self, event: StreamEvent, asked: int) -> None:
        # Gone once `at` is known.
        self.event: StreamEvent | None = event
        self.asked = asked
        self.at = 0


class Timeline:
    """Placement of one device's events in time. All methods but `record` belong to the background thread.

    Args:
        source: Where its events come from.
        device: Which it is: a `torch.device`.
    """

    def __init__(self, source: EventSource, device: Any) -> None:
        self.source = source
        self._device = device
        # By stream: which request had the last finished piece of work, and its end.
        self.last: dict[Any, tuple[int, DeviceEvent]] = {}
        self._free: list[StreamEvent] = []
        self._reference: DeviceEvent | None = None
        self._reference_ns = 0

    def record(self, stream: Any) -> DeviceEvent:
        """Record an event on *stream*."""
        try:
            event = self._free.pop()
        except IndexError:
            event = self.source.event()
        asked = clock()
        event.record(stream)
        return DeviceEvent(event, asked)

    def prepare(self) -> None:
        """Get this thread ready for all but `record`."""
        self.source.prepare(self._device)

    def learn(self, stamp: DeviceEvent) -> None:
        """Take from an event that has happened how the clocks stand to each other."""
        reference = self._reference
        if reference is None or abs(stamp.asked - reference.asked) > REFERENCE_NS:
            self._refer_to(stamp)
        else:
            self._reference_ns = max(self._reference_ns, stamp.asked - self._from_reference(stamp))

    def place(self, stamp: DeviceEvent) -> int:
        """Return when an event happened that has happened, in nanoseconds of `clock`."""
        return stamp.at or self._reference_ns + self._from_reference(stamp)

    def release(self, stamp: DeviceEvent) -> None:
        """Store the time of the event, and reuse the event."""
        stamp.at = self.place(stamp)
        if stamp is not self._reference:
            self._take_back(stamp)

    def _refer_to(self, stamp: DeviceEvent) -> None:
        old, known = self._reference, stamp.asked
        if old is not None:
            passed = self._from_reference(stamp)
            if abs(passed) < FORGET_NS:
                known = max(known, self._reference_ns + passed - abs(passed) * DRIFT_PPM // 1_000_000)
        self._reference, self._reference_ns = stamp, known
        if old is not None and old.at:
            self._take_back(old)

    def _from_reference(self, stamp: DeviceEvent) -> int:
        reference: Any = self._reference
        # Not every device can tell a negative time.
        if stamp.asked >= reference.asked:
            return round(reference.event.elapsed_time(stamp.event) * 1e6)
        event: Any = stamp.event
        return -round(event.elapsed_time(reference.event) * 1e6)

    def _take_back(self, stamp: DeviceEvent) -> None:
        event, stamp.event = stamp.event, None
        if event is not None and len(self._free) < MAX_FREE_EVENTS:
            self._free.append(event)


# Of one request and thread; the rest is timed by its launch.
MAX_WORKS = 1024
COPIES: Final = ("h2d", "d2h")


class DeviceWork:
    """One piece of work of a request on a device: begins when it is made.

    Args:
        timeline: The device's.
        stream: Where the work goes.
        request: Tells the request from others.
    """

    __slots__ = ("_before", "_request", "_stage", "_stream", "end", "start", "timeline")

    def __init__(self, timeline: Timeline, stream: Any, request: int) -> None:
        self.timeline = timeline
        self._stream = stream
        self._request = request
        self._stage = ""
        # Of other work only its end is kept: were it the work, each would keep all before it.
        self._before = timeline.last.get(stream)
        self.start = timeline.record(stream)
        # Until `finish` the host is still asking.
        self.end: DeviceEvent | None = None

    def finish(self, stage: str) -> None:
        """Record that the host has queued all of it, and its stage."""
        self._stage = stage
        self.end = self.timeline.record(self._stream)
        self.timeline.last[self._stream] = self._request, self.end

    def is_done(self) -> bool:
        """Return, without blocking, whether the device has done it."""
        return self.end is not None and (self.end.event is None or self.end.event.query())

    def learn(self) -> None:
        """Have the timeline learn from its events; only when it is done, as all that follow."""
        self.timeline.learn(self.start)
        self.timeline.learn(self._ended())

    def interval(self) -> tuple[int, int]:
        """Return when the device began and ended it, in nanoseconds of `clock`."""
        return self.timeline.place(self.start), self.timeline.place(self._ended())

    def marks(self, free_at: int) -> Marks:
        """Return the marks of work whose times the device has reported.

        Args:
            free_at: When the work of the same request before it ended. [nanoseconds]
        """
        asked, returned = self.start.asked, self._ended().asked
        start, end = self.interval()
        if self._stage not in COPIES:
            return [*self._queue(max(returned, free_at), start), f"{self._stage}@gpu", start, end]
        if start > returned:
            return [*self.launch(), f"{self._stage}@gpu", start, end]
        # One that the host has waited for: it is over when the host goes on.
        return [*self._queue(max(asked, free_at), start), f"{self._stage}@gpu", start, max(end, returned)]

    def launch(self) -> Marks:
        """Return the marks of work without device times; the launch of a model is already recorded."""
        if self.end is None or self._stage not in COPIES:
            return []
        return [f"{self._stage}@launch", self.start.asked, self.end.asked]

    def release(self) -> None:
        """Give the events back."""
        self._before = None
        self.timeline.release(self.start)
        self.timeline.release(self._ended())

    def _queue(self, since: int, start: int) -> Marks:
        """Return how long it stood behind work of another request."""
        if self._before is None or self._before[0] == self._request:
            return []
        until = min(start, self.timeline.place(self._before[1]))
        return ["queue@gpu", since, until] if until > since else []

    def _ended(self) -> DeviceEvent:
        return self.end or self.start


class DeviceTimes:
    """The `records.Late` of one request and thread."""

    __slots__ = ("_timelines", "_waiting", "works")

    def __init__(self) -> None:
        self.works: list[DeviceWork] = []
        self._waiting: list[DeviceWork] = []
        # Empty until they are asked, and when they cannot be.
        self._timelines: set[Timeline] = set()

    def ready(self) -> bool:
        """Return whether the device has done all."""
        try:
            if not self._timelines:
                self._timelines = {work.timeline for work in self.works}
                self._waiting = self.works[:]
            self._prepare()
            # The last one first: as long as that is not done, no other is asked.
            while self._waiting and self._waiting[-1].is_done():
                self._waiting.pop()
        except Exception:
            log_failure("reading the times of a device")
            self._timelines.clear()
            return True
        return not self._waiting

    def marks(self) -> Marks:
        """Return the device times of the work, as far as they are known."""
        try:
            self._prepare()
            return self._marks({work for work in self.works if work.is_done()} if self._timelines else set())
        except Exception:
            log_failure("placing a device's times")
            return [mark for work in self.works for mark in work.launch()]

    def _prepare(self) -> None:
        """Prepare this thread: at the end of the process another thread than usual queries the events."""
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
    """Result of `Devices.begin` while the stream is capturing a graph: record nothing."""

    RUNNING = 1


# An enum looks its members up slowly.
CAPTURING: Final = Capture.RUNNING
Begun: TypeAlias = DeviceWork | Capture | None


class _Here(threading.local):
    """The request that this thread worked on last."""

    marks: Marks | None = None
    times: DeviceTimes | None = None


_here = _Here()


class Devices:
    """The devices of the process.

    Attributes:
        torch: The library.
        sources: Where the events of each kind of device come from, None for one that has none.
        timelines: Of each device that has worked for a request.
        in_use: Whether anything was ever seen on a device.
    """

    def __init__(self) -> None:
        self.torch: Any = None
        self.sources: dict[str, EventSource | None] = {}
        self.timelines: dict[Any, Timeline] = {}
        self.in_use = False

    def begin(self, device: Any, marks: Marks) -> Begun:
        """Note the start of work for a request on *device*, a `torch.device`; None if no times will be known."""
        self.in_use = True
        if marks[0] != OPEN:
            # Nobody would ask for the events of a request that is over.
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
            return DeviceWork(timeline, stream, marks[1])
        except Exception:
            log_failure("recording an event before work of a device")
            return None

    def finish(self, work: DeviceWork, stage: str, marks: Marks) -> None:
        """Record that the host has queued all of *work*."""
        if len(marks) >= MAX_MARKS:
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


devices = Devices()
