"""Evaluation of PromQL at many times at once: a subset of the language for gauges.

A vector is a list of series, and a scalar is an array, both with one value for each time. NaN is the absence of a sample, so
that an operation whose result is not a number gives none.

Source: https://prometheus.io/docs/prometheus/latest/querying/operators/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import promql_parser as promql
from numpy.typing import NDArray
from promql_parser import MatchOp, VectorMatchCardinality
from pydantic_core import SchemaError, SchemaValidator, core_schema

from ...core.errors import StagelensError

Floats: TypeAlias = NDArray[np.float64]
NAME = "__name__"
# The parser overflows the stack of a thread at about 2500 nested operators.
_MAX_LENGTH, _MAX_OPERATORS = 16_384, 1000
_OPERATORS = frozenset("+-*/%^<>=!({[,")
_WORDS = frozenset({"and", "or", "unless", "atan2", "offset"})
SUPPORTED = (
    "supported are selectors with offset, numbers, parentheses, + - * / % ^, comparisons, on, ignoring, group_left, "
    "group_right, and sum, avg, min, max, count, topk and bottomk with by or without"
)
_PERCENTILE_HINT = 'a percentile cannot be computed from parts: write stagelens_latency_seconds{quantile="0.99"}'
_WINDOW_HINT = (
    "each point is already about the requests before it: write the series without a function, such as "
    'stagelens_requests_per_second or stagelens_latency_seconds{quantile="0.99"}, and set the window with the '
    "parameter lookback_delta"
)


class QueryError(StagelensError):
    """Query that cannot be answered."""

    def __init__(self, error: str, kind: str = "bad_data") -> None:
        super().__init__(error)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class VectorSeries:
    """Series of a vector."""

    labels: Mapping[str, str]
    values: Floats

    def key(self, names: Iterable[str] | None = None, without: Iterable[str] = ()) -> tuple[tuple[str, str], ...]:
        """Return the sorted labels, all or those with *names*; those in *without* are left out."""
        chosen = self.labels if names is None else {name for name in names if name in self.labels}
        return tuple(sorted((name, self.labels[name]) for name in chosen if name not in without))


Vector: TypeAlias = list[VectorSeries]
Value: TypeAlias = Vector | Floats


class Matcher:
    """Condition on a label."""

    def __init__(self, name: str, value: str, *, is_regex: bool = False, is_negated: bool = False) -> None:
        self.name, self.value = name, value
        self._is_negated, self._pattern = is_negated, None
        self.is_equal = not is_regex and not is_negated
        if is_regex:
            # An engine that needs linear time, with the syntax of Prometheus; `re` would take exponential time.
            schema = core_schema.str_schema(pattern=f"^(?s:{value})$", regex_engine="rust-regex")
            try:
                self._pattern = SchemaValidator(schema)
            except SchemaError as error:
                msg = f"invalid regular expression {value[:100]!r}"
                raise QueryError(msg) from error

    def matches(self, value: str) -> bool:
        """Return whether the condition is true for *value*; "" for a series without the label."""
        found = value == self.value if self._pattern is None else self._pattern.isinstance_python(value)
        return found != self._is_negated


def parse(query: str) -> promql.Expr:
    """Return the expression *query*."""
    operators = sum(each in _OPERATORS for each in query) + sum(each in _WORDS for each in query.split())
    if len(query) > _MAX_LENGTH or operators > _MAX_OPERATORS:
        msg = f"the query is too long; at most {_MAX_LENGTH} characters and {_MAX_OPERATORS} operators"
        raise QueryError(msg)
    try:
        return promql.parse(query)
    except ValueError as error:
        msg = f'invalid parameter "query": parse error: {error}'
        raise QueryError(msg) from error


def matchers_of(selector: promql.VectorSelector) -> list[Matcher]:
    """Return the conditions of *selector*, including that on the name of the metric."""
    if selector.matchers.or_matchers:
        msg = "or between matchers is not supported: write a regular expression, or several queries"
        raise QueryError(msg)
    named = [Matcher(NAME, selector.name)] if selector.name else []
    return named + [
        Matcher(
            each.name,
            each.value,
            is_regex=each.op in (MatchOp.Re, MatchOp.NotRe),
            is_negated=each.op in (MatchOp.NotEqual, MatchOp.NotRe),
        )
        for each in selector.matchers.matchers
    ]


class QueryEvaluator:
    """Evaluation of expressions."""

    def __init__(self, select: Callable[[promql.VectorSelector], Vector], times: int) -> None:
        self._select, self._times = select, times

    def evaluate(self, expression: promql.Expr) -> Value:
        try:
            with np.errstate(all="ignore"):
                found = self._evaluate(expression)
        except RecursionError as error:
            msg = "the query is nested too deeply"
            raise QueryError(msg) from error
        if isinstance(found, list):
            found = [each for each in found if not np.isnan(each.values).all()]
            if len({each.key() for each in found}) < len(found):
                msg = "vector cannot contain metrics with the same labelset"
                raise QueryError(msg, "execution")
        return found

    def _evaluate(self, expression: promql.Expr) -> Value:
        match expression:
            case promql.NumberLiteral():
                return np.full(self._times, expression.val)
            case promql.ParenExpr():
                return self._evaluate(expression.expr)
            case promql.UnaryExpr():
                found = self._evaluate(expression.expr)
                return [_nameless(each, -each.values) for each in found] if isinstance(found, list) else -found
            case promql.VectorSelector():
                return self._select(expression)
            case promql.BinaryExpr():
                return self._binary(expression)
            case promql.AggregateExpr():
                return self._aggregate(expression)
            case _:
                raise QueryError(_unsupported(expression))

    def _binary(self, expression: promql.BinaryExpr) -> Value:
        operation, modifier = str(expression.op), expression.modifier
        if operation not in _ARITHMETIC and operation not in _COMPARISONS:
            msg = f"{operation} is not supported; {SUPPORTED}"
            raise QueryError(msg)
        made = _Operation(operation, returns_bool=modifier is not None and modifier.return_bool)
        left, right = self._evaluate(expression.lhs), self._evaluate(expression.rhs)
        if isinstance(left, list):
            if isinstance(right, list):
                return _match(made, left, right, modifier)
            return [made.series(each, each.values, right, each.values) for each in left]
        if isinstance(right, list):
            return [made.series(each, left, each.values, each.values) for each in right]
        return made.apply(left, right, left)

    def _aggregate(self, expression: promql.AggregateExpr) -> Vector:
        operation, modifier = str(expression.op), expression.modifier
        if operation not in (*_AGGREGATIONS, "topk", "bottomk"):
            hint = _PERCENTILE_HINT if operation == "quantile" else SUPPORTED
            msg = f"{operation} is not supported; {hint}"
            raise QueryError(msg)
        found = self._evaluate(expression.expr)
        assert isinstance(found, list)  # noqa: S101 - the parser checks types
        groups: dict[tuple[tuple[str, str], ...], Vector] = {}
        names = modifier.labels if modifier else []
        is_by = modifier is None or modifier.type == promql.AggModifierType.By
        for each in found:
            groups.setdefault(each.key(names) if is_by else each.key(without=(NAME, *names)), []).append(each)
        if operation in _AGGREGATIONS:
            return [VectorSeries(dict(key), _sum_up(operation, own)) for key, own in groups.items()]
        assert expression.param is not None  # noqa: S101 - the parser checks types
        most = self._evaluate(expression.param)
        assert not isinstance(most, list)  # noqa: S101
        return [each for own in groups.values() for each in _ranked(own, most, is_top=operation == "topk")]


def _unsupported(expression: promql.Expr) -> str:
    if isinstance(expression, promql.Call):
        hint = _PERCENTILE_HINT if "quantile" in expression.func.name else _WINDOW_HINT
        return f"{expression.func.name}() is not supported; {hint}"
    if isinstance(expression, promql.MatrixSelector | promql.SubqueryExpr):
        return f"ranges such as [5m] are not supported; {_WINDOW_HINT}"
    return f"text is not supported; {SUPPORTED}"


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    # The sign of the result is that of the dividend, as in Go.
    "%": np.fmod,
    "^": np.power,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}
# Functions of values of shape (series, times), at least one of which is not NaN at each time that counts.
_AGGREGATIONS: dict[str, Callable[[Floats], Any]] = {
    "sum": lambda values: np.nansum(values, axis=0),
    "avg": lambda values: np.nansum(values, axis=0) / (~np.isnan(values)).sum(axis=0),
    "min": lambda values: np.fmin.reduce(values, axis=0),
    "max": lambda values: np.fmax.reduce(values, axis=0),
    "count": lambda values: (~np.isnan(values)).sum(axis=0),
}


@dataclass(frozen=True, slots=True)
class _Operation:
    """Binary operation; *returns_bool* makes a comparison return 0 or 1 instead of filtering."""

    operator: str
    returns_bool: bool

    @property
    def keeps_name(self) -> bool:
        return self.operator in _COMPARISONS and not self.returns_bool

    def apply(self, left: Floats, right: Floats, kept: Floats) -> Floats:
        known = ~(np.isnan(left) | np.isnan(right))
        if self.operator in _ARITHMETIC:
            found = _ARITHMETIC[self.operator](left, right)
        else:
            is_true = _COMPARISONS[self.operator](left, right)
            found = is_true.astype(np.float64) if self.returns_bool else np.where(is_true, kept, np.nan)
        return np.where(known, found, np.nan)

    def series(self, about: VectorSeries, left: Floats, right: Floats, kept: Floats) -> VectorSeries:
        values = self.apply(left, right, kept)
        return VectorSeries(about.labels, values) if self.keeps_name else _nameless(about, values)


def _nameless(about: VectorSeries, values: Floats) -> VectorSeries:
    return VectorSeries({name: value for name, value in about.labels.items() if name != NAME}, values)


def _match(operation: _Operation, left: Vector, right: Vector, modifier: promql.BinModifier | None) -> Vector:
    card = VectorMatchCardinality.OneToOne if modifier is None else modifier.card
    matching = modifier.matching if modifier else None
    labels = matching.labels if matching else []
    is_on = matching is not None and matching.type == promql.LabelModifierType.Include

    def signature(each: VectorSeries) -> tuple[tuple[str, str], ...]:
        return each.key(labels) if is_on else each.key(without=(NAME, *labels))

    is_swapped = card == VectorMatchCardinality.OneToMany
    many, one = (right, left) if is_swapped else (left, right)
    partners: dict[tuple[tuple[str, str], ...], Vector] = {}
    for each in one:
        partners.setdefault(signature(each), []).append(each)
    for own in partners.values():
        _check_one_at_a_time(own, "many-to-many matching not allowed: matching labels must be unique on one side")
    found: dict[tuple[tuple[str, str], ...], VectorSeries] = {}
    for each in many:
        for other in partners.get(signature(each), ()):
            pair = (other, each) if is_swapped else (each, other)
            values = operation.apply(pair[0].values, pair[1].values, pair[0].values)
            kept = dict(each.labels if operation.keeps_name else _nameless(each, values).labels)
            if card == VectorMatchCardinality.OneToOne:
                kept = {name: value for name, value in kept.items() if (name in labels) == is_on}
            for name in (modifier.group_labels if modifier else None) or ():
                kept.pop(name, None)
                kept |= {name: other.labels[name]} if name in other.labels else {}
            made = VectorSeries(kept, values)
            key = signature(each) if card == VectorMatchCardinality.OneToOne else made.key()
            if before := found.get(key):
                _check_one_at_a_time([before, made], "multiple matches for labels: use group_left, or unique labels")
                made = VectorSeries(kept, np.fmax(before.values, made.values))
            found[key] = made
    return list(found.values())


def _check_one_at_a_time(found: Sequence[VectorSeries], error: str) -> None:
    if len(found) > 1 and (~np.isnan([each.values for each in found])).sum(axis=0).max() > 1:
        raise QueryError(error, "execution")


def _sum_up(operation: str, own: Vector) -> Floats:
    values = np.array([each.values for each in own])
    return np.where(np.isnan(values).all(axis=0), np.nan, _AGGREGATIONS[operation](values))


def _ranked(own: Vector, most: Floats, *, is_top: bool) -> Vector:
    values = np.array([each.values for each in own])
    # NaN is last in both directions.
    order = np.argsort(-values if is_top else values, axis=0, kind="stable")
    rank = np.argsort(order, axis=0)
    kept = np.where(rank < np.floor(np.nan_to_num(most)), values, np.nan)
    return [VectorSeries(own[place].labels, kept[place]) for place in order[:, -1].tolist()]
