"""Serving costs: the price file of the operator (docs/capacity.md), the cost of a request, and the waste of a service.

A missing price is never estimated. Waste is what is paid for machines without work, and the time that requests wait or lose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field

from ..core.settings.field_types import Amount, Text, WholeAmount
from ..core.settings.live_file import LiveFile, read_file
from ..core.settings.section import Fault, Section
from ..core.stages import BY_KEY

HOUR_SECONDS = 3600.0
# Request prices are shown per this many requests; the price of a single request is too small to read.
MILLION = 1e6

_EXAMPLE = """\
currency: "$"
prices:
  - service: ocr-api
    per_hour: 12.4
"""
_MAX_CURRENCY = 4


@dataclass(frozen=True, slots=True)
class Price:
    """Price of all replicas of one service together [currency/hour], in one environment or, for None, in its only one."""

    service: str
    environment: str | None
    per_hour: float
    replicas: int | None = None


@dataclass(frozen=True)
class Prices:
    """Content of a price file."""

    currency: str
    entries: tuple[Price, ...]

    def __str__(self) -> str:
        return f"{len(self.entries)} price{'s' * (len(self.entries) != 1)}"

    def of(self, service: str, environment: str | None) -> tuple[Price, ...]:
        prices = self._by_service.get(service, ())
        return tuple(price for price in prices if environment is None or price.environment in (None, environment))

    @cached_property
    def _by_service(self) -> dict[str, tuple[Price, ...]]:
        by_service: dict[str, tuple[Price, ...]] = {}
        for price in self.entries:
            by_service[price.service] = (*by_service.get(price.service, ()), price)
        return by_service


class Costs:
    """Prices from a file that is reloaded on change; while the file is invalid, the last valid prices stay in use."""

    def __init__(self, path: Path, clock: Callable[[], datetime]) -> None:
        self.file: LiveFile[Prices] = LiveFile(path, read_prices)
        self._clock = clock
        self._shows: Callable[[str, str], bool] = lambda _service, _environment: True
        self.file.refresh(clock())

    def of_reader(self, shows: Callable[[str, str], bool]) -> Costs:
        """Return the prices for which *shows* accepts the service and the environment; "" for a price of all environments."""
        copied = copy(self)
        copied._shows = shows  # noqa: SLF001 - of the copy
        return copied

    @property
    def prices(self) -> Prices | None:
        """Current prices; None until the file has been valid once."""
        self.file.refresh(self._clock())
        return self.file.current

    @property
    def currency(self) -> str:
        return self.prices.currency if self.prices else ""

    def per_hour(self, service: str, environment: str | None = None, *, named: bool = False) -> float | None:
        """Return the hourly cost of *service* in *environment* (all environments if None); None without a price.

        With *named*, only prices that name the environment count: a price of all environments is not that of each of them.
        """
        priced = self._of(service, environment)
        amounts = [price.per_hour for price in priced if not named or price.environment is not None]
        return sum(amounts) if amounts else None

    def replicas(self, service: str, environment: str | None = None) -> int | None:
        """Return the number of replicas that the price of *service* covers; None if the file does not state it."""
        counts = [price.replicas for price in self._of(service, environment)]
        given = [count for count in counts if count is not None]
        return sum(given) if counts and len(given) == len(counts) else None

    def _of(self, service: str, environment: str | None) -> list[Price]:
        prices = self.prices
        service_prices = prices.of(service, environment) if prices else ()
        return [price for price in service_prices if self._shows(service, price.environment or "")]


def cost_of_request(per_hour: float, seconds: float, requests: float) -> float | None:
    """Return the cost of one request, or of one good request; None without requests.

    >>> cost_of_request(36.0, 100.0, 1000)
    0.001
    """
    return per_hour / HOUR_SECONDS * seconds / requests if requests > 0 else None


def cost_by_stage(cost: float, stages: Mapping[str, float]) -> dict[str, float]:
    """Split *cost* over the stages that occupy a machine, in proportion to their mean times.

    A waiting request occupies no paid resource, so waiting stages cost nothing. Speeding up a stage saves at most its cost, and only if
    the freed time is used: by more requests, or by fewer machines (Amdahl, AFIPS 1967, applied to cost).

    >>> cost_by_stage(4.0, {"forward": 0.03, "queue": 0.2, "preprocess": 0.01})
    {'forward': 3.0, 'preprocess': 1.0}
    """
    waiting = {key for key, stage in BY_KEY.items() if stage.waiting}
    busy = {stage: spent for stage, spent in stages.items() if spent > 0 and stage not in waiting}
    total = sum(busy.values())
    return {stage: cost * (spent / total) for stage, spent in busy.items()}


def read_prices(path: Path) -> Prices:
    """Read the price file at *path*; FileError if it is invalid."""
    file = read_file(path, "a file of prices", _EXAMPLE, _PriceFile)
    return Prices(file.currency, tuple(entry.price for entry in file.prices))


class _PriceSection(Section):
    example = "service: ocr-api"

    service: Text = Field(examples=["ocr-api"])
    environment: Text | None = None
    per_hour: Amount | None = Field(default=None, examples=["12.4"])
    per_replica_hour: Amount | None = Field(default=None, examples=["3.1"])
    replicas: WholeAmount | None = Field(default=None, examples=["4"])

    def faults(self) -> Iterator[Fault]:
        if (self.per_hour is None) == (self.per_replica_hour is None):
            yield Fault("", "needs one price; write per_hour (all replicas together), or per_replica_hour and replicas")
        elif self.per_replica_hour is not None and self.replicas is None:
            yield Fault("replicas", "is missing; add `replicas: 4`")

    @property
    def price(self) -> Price:
        per_hour = self.per_hour or (self.per_replica_hour or 0.0) * (self.replicas or 1)
        return Price(self.service, self.environment, per_hour, self.replicas)

    def overlaps(self, other: _PriceSection) -> bool:
        """Return whether both price the same service; a price without an environment applies to all environments."""
        environments = {self.environment, other.environment}
        return self.service == other.service and (None in environments or len(environments) == 1)


class _PriceFile(Section):
    example = 'currency: "$"'

    currency: Text = Field(examples=['"$"'])
    prices: tuple[_PriceSection, ...] = ()

    def faults(self) -> Iterator[Fault]:
        if len(self.currency) > _MAX_CURRENCY:
            yield Fault("currency", f"is {self.currency!r}; write a sign or a code, such as $ or EUR")
        if not self.prices:
            yield Fault("prices", "is empty; write at least one, such as `- service: ocr-api`")
        for position, price in enumerate(self.prices):
            first = next((before for before in range(position) if price.overlaps(self.prices[before])), None)
            if first is not None:
                where = f" in {price.environment}" if price.environment else ""
                text = (
                    f"prices {price.service}{where}, like prices[{first}]; "
                    "keep one, or give each a different `environment`"
                )
                yield Fault(("prices", position), text)


# Each kind of waste is in its own unit, because they do not add up. Without a price there is no money, and without the
# utilization of the machines no idle time.
WasteKind = Literal["idle", "queue", "calls", "loads"]


@dataclass(frozen=True, slots=True)
class Waste:
    """Waste of one service in *seconds* of a window; prices in currency/hour, None if unknown.

    *busy* is the share of the time in which the machines worked, *load_seconds* the time in which processes loaded models.
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
        has_cost = self.per_hour is not None and self.replicas
        return (self.per_hour or 0.0) / (self.replicas or 1) * self.load_seconds / HOUR_SECONDS if has_cost else None

    def paid(self, kind: WasteKind) -> float:
        """Return the cost of the waste of *kind*; 0 if it is unknown [currency]."""
        return {"idle": self.idle_cost, "loads": self.load_cost}.get(kind) or 0.0

    def amount(self, kind: WasteKind) -> tuple[float, float]:
        """Return the sort key of *kind*: what is known in money is compared first, for idle machines by money, then by share."""
        idle = (self.idle_cost or 0.0, 0.0 if self.busy is None else 1 - self.busy)
        others = {"queue": self.queue_seconds, "calls": self.failed_seconds, "loads": self.load_seconds}
        return idle if kind == "idle" else (others[kind], 0.0)


