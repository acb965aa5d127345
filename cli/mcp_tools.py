"""Tools of the MCP server: questions about latency, each answered completely with the API of a dashboard.

`mcp_text` writes the answers. An error names the call that helps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from ..client import ApiError, Client
from ..core.errors import ConfigError
from ..core.settings.values import parse_duration
from ..core.stages import label
from .mcp_text import (
    LARGE_UNEXPLAINED,
    MOST_ROWS,
    Row,
    breakdown_text,
    cell,
    comparison_text,
    csv_lines,
    cut_text,
    elsewhere_text,
    functions_text,
    incident_text,
    largest,
    milliseconds,
    one_line,
    paged,
    release_text,
    replica_text,
    rows_of,
    shared_text,
    stage_key,
    stage_name,
    stalls_text,
)

INSTRUCTIONS = """\
Stagelens measures where the requests of inference services spend their time: each request is split into stages that add up to its \
latency. Start with list_services, then why_slow for the service with the problem. It names the stage, what slow requests share, the \
slow replica, the function in the code and the release. Tables are CSV; a column that ends in _ms is in milliseconds, and shares are \
ratios. A window is a length before now, such as 15m, 6h or 7d, or a start in UTC with a length: 2026-11-21T12:00/6h."""

_NOT_FOUND, _UNAUTHORIZED, _FORBIDDEN = 404, 401, 403
_CSRF_HEADER = "X-CSRF-Token"
# Requests on a page of the API.
_API_PAGE = 50
# Attributes that repeat the rest of a trace.
_OWN = ("stagelens.", "inference.stage")
_ID = re.compile(r"[\w-]+")
_IDS = "Call slow_requests for ids of requests, incidents(state='all') for those of incidents."

Service: TypeAlias = Annotated[str, Field(description="Name of the service, as in list_services")]
Window: TypeAlias = Annotated[str, Field(description="Length before now (15m, 6h, 7d), or start/length in UTC")]
Environment: TypeAlias = Annotated[str, Field(description="Deployment environment; empty for all")]
Page: TypeAlias = Annotated[int, Field(ge=1, description="Page of a long table")]
Percentile: TypeAlias = Annotated[float, Field(ge=50, lt=100, description="Percentile, such as 50, 95 or 99.9")]
_Caller: TypeAlias = Context[Any, Any]


class Tools:
    def __init__(self, client_of: Callable[[Mapping[str, str] | None], AbstractContextManager[Client]]) -> None:
        self._client_of = client_of

    def reading(self) -> list[Callable[..., str]]:
        return [
            *(self.list_services, self.why_slow, self.compare, self.slow_requests, self.trace, self.incidents),
            *(self.slo_status, self.capacity, self.advice, self.doctor),
        ]

    def writing(self) -> list[Callable[..., str]]:
        return [self.acknowledge, self.silence]

    def list_services(
        self, ctx: _Caller, *, window: Window = "1h", environment: Environment = "", page: Page = 1
    ) -> str:
        """List the services with state, request rate, p50, p99, slowest stage and SLO, the most urgent one first."""
        with self._asking(ctx) as ask:
            fleet = ask("query/fleet", _window(window, environment))
        rows = rows_of(fleet)
        if not rows:
            return f"No service had a request in the window {window}. Try a longer window, such as 7d, or call doctor."
        shown = [{**row, "slowest_stage": stage_name(row["slowest_stage"])} for row in rows]
        return paged(f"{len(rows)} services", csv_lines(shown), page)

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
            answer = [breakdown_text(service, percentile, breakdown)]
            answer += shared_text(ask("query/shared", tail))
            answer += replica_text(ask("query/replicas", scope)["slow"])
            answer += functions_text(rows_of(ask("query/profile", tail)), percentile)
            answer += elsewhere_text(service, ask("query/critical_path", tail))
            answer += stalls_text(rows_of(ask("query/stalls", tail)))
            if not version:
                compared = {key: scope[key] for key in scope if key != "version"}
                answer += release_text(_if_known(ask, "query/compare", compared))
            opened = rows_of(ask("query/incidents", {"service": service, "state": "open"}))
        answer += [f"Open incident {incident['id']}: {incident['headline']}" for incident in opened[:MOST_ROWS]]
        answer.append(f"Next: slow_requests(service={service!r}) for examples, advice(service={service!r}) for fixes.")
        return cut_text("\n\n".join(answer))

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
            comparison = ask("query/compare", wanted | _window(window, environment))
        return cut_text("\n\n".join(comparison_text(comparison)))

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
        wanted = {"service": service, "version": version, "route": route, "dom": stage_key(stage), "min": minimum}
        wanted |= {"err": "" if failed is None else str(int(failed)), "at": attributes, "n": str(page)}
        with self._asking(ctx) as ask:
            response = ask("query/traces", wanted | _window(window, environment))
        rows = [
            {
                **{key: row[key] for key in ("trace_id", "version", "route", "duration_seconds", "status", "because")},
                "at": f"{row['at'][:19]}Z",
                "stages_ms": {stage_name(key): value * 1e3 for key, value in largest(row["stages"], 3).items()},
                "attributes": row["attributes"],
            }
            for row in rows_of(response)
        ]
        values = {
            key: largest(counts_by_value)
            for key, counts_by_value in response["values"].items()
            if len(counts_by_value) > 1
        }
        counts = "; ".join(f"{key}: {cell(value_counts)}" for key, value_counts in values.items())
        head = f"{response['matching']} of {response['retained']} retained requests match. By value: {counts or 'all alike'}"
        if not rows:
            return f"{head}. Widen the filters or the window."
        pages = -(-response["matching"] // _API_PAGE)
        more = [f"Page {page} of {pages}: page={page + 1} has the next, or filter."] if page < pages else []
        return cut_text("\n".join([f"{head}. trace(trace_id) shows one with its spans.", *more, *csv_lines(rows)]))

    def trace(
        self, ctx: _Caller, *, trace_id: Annotated[str, Field(description="Id of a request, from slow_requests")]
    ) -> str:
        """Show one retained request: its attributes and its spans with start and length."""
        with self._client(ctx) as client:
            spans = client.trace(_id(trace_id))
        rows = [
            {
                "span": span["name"],
                "start_ms": span["offset_seconds"] * 1e3,
                "duration_ms": span["duration_seconds"] * 1e3,
                "attributes": {key: value for key, value in span["attributes"].items() if not key.startswith(_OWN)},
            }
            for span in spans.to_dict("records")
        ]
        code = [
            f"{milliseconds(function['seconds'])} ms in {label(function['stage'])}: "
            + " > ".join(f"{frame['function']} ({frame['file']}:{frame['line']})" for frame in function["frames"])
            for function in spans.attrs["profile"][:MOST_ROWS]
        ]
        head = f"Request of {spans['at'].iloc[0]:%Y-%m-%dT%H:%M:%SZ}"
        return cut_text("\n".join([head, *csv_lines(rows), *code]))

    def incidents(
        self,
        ctx: _Caller,
        *,
        state: Annotated[str, Field(description="open, resolved or all")] = "open",
        service: Annotated[str, Field(description="Only of this service; empty for all")] = "",
        incident_id: Annotated[str, Field(description="Show this incident completely")] = "",
        page: Page = 1,
    ) -> str:
        """List incidents, pages and open ones first, or show one with its evidence and history."""
        with self._asking(ctx) as ask:
            wanted = {"id": incident_id} if incident_id else {"state": state, "service": service}
            response = ask("query/incidents", wanted)
        if incident_id:
            return cut_text(incident_text(response["incident"]))
        rows = rows_of(response)
        if not rows:
            return f"There are no {'' if state == 'all' else f'{state} '}incidents. why_slow(service) explains latency without one."
        return paged(f"{len(rows)} incidents; incidents(incident_id=…) shows one completely.", csv_lines(rows), page)

    def slo_status(
        self,
        ctx: _Caller,
        *,
        service: Annotated[str, Field(description="Only of this service; empty for all")] = "",
        page: Page = 1,
    ) -> str:
        """List the objectives with attained share, error budget and burn rates, the worst first."""
        with self._asking(ctx) as ask:
            objectives = ask("query/slo", {"service": service})["objectives"]
        if not objectives:
            return "No objective is set. The operator adds objectives to the SLO file; list_services shows latencies."
        rows = [
            {
                **{key: objective["slo"][key] for key in ("name", "service", "objective")},
                "threshold_seconds": objective["slo"]["threshold"],
                **{key: objective[key] for key in ("state", "attained", "budget_left", "burn_1h", "burn_5m")},
                "exhausted_in_hours": None if objective["exhausted_in"] is None else objective["exhausted_in"] / 3600,
                "data_hours": objective["covered"] / 3600,
            }
            for objective in objectives
        ]
        head = "A burn rate of 1 spends exactly the budget in the window of the objective. The attained share is over data_hours, the budget left of the whole window at the same traffic."
        return paged(head, csv_lines(rows), page)

    def capacity(
        self,
        ctx: _Caller,
        *,
        service: Service,
        window: Window = "24h",
        version: str = "",
        environment: Environment = "",
    ) -> str:
        """Estimate the request rate up to which a service keeps its objective, and how many more requests it can take."""
        with self._asking(ctx) as ask:
            response = ask("query/capacity", {"service": service, "version": version, **_window(window, environment)})
        steps = rows_of(response)
        rates, limit = [step["requests_per_second"] for step in steps], response["capacity"]
        lines = [one_line(response["summary"])]
        if limit:
            lines.append(
                f"Capacity {limit['rate']:.4g}/s (95 %: {limit['low']:.4g} to {limit['high']:.4g}/s); now {cell(response['requests_per_second'])}/s."
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
        rank: Annotated[str, Field(description="What to improve: p99, p50, ttft, tpot or cost")] = "p99",
        environment: Environment = "",
        page: Page = 1,
    ) -> str:
        """List optimizations with evidence and reachable latency, the largest gain first."""
        with self._asking(ctx) as ask:
            rows = rows_of(ask("query/advice", {"service": service, "rank": rank, **_window(window, environment)}))
        if not rows:
            return (
                "No stage is large enough for advice in this window, or it has too few requests. Try a longer window."
            )
        return paged("A gain is a share of the ranked quantity.", csv_lines(rows), page)

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
        services = rows_of(fleet)
        lines = [f"{len(services)} services had requests in the window {window}, which ends at {fleet['to']}."]
        if not services:
            lines.append("Start a service with: stagelens run -- python serve.py")
        lines += [
            f"{row['service']}: {row['unexplained_share']:.0%} of p99 has no known stage. why_slow(service={row['service']!r}) "
            "names its functions and the --stage option for each."
            for row in services
            if (row["unexplained_share"] or 0) >= LARGE_UNEXPLAINED
        ]
        if state is None:
            lines.append("The state of the collectors is for admins.")
        else:
            lines.append(f"The last data arrived at {state['last_received'] or 'no time yet'}.")
            problems = [row for row in rows_of(state) if row["problem"]]
            lines += [
                f"Collector {problem['collector']}: {problem['problem']}. Fix: {problem['fix']}."
                for problem in problems
            ]
            lines += [f"SLO file: {text}" for text in state["slo_file_problems"]]
            if not problems and not state["slo_file_problems"]:
                lines.append("Collectors and SLO file have no problems.")
        return cut_text("\n".join(one_line(line) for line in lines))

    def acknowledge(self, ctx: _Caller, incident_id: str) -> str:
        """Acknowledge an open incident, so that others know that someone works on it."""
        with self._client(ctx) as client:
            client.post(f"incidents/{_id(incident_id)}/acknowledge", {})
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
        with self._client(ctx) as client:
            created = client.post("silences", {"service": service, "for": duration, "comment": comment})
        return f"Silence {created['id']} mutes {service} for {duration}."

    @contextmanager
    def _asking(self, ctx: _Caller) -> Generator[Callable[[str, Mapping[str, str]], Row]]:
        with self._client(ctx) as client:
            yield lambda path, given: client.get(path, **{key: value for key, value in given.items() if value})

    @contextmanager
    def _client(self, ctx: _Caller) -> Generator[Client]:
        """Yield the client of the dashboard; its errors become errors of the tool, with the call that helps."""
        try:
            with self._client_of(ctx.headers) as client:
                yield client
        except ApiError as error:
            raise ToolError(_next_step(error)) from error


def _next_step(error: ApiError) -> str:
    if error.status == _UNAUTHORIZED:
        return "the dashboard did not accept the token. Set STAGELENS_DASHBOARD_TOKEN of `stagelens mcp`, or send it as Authorization: Bearer over HTTP."
    problem = f"{error.error}. {error.fix}".rstrip(". ") + "."
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
    if not _ID.fullmatch(text):
        msg = f"{text[:60]!r} is no id. {_IDS}"
        raise ToolError(msg)
    return text


def _window(text: str, environment: str) -> dict[str, str]:
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
