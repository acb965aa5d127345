"""NVML as in `nvidia-ml-py`, without a driver: the functions in use, their errors and units."""

# ruff: noqa: N802 - its functions are called as NVIDIA calls them
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass(eq=False)
class Card:
    uuid: str = "GPU-1"
    busy: int | None = 50
    megahertz: int = 1755
    reasons: int = 0
    slices: Sequence[Card] | None = None
    error: int = 0


@dataclass
class FakeNvml:
    cards: Sequence[Card] = field(default_factory=lambda: [Card()])
    broken: int = 0
    begun: int = 0

    NVMLError = NVMLError
    NVML_ERROR_UNINITIALIZED, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED = 1, 2, 3
    NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 4, 6, 9
    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_GPU_IS_LOST = 12, 13, 15
    NVML_CLOCK_SM = 1
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    def nvmlInit(self) -> None:
        self._fail(self.broken)
        self.begun += 1

    def nvmlShutdown(self) -> None:
        self._fail(self.broken or (not self.begun and self.NVML_ERROR_UNINITIALIZED))
        self.begun -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self._of(self.cards[index], lambda card: card)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        known = [each for card in self.cards for each in (card, *(card.slices or ())) if each.uuid == uuid]
        self._fail(0 if known else self.NVML_ERROR_NOT_FOUND)
        return known[0]

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return self._of(card, lambda card: card.uuid)

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        return [self._of(card, lambda card: card.slices is not None)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, _: Card) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:
        slices = card.slices or ()
        self._fail(0 if index < len(slices) else self.NVML_ERROR_NOT_FOUND)
        return slices[index]

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:
        self._fail(self.NVML_ERROR_NOT_SUPPORTED if card.busy is None else 0)
        return self._of(card, lambda card: SimpleNamespace(gpu=card.busy, memory=7))

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> Any:
        return self._of(card, lambda _: SimpleNamespace(total=80 * 2**30, free=60 * 2**30, used=20 * 2**30))

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        return self._of(card, lambda _: 285_500)

    def nvmlDeviceGetClockInfo(self, card: Card, kind: int) -> int:
        self._fail(0 if kind == self.NVML_CLOCK_SM else self.NVML_ERROR_INVALID_ARGUMENT)
        return self._of(card, lambda card: card.megahertz)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:
        return self._of(card, lambda card: card.reasons)

    def nvmlDeviceGetPcieThroughput(self, card: Card, counter: int) -> int:
        return self._of(card, lambda _: 3000 if counter == self.NVML_PCIE_UTIL_RX_BYTES else 1000)

    def _of(self, card: Card, get_value: Callable[[Card], Any]) -> Any:
        self._fail(self.broken or card.error or (not self.begun and self.NVML_ERROR_UNINITIALIZED))
        return get_value(card)

    def _fail(self, code: int) -> None:
        if code:
            raise NVMLError(code)