def most_wasteful(wastes: Iterable[Waste], kind: WasteKind) -> list[Waste]:
    """Return the services that waste something of *kind*, in descending order."""
    return sorted(
        (waste for waste in wastes if any(waste.amount(kind))), key=lambda waste: waste.amount(kind), reverse=True
    )


def largest_waste(wastes: Iterable[Waste]) -> tuple[WasteKind, Waste] | None:
    """Return the largest waste in money; without any in money, the longest one of requests or processes; None without waste.

    >>> waste = [Waste("ocr", 3600.0, queue_seconds=90.0), Waste("chat", 3600.0, per_hour=2.0, busy=0.5)]
    >>> [(kind, largest.service) for kind, largest in filter(None, (largest_waste(waste), largest_waste(waste[:1])))]
    [('idle', 'chat'), ('queue', 'ocr')]
    """
    every = list(wastes)
    paid: list[tuple[WasteKind, Waste]] = [(kind, waste) for waste in every for kind in _IN_MONEY]
    dearest = max(paid, key=lambda pair: pair[1].paid(pair[0]), default=None)
    if dearest is not None and dearest[1].paid(dearest[0]) > 0:
        return dearest
    spent: list[tuple[WasteKind, Waste]] = [(kind, waste) for waste in every for kind in _IN_SECONDS]
    longest = max(spent, key=lambda pair: pair[1].amount(pair[0]), default=None)
    return longest if longest is not None and any(longest[1].amount(longest[0])) else None


_IN_MONEY: tuple[WasteKind, ...] = ("idle", "loads")
_IN_SECONDS: tuple[WasteKind, ...] = ("queue", "calls", "loads")
