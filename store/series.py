"""Series: the dimensions of a measurement, their ids in the database, the caps on their number, and the time of the store."""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Row, bindparam, case, delete, func, insert, select, tuple_, update

from ..core.attributes import REPLICA, attribute_key, replica_stage_key, split_attribute_key, split_replica_stage_key
from ..core.hardware import hardware_key, split_hardware_key
from ..core.histogram import BATCH_SIZES, TOKEN_COUNTS
from ..core.names import AGENT_LEVELS, DEFINITIONS, STATUS_OK, STATUSES, TOKENS_IN, TOKENS_OUT
from ..core.stages import BY_KEY, OTHER, STALL_CAUSES, split_stall_key, stall_key
from ..core.text import PairKey
from . import schema
from .schema import storable, storable_name

_Ints: TypeAlias = NDArray[np.int64]

WARM, COLD = "0", "1"
# Keys of points that are not chosen by users.
_KNOWN_KEYS = {
    *BY_KEY,
    *BATCH_SIZES.names,
    *TOKEN_COUNTS.names,
    *DEFINITIONS,
    *AGENT_LEVELS,
    TOKENS_IN,
    TOKENS_OUT,
    OTHER,
}
_OTHER_STACK = f":{OTHER}"
REMEMBERED_FACTOR = 10
# Maximum number of cached keys of points, about 300 bytes each. [count]
_MAX_KEYS = 50_000
_CAPPED_DIMENSIONS = ("version", "environment", "model", "model_version", "route", "device")
_CAPPED_VALUES = {"model": OTHER, "model_version": OTHER, "route": OTHER, "device": OTHER}
# Maximum time by which a sender's clock may be ahead before its times are replaced. [seconds]
MAX_SKEW_SECONDS = 60
# Maximum time of the store after its newest data, long enough to roll up the last hour. [seconds]
GRACE_SECONDS = 2 * 3600
# Data after a gap of this length may have the times of a wrong clock, until data have arrived for as long. [seconds]
TRIAL_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Series:
    """Series of requests, identified by its dimensions.

    Unknown values are empty strings.
    """

    service: str
    version: str = ""
    environment: str = ""
    model: str = ""
    model_version: str = ""
    route: str = ""
    device: str = ""
    status: str = STATUS_OK
    cold: str = WARM


@dataclass(frozen=True, slots=True)
class SeriesCaps:
    """Maximum number of values of each dimension within a service; further values are merged into `__other__`.

    Args:
        services: Services with data within a day, which collectors share out to their senders (`ServiceShares`). The store
            remembers `REMEMBERED_FACTOR` times as many.
    """

    services: int = 500
    version: int = 50
    environment: int = 20
    model: int = 50
    model_version: int = 50
    route: int = 200
    device: int = 50
    custom_stages: int = 20
    series: int = 2000


@dataclass(frozen=True, slots=True)
class SeriesNumbers:
    """Database ids of a series, its service and its total."""

    series_id: int
    service_id: int
    total_id: int


# Maximum number of hardware keys (measures of processes and GPUs) of a service within an hour; further ones share one key.
# Every deployment has new processes, so a permanent cap would soon be used up.
MAX_PLACES, _PLACES_SECONDS = 5000, 3600
# Maximum number of attributes of the requests of a service within an hour, and of values of each attribute.
MAX_ATTRIBUTES, MAX_ATTRIBUTE_VALUES, _ATTRIBUTES_SECONDS = 24, 100, 3600
# Maximum number of different call stacks of a service within an hour, and of all services in the store; further ones share
# one row for each stage, or replace the least recently used ones.
MAX_STACKS, MAX_STORED_STACKS = 500, 50_000
_STACK_SECONDS, _DAY_SECONDS = 3600, 86_400


class PointKeys:
    """Numbers of the keys of points without their time: service, metric, series and stage."""

    def __init__(self) -> None:
        self.known: dict[Hashable, int] = {}
        self.stages: list[str] = []
        self._stage_numbers: dict[str, int] = {}
        self._numbers: dict[tuple[int, int, int, str], int] = {}
        self._columns = array("q")

    def find(self, identities: Sequence[Hashable]) -> _Ints:
        key_of = self.known.get
        return np.fromiter([key_of(identity, -1) for identity in identities], np.int64, len(identities))

    def columns(self, numbers: _Ints) -> tuple[_Ints, _Ints, _Ints, _Ints]:
        service, metric, series, stage = np.array(self._columns, np.int64).reshape(-1, 4)[numbers].T.copy()
        return service, metric, series, stage

    def add(self, service_id: int, metric: int, series_id: int, stage: str) -> int:
        key = (service_id, metric, series_id, stage)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            stage_number = self._stage_numbers.setdefault(stage, len(self.stages))
            if stage_number == len(self.stages):
                self.stages.append(stage)
            self._columns.extend((service_id, metric, series_id, stage_number))
        return number

    def remember(self, identity: Hashable, number: int) -> None:
        if len(self.known) >= _MAX_KEYS:
            self.known.clear()
        self.known[identity] = number

    def is_full(self) -> bool:
        return len(self._numbers) >= _MAX_KEYS


