"""Events of device streams, placed on the host's clock, and the driver calls that a thread needs before it may query them.

A GPU works later than its host asks. An event is recorded on the stream of the work, and the background thread queries
it after the request: nothing ever waits for a device.

Events only report their distance. To place them on the host's clock: no event can have happened before it was
requested, and on an idle device it happened just then. So of all events of the last second the one with the least delay
defines the offset of the clocks. After a copy that the host waits for, there always is such an event.

A thread that queries events must have the context of a device that is in use: without one it would get that of the
first device, which may have to be created and takes half a gigabyte of its memory
(https://github.com/pytorch/pytorch/pull/135273). During a stream capture queries are forbidden for all threads except
those in relaxed mode.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ...records import clock

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
        """Get this thread ready for asking events, once.

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
            message = f"{function} must return 0 before events may be asked for, got {error}"
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


class Event(Protocol):
    """A point of a stream, as in `torch.cuda.Event(enable_timing=True)`."""

    def record(self, stream: Any) -> None:
        """Put it behind everything that *stream* was asked for."""
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

    def event(self) -> Event:
        """Return a new event."""
        ...

    def prepare(self, device: Any) -> None:
        """Get this thread ready for asking events; *device* is one that has some."""
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

    def event(self) -> Event:
        """Return a new event."""
        return self._backend.Event(enable_timing=True)

    def prepare(self, device: Any) -> None:
        """Get this thread ready for asking events, as `Driver.prepare` does."""
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
    """An event, when it was asked for, and when it happened, once that is known.

    Args:
        event: Recorded a moment ago.
        asked: By `clock`, just before. [nanoseconds]
    """

    __slots__ = ("asked", "at", "event")

    def __init__(self, event: Event, asked: int) -> None:
        # Gone once `at` is known.
        self.event: Event | None = event
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
        self._free: list[Event] = []
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
