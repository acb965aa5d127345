"""Tools of the MCP server: questions about latency, each answered completely with the API of a dashboard.

An answer is text: short sentences, and tables as CSV, because a model reads them with a third of the tokens of JSON. Times are in
milliseconds with four digits. A long answer is cut into pages between two rows. An error names the call that helps.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from ..client import ApiError, Client
from ..core.errors import ConfigError
from ..core.histogram import has_enough_samples
from ..core.settings.values import parse_duration
from ..core.stages import HANDLER, OVERHEAD, STAGES, label

INSTRUCTIONS = """\
Stagelens measures where the requests of inference services spend their time: each request is split into stages that add up to its \
latency. Start with list_services, then why_slow for the service with the problem. It names the stage, what slow requests share, the \
slow replica, the function in the code and the release. Tables are CSV; a column that ends in _ms is in milliseconds, and shares are \
ratios. A window is a length before now, such as 15m, 6h or 7d, or a start in UTC with a length: 2026-11-21T12:00/6h."""

# Maximum length of an answer, about 4,000 tokens. [characters]
MAX_CHARS = 12_000
_MEDIAN = 50
# Rows of each table in an answer with several tables.
_MOST = 8
# Share of p99 without a known stage from which a service needs more stages.
_LARGE_UNEXPLAINED = 0.2
_NOT_FOUND, _UNAUTHORIZED, _FORBIDDEN = 404, 401, 403
_CSRF_HEADER = "X-Stagelens-Proof"
# Requests on a page of the API.
_API_PAGE = 50
# Attributes that repeat the rest of a trace.
_OWN = ("stagelens.", "inference.stage")
_ID = re.compile(r"[\w-]+")
_IDS = "Call slow_requests for ids of requests, incidents(state='all') for those of incidents."
_COLUMN_SECONDS = re.compile(r"(?:(.+)_)?seconds")

Service: TypeAlias = Annotated[str, Field(description="Name of the service, as in list_services")]
Window: TypeAlias = Annotated[str, Field(description="Length before now (15m, 6h, 7d), or start/length in UTC")]
Environment: TypeAlias = Annotated[str, Field(description="Deployment environment; empty for all")]
Page: TypeAlias = Annotated[int, Field(ge=1, description="Page of a long table")]
Percentile: TypeAlias = Annotated[float, Field(ge=50, lt=100, description="Percentile, such as 50, 95 or 99.9")]
Row: TypeAlias = dict[str, Any]
_Caller: TypeAlias = Context[Any, Any]


class Tools:
    """Tools of the server.

    Args:
        client_of: Function that opens the client for the HTTP headers of a call, which are None over stdio.
    """

    def __init__(self, client_of: Callable[[Mapping[str, str] | None], AbstractContextManager[Client]]) -> None:
        self._client_of = client_of

    def reading(self) -> list[Callable[..., str]]:
        """Return the tools that change nothing."""
        return [
            *(self.list_services, self.why_slow, self.compare, self.slow_requests, self.trace, self.incidents),
            *(self.slo_status, self.capacity, self.advice, self.doctor),
        ]

    def writing(self) -> list[Callable[..., str]]:
        """Return the tools that change incidents."""
        return [self.acknowledge, self.silence]

    def list_services(
        self, ctx: _Caller, *, window: Window = "1h", environment: Environment = "", page: Page = 1
    ) -> str:
        """List the services with state, request rate, p50, p99, slowest stage and SLO, the most urgent one first."""
        with self._asking(ctx) as ask:
            found = ask("query/fleet", _window(window, environment))
        rows = _rows(found)
        if not rows:
            return f"No service had a request in the window {window}. Try a longer window, such as 7d, or call doctor."
        shown = [{**row, "slowest_stage": _stage(row["slowest_stage"])} for row in rows]
        return paged(f"{len(rows)} services", _csv_lines(shown), page)

    def why_slow(
        self,
        ctx: _Caller,
        *,
        service: Service,
        window: Window = "1h",
        percentile: Percentile = 99.0,
        environment: Environment = "",
        version: str = "",
        model: str = "",
        route: str = "",
    ) -> str:
        """Explain the slow requests of a service: stages, shared attributes, replica, functions, release, other services."""
        part = {"service": service, "version": version, "model": model, "route": route}
        scope = part | _window(window, environment)
        tail = {**scope, "p": f"{percentile:g}"}
        with self._asking(ctx) as ask:
            breakdown = ask("query/breakdown", {**scope, "p": f"50,{percentile:g}"})
            if not breakdown["requests"]:
                return f"{service} had no requests in the window {window}. Call list_services for current services."
            answer = [_breakdown_text(service, percentile, breakdown)]
            answer += _shared_text(ask("query/shared", tail))
            answer += _replica_text(ask("query/replicas", scope)["slow"])
            answer += _functions_text(_rows(ask("query/profile", tail)), percentile)
            answer += _elsewhere_text(service, ask("query/critical_path", tail))
            answer += _stalls_text(_rows(ask("query/stalls", tail)))
            if not version:
                compared = {key: scope[key] for key in scope if key != "version"}
                answer += _release_text(_if_known(ask, "query/compare", compared))
            opened = _rows(ask("query/incidents", {"service": service, "state": "open"}))
        answer += [f"Open incident {each['id']}: {each['headline']}" for each in opened[:_MOST]]
        answer.append(f"Next: slow_requests(service={service!r}) for examples, advice(service={service!r}) for fixes.")
        return _cut("\n\n".join(answer))

    def compare(
        self,
        ctx: _Caller,
        *,
        service: Service,
        a: Annotated[str, Field(description="Version or start/length; empty for the version before the newest")] = "",
        b: Annotated[str, Field(description="Version or start/length; empty for the newest version")] = "",
        window: Window = "24h",
        percentile: Annotated[float | None, Field(description="Percentile; by default the highest with enough")] = None,
        environment: Environment = "",
    ) -> str:
        """Compare two versions or periods of a service, stage by stage, with a statistical verdict."""
        wanted = {"service": service, "a": a, "b": b, "p": "" if percentile is None else f"{percentile:g}"}
        with self._asking(ctx) as ask:
            found = ask("query/compare", wanted | _window(window, environment))
        return _cut("\n\n".join(_comparison_text(found)))

    def slow_requests(
        self,
        ctx: _Caller,
        *,
        service: Service,
        window: Window = "1h",
        min_ms: Annotated[float | None, Field(description="Only requests at least this long, in milliseconds")] = None,
        stage: Annotated[str, Field(description="Only requests whose longest stage is this one")] = "",
        failed: Annotated[bool | None, Field(description="true for failed, false for successful requests")] = None,
        attributes: Annotated[str, Field(description="Filter such as tenant:acme")] = "",
        version: str = "",
        route: str = "",
        environment: Environment = "",
        page: Page = 1,
    ) -> str:
        """List retained requests, the slowest first, with their stages; filters select some of them."""
        minimum = "" if min_ms is None else f"{min_ms:g}ms"
        wanted = {"service": service, "version": version, "route": route, "dom": _stage_key(stage), "min": minimum}
        wanted |= {"err": "" if failed is None else str(int(failed)), "at": attributes, "n": str(page)}
        with self._asking(ctx) as ask:
            found = ask("query/traces", wanted | _window(window, environment))
        rows = [
            {
                **{key: row[key] for key in ("trace_id", "version", "route", "duration_seconds", "status", "because")},
                "at": f"{row['at'][:19]}Z",
                "stages_ms": {_stage(key): value * 1e3 for key, value in _largest(row["stages"], 3).items()},
                "attributes": row["attributes"],
            }
            for row in _rows(found)
        ]
        values = {key: _largest(each) for key, each in found["values"].items() if len(each) > 1}
        counts = "; ".join(f"{key}: {_cell(each)}" for key, each in values.items())
        head = f"{found['matching']} of {found['retained']} retained requests match. By value: {counts or 'all alike'}"
        if not rows:
            return f"{head}. Widen the filters or the window."
        pages = -(-found["matching"] // _API_PAGE)
        more = [f"Page {page} of {pages}: page={page + 1} has the next, or filter."] if page < pages else []
        return _cut("\n".join([f"{head}. trace(trace_id) shows one with its spans.", *more, *_csv_lines(rows)]))

    def trace(
        self, ctx: _Caller, *, trace_id: Annotated[str, Field(description="Id of a request, from slow_requests")]
    ) -> str:
        """Show one retained request: its attributes and its spans with start and length."""
        with self._asking(ctx) as ask:
            found = ask(f"traces/{_id(trace_id)}", {})
        spans = found["resourceSpans"][0]["scopeSpans"][0]["spans"]
        start = int(spans[0]["startTimeUnixNano"])
        rows = [
            {
                "span": span["name"],
                "start_ms": (int(span["startTimeUnixNano"]) - start) / 1e6,
                "duration_ms": (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e6,
                "attributes": {
                    each["key"]: next(iter(each["value"].values()))
                    for each in span["attributes"]
                    if not each["key"].startswith(_OWN)
                },
            }
            for span in spans
        ]
        code = [
            f"{_ms(each['seconds'])} ms in {label(each['stage'])}: "
            + " > ".join(f"{frame['function']} ({frame['file']}:{frame['line']})" for frame in each["frames"])
            for each in found.get("profile", [])[:_MOST]
        ]
        return _cut("\n".join([f"Request of {datetime.fromtimestamp(start / 1e9, UTC):%Y-%m-%dT%H:%M:%SZ}", *_csv_lines(rows), *code]))  # fmt: skip

    def incidents(
        self,
        ctx: _Caller,
        *,
        state: Annotated[str, Field(description="open, resolved or all")] = "open",
        service: Annotated[str, Field(description="Only of this service; empty for all")] = "",
        incident_id: Annotated[str, Field(description="Show this incident completely")] = "",
        page: Page = 1,
    ) -> str:
        """List incidents, newest first, or show one with its evidence and history."""
        with self._asking(ctx) as ask:
            wanted = {"id": incident_id} if incident_id else {"state": state, "service": service}
            found = ask("query/incidents", wanted)
        if incident_id:
            return _cut(_incident_text(found["incident"]))
        rows = _rows(found)
        if not rows:
            return f"There are no {'' if state == 'all' else f'{state} '}incidents. why_slow(service) explains latency without one."
        return paged(f"{len(rows)} incidents; incidents(incident_id=…) shows one completely.", _csv_lines(rows), page)

    def slo_status(
        self,
        ctx: _Caller,
        *,
        service: Annotated[str, Field(description="Only of this service; empty for all")] = "",
        page: Page = 1,
    ) -> str:
        """List the objectives with attained share, error budget and burn rates, the worst first."""
        with self._asking(ctx) as ask:
            found = ask("query/slo", {"service": service})["objectives"]
        if not found:
            return "No objective is set. The operator adds objectives to the SLO file; list_services shows latencies."
        rows = [
            {
                **{key: each["slo"][key] for key in ("name", "service", "objective")},
                "threshold_seconds": each["slo"]["threshold"],
                **{key: each[key] for key in ("state", "attained", "budget_left", "burn_1h", "burn_5m")},
                "exhausted_in_hours": None if each["exhausted_in"] is None else each["exhausted_in"] / 3600,
            }
            for each in found
        ]
        head = "A burn rate of 1 spends exactly the budget in the window of the objective."
        return paged(head, _csv_lines(rows), page)

    def capacity(
        self,
        ctx: _Caller,
        *,
        service: Service,
        window: Window = "24h",
        version: str = "",
        environment: Environment = "",
    ) -> str:
        """Estimate the request rate up to which a service keeps its objective, and the headroom."""
        with self._asking(ctx) as ask:
            found = ask("query/capacity", {"service": service, "version": version, **_window(window, environment)})
        steps = _rows(found)
        rates, own = [each["requests_per_second"] for each in steps], found["capacity"]
        lines = [_plain(found["summary"])]
        if own:
            lines.append(
                f"Capacity {own['rate']:.4g}/s (95 %: {own['low']:.4g} to {own['high']:.4g}/s); now {_cell(found['requests_per_second'])}/s."
            )
        if rates:
            lines.append(f"Measured: {len(rates)} steps from {min(rates):.4g} to {max(rates):.4g} requests/s.")
        return "\n".join(lines)

    def advice(
        self,
        ctx: _Caller,
        *,
        service: Annotated[str, Field(description="Service; empty for the largest of each service")] = "",
        window: Window = "24h",
        rank: Annotated[str, Field(description="What to improve: p99, p50 or cost")] = "p99",
        environment: Environment = "",
        page: Page = 1,
    ) -> str:
        """List optimizations with evidence and reachable latency, the largest gain first."""
        with self._asking(ctx) as ask:
            rows = _rows(ask("query/advice", {"service": service, "rank": rank, **_window(window, environment)}))
        if not rows:
            return (
                "No stage is large enough for advice in this window, or it has too few requests. Try a longer window."
            )
        return paged("A gain is a share of the ranked quantity.", _csv_lines(rows), page)

    def doctor(self, ctx: _Caller, window: Window = "1h") -> str:
        """Check the measurement itself: missing data, failing collectors, invalid SLO file, time without a known stage."""
        with self._asking(ctx) as ask:
            fleet = ask("query/fleet", _window(window, ""))
            try:
                state: Row | None = ask("query/collectors", {})
            except ApiError as error:
                if error.status != _FORBIDDEN:
                    raise
                state = None
        services = _rows(fleet)
        lines = [f"{len(services)} services had requests in the window {window}, which ends at {fleet['to']}."]
        if not services:
            lines.append("Start a service with: stagelens run -- python serve.py")
        lines += [
            f"{row['service']}: {row['unexplained_share']:.0%} of p99 has no known stage. why_slow(service={row['service']!r}) "
            "names its functions and the --stage option for each."
            for row in services
            if (row["unexplained_share"] or 0) >= _LARGE_UNEXPLAINED
        ]
        if state is None:
            lines.append("The state of the collectors is for admins.")
        else:
            lines.append(f"The last data arrived at {state['last_received'] or 'no time yet'}.")
            problems = [row for row in _rows(state) if row["problem"]]
            lines += [f"Collector {each['collector']}: {each['problem']}. Fix: {each['fix']}." for each in problems]
            lines += [f"SLO file: {each}" for each in state["slo_file_problems"]]
            if not problems and not state["slo_file_problems"]:
                lines.append("Collectors and SLO file have no problems.")
        return _cut("\n".join(_plain(line) for line in lines))

    def acknowledge(self, ctx: _Caller, incident_id: str) -> str:
        """Acknowledge an open incident, so that it is not escalated."""
        with self._asking(ctx, "post") as post:
            post(f"incidents/{_id(incident_id)}/acknowledge", {})
        return f"{incident_id} is acknowledged."

    def silence(
        self,
        ctx: _Caller,
        *,
        service: Service,
        duration: Annotated[str, Field(description="Length, such as 1h")],
        comment: Annotated[str, Field(description="Reason, shown to everyone")],
    ) -> str:
        """Mute the notifications of a service for some time; incidents are still recorded."""
        with self._asking(ctx, "post") as post:
            made = post("silences", {"service": service, "for": duration, "comment": comment})
        return f"Silence {made['id']} mutes {service} for {duration}."

    @contextmanager
    def _asking(self, ctx: _Caller, verb: str = "get") -> Generator[Callable[[str, Mapping[str, str]], Row]]:
        """Yield the function that asks the dashboard; its errors become errors of the tool, with the call that helps."""
        try:
            with self._client_of(ctx.headers) as client:
                if verb == "post":
                    yield client.post
                else:
                    yield lambda path, given: client.get(path, **{key: each for key, each in given.items() if each})
        except ApiError as error:
            raise ToolError(_next_step(error)) from error


def _next_step(error: ApiError) -> str:
    if error.status == _UNAUTHORIZED:
        return "the dashboard did not accept the token. Set STAGELENS_DASHBOARD_TOKEN of `stagelens mcp`, or send it as Authorization: Bearer over HTTP."
    problem = f"{error.error}. {error.cure}".rstrip(". ") + "."
    if error.status == _FORBIDDEN and error.key == _CSRF_HEADER:
        return "the dashboard accepts changes from programs only with a token. Set STAGELENS_DASHBOARD_TOKEN there and for `stagelens mcp`."
    if error.status == _NOT_FOUND and error.key == "service":
        return f"{error.error}. Call list_services, with a longer window if needed."
    if error.status == _NOT_FOUND and error.key == "id":
        return f"{error.error}. {_IDS}"
    return problem


def _if_known(ask: Callable[[str, Mapping[str, str]], Row], path: str, given: Mapping[str, str]) -> Row | None:
    try:
        return ask(path, given)
    except ApiError as error:
        if error.status != _NOT_FOUND:
            raise
        return None


def _id(text: str) -> str:
    """Return *text*, which becomes a part of a path.

    Raises:
        ToolError: It is no id.
    """
    if not _ID.fullmatch(text):
        msg = f"{text[:60]!r} is no id. {_IDS}"
        raise ToolError(msg)
    return text


def _window(text: str, environment: str) -> dict[str, str]:
    """Return the parameters of the window *text*: a length before now, or a start in UTC and a length."""
    start, _, length = text.strip().rpartition("/")
    try:
        span = parse_duration(length, "window")
        if not start:
            return {"from": f"now-{length}", "env": environment}
        begin = datetime.fromisoformat(start)
    except (ConfigError, ValueError) as error:
        msg = f"window is {text!r}; write a length before now such as 15m, 6h or 7d, or 2026-11-21T12:00/6h"
        raise ToolError(msg) from error
    begin = begin if begin.tzinfo else begin.replace(tzinfo=UTC)
    return {"from": begin.isoformat(), "to": (begin + span).isoformat(), "env": environment}


def _breakdown_text(service: str, percentile: float, found: Row) -> str:
    median, tail = _rows(found)
    known = ("percentile", "n", "value_seconds", "low_seconds", "high_seconds")
    spent = {key: (median[key] or 0, tail[key] or 0) for key in tail if key not in known}
    name, whole = f"p{percentile:g}", tail["value_seconds"]
    head = f"{service}, {found['from']} to {found['to']}, {found['requests']} requests: p50 {_ms(median['value_seconds'])} ms"
    if not whole:
        return f"{head}; too few requests for {name}."
    rows = [
        {"stage": _stage(key), "p50_ms": usual * 1e3, f"{name}_ms": own * 1e3, "share": own / whole}
        for key, (usual, own) in sorted(spent.items(), key=lambda item: -item[1][1])
        if usual or own
    ]
    tail_text = f", {name} {_ms(whole)} ms" if percentile > _MEDIAN else ""
    lines = [f"{head}{tail_text}. The stages add up to the latency:", *_csv_lines(rows)]
    if not has_enough_samples(found["requests"], percentile / 100):
        lines.append(f"Too few requests for {name}: fewer than ten are above it, so it is uncertain.")
    unexplained = sum(spent.get(stage, (0, 0))[1] for stage in (OVERHEAD, HANDLER)) / whole
    if unexplained >= _LARGE_UNEXPLAINED:
        lines.append(f"{unexplained:.0%} has no known stage; the functions below name its code.")
    return "\n".join(lines)


def _shared_text(found: Row) -> list[str]:
    rows = [
        {key: row[key] for key in ("attribute", "value", "share_all", "share_slow", "lift", "explained_share")}
        for row in _rows(found)[:_MOST]
    ]
    return ["\n".join([f"What slow requests share: {_plain(found['summary'])}", *_csv_lines(rows)])] if rows else []


def _replica_text(slow: Row | None) -> list[str]:
    return [f"Slow replica {slow['replica']} ({slow['place']}): {_plain(slow['says'])}"] if slow else []


def _functions_text(rows: Sequence[Row], percentile: float) -> list[str]:
    shown = [
        {
            "stage": _stage(row["stage"]),
            "function": row["function"],
            "place": f"{row['file']}:{row['line']}",
            f"p{percentile:g}_seconds": row["tail_self_seconds"],
            "p50_seconds": row["median_self_seconds"],
            "share_of_stage": row["share"],
            "option_to_time_it": row["stage_option"],
        }
        for row in rows[:_MOST]
        if row["tail_self_seconds"]
    ]
    return ["\n".join(["Functions that slow requests are in:", *_csv_lines(shown)])] if shown else []


def _elsewhere_text(service: str, found: Row) -> list[str]:
    """Return the services that slow requests wait for; nothing if all time is in *service*."""
    rows = _rows(found)
    if all(row["service"] == service for row in rows):
        return []
    shown = [{**row, "stage": _stage(row["stage"])} for row in rows[:_MOST]]
    return ["\n".join([f"Critical path of {found['traces']} slow requests across services:", *_csv_lines(shown)])]


def _stalls_text(rows: Sequence[Row]) -> list[str]:
    known = ("percentile", "n", "value_seconds", "low_seconds", "high_seconds")
    spent = {key: each for row in rows for key, each in row.items() if key not in known and each}
    found = ", ".join(f"{key} {_ms(each)} ms" for key, each in _largest(spent).items())
    return [f"Stalls (cause:stage): {found}"] if found else []


def _release_text(found: Row | None) -> list[str]:
    if found is None or found["verdict"]["kind"] not in ("regression", "improvement"):
        return []
    return ["\n\n".join(_comparison_text(found))]


def _comparison_text(found: Row) -> list[str]:
    a, b, verdict = found["a"], found["b"], found["verdict"]
    ratio = ""
    if verdict.get("ratio"):
        ratio = (
            f", ratio {verdict['ratio']:.3g} (99 %: {_cell(verdict['ratio_low'])} to {_cell(verdict['ratio_high'])})"
        )
    name = f"p{found['percentile'] * 100:g}"
    head = (
        f"{b['name']} ({b['from']} to {b['to']}, {verdict['b_n']} requests) against {a['name']} ({a['from']} to {a['to']}, "
        f"{verdict['a_n']} requests): {verdict['kind']} at {name}{ratio}."
    )
    stages = [{**row, "stage": _stage(row["stage"])} for row in _rows(found)[:_MOST]]
    parts = ["\n".join([head, *_csv_lines(stages)])]
    if found["functions"]:
        parts.append(
            "\n".join(
                [
                    "Functions that grew:",
                    *_csv_lines([{**row, "stage": _stage(row["stage"])} for row in found["functions"][:_MOST]]),
                ]
            )
        )
    return parts


def _incident_text(found: Row) -> str:
    facts = ("id", "service", "state", "severity", "kind", "since", "opened_at", "resolved_at", "version", "impact")
    lines = [_plain(found["headline"]), "; ".join(f"{key} {_cell(found[key])}" for key in facts if found[key])]
    lines += _csv_lines([{**row, "stage": _stage(row["stage"])} for row in found["stages"]])
    lines += [found["replica"]] if found["replica"] else []
    if found["functions"]:
        lines += ["Functions that grew:", *_csv_lines(found["functions"])]
    if found["shared"]:
        lines += ["What slow requests share:", *_csv_lines(found["shared"])]
    lines += [f"{each['at']} {each['event']} {each['note']}".rstrip() for each in found["transitions"]]
    return "\n".join([*lines, found["link"], f"Next: why_slow(service={found['service']!r})"])


def _rows(found: Row) -> list[Row]:
    names = [each["name"] for each in found["columns"]]
    return [dict(zip(names, row, strict=True)) for row in found["rows"]]


def _largest(values: Mapping[str, float], most: int = _MOST) -> dict[str, float]:
    return dict(sorted(values.items(), key=lambda item: -item[1])[:most])


def _stage(key: str | None) -> str:
    return label(key) if key else ""


def _stage_key(name: str) -> str:
    """Return the key of the stage with this name in an answer; a name of the user's own stage is its key."""
    return next((each.key for each in STAGES if name.lower() == each.label.lower()), name)


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1e3:.4g}"


