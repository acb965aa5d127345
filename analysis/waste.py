"""Waste of services: what is paid for machines without work, and the time that requests wait or lose.

Each kind is in its own unit, because they do not add up: money for idle machines, seconds of requests in queues and in failed
calls, seconds of machines that load models. Only what is measured counts: without a price there is no money, and without the
utilization of the machines no idle time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from .costs import HOUR_SECONDS

WasteKind = Literal["idle", "queue", "calls", "loads"]


@dataclass(frozen=True, slots=True)
class Waste:
    """Waste of one service in a window.

    Args:
        service: Name of the service.
        seconds: Length of the window within the history of the service. [seconds]
        per_hour: Price of all replicas together; None if unknown. [currency/hour]
        replicas: Number of replicas that the price covers; None if unknown. [count]
        busy: Share of the time in which the machines worked; None if unknown. [ratio]
        queue_seconds: Time of requests in queues. [seconds]
        failed_calls: Number of outbound calls that failed. [count]
        failed_seconds: Time in these calls. [seconds]
        load_seconds: Time in which processes loaded models, or ran them for the first time. [seconds]
    """

    service: str
    seconds: float
    per_hour: float | None = None
    replicas: int | None = None
    busy: float | None = None
    queue_seconds: float = 0.0
    failed_calls: int = 0
    failed_seconds: float = 0.0
    load_seconds: float = 0.0

    @property
    def cost(self) -> float | None:
        """Cost of the service in the window; None without a price [currency]."""
        return None if self.per_hour is None else self.per_hour * self.seconds / HOUR_SECONDS

    @property
    def idle_cost(self) -> float | None:
        """Cost of the time in which the machines did not work; None without a price or utilization [currency].

        >>> Waste("ocr", seconds=7200.0, per_hour=12.0, busy=0.25).idle_cost
        18.0
        """
        return None if self.cost is None or self.busy is None else self.cost * (1 - self.busy)

    @property
    def load_cost(self) -> float | None:
        """Cost of the replicas while they loaded; None without a price or the number of replicas [currency].

        >>> Waste("ocr", seconds=7200.0, per_hour=12.0, replicas=4, load_seconds=1200.0).load_cost
        1.0
        """
        known = self.per_hour is not None and self.replicas
        return (self.per_hour or 0.0) / (self.replicas or 1) * self.load_seconds / HOUR_SECONDS if known else None

    def paid(self, kind: WasteKind) -> float:
        """Return the cost of the waste of *kind*; 0 if it is unknown [currency]."""
        return {"idle": self.idle_cost, "loads": self.load_cost}.get(kind) or 0.0

    def amount(self, kind: WasteKind) -> tuple[float, float]:
        """Return the sort key of *kind*: what is known in money is compared first, for idle machines by money, then by share."""
        idle = (self.idle_cost or 0.0, 0.0 if self.busy is None else 1 - self.busy)
        others = {"queue": self.queue_seconds, "calls": self.failed_seconds, "loads": self.load_seconds}
        return idle if kind == "idle" else (others[kind], 0.0)


def most_wasteful(found: Iterable[Waste], kind: WasteKind) -> list[Waste]:
    """Return the services that waste something of *kind*, in descending order."""
    return sorted((each for each in found if any(each.amount(kind))), key=lambda each: each.amount(kind), reverse=True)


def largest_waste(found: Iterable[Waste]) -> tuple[WasteKind, Waste] | None:
    """Return the largest waste in money; without any in money, the longest one of requests or processes; None without waste.

    >>> waste = [Waste("ocr", 3600.0, queue_seconds=90.0), Waste("chat", 3600.0, per_hour=2.0, busy=0.5)]
    >>> [(kind, each.service) for kind, each in filter(None, (largest_waste(waste), largest_waste(waste[:1])))]
    [('idle', 'chat'), ('queue', 'ocr')]
    """
    every = list(found)
    paid: list[tuple[WasteKind, Waste]] = [(kind, each) for each in every for kind in _IN_MONEY]
    dearest = max(paid, key=lambda pair: pair[1].paid(pair[0]), default=None)
    if dearest is not None and dearest[1].paid(dearest[0]) > 0:
        return dearest
    spent: list[tuple[WasteKind, Waste]] = [(kind, each) for each in every for kind in _IN_SECONDS]
    longest = max(spent, key=lambda pair: pair[1].amount(pair[0]), default=None)
    return longest if longest is not None and any(longest[1].amount(longest[0])) else None


_IN_MONEY: tuple[WasteKind, ...] = ("idle", "loads")
_IN_SECONDS: tuple[WasteKind, ...] = ("queue", "calls", "loads")
