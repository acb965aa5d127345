"""Evaluation of PromQL at many times at once: a subset of the language for gauges.

A vector is a list of series, and a scalar is an array, both with one value for each time. NaN is the absence of a sample, so
that an operation whose result is not a number gives none.

Source: https://prometheus.io/docs/prometheus/latest/querying/operators/
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import promql_parser as promql
from numpy.typing import NDArray
from promql_parser import MatchOp, VectorMatchCardinality
from pydantic_core import SchemaError, SchemaValidator, core_schema

from ...core.errors import StagelensError

Floats: TypeAlias = NDArray[np.float64]
NAME = "__name__"
# The parser overflows the stack of a thread at about 2500 nested operators, and each of them copies those below it.
_MAX_LENGTH, _MAX_OPERATORS = 65_536, 500
_OPERATORS = re.compile(r"[-+*/%^<>=!({\[,]|\b(?:and|or|unless|atan2|offset)\b")
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
# Time limit of a request; a query to the store between two checks takes up to about 10 s. [seconds]
_MAX_SECONDS = 20.0
# Limits of all parts of a request together: name, maximum, kind of the error, and what to do instead.
LIMITS = {
    "selectors": (30, "bad_data", "send several queries"),
    "matchers": (200, "bad_data", "use fewer"),
    "bytes for regular expressions": (500_000, "bad_data", "write values as a|b|c, or shorter repetitions"),
    "series": (20_000, "execution", "name fewer labels, or select fewer services"),
    "values": (1_000_000, "execution", "use a larger step, a shorter time, or fewer services"),
    "points in the response": (250_000, "execution", "use a larger step, or an aggregation such as topk"),
}
# Values without operators other than |, as Grafana writes those of a variable; they need no engine.
_PLAIN = re.compile(r"(\()?(?P<values>(?:[^\\.+*?()\[\]{}^$]|\\[^0-9A-Za-z])*)(?(1)\))")
_PART = re.compile(
    r"\\[pPxuU](?:\{[^}]*\}|.)?|\\.|\[\^?\]?|\(\?(?P<flags>[a-zA-Z-]*)"
    r"|\{\s*(?P<low>[0-9]*)\s*,?\s*(?P<high>[0-9]*)\s*\}|.",
    re.DOTALL,
)
# Classes as in RE2, and so in Prometheus; those of Unicode, which the engine would use, are a hundred times larger.
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\f\r "}
# A text, to its end or that of the query; a comment; or an operator of a regular expression.
_TOKEN = re.compile(r"""(["'`])(?:\\.|(?!\1)[^\\])*(?:\1|\\?\Z)|\#[^\n]*|=~|!~""", re.DOTALL)
# First character of the value of a matcher that is a regular expression.
_MARK = "\ue000"
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


class QueryError(StagelensError):
    def __init__(self, error: str, kind: str = "bad_data") -> None:
        super().__init__(error)
        self.kind = kind


def refuse(error: str, kind: str = "bad_data") -> NoReturn:
    raise QueryError(error, kind)


@dataclass(frozen=True, slots=True)
class VectorSeries:
    labels: Mapping[str, str]
    values: Floats

    def key(self, names: Iterable[str] | None = None, without: Iterable[str] = ()) -> tuple[tuple[str, str], ...]:
        chosen = self.labels if names is None else {name for name in names if name in self.labels}
        return tuple(sorted((name, self.labels[name]) for name in chosen if name not in without))


Vector: TypeAlias = list[VectorSeries]
Value: TypeAlias = Vector | Floats


class QueryLimits:
    def __init__(self, seconds: float) -> None:
        self._seconds = min(seconds, _MAX_SECONDS)
        self._until = time.monotonic() + self._seconds
        self._left = {name: most for name, (most, *_) in LIMITS.items()}
        self.expressions: dict[str, Callable[[str], bool]] = {}

    def check_time(self) -> None:
        if time.monotonic() > self._until:
            refuse(
                f"the query took longer than {self._seconds:g} s; use a larger step, a shorter time, or fewer series",
                "timeout",
            )

    def use(self, name: str, amount: int = 1) -> None:
        self._left[name] -= amount
        if self._left[name] < 0:
            most, kind, fix = LIMITS[name]
            refuse(f"the query needs more than {most:,} {name}; {fix}", kind)


class Matcher:
    def __init__(
        self, name: str, value: str, limits: QueryLimits, *, is_regex: bool = False, is_negated: bool = False
    ) -> None:
        limits.use("matchers")
        self.name, self.value, self._is_negated = name, value, is_negated
        self.is_equal = not is_regex and not is_negated
        if is_regex and value not in limits.expressions:
            limits.expressions[value] = _expression(value, limits)
        self._is_match = limits.expressions[value] if is_regex else value.__eq__

    def matches(self, value: str) -> bool:
        return self._is_match(value) != self._is_negated


_ASCII = {rf"\{name}": f"[{characters}]" for name, characters in _CLASSES.items()} | {
    rf"\{name.upper()}": f"[^{characters}]" for name, characters in _CLASSES.items()
}
# Upper bounds of the memory of a part of an expression, measured with pydantic_core 2.50. [bytes]
_EXPRESSION_BYTES, _CHARACTER_BYTES, _GROUP_BYTES, _CLASS_BYTES, _PROPERTY_BYTES = 2000, 60, 150, 1100, 60_000
_MAX_BYTES, _MAX_CHARACTERS, _MAX_DIGITS = 1 << 40, 8000, 6


def _expression(text: str, limits: QueryLimits) -> Callable[[str], bool]:
    """Return the condition that a whole value matches the regular expression *text*.

    The engine needs linear time; `re` would need exponential time. It limits one expression to 10 MB, and caches fifty.
    """
    if plain := _PLAIN.fullmatch(text):
        parts: list[str] = re.findall(r"\\?.", plain["values"], re.DOTALL)
        return frozenset("".join("\0" if part == "|" else part[-1] for part in parts).split("\0")).__contains__
    limits.use("bytes for regular expressions", _compiled_bytes(text))
    narrow = _PART.sub(lambda match: _ASCII.get(match[0], match[0]), text)
    try:
        return SchemaValidator(
            core_schema.str_schema(pattern=f"^(?s:{narrow})$", regex_engine="rust-regex")
        ).isinstance_python
    except SchemaError as error:
        raise _invalid(text) from error


def _compiled_bytes(text: str) -> int:
    if len(text) > _MAX_CHARACTERS:
        return _MAX_BYTES
    # Bytes of each open group; bytes of the last part, which a count repeats; number of open classes.
    groups, last, classes, scale = [_EXPRESSION_BYTES], 0, 0, 1
    for match in _PART.finditer(text):
        part = match[0]
        if classes or part[0] not in "{()*+?":
            size = _part_bytes(part)
            groups[-1] += size
            last = last + size if classes else size
            classes += (part[0] == "[") - (part == "]" and classes > 0)
        elif part[0] == "(":
            groups.append(_GROUP_BYTES)
            flags = match["flags"] or ""
            scale = 5 if "i" in flags else scale
            if "x" in flags:
                raise _invalid(text, "the flag x is not supported")
        elif part == ")":
            last = groups.pop()
            if not groups:
                raise _invalid(text)
            groups[-1] += last
        elif match["low"] is None:  # *, + or ?
            groups[-1] += _CHARACTER_BYTES
        else:
            low, high = (int(digits.lstrip("0")[:_MAX_DIGITS] or 0) for digits in match.group("low", "high"))
            repeated = min(last * 2 * max(low + 1, high), _MAX_BYTES)
            groups[-1] += repeated - last
            last = repeated
    if len(groups) > 1:
        raise _invalid(text)
    return scale * groups[0]


def _part_bytes(part: str) -> int:
    if part[:2] in (r"\p", r"\P"):
        return _PROPERTY_BYTES
    return _CLASS_BYTES if part[0] in ".[" or part in _ASCII else _CHARACTER_BYTES * (1 if part.isascii() else 2)


def _invalid(text: str, why: str = "it is not in the syntax of RE2") -> QueryError:
    return QueryError(f"invalid regex {text[:100]!r}: {why}")


def parse(query: str) -> promql.Expr:
    is_regex, texts = False, 0

    def rewrite(match: re.Match[str]) -> str:
        nonlocal is_regex, texts
        part = match[0]
        if part in ("=~", "!~"):
            is_regex = True
            return "!=" if part == "!~" else "="
        if part[0] == "#":
            return " "
        marked, is_regex = part[0] + _MARK * is_regex + part[1:], False
        texts += len(_OPERATORS.findall(part))
        return marked

    rewritten = _TOKEN.sub(rewrite, query[: _MAX_LENGTH + 1])
    if len(query) > _MAX_LENGTH or len(_OPERATORS.findall(query)) - texts > _MAX_OPERATORS:
        refuse(
            f"the query is too long, or nested too deeply; at most {_MAX_LENGTH:,} characters and {_MAX_OPERATORS} operators"
        )
    try:
        return promql.parse(rewritten)
    except ValueError as error:
        msg = f'invalid parameter "query": parse error: {str(error)[:500].replace(_MARK, "")}'
        raise QueryError(msg) from error


def matchers_of(selector: promql.VectorSelector, limits: QueryLimits) -> list[Matcher]:
    # Every selector is a query to the store.
    limits.use("selectors")
    if selector.matchers.or_matchers:
        refuse("or between matchers is not supported: write a regular expression, or several queries")
    named = [Matcher(NAME, selector.name, limits)] if selector.name else []
    return named + [
        Matcher(
            matcher.name,
            matcher.value.removeprefix(_MARK),
            limits,
            is_regex=matcher.value.startswith(_MARK),
            is_negated=matcher.op == MatchOp.NotEqual,
        )
        for matcher in selector.matchers.matchers
    ]


class QueryEvaluator:
    def __init__(self, select: Callable[[promql.VectorSelector], Vector], times: int, limits: QueryLimits) -> None:
        self._select, self._times, self._limits = select, times, limits

    def evaluate(self, expression: promql.Expr) -> Value:
        try:
            with np.errstate(all="ignore"):
                value = self._evaluate(expression)
        except RecursionError as error:
            msg = "the query is nested too deeply"
            raise QueryError(msg) from error
        if isinstance(value, list):
            value = _present(value)
            if len({series.key() for series in value}) < len(value):
                refuse("vector cannot contain metrics with the same labelset", "execution")
        return value

    def _evaluate(self, expression: promql.Expr) -> Value:
        self._limits.check_time()
        match expression:
            case promql.NumberLiteral():
                return np.broadcast_to(np.float64(expression.val), self._times)
            case promql.ParenExpr():
                return self._evaluate(expression.expr)
            case promql.UnaryExpr():
                value = self._evaluate(expression.expr)
                return [_nameless(series, -series.values) for series in value] if isinstance(value, list) else -value
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
            refuse(f"{operation} is not supported; {SUPPORTED}")
        arithmetic = _Operation(operation, returns_bool=modifier is not None and modifier.return_bool)
        left, right = self._evaluate(expression.lhs), self._evaluate(expression.rhs)
        if isinstance(left, list):
            if isinstance(right, list):
                return _match(arithmetic, left, right, modifier, self._limits)
            return [arithmetic.series(series, series.values, right, series.values) for series in left]
        if isinstance(right, list):
            return [arithmetic.series(series, left, series.values, series.values) for series in right]
        return arithmetic.apply(left, right, left)

    def _aggregate(self, expression: promql.AggregateExpr) -> Vector:
        operation, modifier = str(expression.op), expression.modifier
        if operation not in (*_AGGREGATIONS, "topk", "bottomk"):
            hint = _PERCENTILE_HINT if operation == "quantile" else SUPPORTED
            refuse(f"{operation} is not supported; {hint}")
        value = self._evaluate(expression.expr)
        assert isinstance(value, list)  # noqa: S101 - the parser checks types
        groups: dict[tuple[tuple[str, str], ...], Vector] = {}
        names = modifier.labels if modifier else []
        is_by = modifier is None or modifier.type == promql.AggModifierType.By
        for series in value:
            groups.setdefault(series.key(names) if is_by else series.key(without=(NAME, *names)), []).append(series)
        if operation in _AGGREGATIONS:
            return [VectorSeries(dict(key), _sum_up(operation, vector)) for key, vector in groups.items()]
        assert expression.param is not None  # noqa: S101 - the parser checks types
        most = self._evaluate(expression.param)
        assert not isinstance(most, list)  # noqa: S101
        return [
            one_series for vector in groups.values() for one_series in _ranked(vector, most, is_top=operation == "topk")
        ]


def _unsupported(expression: promql.Expr) -> str:
    if isinstance(expression, promql.Call):
        hint = _PERCENTILE_HINT if "quantile" in expression.func.name else _WINDOW_HINT
        return f"{expression.func.name}() is not supported; {hint}"
    if isinstance(expression, promql.MatrixSelector | promql.SubqueryExpr):
        return f"ranges such as [5m] are not supported; {_WINDOW_HINT}"
    return f"text is not supported; {SUPPORTED}"


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

    def apply(self, left: Floats, right: Floats, selected: Floats) -> Floats:
        is_known = ~(np.isnan(left) | np.isnan(right))
        if self.operator in _ARITHMETIC:
            outcome = _ARITHMETIC[self.operator](left, right)
        else:
            is_true = _COMPARISONS[self.operator](left, right)
            outcome = is_true.astype(np.float64) if self.returns_bool else np.where(is_true, selected, np.nan)
        return np.where(is_known, outcome, np.nan)

    def series(self, about: VectorSeries, left: Floats, right: Floats, selected: Floats) -> VectorSeries:
        values = self.apply(left, right, selected)
        return VectorSeries(about.labels, values) if self.keeps_name else _nameless(about, values)


def _nameless(about: VectorSeries, values: Floats) -> VectorSeries:
    return VectorSeries({name: value for name, value in about.labels.items() if name != NAME}, values)


def _match(
    operation: _Operation, left: Vector, right: Vector, modifier: promql.BinModifier | None, limits: QueryLimits
) -> Vector:
    card = VectorMatchCardinality.OneToOne if modifier is None else modifier.card
    matching = modifier.matching if modifier else None
    labels = matching.labels if matching else []
    is_on = matching is not None and matching.type == promql.LabelModifierType.Include

    def signature(operand: VectorSeries) -> tuple[tuple[str, str], ...]:
        return operand.key(labels) if is_on else operand.key(without=(NAME, *labels))

    is_swapped = card == VectorMatchCardinality.OneToMany
    many, one = map(_present, (right, left) if is_swapped else (left, right))
    partners: dict[tuple[tuple[str, str], ...], Vector] = {}
    for series in one:
        partners.setdefault(signature(series), []).append(series)
    for vector in partners.values():
        _check_one_at_a_time(vector, "many-to-many matching not allowed: matching labels must be unique on one side")
    matched: dict[tuple[tuple[str, str], ...], VectorSeries] = {}
    for series in many:
        for other in partners.get(signature(series), ()):
            limits.check_time()
            pair = (other, series) if is_swapped else (series, other)
            values = operation.apply(pair[0].values, pair[1].values, pair[0].values)
            result_labels = dict(series.labels if operation.keeps_name else _nameless(series, values).labels)
            if card == VectorMatchCardinality.OneToOne:
                result_labels = {name: value for name, value in result_labels.items() if (name in labels) == is_on}
            for name in (modifier.group_labels if modifier else None) or ():
                result_labels.pop(name, None)
                result_labels |= {name: other.labels[name]} if name in other.labels else {}
            combined = VectorSeries(result_labels, values)
            key = signature(series) if card == VectorMatchCardinality.OneToOne else combined.key()
            if before := matched.get(key):
                _check_one_at_a_time(
                    [before, combined], "multiple matches for labels: use group_left, or unique labels"
                )
                combined = VectorSeries(result_labels, np.fmax(before.values, combined.values))
            else:
                limits.use("values", len(values))
            matched[key] = combined
    return list(matched.values())


def _present(vector: Vector) -> Vector:
    return [series for series in vector if not np.isnan(series.values).all()]


def _check_one_at_a_time(series: Sequence[VectorSeries], error: str) -> None:
    if len(series) > 1 and (~np.isnan([one_series.values for one_series in series])).sum(axis=0).max() > 1:
        raise QueryError(error, "execution")


def _sum_up(operation: str, vector: Vector) -> Floats:
    values = np.array([series.values for series in vector])
    return np.where(np.isnan(values).all(axis=0), np.nan, _AGGREGATIONS[operation](values))


def _ranked(vector: Vector, most: Floats, *, is_top: bool) -> Vector:
    values = np.array([series.values for series in vector])
    # NaN is last in both directions.
    order = np.argsort(-values if is_top else values, axis=0, kind="stable")
    rank = np.argsort(order, axis=0)
    selected = np.where(rank < np.floor(np.nan_to_num(most)), values, np.nan)
    return [VectorSeries(vector[index].labels, selected[index]) for index in order[:, -1].tolist()]
