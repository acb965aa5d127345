"""Search of retained traces: filters, counts of the values that occur among them, and the requests of one page of a list.

The attributes of a trace are in its compressed document, so at most `MAX_SEARCHED` traces are read, which takes some tenths of
a second.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd
from sqlalchemy import Row, Select, func, select

from ...core import names
from ...core.attributes import attribute, band_of
from ...core.text import is_whole_number
from .. import records, schema
from ..schema import storable, storable_name
from ..selection import Selection
from ..storage import StoreSnapshot
from .fetch import QueryGroup
from .traces import duration_range, exemplar_frame, select_traces

# Maximum number of retained requests whose attributes are searched.
MAX_SEARCHED = 5000
# Dimensions of a request that are counted, beside its attributes.
COUNTED = ("service", "version", "model", "route", "status", "dominant")
_PREFIX = f"{names.ATTRIBUTE}."
# Attributes that are not counted: measures of the agent, and the exact number of an attribute that is counted by band.
_INTERNAL = ("stagelens.", names.BATCH_SIZE)


@dataclass(frozen=True, slots=True)
class TraceFilter:
    """Conditions on retained requests, beside the selection."""

    dominant: str | None = None
    between_seconds: tuple[float, float] = (0.0, math.inf)
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FoundTraces:
    page: pd.DataFrame
    matching: int
    searched: int
    retained: int
    dimensions: Mapping[str, Mapping[str, int]]
    attributes: Mapping[str, Mapping[str, int]]


class TraceSearchQueries(QueryGroup):
    def search_traces(
        self,
        selection: Selection,
        found_by: TraceFilter,
        *,
        order: Literal["slow", "time"] = "slow",
        limit: int = 50,
        offset: int = 0,
    ) -> FoundTraces:
        """Return one page of the retained requests that match, and the values that occur among all of them."""
        with self._snapshot() as snapshot:
            statement, retained = _statement(snapshot, selection, found_by)
            column = schema.traces.c.duration if order == "slow" else schema.traces.c.started
            ordered = statement.order_by(column.desc(), schema.traces.c.trace_id, schema.traces.c.span_id)
            search = _Search(_conditions(selection, found_by))
            documents = ordered.add_columns(schema.traces.c.spans, schema.series.c.model).limit(MAX_SEARCHED)
            matching = [row for row in snapshot.connection.execute(documents) if search.matches(row)]
            shown = matching[offset : offset + limit]
            page = exemplar_frame(snapshot, selection, shown, self._retention)
            page["attributes"] = pd.Series([_attributes(row) for row in shown], dtype=object)
            return FoundTraces(page, len(matching), search.searched, retained, search.dimensions(), search.attributes())


@dataclass(frozen=True, slots=True)
class Dimension:
    """Dimension of a request, as opposed to an attribute, whose key is a text."""

    name: str


Key = str | Dimension
# Condition on a row, given the attributes of its root.
Condition = Callable[[Row[Any], Mapping[str, Any]], bool]


class _Search:
    def __init__(self, conditions: Mapping[Key, Condition]) -> None:
        self._conditions = conditions
        self._dimensions: Counter[tuple[str, str]] = Counter()
        # By the key and the value in the document: equal values, of which there are few, become texts once.
        self._attributes: Counter[tuple[str, Any]] = Counter()
        self.searched = 0

    def matches(self, row: Row[Any]) -> bool:
        """Return whether *row* matches all conditions; count its values to which all conditions but their own apply."""
        self.searched += 1
        attributes = records.unpack_attributes(row.spans)
        failed = [key for key, condition in self._conditions.items() if not condition(row, attributes)]
        unmet = failed[0] if failed else None
        if len(failed) > 1:
            return False
        if not isinstance(unmet, Dimension):
            keys = (unmet, _PREFIX + unmet) if unmet is not None else None
            self._attributes.update(
                pair for pair in attributes.items() if (pair[0] in keys if keys else not pair[0].startswith(_INTERNAL))
            )
        if not isinstance(unmet, str):
            names = COUNTED if unmet is None else (unmet.name,)
            self._dimensions.update((name, getattr(row, name)) for name in names)
        return not failed

    def dimensions(self) -> dict[str, dict[str, int]]:
        counts = _by_key((name, value, number) for (name, value), number in self._dimensions.items() if value)
        return {name: counts.get(name, {}) for name in COUNTED}

    def attributes(self) -> dict[str, dict[str, int]]:
        texts = ((key.removeprefix(_PREFIX), value, number) for (key, value), number in self._attributes.items())
        return _by_key((key, _as_text(key, value), number) for key, value, number in texts)


def _by_key(counted: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for key, value, number in counted:
        counts[key][value] += number
    return {key: dict(sorted(counts[key].items(), key=lambda item: (-item[1], item[0]))) for key in sorted(counts)}


def _statement(snapshot: StoreSnapshot, selection: Selection, found_by: TraceFilter) -> tuple[Select[Any], int]:
    """Return the statement of the traces to search, and the number of traces that match all but the attributes.

    The statement ignores the version, model, route, status and stage if the traces of all of them can be searched.
    """
    whole = replace(selection, version=None, model=None, route=None, status=None)
    wide, narrow = (
        select_traces(chosen).where(*duration_range(found_by.between_seconds)) for chosen in (whole, selection)
    )
    if found_by.dominant is not None:
        narrow = narrow.where(schema.traces.c.dominant == storable(found_by.dominant))
    return wide if _count(snapshot, wide) <= MAX_SEARCHED else narrow, _count(snapshot, narrow)


def _count(snapshot: StoreSnapshot, statement: Select[Any]) -> int:
    return snapshot.connection.execute(select(func.count()).select_from(statement.subquery())).scalar_one()


def _conditions(selection: Selection, found_by: TraceFilter) -> dict[Key, Condition]:
    wanted = {name: getattr(selection, name) for name in ("version", "model", "route", "status")}
    stored = {name: storable_name(value) for name, value in wanted.items() if value is not None}
    if found_by.dominant is not None:
        stored["dominant"] = storable(found_by.dominant)
    values: defaultdict[str, set[str]] = defaultdict(set)
    for key, value in found_by.attributes:
        name = key.removeprefix(_PREFIX)
        values[name].add(_as_text(name, int(value)) if is_whole_number(value) else value)
    conditions: dict[Key, Condition] = {Dimension(name): _is_value(name, value) for name, value in stored.items()}
    return conditions | {key: _has_attribute(key, some) for key, some in values.items()}


def _is_value(name: str, value: str) -> Condition:
    return lambda row, _: getattr(row, name) == value


def _has_attribute(key: str, values: set[str]) -> Condition:
    wanted = None if "" in values else values

    def condition(row: Row[Any], attributes: Mapping[str, Any]) -> bool:
        value = attributes.get(_PREFIX + key)
        if value is None:
            return _in_a_span(row, key, wanted)
        return wanted is None or _as_text(key, value) in wanted

    return condition


def _in_a_span(row: Row[Any], key: str, values: set[str] | None) -> bool:
    """Return whether the root or a span has an attribute *key*, with one of *values* unless None."""
    document = records.unpack_trace(row.spans)
    every = [document["attributes"], *(span.get("attributes", {}) for span in document["spans"])]
    return any(key in attributes and (values is None or str(attributes[key]) in values) for attributes in every)


def _attributes(row: Row[Any]) -> dict[str, str]:
    rows = (
        (key.removeprefix(_PREFIX), value)
        for key, value in records.unpack_attributes(row.spans).items()
        if not key.startswith(_INTERNAL)
    )
    return {key: _as_text(key, value) for key, value in rows}


def _as_text(key: str, value: object) -> str:
    kind = attribute(key).kind
    return band_of(kind, value) if kind != "text" and type(value) is int and value >= 0 else str(value)