def _csv_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return *rows* as the lines of a CSV table; columns in seconds become milliseconds, columns without any value are left out."""
    used = [key for key in (rows[0] if rows else ()) if any(row[key] not in (None, "", [], {}) for row in rows)]
    if not used:
        return []
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    scale = {key: 1e3 if _COLUMN_SECONDS.fullmatch(key) else 1 for key in used}
    writer.writerow([_COLUMN_SECONDS.sub(lambda match: f"{match[1] or 'time'}_ms", key) for key in used])
    for row in rows:
        cells = (row[key] * scale[key] if isinstance(row[key], float) else row[key] for key in used)
        writer.writerow([_cell(each) for each in cells])
    return out.getvalue().splitlines()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {_cell(each)}" for key, each in value.items())
    if isinstance(value, list):
        return "; ".join(map(_cell, value))
    return _plain(str(value))


def _plain(text: str) -> str:
    """Return *text* on one line, with usual spaces instead of the narrow ones of pages."""
    return " ".join(text.split())


def paged(head: str, lines: Sequence[str], page: int) -> str:
    """Return *head* and the rows of one *page* of the table *lines*, whose first line has the names of the columns.

    Raises:
        ToolError: There is no such page.
    """
    names, pages, size = lines[0], [[]], len(head)
    for line in lines[1:]:
        if pages[-1] and size + len(line) > MAX_CHARS:
            pages.append([])
            size = len(head)
        pages[-1].append(line)
        size += len(line) + 1
    if page > len(pages):
        msg = f"there are {len(pages)} pages; call again with page={len(pages)}"
        raise ToolError(msg)
    more = [f"Page {page} of {len(pages)}: call again with page={page + 1} for more."] if page < len(pages) else []
    return "\n".join([head, names, *pages[page - 1], *more])


def _cut(text: str) -> str:
    """Return *text* up to the last line that fits into `MAX_CHARS`."""
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[:MAX_CHARS].rpartition(chr(10))[0]}\nThe rest is left out; ask for one version, route or a shorter window."
