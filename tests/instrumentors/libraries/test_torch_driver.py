"""Preparation of a thread before it queries device events: an existing context, and the relaxed mode."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest

from stagelens.instrumentors.libraries.torch.device import RELAXED, Driver

NOTHING, FIRST, OWN = 0, 100, 77


class Library:
    """A driver with a context for each device, and a thread that has one of them or none."""

    def __init__(self, current: int, refuses: str = "") -> None:
        self.current = current
        self.refuses = refuses
        self.retained: list[int] = []
        self.modes: list[int] = []

    def cuCtxGetCurrent(self, context: Any) -> int:  # noqa: N802 - its name there
        context._obj.value = self.current
        return 0

    def cuDeviceGet(self, handle: Any, index: int) -> int:  # noqa: N802
        handle._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, handle: Any) -> int:  # noqa: N802
        context._obj.value = FIRST + handle.value
        self.retained.append(handle.value)
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        self.current = context.value
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
        """Take the mode of a thread, which needs a context for it."""
        self.modes.append(mode._obj.value)
        return 201 if self.current == NOTHING or self.refuses else 0


@pytest.mark.parametrize(("current", "retained", "after"), [(NOTHING, [3], FIRST + 3), (OWN, [], OWN)])
def test_a_thread_has_the_context_of_a_device_in_use(
    monkeypatch: pytest.MonkeyPatch, current: int, retained: list[int], after: int
) -> None:
    library = Library(current)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    driver = Driver("libcuda.so.1", "cu")
    driver.prepare(3)
    driver.prepare(3)

    assert (library.retained, library.current, library.modes) == (retained, after, [RELAXED])

    thread = threading.Thread(target=driver.prepare, args=(3,))
    thread.start()
    thread.join()

    assert library.modes == [RELAXED, RELAXED]


def test_a_refusing_driver_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(OWN, refuses="always")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    driver = Driver("libcuda.so.1", "cu")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cuThreadExchangeStreamCaptureMode must return 0"):
            driver.prepare(0)

    assert library.modes == [RELAXED, RELAXED]


@pytest.mark.parametrize(("library", "error"), [("no-such-driver.so", OSError), ("libc.so.6", AttributeError)])
def test_a_missing_driver_is_not_queried(library: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Driver(library, "cu").prepare(0)