class SeriesIndex:
    """In-memory index of known series, services and stages; new ones are written to the database at once.

    `refresh` must be called at the start of a transaction that interns, because other processes write, too. After a failed
    transaction `forget` must be called, because the series interned in it are not in the database.
    """

    def __init__(self, caps: SeriesCaps) -> None:
        self._caps = caps
        self.forget()

    def forget(self) -> None:
        """Discard the index; it is reloaded at the next use."""
        self._epoch: Row[Any, str] | None = None
        self._last_series = self._last_service = -1
        self.keys = PointKeys()
        self._series: dict[Series, SeriesNumbers] = {}
        self._capped: dict[Series, Series] = {}
        self._services: dict[str, int] = {}
        self._total_of: dict[int, int] = {}
        self._values: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._stages: defaultdict[int, set[str]] = defaultdict(set)
        self._totals: dict[tuple[str, ...], int] = {}
        self._places: defaultdict[int, set[str]] = defaultdict(set)
        self._places_hour = -1
        # Values of each attribute of the current hour, by service.
        self._attributes: defaultdict[int, dict[str, set[str]]] = defaultdict(dict)
        self._attributes_hour = -1
        # Call stacks of the current hour by service, and the last day on which each stack was written.
        self._stacks: defaultdict[int, set[str]] = defaultdict(set)
        self._stacks_hour = self._stacks_day = -1
        self._written_stacks: dict[tuple[int, str], int] = {}
        # First and last time at which the database has data of each series, or a part of that time.
        self._seen: dict[int, tuple[int, int]] = {}

    def intern(self, connection: Connection, series: Series, at: int) -> SeriesNumbers:
        """Return the ids of *series*, merged where a cap is reached; a new series is first seen at *at*, in Unix seconds."""
        capped = self._capped.get(series) or self._capped_series(series)
        series_id = self._series.get(capped)
        if series_id is None:
            series_id = self._series[capped] = self._insert(connection, capped, at)
        return series_id

    def is_final(self, series: Series) -> bool:
        return series in self._capped

    def total_of(self, series_id: int) -> int:
        return self._total_of[series_id]

    def stage(self, connection: Connection, service_id: int, stage: str) -> str:
        """Return the name under which *stage* is counted: its own name, or `__other__` beyond the cap."""
        if stage in _KNOWN_KEYS:
            return stage
        cause, held_up = split_stall_key(stage)
        if cause in STALL_CAUSES and held_up:
            # A stall does not count towards the cap, but its stage does.
            return stall_key(
                cause, held_up if held_up in _KNOWN_KEYS else self._custom_stage(connection, service_id, held_up)
            )
        return self._custom_stage(connection, service_id, stage)

    def place(self, service_id: int, name: str, at: int) -> str:
        """Return the key under which a hardware value is stored: its own hardware key, or a common key beyond the cap."""
        hour = at // _PLACES_SECONDS
        if hour > self._places_hour:
            self._places.clear()
            self._places_hour = hour
        name, replicas = storable_name(name), self._places[service_id]
        if name not in replicas and len(replicas) >= MAX_PLACES:
            return hardware_key(split_hardware_key(name)[0], OTHER)
        replicas.add(name)
        return name

    def attribute(self, service_id: int, key: str, at: int) -> str:
        """Return the key under which requests with a value of an attribute are counted: its own, or a common one beyond a cap."""
        hour = at // _ATTRIBUTES_SECONDS
        if hour > self._attributes_hour:
            self._attributes.clear()
            self._attributes_hour = hour
        name, value = split_attribute_key(storable_name(key))
        attributes = self._attributes[service_id]
        if name not in attributes and len(attributes) >= MAX_ATTRIBUTES:
            return attribute_key(OTHER, OTHER)
        values = attributes.setdefault(name, set())
        if value not in values and len(values) >= MAX_ATTRIBUTE_VALUES:
            return attribute_key(name, OTHER)
        values.add(value)
        return attribute_key(name, value)

    def replica_stage(self, connection: Connection, service_id: int, key: str, at: int) -> str:
        """Return the key under which the time of a replica in a stage is counted; see `attribute` for its place."""
        stage, replica = split_replica_stage_key(key)
        _, replica = split_attribute_key(self.attribute(service_id, attribute_key(REPLICA.key, replica), at))
        return replica_stage_key(self.stage(connection, service_id, stage), replica)

    def stack(self, connection: Connection, service_id: int, key: str, at: int) -> str:
        hour, day = at // _STACK_SECONDS, at // _DAY_SECONDS
        if hour > self._stacks_hour:
            self._stacks.clear()
            self._stacks_hour = hour
        if day > self._stacks_day:
            self._written_stacks.clear()
            self._stacks_day = day
        stage, _, text = key.partition(";")
        name, stacks = hash_of_stack(text := storable(text)), self._stacks[service_id]
        if name not in stacks and len(stacks) >= MAX_STACKS:
            name = hash_of_stack(text := _OTHER_STACK)
        stacks.add(name)
        if self._written_stacks.get((service_id, name), -1) < day:
            _write_stack(connection, service_id, (name, text), day * _DAY_SECONDS)
            self._written_stacks[service_id, name] = day
        return f"{self.stage(connection, service_id, stage)};#{name}"

    def _custom_stage(self, connection: Connection, service_id: int, stage: str) -> str:
        stage = storable_name(stage)
        stages = self._stages[service_id]
        if stage in stages:
            return stage
        if len(stages) >= self._caps.custom_stages:
            return OTHER
        connection.execute(insert(schema.stages).values(service_id=service_id, stage=stage))
        stages.add(stage)
        return stage

    def refresh(self, connection: Connection, generation: ColumnElement[str]) -> None:
        """Read what other processes have written, or everything if *generation*, see `database.generation`, has another value."""
        epoch = connection.execute(select(schema.store.c.series_epoch, generation)).one()
        if epoch != self._epoch:
            self.forget()
            self._epoch = epoch
        if self.keys.is_full():
            self.keys = PointKeys()
        services, series, stages = schema.services, schema.series, schema.stages
        for number, name in connection.execute(
            select(services.c.id, services.c.name).where(services.c.id > self._last_service)
        ):
            self._services[name] = number
            self._last_service = max(self._last_service, number)
        columns = [series.c[name] for name in ("id", "service_id", "total_id", *schema.DIMENSIONS)]
        added = connection.execute(select(*columns).where(series.c.id > self._last_series)).mappings().all()
        for row in added:
            one = Series(**{name: row[name] for name in schema.DIMENSIONS})
            self._remember(one, SeriesNumbers(row["id"], row["service_id"], row["total_id"]))
        for number, stage in connection.execute(select(stages)):
            self._stages[number].add(stage)

    def widen(self, connection: Connection, seen: Iterable[tuple[int, int]]) -> None:
        wider: dict[int, tuple[int, int]] = {}
        for number, bucket in seen:
            low, high = self._seen.get(number, (bucket, bucket - 1))
            if not low <= bucket <= high:
                wider[number] = self._seen[number] = (min(low, bucket), max(high, bucket))
        if not wider:
            return
        table = schema.series
        low, high = bindparam("low"), bindparam("high")
        statement = (
            update(table)
            .where(table.c.id == bindparam("number"), (table.c.first_seen > low) | (table.c.last_seen < high))
            .values(
                first_seen=case((table.c.first_seen > low, low), else_=table.c.first_seen),
                last_seen=case((table.c.last_seen < high, high), else_=table.c.last_seen),
            )
        )
        connection.execute(statement, [{"number": one, "low": lo, "high": hi} for one, (lo, hi) in wider.items()])

    def _remember(self, series: Series, interned: SeriesNumbers) -> None:
        self._last_series = max(self._last_series, interned.series_id)
        self._series[series] = interned
        self._totals[_total_key(series)] = interned.total_id
        self._total_of[interned.series_id] = interned.total_id
        self._values[series.service, "series"].add(_combination_key(series))
        for dimension in _CAPPED_DIMENSIONS:
            self._values[series.service, dimension].add(getattr(series, dimension))

    def _capped_series(self, series: Series) -> Series:
        capped = replace(
            series, **{name: storable_name(value) for name, value in zip(schema.DIMENSIONS, _key(series), strict=True)}
        )
        capped = replace(
            capped,
            status=series.status if series.status in STATUSES else STATUS_OK,
            cold=COLD if series.cold == COLD else WARM,
        )
        has_place = capped.service in self._services or len(self._services) < REMEMBERED_FACTOR * self._caps.services
        if not has_place:
            # An unknown value stays unknown: the empty string does not count towards the cap.
            capped = replace(capped, service=capped.service and OTHER)
        for dimension in _CAPPED_DIMENSIONS:
            value = self._admit(capped.service, dimension, getattr(capped, dimension), getattr(self._caps, dimension))
            capped = replace(capped, **{dimension: value})
        if self._admit(capped.service, "series", _combination_key(capped), self._caps.series) == OTHER:
            capped = replace(capped, **_CAPPED_VALUES)
        # A service beyond the cap is not cached, because it may be admitted later.
        if has_place and len(self._capped) < 10 * self._caps.series:
            self._capped[series] = capped
        return capped

    def _admit(self, service: str, dimension: str, value: str, cap: int) -> str:
        values = self._values[service, dimension]
        if value in values or len(values) < cap:
            values.add(value)
            return value
        # An unknown value stays unknown: the empty string does not count towards the cap.
        return value and OTHER

    def _insert(self, connection: Connection, series: Series, at: int) -> SeriesNumbers:
        service_id = self._services.get(series.service)
        if service_id is None:
            row = connection.execute(insert(schema.services).values(name=series.service, revision=0))
            service_id = self._services[series.service] = _new_id(row.inserted_primary_key)
        values = dict(zip(schema.DIMENSIONS, _key(series), strict=True))
        row = connection.execute(
            insert(schema.series).values(service_id=service_id, first_seen=at, last_seen=at, **values)
        )
        series_id = _new_id(row.inserted_primary_key)
        total_id = self._totals.get(_total_key(series), series_id)
        connection.execute(update(schema.series).where(schema.series.c.id == series_id).values(total_id=total_id))
        interned = SeriesNumbers(series_id, service_id, total_id)
        self._remember(series, interned)
        return interned


