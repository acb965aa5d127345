"""Whether an event loop gets round to its callbacks: a heartbeat in it, which comes late when one callback keeps it.

Or when its thread gets no CPU, which the kernel tells, or not the interpreter's lock, which nobody does: a stalled loop, too.

What is noted is the time from when a beat was due to when it came. A loop that was stalled since before the beat was due
was stalled longer than that, by at most the time between two beats. Nothing of it is on the way of a request.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop
from typing import Final
from weakref import WeakSet

from ..core.stages import STALL_CPU, STALL_LOOP
from . import recorder
from .cpu_time import on_and_off_cpu
from .instrumentor import report
from .recorder import clock
from .stalls import stalls

# Measured: a beat takes 8 µs of a busy loop, 0.04 % of it; waking an idle one up, it takes 0.2 % of a core.
BEAT_SECONDS, IDLE_SECONDS = 0.02, 0.1
# A timer of a loop that nothing keeps comes up to two milliseconds late.
MIN_LATE_NS: Final = 5_000_000

_watched: WeakSet[AbstractEventLoop] = WeakSet()


class Lateness:
    """How late the worst beat came since that was last asked."""

    def __init__(self) -> None:
        self._worst_ns = -1

    def note(self, late_ns: int) -> None:
        """Note a beat. Two loops may do so at once: one of the two is lost then, seldom, and the other as true."""
        self._worst_ns = max(self._worst_ns, late_ns)

    def take(self) -> int | None:
        """Return it in nanoseconds, None where there was no beat."""
        worst, self._worst_ns = self._worst_ns, -1
        return worst if worst >= 0 else None


lateness: Final = Lateness()


def watch_loop() -> None:
    """Note from here on when the running loop is stalled; never raises."""
    try:
        loop = get_running_loop()
        if loop not in _watched:
            _watched.add(loop)
            _next_beat(loop)
    except Exception:
        report("watching an event loop")


def _next_beat(loop: AbstractEventLoop) -> None:
    # Requests that the background thread has yet to take tell that there were some within the last second.
    seconds = BEAT_SECONDS if recorder.pending else IDLE_SECONDS
    loop.call_later(seconds, _beat, loop, clock() + int(seconds * 1e9), on_and_off_cpu())


def _beat(loop: AbstractEventLoop, due: int, before: tuple[int, int]) -> None:
    now = clock()
    lateness.note(max(0, now - due))
    if now - due >= MIN_LATE_NS:
        # Of another thread, where the loop has been taken to one, nothing is known.
        ran, waited = (max(0, after - earlier) for after, earlier in zip(on_and_off_cpu(), before, strict=True))
        # When in that time is not known. What a loop has slept it slept before the beat was due; the rest is taken for even.
        late = now - due
        without = min(late, waited if ran + waited <= late else waited * late // (ran + waited))
        stalls.note(STALL_CPU.key, due, due + without)
        stalls.note(STALL_LOOP.key, due + without, now)
    _next_beat(loop)
