"""Python client of the dashboard's API: every question as a pandas frame (see docs/client.md).

    from stagelens.client import connect

    client = connect("https://stagelens.example.com", token="…")
    client.breakdown("checkout", start="now-1h", percentiles=[0.5, 0.99])

Tables are frames with the columns of the API: durations in seconds (`_seconds`), times as UTC timestamps. The other fields of the
response are in `frame.attrs`. Unknown names, wrong values and unreachable servers raise `ApiError`, whose text has the fix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Self, TypedDict, Unpack
from urllib.parse import parse_qsl, quote, urlsplit
from urllib.request import getproxies, proxy_bypass

try:
    import httpx
    import pandas as pd
except ModuleNotFoundError as missing:
    if missing.name not in ("httpx", "pandas"):
        raise
    _MESSAGE = f'stagelens.client needs {missing.name}, which is not installed.\n    pip install "stagelens[client]"'
    raise ModuleNotFoundError(_MESSAGE, name=missing.name) from missing

DEFAULT_URL = "http://127.0.0.1:8600"
Moment = str | datetime
Percentiles = float | Sequence[float]
_UNAUTHORIZED = 401
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
# Columns of times in tables of the API; a column without values has no other sign of its type.
_TIME_COLUMN = re.compile(r"at|time|since|.+_(at|seen)")
_UNIT_IN_NAME = re.compile(r".+_(seconds|bytes|ratio)")
# Arguments whose parameter in the API has another name.
_PARAMETERS = {
    "start": "from",
    "end": "to",
    "environment": "env",
    "percentiles": "p",
    "selection": "sel",
    "dominant": "dom",
    "failed": "err",
    "min_seconds": "min",
    "max_seconds": "max",
    "attributes": "at",
    "labels": "at",
    "order": "t",
    "page": "n",
}


class WindowArguments(TypedDict, total=False):
    """Keyword arguments of every question about a period, by default the last six hours of all environments.

    Times are `now-6h`, ISO 8601, epoch milliseconds, or a datetime (without a zone: UTC).
    """

    start: Moment | None
    end: Moment | None
    environment: str | None


class PartArguments(WindowArguments, total=False):
    """Keyword arguments that select a part of the requests of a service; *cold* is True for cold requests only, False for all others."""

    model: str | None
    route: str | None
    cold: bool | None


class ScopeArguments(PartArguments, total=False):
    """Keyword arguments that select a version and a part of the requests of a service."""

    version: str | None


class ApiError(Exception):
    """The dashboard rejected a request, or could not be reached.

    Args:
        error: Description of the problem.
        url: Address of the request.
        status: HTTP status of the response; None if there was none.
        key: Parameter, header or field with the problem; "" for none.
        fix: What to do; "" if unknown.
    """

    def __init__(self, error: str, *, url: str, status: int | None = None, key: str = "", fix: str = "") -> None:
        where = url if status is None else f"{url} ({status})"
        named = f"{error} ({key})" if key else error
        super().__init__(f"{where}: {named}" + (f"\n    {fix}" if fix else ""))
        self.error, self.url, self.status, self.key, self.fix = error, url, status, key, fix


def connect(
    url: str | None = None, token: str | None = None, *, user: tuple[str, str] | None = None, timeout: float = 30.0
) -> Client:
    """Return a client of the dashboard at *url*; nothing is sent until the first question.

    Args:
        url: Address of the dashboard; by default STAGELENS_DASHBOARD_URL, else `http://127.0.0.1:8600`.
        token: Token of the dashboard; by default STAGELENS_DASHBOARD_TOKEN, else none is sent.
        user: Name and password, for a dashboard with users; sent instead of the token.
        timeout: Maximum time for a response. [seconds]

    Raises:
        ApiError: *url* is not an http or https address.
    """
    base = (url or os.environ.get("STAGELENS_DASHBOARD_URL") or DEFAULT_URL).rstrip("/")
    if urlsplit(base).scheme not in ("http", "https"):
        msg = "this is no address of a dashboard"
        raise ApiError(msg, url=base, key="url", fix=f"use an address such as {DEFAULT_URL}")
    return Client(base, token or os.environ.get("STAGELENS_DASHBOARD_TOKEN"), timeout, user)


class Client:
    """Connection to one dashboard; a context manager. Thread-safe.

    Args:
        url: Address of the dashboard, without a slash at the end.
        token: Token of the dashboard; None sends none.
        timeout: Maximum time for a response. [seconds]
        user: Name and password; sent instead of the token.
    """

    def __init__(self, url: str, token: str | None, timeout: float, user: tuple[str, str] | None = None) -> None:
        self.url, self._timeout = url, timeout
        headers = {"Authorization": f"Bearer {token}"} if token else None
        try:
            self._http = httpx.Client(headers=headers, auth=user, timeout=timeout)
        except (ImportError, ValueError) as error:
            msg = f"the proxy of the environment is not usable: {error}"
            raise ApiError(msg, url=url, fix=_proxy_fix(url)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def get(self, path: str, /, **parameters: Any) -> dict[str, Any]:
        """Return the response to `GET /api/v1/<path>`.

        Args:
            path: Path below `/api/v1/`, such as `query/latency`.
            parameters: Parameters of the API, or arguments of the methods below (`start` for `from`); None is omitted.

        Raises:
            ApiError: The request was rejected, or the dashboard could not be reached.
            ValueError: A percentile is not between 0 and 1.
        """
        given = {_PARAMETERS.get(key, key): _text(key, value) for key, value in parameters.items() if value is not None}
        return self._json("GET", path, params=given)

    def post(self, path: str, body: Mapping[str, Any], /) -> dict[str, Any]:
        """Return the response to `POST /api/v1/<path>` with *body* as JSON.

        Raises:
            ApiError: The request was rejected, or the dashboard could not be reached.
        """
        return self._json("POST", path, json=dict(body))

    def services(self, *, start: Moment | None = None, end: Moment | None = None) -> pd.DataFrame:
        """Return the services with requests in the window: versions, model, environment, requests, errors, first and last time."""
        return _frame(self.get("services", start=start, end=end))

    def names(self) -> pd.DataFrame:
        """Return all services with their versions, the most recently seen first."""
        return pd.DataFrame(self.get("names")["services"], columns=["name", "versions"])

    def breakdown(
        self, service: str, *, percentiles: Percentiles = (0.5, 0.9, 0.95, 0.99), **scope: Unpack[ScopeArguments]
    ) -> pd.DataFrame:
        """Return the latency at each percentile by stage: a row per percentile, a column of seconds per stage.

        The stages add up to `value_seconds`, which has its error bounds; `attrs["requests"]` is the number of requests.
        """
        return self._query("breakdown", service=service, percentiles=percentiles, **scope)

    def latency(
        self, service: str, *, percentiles: Percentiles = (0.5, 0.9, 0.95, 0.99), **scope: Unpack[ScopeArguments]
    ) -> pd.DataFrame:
        """Return the latency at each percentile with its error bounds; `enough` is whether ten requests are above it."""
        return self._query("latency", service=service, percentiles=percentiles, **scope)

    def tokens(
        self, service: str, *, percentiles: Percentiles = (0.5, 0.9, 0.95, 0.99), **scope: Unpack[ScopeArguments]
    ) -> pd.DataFrame:
        """Return the times of streamed responses, a row per measure, definition and percentile.

        The measures are `first_token`, `output_token` (mean time per output token of a response) and `gap` (longest wait for the
        next part of a response).
        """
        return self._query("tokens", service=service, percentiles=percentiles, **scope)

    def shared(
        self, service: str, *, percentiles: float = 0.99, selection: str | None = None, **scope: Unpack[ScopeArguments]
    ) -> pd.DataFrame:
        """Return what slow requests share, a row per cause; `attrs["summary"]` is the sentence of the page.

        Args:
            service: The service.
            percentiles: Percentile from which requests are slow.
            selection: Requests to explain instead: `low:high:start:end` in seconds.
            scope: See `ScopeArguments`.
        """
        return self._query("shared", service=service, percentiles=percentiles, selection=selection, **scope)

    def profile(
        self, service: str, *, percentiles: float = 0.99, selection: str | None = None, **scope: Unpack[ScopeArguments]
    ) -> pd.DataFrame:
        """Return the functions that take the time of slow requests, a row per function; `attrs["flame"]` has the call trees."""
        return self._query("profile", service=service, percentiles=percentiles, selection=selection, **scope)

    def stalls(
        self, service: str, *, percentiles: Percentiles = (0.5, 0.9, 0.95, 0.99), **scope: Unpack[ScopeArguments]
    ) -> pd.DataFrame:
        """Return the stalls at each percentile: a column of seconds per cause and stage, such as `gc:forward`."""
        return self._query("stalls", service=service, percentiles=percentiles, **scope)

    def critical_path(
        self, service: str, *, percentiles: float = 0.99, **scope: Unpack[ScopeArguments]
    ) -> pd.DataFrame:
        """Return the mean time by service and stage on the critical path of the requests at the percentile or slower."""
        return self._query("critical_path", service=service, percentiles=percentiles, **scope)

    def replicas(self, service: str, **scope: Unpack[ScopeArguments]) -> pd.DataFrame:
        """Return the latency of each replica; `attrs["slow"]` is the slow replica with its evidence, or None."""
        return self._query("replicas", service=service, **scope)

    def in_flight(self, service: str, **scope: Unpack[ScopeArguments]) -> pd.DataFrame:
        """Return the open requests at the end of the window by route and process; `attrs` has `requests`, `oldest_seconds`, `at`."""
        return self._query("in_flight", service=service, **scope)

    def compare(
        self,
        service: str,
        a: str | None = None,
        b: str | None = None,
        *,
        percentiles: float | None = None,
        **part: Unpack[PartArguments],
    ) -> pd.DataFrame:
        """Return two sides of a service by stage: seconds on each side, and their difference.

        `attrs` has `verdict` (with its `kind` and `ratio`), the sides `a` and `b`, and the `functions` that grew.

        Args:
            service: The service.
            a: Version or window (`2026-11-21T12:00/6h`) before; by default the version before the newest one.
            b: Version or window after; by default the newest version.
            percentiles: Compared percentile; by default the highest one up to 0.99 with enough requests.
            part: See `PartArguments`.
        """
        return self._query("compare", service=service, a=a, b=b, percentiles=percentiles, **part)

    def map(self, **window: Unpack[WindowArguments]) -> pd.DataFrame:
        """Return the calls between services, a row per caller and called service; `counted` is false for estimates."""
        return self._query("map", **window)

    def traces(
        self,
        service: str | None = None,
        *,
        dominant: str | None = None,
        failed: bool | None = None,
        min_seconds: float | None = None,
        max_seconds: float | None = None,
        attributes: Mapping[str, str] | None = None,
        order: Literal["slow", "new"] | None = None,
        page: int | None = None,
        **scope: Unpack[ScopeArguments],
    ) -> pd.DataFrame:
        """Return fifty retained requests; `attrs["matching"]` counts all that match, `attrs["values"]` counts them by value.

        Args:
            service: The service; by default all.
            dominant: Stage that took the most time.
            failed: True for failed requests only, False for successful ones only.
            min_seconds: Minimum duration. [seconds]
            max_seconds: Duration that the requests are below. [seconds]
            attributes: Attributes with their values; an empty value matches any.
            order: `slow` for the slowest first (default), `new` for the newest first.
            page: Page of fifty requests, from 1.
            scope: See `ScopeArguments`.
        """
        filters = {"dominant": dominant, "failed": failed, "min_seconds": min_seconds, "max_seconds": max_seconds}
        filters |= {"attributes": attributes, "order": order, "page": page}
        return self._query("traces", service=service, **filters, **scope)

    def waste(self, *, labels: Mapping[str, str] | None = None, **window: Unpack[WindowArguments]) -> pd.DataFrame:
        """Return the idle cost, queueing and failed work of each service; *labels* select services."""
        return self._query("waste", labels=labels, **window)

    def fleet(self, *, labels: Mapping[str, str] | None = None, **window: Unpack[WindowArguments]) -> pd.DataFrame:
        """Return the state of each service, those with a burning error budget first; *labels* select services."""
        return self._query("fleet", labels=labels, **window)

    def incidents(
        self,
        service: str | None = None,
        *,
        state: Literal["open", "resolved", "all"] = "all",
        severity: Literal["page", "ticket"] | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
    ) -> pd.DataFrame:
        """Return the open incidents and the newest fifty, or those open between *start* and *end*: pages, open, new ones first."""
        return self._query("incidents", service=service, state=state, severity=severity, start=start, end=end)

    def incident(self, id: str) -> pd.DataFrame:  # noqa: A002 - the name in the API
        """Return one incident as a row; `attrs["incident"]` has its evidence."""
        return self._query("incidents", id=id)

    def capacity(self, service: str, **scope: Unpack[ScopeArguments]) -> pd.DataFrame:
        """Return latency by load, a row per measured step; `attrs` has `capacity` and the sentence of the page (`summary`)."""
        return self._query("capacity", service=service, **scope)

    def advice(
        self,
        service: str | None = None,
        *,
        rank: Literal["p99", "p50", "ttft", "tpot", "cost"] | None = None,
        **scope: Unpack[ScopeArguments],
    ) -> pd.DataFrame:
        """Return the advice for a service, or the largest of each service; *rank* is what it is ordered by."""
        return self._query("advice", service=service, rank=rank, **scope)

    def collectors(self) -> pd.DataFrame:
        """Return the collectors with their problems and fixes; only for admins."""
        return self._query("collectors")

    def slo(self, service: str | None = None, *, name: str | None = None) -> pd.DataFrame:
        """Return the objectives with their status: state, error budget left, burn rates; periods in seconds."""
        answer = self.get("query/slo", service=service, name=name)
        rows = [
            {**objective["slo"], **{key: value for key, value in objective.items() if key != "slo"}}
            for objective in answer["objectives"]
        ]
        names = list(dict.fromkeys(key for row in rows for key in row))
        columns = [{"name": name} for name in names]
        rest = {key: value for key, value in answer.items() if key != "objectives"}
        return _frame({**rest, "columns": columns, "rows": [[row.get(name) for name in names] for row in rows]})

    def budgets(
        self, name: str, *, version: str | None = None, start: Moment | None = None, end: Moment | None = None
    ) -> pd.DataFrame:
        """Return the use of the stage budgets of the latency objective *name*, a row per stage."""
        return self._query("budgets", name=name, version=version, start=start, end=end)

    def audit(self, *, start: Moment | None = None, end: Moment | None = None) -> pd.DataFrame:
        """Return the audit log, newest first; only for admins."""
        return self._query("audit", start=start, end=end)

    def trace(self, id: str) -> pd.DataFrame:  # noqa: A002 - the name in the API
        """Return one retained request, a row per span: start, offset and duration in seconds, stage, attributes.

        `attrs` has the attributes of the service (`resource`) and the sampled call stacks (`profile`).
        `get("traces/ID")` returns the same as OTLP JSON.

        Args:
            id: Trace id, or `TRACE_ID-SPAN_ID` for one of several requests of a distributed trace.
        """
        answer = self.get(f"traces/{quote(id, safe='')}")
        (resource,) = answer["resourceSpans"]
        spans = resource["scopeSpans"][0]["spans"]
        first = int(spans[0]["startTimeUnixNano"])
        rows = [_span(span, first) for span in spans]
        frame = pd.DataFrame(rows)
        frame["at"] = pd.to_datetime(frame["at"], utc=True)
        frame.attrs = {"resource": _attributes(resource["resource"]), "profile": answer.get("profile", [])}
        return frame

    def view(
        self, path: str, *, chart: str | None = None, table: str | None = None, **window: Unpack[WindowArguments]
    ) -> pd.DataFrame:
        """Return a chart or a table of a page; cells of tables are text.

        `get("view", path=…)` returns everything on the page.

        Args:
            path: Address of the page, such as `/s/checkout?from=now-1h`.
            chart: Name of the chart, such as `over`.
            table: Name of the table, such as `Slow exemplars`.
            window: See `WindowArguments`; overrides the address.

        Raises:
            ApiError: The page has no such chart or table; the text lists those it has.
            ValueError: Neither a chart nor a table is given, or both.
        """
        if (chart is None) == (table is None):
            msg = 'give one of chart= and table=, such as chart="over"'
            raise ValueError(msg)
        parts = urlsplit(path)
        query = {**dict(parse_qsl(parts.query)), "path": parts.path, "chart": chart, "table": table}
        query |= {_PARAMETERS[key]: value for key, value in window.items() if value is not None}
        answer = self.get("view", **query)
        if "head" in answer:
            answer["columns"] = [{"name": name} for name in answer.pop("head")]
        return _frame(answer)

    def add_event(
        self,
        text: str,
        *,
        kind: Literal["deploy", "config", "advice", "note"] = "note",
        key: str = "",
        service: str = "",
        environment: str = "",
        at: Moment | None = None,
        link: str = "",
    ) -> dict[str, Any]:
        """Store an event that the pages show at its time, and return it.

        Args:
            text: Description, one line.
            kind: Kind of the event.
            key: Subject, such as a version.
            service: Service; "" for all.
            environment: Environment; "" for all.
            at: Time of the event; by default now.
            link: Address with details.
        """
        event = {"text": text, "kind": kind, "key": key, "service": service, "environment": environment, "link": link}
        return self.post("events", event if at is None else {**event, "at": _text("at", at)})

    def _query(self, name: str, /, **arguments: Any) -> pd.DataFrame:
        return _frame(self.get(f"query/{name}", **arguments))

    def _json(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        url = f"{self.url}/api/v1/{path}"
        try:
            response = self._http.request(method, url, **content)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self._unreachable(url, error) from error
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.is_success and isinstance(answer, dict):
            return answer
        raise _refusal(url, response, answer)

    def _unreachable(self, url: str, error: Exception) -> ApiError:
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.TimeoutException):
            msg = f"no response within {self._timeout:g} s"
            fix = "choose a shorter window, or a longer timeout= in connect()"
        elif "CERTIFICATE_VERIFY_FAILED" in reason:
            msg, fix = f"its certificate is not trusted: {reason}", "add a private CA with SSL_CERT_FILE=ca.pem"
        elif "SSL" in reason:
            msg, fix = f"it does not speak TLS: {reason}", f"try {self.url.replace('https:', 'http:')}"
        else:
            msg = f"cannot connect to the dashboard: {reason}"
            fix = "start one with `stagelens up`, or set STAGELENS_DASHBOARD_URL to the address of yours"
            parts = urlsplit(url)
            if getproxies().get(parts.scheme) and not proxy_bypass(parts.netloc):
                fix = _proxy_fix(url)
        return ApiError(msg, url=url, fix=fix)


def _proxy_fix(url: str) -> str:
    host = urlsplit(url).hostname
    return f"set HTTP_PROXY or HTTPS_PROXY to an HTTP proxy that reaches {host}, or add {host} to NO_PROXY"


def _refusal(url: str, response: httpx.Response, answer: Any) -> ApiError:
    status = response.status_code
    if isinstance(answer, dict) and "error" in answer:
        fix = answer.get("fix", "")
        if status == _UNAUTHORIZED:
            fix = "give connect() the token of the dashboard (STAGELENS_DASHBOARD_TOKEN), or user=(name, password)"
        return ApiError(answer["error"], url=url, status=status, key=answer.get("key", ""), fix=fix)
    if response.has_redirect_location:
        msg = f"redirected to {response.headers['Location']}"
    else:
        msg = f"the response is no JSON ({response.headers.get('Content-Type') or 'without Content-Type'})"
    fix = "check the address in connect(); a sign-in page of a proxy needs an address that accepts the token"
    return ApiError(msg, url=url, status=status, fix=fix)


def _text(key: str, value: Any) -> str:
    """Return the argument *key* as the API reads it."""
    if key in ("min_seconds", "max_seconds"):
        return f"{float(value) * 1e3:f}"
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, bool):
        return str(int(value))
    if key == "percentiles" and not isinstance(value, str):
        return ",".join(_percentile(number) for number in (value if isinstance(value, Sequence) else [value]))
    if isinstance(value, Mapping):
        return ",".join(
            f"{quote(k, safe='')}:{quote(v, safe='')}" if v else quote(k, safe="") for k, v in value.items()
        )
    return str(value)


def _percentile(ratio: float) -> str:
    if not 0 <= ratio < 1:
        msg = f"the percentile {ratio:g} is not a ratio; use a number from 0 to below 1, such as 0.99"
        raise ValueError(msg)
    return f"{ratio * 100:.10g}"


def _frame(answer: Mapping[str, Any]) -> pd.DataFrame:
    """Return the table of a response, with all its other fields in `attrs`."""
    columns, rows = answer["columns"], answer["rows"]
    values = {index: _series(column, [row[index] for row in rows]) for index, column in enumerate(columns)}
    frame = pd.DataFrame(values)
    frame.columns = [_name(column) for column in columns]
    frame.attrs = {key: value for key, value in answer.items() if key not in ("columns", "rows")}
    return frame


def _name(column: Mapping[str, str]) -> str:
    has_unit = "unit" in column and not _UNIT_IN_NAME.fullmatch(column["name"])
    return f"{column['name']} ({column['unit']})" if has_unit else column["name"]


def _series(column: Mapping[str, str], values: list[Any]) -> pd.Series:
    present = [value for value in values if value is not None]
    is_time = all(isinstance(value, str) and _TIME.fullmatch(value) for value in present)
    if is_time and (present or _TIME_COLUMN.fullmatch(column["name"])):
        return pd.Series(pd.to_datetime(values, utc=True, format="ISO8601")).astype("datetime64[us, UTC]")
    if "unit" in column and all(isinstance(value, (int, float)) for value in present):
        return pd.Series(values, dtype="float64")
    return pd.Series(values)


def _span(span: Mapping[str, Any], first: int) -> dict[str, Any]:
    start, attributes = int(span["startTimeUnixNano"]), _attributes(span)
    return {
        "span_id": span["spanId"],
        "parent_span_id": span.get("parentSpanId"),
        "name": span["name"],
        "stage": attributes.pop("inference.stage", None),
        "at": start,
        "offset_seconds": (start - first) / 1e9,
        "duration_seconds": (int(span["endTimeUnixNano"]) - start) / 1e9,
        "attributes": attributes,
    }


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of an OTLP resource or span by key."""
    attributes: dict[str, Any] = {}
    for attribute in holder["attributes"]:
        ((kind, value),) = attribute["value"].items()
        attributes[attribute["key"]] = int(value) if kind == "intValue" else value
    return attributes