def hash_of_stack(text: str) -> str:
    """Return the name of the stack *text* in rows, which is the same in every store: 80 bits in hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


# Stage and hash of the stack in the stage of a row, as `SeriesIndex.stack` writes it.
split_stack_row = PairKey(";#").split


def _write_stack(connection: Connection, service_id: int, stack: tuple[str, str], at: int) -> None:
    table = schema.code_stacks
    name, text = stack
    here = (table.c.hash == name, table.c.service_id == service_id)
    used = case((table.c.last_seen < at, at), else_=table.c.last_seen)
    if not connection.execute(update(table).where(*here).values(last_seen=used)).rowcount:
        connection.execute(insert(table).values(hash=name, service_id=service_id, text=text, last_seen=at))


def forget_stacks(connection: Connection, before: int) -> None:
    """Delete the texts of stacks that were last used before *before*, in Unix seconds, and the oldest beyond the maximum."""
    table = schema.code_stacks
    connection.execute(delete(table).where(table.c.last_seen < before - _DAY_SECONDS))
    newest_first = select(table.c.hash, table.c.service_id).order_by(table.c.last_seen.desc(), table.c.hash.desc())
    surplus = newest_first.offset(MAX_STORED_STACKS).limit(MAX_STORED_STACKS)
    connection.execute(delete(table).where(tuple_(table.c.hash, table.c.service_id).in_(surplus)))


def _key(series: Series) -> tuple[str, ...]:
    return tuple(getattr(series, dimension) for dimension in schema.DIMENSIONS)


def _combination_key(series: Series) -> str:
    return "\0".join(_key(replace(series, cold=WARM)))


def _total_key(series: Series) -> tuple[str, ...]:
    return tuple(getattr(series, dimension) for dimension in schema.TOTAL_DIMENSIONS)


def _new_id(key: Sequence[int] | None) -> int:
    if key is None:
        raise AssertionError  # a single insert always has a key
    return key[0]


@dataclass(frozen=True, slots=True)
class StoreTime:
    """Current time of the store, protected against wrong clocks.

    Args:
        present: Time of the clock, or of the newest data if the clock is too far behind them. [Unix seconds]
        settled: Time for rollup, at most `GRACE_SECONDS` after the newest data. [Unix seconds]
        proven: Time for deletion, at most `GRACE_SECONDS` after the newest data that a wrong clock cannot have caused. So a
            clock that jumps years ahead deletes nothing, and data do not expire while no data arrive. [Unix seconds]
    """

    present: int
    settled: int
    proven: int


def store_time(connection: Connection, clock: int) -> StoreTime:
    """Return the time of the store when the clock shows *clock*, in Unix seconds."""
    newest = connection.execute(select(func.max(schema.series.c.last_seen))).scalar()
    if newest is None:
        return StoreTime(clock, clock, clock)
    slots = schema.ledger.c
    # The slots of this tier are short, and remain for days.
    earlier = select(func.max(slots.slot)).where(slots.tier == schema.TIERS[1], slots.slot < newest - TRIAL_SECONDS)
    before = connection.execute(earlier).scalar()
    proven = newest if before is None or before > newest - 2 * TRIAL_SECONDS else before
    was_ahead = proven <= clock < newest - TRIAL_SECONDS
    present = clock if was_ahead or clock >= newest - MAX_SKEW_SECONDS else newest
    settled = min(present, newest + GRACE_SECONDS)
    return StoreTime(present, settled, min(settled, proven + GRACE_SECONDS))
