"""Times of the devices for a request: `forward` and copies by the device's own clock, and the `queue` before them.

Before and after each piece of work an event is recorded on its stream (`events.py`), except while the stream is
capturing a CUDA graph. After the request `DeviceTimes` reports

- for a model: when the device ran it (`forward@gpu`), beside when the host launched it (`forward@launch`);
- for a copy: when the device made it (`d2h@gpu`). The host starts a copy early and waits in it for the model, which is
  not part of it;
- how long work waited for that of another request on the same stream (`queue@gpu`).

Work without device times is timed by its launch alone.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import Any, Final, TypeAlias

from ...instrumentor import log_failure
from ...records import MAX_MARKS, OPEN, Marks
from .events import DeviceEvent, EventSource, Timeline, event_source

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
        """Note that the host has asked for all of it, and what stage it is."""
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
        """Return the marks of work whose times the device has told.

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
    """The `recorder.Late` of one request and thread."""

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
            log_failure("asking a device for its times")
            self._timelines.clear()
            return True
        return not self._waiting

    def marks(self) -> Marks:
        """Return what the device did when, as far as it has told."""
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
        """Note that the host has asked for all of *work*."""
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
