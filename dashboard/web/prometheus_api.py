"""Read API of Prometheus for the series of Stagelens, for Grafana and `promtool query` (see docs/prometheus.md).

    GET, POST /api/v1/query             one value for each series
    GET, POST /api/v1/query_range       values over time
    GET, POST /api/v1/labels, /api/v1/series, /api/v1/label/<name>/values
    GET       /api/v1/metadata, /api/v1/status/buildinfo

A POST reads, too: its form replaces an address that would be too long.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import promql_parser
from flask import Flask, Response, request
from numpy.typing import NDArray

from ...core.errors import StagelensError
from ...core.prometheus_names import LABELS
from ...core.text import is_whole_number
from ...core.version import __version__
from ...store import Selection
from ...store.queries.windows import Measure, TooManyValuesError, WindowQuery
from ..source import Source
from ..view import API_PREFIX
from . import promql
from .audit_log import READS_BY_POST
from .promql import NAME, Matcher, QueryError, QueryLimits, Vector, VectorSeries, matchers_of, parse, refuse

_log = logging.getLogger(__name__)
# Version of Prometheus whose API this is, by which clients choose what they ask for.
_PROMETHEUS = "3.0.0"
# https://github.com/prometheus/prometheus/blob/main/web/api/v1/api.go: the limit of query_range
_MAX_POINTS = 11_000
_INSTANT_SECONDS, _MIN_RANGE_SECONDS, _NAMES_SECONDS = 300, 60, 6 * 3600
_MAX_SECONDS = 400 * 86_400
_LAST_TIME = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
# The query to the store has times of its own.
_ANY_TIME = datetime.fromtimestamp(0, UTC)
_REVERSED = 'invalid parameter "end": end timestamp must not be before start time'
_STATUS = {"bad_data": 400, "execution": 422, "timeout": 503, "unavailable": 503, "internal": 500}
_QUANTILES = ("0.5", "0.9", "0.95", "0.99")
_SERVICE, _QUANTILE, _STAGE, _SLO = "service_name", "quantile", "stage", "slo"
# Labels that a series has if the query names them, by dimension of the store.
_OPTIONAL = {LABELS[name]: name for name in ("version", "environment", "model", "route")}
_DIMENSIONS = {_SERVICE: "service", **_OPTIONAL}
# Metric whose series are searched for the values of a label if the request names none.
_VALUES_FROM = {
    _QUANTILE: "stagelens_latency_seconds",
    _STAGE: "stagelens_stage_seconds",
    _SLO: "stagelens_slo_budget_left",
}


@dataclass(frozen=True, slots=True)
class ServedMetric:
    text: str
    unit: str
    labels: tuple[str, ...]
    measure: Measure | None


METRICS = {
    "stagelens_latency_seconds": ServedMetric(
        "Latency of requests at a quantile.", "seconds", (_SERVICE, _QUANTILE), "latency"
    ),
    "stagelens_stage_seconds": ServedMetric(
        "Time in a stage of the requests at a quantile of the latency; the stages add up to the latency.",
        "seconds",
        (_SERVICE, _STAGE, _QUANTILE),
        "stages",
    ),
    "stagelens_stage_share": ServedMetric(
        "Share of a stage in the latency of the requests at a quantile.", "", (_SERVICE, _STAGE, _QUANTILE), "stages"
    ),
    "stagelens_requests_per_second": ServedMetric("Request rate.", "", (_SERVICE,), "requests"),
    "stagelens_error_ratio": ServedMetric("Share of failed requests.", "", (_SERVICE,), "requests"),
    "stagelens_slo_burn_rate": ServedMetric(
        "Burn rate of an objective over the last hour.", "", (_SLO, _SERVICE), None
    ),
    "stagelens_slo_budget_left": ServedMetric("Unspent share of an error budget.", "", (_SLO, _SERVICE), None),
}


def add_prometheus_routes(server: Flask, source: Source) -> None:
    read, both = ["GET"], ["GET", "POST"]
    routes: list[tuple[str, Callable[..., Response], list[str]]] = [
        ("query", _query, both),
        ("query_range", _query_range, both),
        ("labels", _labels, both),
        ("series", _all_series, both),
        ("label/<name>/values", _label_values, read),
        ("metadata", _metadata, read),
        ("status/buildinfo", _buildinfo, read),
    ]
    for path, respond, methods in routes:
        view = _with_errors(partial(respond, source))
        server.add_url_rule(f"{API_PREFIX}v1/{path}", f"{READS_BY_POST}{path}", view, methods=methods)


def _query(source: Source, limits: QueryLimits) -> Response:
    at = _time("time", source.clock())
    asked = _Query(source, limits, [at], _lookback(_INSTANT_SECONDS))
    value, seconds = asked.evaluate(_required("query")), _json_time(at)
    if isinstance(value, np.ndarray):
        return _success({"resultType": "scalar", "result": [seconds, _text(value[0])]})
    result = [{"metric": series.labels, "value": [seconds, _text(series.values[0])]} for series in value]
    return _limited(result, lambda shown: {"resultType": "vector", "result": shown}, asked.warnings)


def _query_range(source: Source, limits: QueryLimits) -> Response:
    times, step = _range()
    asked = _Query(source, limits, times, _lookback(max(step, _MIN_RANGE_SECONDS)), step)
    value, seconds = asked.evaluate(_required("query")), [_json_time(time) for time in times]
    series = [VectorSeries({}, value)] if isinstance(value, np.ndarray) else sorted(value, key=VectorSeries.key)

    def matrix(shown: Vector) -> dict[str, Any]:
        limits.use("points in the response", sum(int((~np.isnan(one_series.values)).sum()) for one_series in shown))
        result = [{"metric": one_series.labels, "values": _points(seconds, one_series.values)} for one_series in shown]
        return {"resultType": "matrix", "result": result}

    return _limited(series, matrix, asked.warnings)


def _labels(_source: Source, limits: QueryLimits) -> Response:
    metrics = {name for selector in _selectors() for name in _metrics_of(matchers_of(selector, limits))}
    return _limited([NAME, *sorted(_labels_of(*(METRICS[name] for name in metrics or METRICS)))])


def _label_values(source: Source, limits: QueryLimits, name: str) -> Response:
    asked = _selectors()
    if name == NAME:
        metrics = {name for selector in asked for name in _metrics_of(matchers_of(selector, limits))}
        return _limited(sorted(metrics if asked else METRICS))
    if name not in (labels := _labels_of(*METRICS.values())):
        return _success([], [f"no metric has the label {name[:60]}; there are {', '.join(sorted(labels))}"])
    asked = asked or [_parsed_selector(_VALUES_FROM.get(name, "stagelens_requests_per_second"))]
    series = _series_within(source, limits, asked, Matcher(name, ".*", limits, is_regex=True))
    return _limited(sorted({one_series.labels[name] for one_series in series if name in one_series.labels}))


def _all_series(source: Source, limits: QueryLimits) -> Response:
    asked = _selectors()
    if not asked:
        refuse("no match[] parameter provided")
    return _limited([series.labels for series in _series_within(source, limits, asked)])


def _metadata(_source: Source, _limits: QueryLimits) -> Response:
    named = request.values.get("metric") or None
    metadata = {
        name: [{"type": "gauge", "help": metric.text, "unit": metric.unit}]
        for name, metric in METRICS.items()
        if named in (None, name)
    }
    return _success(metadata, () if metadata else [f"no metric has this name; there are {', '.join(METRICS)}"])


def _buildinfo(_source: Source, _limits: QueryLimits) -> Response:
    return _success({"version": _PROMETHEUS, "revision": f"stagelens {__version__}"})


class _Query:
    def __init__(
        self, source: Source, limits: QueryLimits, times: Sequence[float], lookback: float, step: float = 0.0
    ) -> None:
        self._source, self._limits, self._times, self._step = source, limits, times, step
        self._lookback = math.ceil(lookback)
        # Whole minutes and hours take few rows of the store.
        self._unit = max(unit for unit in (10, 60, 3600) if unit <= max(step, 10))
        self.warnings: list[str] = []

    def evaluate(self, query: str) -> promql.Value:
        return promql.QueryEvaluator(self.select, len(self._times), self._limits).evaluate(parse(query))

    def select(self, selector: promql_parser.VectorSelector, *more: Matcher) -> Vector:
        if selector.at is not None:
            refuse("@ is not supported: use offset, or the parameter time")
        matchers = [*matchers_of(selector, self._limits), *more]
        ends = self._ends(selector.offset.total_seconds() if selector.offset else 0.0)
        if not 0 <= ends[0] <= ends[-1] <= _LAST_TIME:
            refuse("the time is not within 1970 to 2199")
        metrics = _metrics_of(matchers)
        if not metrics:
            self.warnings.append(f"no metric has this name; there are {', '.join(METRICS)}")
        selected = list[VectorSeries]()
        for series in (series for name in metrics for series in self._series(name, matchers, ends)):
            self._limits.check_time()
            if all(matcher.matches(series.labels.get(matcher.name, "")) for matcher in matchers):
                self._limits.use("series")
                self._limits.use("values", len(ends))
                selected.append(series)
        if metrics and not selected:
            self.warnings.append(
                f"no series matches, or {self._lookback} s have too few requests for its quantile; "
                "the parameter lookback_delta sets this length"
            )
        return selected

    def _ends(self, offset: float) -> range | tuple[int, ...]:
        first, count = math.floor(self._times[0] - offset), len(self._times)
        if count == 1 or self._step == int(self._step):
            step = max(int(self._step), 1)
            return range(first, first + step * count, step)
        return tuple(math.floor(time - offset) for time in self._times)

    def _series(self, name: str, matchers: Sequence[Matcher], ends: range | tuple[int, ...]) -> Iterator[VectorSeries]:
        metric = METRICS[name]
        if metric.measure is None:
            if len(ends) > 1:
                refuse(f"{name} has no values over time: ask for one time, with an instant query", "execution")
            yield from self._objectives(name, next(iter(ends)))
            return
        named = {matcher.name for matcher in matchers}
        by = (_SERVICE, *(label for label in _OPTIONAL if label in named))
        equal = {
            _DIMENSIONS[matcher.name]: matcher.value
            for matcher in matchers
            if matcher.is_equal and matcher.name in _DIMENSIONS
        }
        quantiles = _quantiles(matchers) if _QUANTILE in metric.labels else {}
        about = Selection(_ANY_TIME, _ANY_TIME, **equal)
        dimensions = tuple(_DIMENSIONS[label] for label in by)
        query = WindowQuery(ends, self._lookback, self._unit, dimensions, metric.measure, tuple(quantiles.values()))
        # Thousands of times are too large a key for the cache.
        read = self._source.cached_windows if isinstance(ends, range) else self._source.read.windows
        window_table = read(about, query)
        for group, parts in window_table.groups.items():
            labels = {NAME: name, **{label: value for label, value in zip(by, group, strict=True) if value}}
            if metric.measure == "requests" and parts:
                part = "rate" if name == "stagelens_requests_per_second" else "errors"
                # Groups without failed requests have no part of them.
                yield VectorSeries(labels, parts.get(part, 0 * parts["rate"])[0])
                continue
            whole = sum(parts.values()) if name == "stagelens_stage_share" else np.ones(1)
            for part, seconds in parts.items():
                stage = {_STAGE: part} if _STAGE in metric.labels else {}
                with np.errstate(invalid="ignore"):
                    rows = seconds / whole
                for text, values in zip(quantiles, rows, strict=True):
                    yield VectorSeries({**labels, **stage, _QUANTILE: text}, values)

    def _objectives(self, name: str, at: int) -> Iterator[VectorSeries]:
        # The current state is cached for the pages.
        is_now = abs(at - self._source.clock()) < self._unit
        for status in self._source.slos(None if is_now else datetime.fromtimestamp(at, UTC)):
            value = status.burn_1h if name == "stagelens_slo_burn_rate" else status.budget_left
            # Without requests there is no budget, and no burn rate.
            if status.budget_left is not None and value is not None:
                yield VectorSeries(
                    {NAME: name, _SLO: status.slo.name, _SERVICE: status.slo.service}, np.array([float(value)])
                )


def _labels_of(*metrics: ServedMetric) -> set[str]:
    return {label for metric in metrics for label in (*metric.labels, *(_OPTIONAL if metric.measure else ()))}


def _metrics_of(matchers: Sequence[Matcher]) -> list[str]:
    return [name for name in METRICS if all(matcher.matches(name) for matcher in matchers if matcher.name == NAME)]


def _quantiles(matchers: Sequence[Matcher]) -> dict[str, float]:
    texts = [matcher.value for matcher in matchers if matcher.name == _QUANTILE and matcher.is_equal] or _QUANTILES
    try:
        quantiles = {text: float(text) for text in texts}
    except ValueError:
        quantiles = {"": math.nan}
    if not all(0 <= quantile < 1 for quantile in quantiles.values()):
        refuse('quantile must be a number from 0 to below 1, such as quantile="0.999"')
    return quantiles


def _series_within(
    source: Source, limits: QueryLimits, selectors: Iterable[promql_parser.VectorSelector], *more: Matcher
) -> list[VectorSeries]:
    if _time("end", _LAST_TIME) < _time("start", 0):
        refuse(_REVERSED)
    # promtool asks for years around the current time.
    end = min(_time("end", _LAST_TIME), source.clock())
    start = max(_time("start", end - _NAMES_SECONDS), end - _MAX_SECONDS)
    if start >= end:
        return []
    asked = _Query(source, limits, [end], end - start)
    series_by_key = {series.key(): series for selector in selectors for series in asked.select(selector, *more)}
    return [series_by_key[key] for key in sorted(series_by_key) if not np.isnan(series_by_key[key].values).all()]


def _selectors() -> list[promql_parser.VectorSelector]:
    return [_parsed_selector(text) for text in request.values.getlist("match[]")]


def _parsed_selector(text: str) -> promql_parser.VectorSelector:
    expression = parse(text)
    if not isinstance(expression, promql_parser.VectorSelector):
        refuse(f'invalid parameter "match[]": {text[:100]!r} is not a selector')
    return expression


def _required(name: str) -> str:
    text = request.values.get(name, "")
    if not text:
        refuse(f'invalid parameter "{name}": it is missing')
    return text


def _time(name: str, default: float) -> float:
    text = request.values.get(name, "")
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = datetime.fromisoformat(text).astimezone(UTC).timestamp()
        except (ValueError, OverflowError):
            seconds = math.nan
    if not 0 <= seconds <= _LAST_TIME:
        refuse(f'invalid parameter "{name}": cannot parse {text[:40]!r} to a valid timestamp from 1970 to 2199')
    return round(seconds, 3)


def _duration(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = promql_parser.parse_duration(text).total_seconds()
        except (ValueError, OverflowError):
            seconds = math.nan
    if not 0 < seconds <= _MAX_SECONDS:
        refuse(f'invalid parameter "{name}": {text[:40]!r} is not a duration above 0, at most 400 days, such as 5m')
    return seconds


def _lookback(default: float) -> float:
    text = request.values.get("lookback_delta", "")
    return _duration("lookback_delta", text) if text else default


def _range() -> tuple[list[float], float]:
    _required("start")
    _required("end")
    start, end = _time("start", 0), _time("end", 0)
    step = _duration("step", _required("step"))
    if end < start:
        refuse(_REVERSED)
    if (end - start) / step >= _MAX_POINTS:
        refuse(
            f"exceeded maximum resolution of {_MAX_POINTS:,} points per timeseries. "
            "Try decreasing the query resolution (?step=XX)"
        )
    # The small term compensates rounding errors of floats.
    return [round(start + number * step, 3) for number in range(int((end - start) / step + 1e-9) + 1)], step


def _points(times: Sequence[float], values: NDArray[np.float64]) -> list[list[Any]]:
    return [[at, _text(number)] for at, number in zip(times, values.tolist(), strict=True) if not math.isnan(number)]


def _json_time(at: float) -> float:
    return int(at) if at == int(at) else at


def _text(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"


def _limited(rows: list[Any], convert: Callable[[list[Any]], Any] = list, warnings: Sequence[str] = ()) -> Response:
    text = request.values.get("limit", "") or "0"
    if not is_whole_number(text):
        refuse(f'invalid parameter "limit": {text[:40]!r} is not a number; write one such as 100, or omit it')
    most = int(text) or len(rows)
    cut = ["results truncated due to limit"] if most < len(rows) else []
    return _success(convert(rows[:most]), [*warnings, *cut])


def _success(data: Any, warnings: Sequence[str] = ()) -> Response:
    return _json({"status": "success", "data": data, **({"warnings": warnings} if warnings else {})}, 200)


def _json(document: dict[str, Any], status: int) -> Response:
    response = Response(json.dumps(document, separators=(",", ":")), status, mimetype="application/json")
    response.headers["Cache-Control"] = "private, no-cache"
    return response


def _with_errors(respond: Callable[..., Response]) -> Callable[..., Response]:
    def safely(**values: str) -> Response:
        try:
            text = request.values.get("timeout", "")
            return respond(QueryLimits(_duration("timeout", text) if text else math.inf), **values)
        except QueryError as error:
            return _error(str(error), error.kind)
        except TooManyValuesError as error:
            return _error(str(error), "execution")
        except StagelensError as error:
            return _error(str(error), "unavailable")
        except Exception as error:  # noqa: BLE001 - API clients get JSON for any error
            _log.exception("%r failed", request.path)
            return _error(f"{type(error).__name__}; see the log of the dashboard", "internal")

    return safely


def _error(text: str, kind: str) -> Response:
    return _json({"status": "error", "errorType": kind, "error": text}, _STATUS[kind])
