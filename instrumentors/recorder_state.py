"""State of the request path that the agent and the libraries set: one object that each request reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .records import Marks

# Recording modes. After the first change, a request that started without stages may still be running, whatever the mode is by then.
WITH_STAGES, TIMED_AGAIN, WITHOUT_STAGES, NOTHING = range(4)
# Flag of the mode: before the next request starts, its thread runs what `RecorderState` holds for it. The first request starts
# the background thread.
CALIBRATION: Final = 4


class RecorderState:
    __slots__ = ("_before_first", "_calibrate", "mode", "register", "user_span")

    def __init__(self) -> None:
        # Before the first change it costs the request path one test for zero.
        self.mode: int = CALIBRATION
        self._calibrate: Callable[[], object] = bool
        self._before_first: Callable[[], object] | None = None
        # Called by a request with its marks and its route as far as known, while `agent/profile.py` samples; never raises.
        self.register: Callable[[Marks, str], None] | None = None
        # Returns the current valid span of the user's own OpenTelemetry SDK; None if that SDK is not loaded.
        self.user_span: Callable[[], Any] | None = None

    def calibrate_next(self, mode: int, calibrate: Callable[[], object]) -> None:
        """Set the *mode*, and run *calibrate* on the thread of the next request before it starts."""
        self._calibrate = calibrate
        self.mode = mode | CALIBRATION

    def before_first_request(self, call: Callable[[], object]) -> None:
        """Run *call* once on the thread of the first request before it starts; replaces an earlier *call*."""
        self._before_first = call
        self.mode |= CALIBRATION

    def take_calls(self) -> list[Callable[[], object]]:
        # If the governor sets the mode at the same moment, its change is lost and repeated a second later.
        self.mode &= CALIBRATION - 1
        first, self._before_first = self._before_first, None
        return [self._calibrate] if first is None else [first, self._calibrate]

    def reset(self) -> None:
        """In a forked child: start again with a calibration, without the sampler of the parent."""
        self.mode = CALIBRATION
        self.register = None


state: Final = RecorderState()
