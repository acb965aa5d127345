"""Times that servers report about a call: the known formats as data, their validation, and their conversion to stages.

A field of a `ReportDialect` is a header or a number in the body, and holds the duration of one stage or the total. The unit of
each field is fixed. Sources as of November 2026.

A call of one `dependency` becomes the stages of the server and `network`, if the report is plausible. Not plausible are
values that are negative or no number, stages that are longer than their total or than the call, and a model that is a
thousand times too fast, which means a wrong unit. Such a call stays a `dependency`, and the request gets the fact
`@suspect`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from ...core.partition import partition
from ...core.stages import BY_KEY, FRAMEWORK, HANDLER, OVERHEAD, ordered
from ..instrumentor import log_failure
from ..records import REPORTED, REST, Marks, has_capacity
from ..request_marks import read_marks
from .server_common import readable

S: Final = 10**9
MS: Final = 10**6
NS: Final = 1

# Values of a field other than a stage: total time of the server, and its time to the first token; also in the tables below.
TOTAL: Final = "total"
TO_FIRST: Final = "first"

# No model loads faster: starting its process takes this long.
BRIEF_NS: Final = 500 * MS
DEPENDENCY: Final = "dependency"
# Stage of the time outside of the server.
_REST: Final = f"network@{REST}"
# Stage after the first token.
_AFTER: Final = "decode"
# Limit of a valid time: one day; excludes infinity.
_MAX_NS: Final = 86_400 * 10**9
# Factor to the next larger unit, in which an implausibly short time would be most of the call.
_NEXT_UNIT: Final = 1000
# https://www.w3.org/TR/server-timing/: read by clients, and written by servers with these stages.
_HEADER: Final = b"server-timing"
# Commas separate metrics, semicolons their parameters, and a quoted description may contain either.
_METRIC: Final = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


class Field(NamedTuple):
    """One number in the reports of a dialect.

    Args:
        name: Header in lower case, or key in the body.
        unit_ns: Unit of the number. [nanoseconds]
        stage: Stage whose duration the number is, or `TOTAL` or `TO_FIRST`.
        brief: Stage for durations below `BRIEF_NS`, "" for the same stage.
    """

    name: str
    unit_ns: int
    stage: str
    brief: str = ""


class ReportDialect(NamedTuple):
    """Report format of one kind of server.

    Args:
        places: For a body, the key paths to objects that may hold the fields; empty for headers.
        generates: Whether the stages include a model, which takes more than a thousandth of the wait unless the unit is wrong.
        rounding_ns: Maximum rounding error of a valid value. [nanoseconds]
    """

    name: str
    title: str
    known_by: str
    fields: tuple[Field, ...]
    places: tuple[tuple[str, ...], ...] = ()
    generates: bool = True
    rounding_ns: int = 0


def _fields(unit_ns: int, names: str) -> tuple[Field, ...]:
    """Return the fields of *names*, each with its stage: "queue_time=queue prompt_time=prefill"."""
    return tuple(Field(name, unit_ns, stage) for name, _, stage in (pair.partition("=") for pair in names.split()))


# https://github.com/huggingface/text-generation-inference, router/src/server.rs: whole milliseconds, truncated. Its
# inference time is prefill and decode together. `x-compute-time` is milliseconds or seconds, by version, and is not read.
TGI: Final = ReportDialect(
    "tgi",
    "Text Generation Inference",
    "x-validation-time",
    _fields(MS, "x-validation-time=preprocess x-queue-time=queue x-inference-time=decode x-total-time=total"),
)

# https://docs.fireworks.ai/api-reference/post-completions, `perf_metrics_in_response`. Seconds, as its responses show:
# 0.044 for a call of 0.65 s. Only dedicated deployments report stages; a stream has no total in its headers.
_FIREWORKS: Final = _fields(
    S,
    "tokenizer-queue-duration=queue tokenizer-duration=tokenize prefill-queue-duration=queue prefill-duration=prefill "
    "generation-queue-duration=queue generation-duration=decode server-time-to-first-token=first server-processing-time=total",
)
FIREWORKS: Final = ReportDialect(
    "fireworks",
    "Fireworks",
    "fireworks-server-time-to-first-token",
    tuple(field._replace(name=f"fireworks-{field.name}") for field in _FIREWORKS),
)

# https://www.w3.org/TR/server-timing/#the-server-timing-header-field: `dur` is in milliseconds. Names are free: those of our
# stages, as written by our ASGI instrumentation, and `total` are read.
SERVER_TIMING: Final = ReportDialect(
    "server-timing",
    "any server with `Server-Timing`",
    "server-timing",
    tuple(
        Field(stage, MS, stage)
        for stage in [
            "network",
            "queue",
            "load",
            "serialize",
            "preprocess",
            "tokenize",
            "h2d",
            "forward",
            "prefill",
            "decode",
            "d2h",
            "postprocess",
            "dependency",
            "total",
        ]
    ),
    generates=False,
    rounding_ns=MS,
)

# https://platform.openai.com/docs/api-reference/debugging-requests: the time taken to process the request, up to the headers
# of a stream. Azure sends the same.
OPENAI: Final = ReportDialect(
    "openai",
    "OpenAI, Azure OpenAI",
    "openai-processing-ms",
    (Field("openai-processing-ms", MS, TOTAL),),
    generates=False,
    rounding_ns=MS,
)

# https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/router_filter#x-envoy-upstream-service-time:
# time of the server behind the proxy, including the network between both.
ENVOY: Final = ReportDialect(
    "envoy",
    "Envoy, Istio",
    "x-envoy-upstream-service-time",
    (Field("x-envoy-upstream-service-time", MS, TOTAL),),
    generates=False,
    rounding_ns=MS,
)

# The most detailed dialect comes first: a response may hold several, for example of a server and of its proxy.
HEADERS: Final = (TGI, FIREWORKS, SERVER_TIMING, OPENAI, ENVOY)

# https://docs.vllm.ai/en/stable/features/per_request_metrics/, with `--enable-per-request-metrics`; of a stream in its last
# chunk. Its time to first token starts at the scheduling: that is prefill alone.
VLLM: Final = ReportDialect(
    "vllm",
    "vLLM",
    "queue_time_ms",
    _fields(MS, "queue_time_ms=queue time_to_first_token_ms=prefill generation_time_ms=decode"),
    (("metrics",),),
)

# https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md: `timings`.
LLAMA_CPP: Final = ReportDialect(
    "llama.cpp",
    "llama.cpp",
    "prompt_ms",
    _fields(MS, "prompt_ms=prefill predicted_ms=decode"),
    (("timings",),),
)

# https://console.groq.com/docs/api-reference: `usage`, of a stream in `x_groq` of its last chunk. Its `total_time` is without
# the queue, and the sum of the other two.
GROQ: Final = ReportDialect(
    "groq",
    "Groq",
    "prompt_time",
    _fields(S, "queue_time=queue prompt_time=prefill completion_time=decode"),
    (("usage",), ("x_groq", "usage")),
)

# https://inference-docs.cerebras.ai/api-reference/chat-completions: `time_info`.
CEREBRAS: Final = ReportDialect(
    "cerebras",
    "Cerebras",
    "prompt_time",
    _fields(S, "queue_time=queue prompt_time=prefill completion_time=decode total_time=total"),
    (("time_info",),),
)

FIREWORKS_BODY: Final = ReportDialect(
    "fireworks", "Fireworks with `perf_metrics_in_response`", "server-processing-time", _FIREWORKS, (("perf_metrics",),)
)

# https://docs.ollama.com/api/usage: nanoseconds. `load` is the loading of a model that was unloaded since
# the last call; a loaded model also causes a short wait (server/sched.go), which is not a cold start.
OLLAMA: Final = ReportDialect(
    "ollama",
    "Ollama",
    "load_duration",
    (
        Field("load_duration", NS, "load", brief="queue"),
        *_fields(NS, "prompt_eval_duration=prefill eval_duration=decode total_duration=total"),
    ),
    ((),),
)

BODIES: Final = (VLLM, LLAMA_CPP, GROQ, CEREBRAS, FIREWORKS_BODY, OLLAMA)


_logger = logging.getLogger("stagelens")

# Stages of the server in order: stage, nanoseconds.
Parts: TypeAlias = list[tuple[str, int]]


class Wait(NamedTuple):
    """Times of the wait for a response.

    Args:
        started: Start of the call. [nanoseconds]
        ended: Arrival of the last data that the report covers. [nanoseconds]
        first: Arrival of the first token; 0 for a response that is not streamed. [nanoseconds]
        headers: Arrival of the headers, if earlier: a server that does not stream has finished by then. [nanoseconds]
    """

    started: int
    ended: int
    first: int = 0
    headers: int = 0


def record_report(reports: Iterable[tuple[ReportDialect, Mapping[str, Any]]], marks: Marks, wait: Wait) -> bool:
    """Record the first plausible report in *reports*, and each implausible one before it as suspect; return whether one is plausible."""
    for dialect, values in reports:
        parts = parse_stages(dialect, values)
        if parts is not None and is_plausible(dialect, parts, wait.ended - wait.started):
            if has_capacity(marks):
                marks.extend(divide_wait(parts, wait))
            return True
        _record_suspect(dialect, marks, wait)
    return False


def _record_suspect(dialect: ReportDialect, marks: Marks, wait: Wait) -> None:
    if has_capacity(marks):
        marks.extend(("@suspect", dialect.name, wait.ended - wait.started))
    if dialect not in _warned:
        _warned.add(dialect)
        _logger.warning(
            "stagelens: server timings are invalid (%s: %s). These calls count as dependency as a whole, and "
            "as inference.suspect_report.duration; check whether a proxy or a version of the server uses another unit",
            dialect.name,
            ", ".join(field.name for field in dialect.fields),
        )


_warned: set[ReportDialect] = set()


def parse_stages(dialect: ReportDialect, values: Mapping[str, Any]) -> Parts | None:
    """Return the stages of the server in order, the rest as `dependency`; None if the report is not plausible."""
    parts: Parts = []
    whole: dict[str, int] = {}
    for field in dialect.fields:
        value = values.get(field.name)
        if value is None:
            continue
        spent = _nanoseconds(value, field.unit_ns)
        if spent is None:
            return None
        if field.stage in {TOTAL, TO_FIRST}:
            whole[field.stage] = spent
        else:
            parts.append((field.brief if field.brief and spent < BRIEF_NS else field.stage, spent))
    return _filled(parts, whole, dialect.rounding_ns)


def _filled(parts: Parts, whole: dict[str, int], rounding_ns: int) -> Parts | None:
    """Return *parts* with the rest of the total, before or after the first token; None if they exceed the total."""
    before = sum(spent for stage, spent in parts if stage != _AFTER)
    after = sum(spent for _, spent in parts) - before
    total = whole.get(TOTAL, whole.get(TO_FIRST))
    if total is None:
        return parts
    if before + after > total + rounding_ns:
        return None
    first = whole.get(TO_FIRST)
    if first is None or after or TOTAL not in whole:
        return [*parts, (DEPENDENCY, max(0, total - before - after))]
    # The time before the first token is not split further; the time after it is known.
    return [*parts, (DEPENDENCY, first - before), (_AFTER, total - first)] if before <= first <= total else None


def _nanoseconds(value: Any, unit_ns: int) -> int | None:
    try:
        spent = float(value) * unit_ns
    except (TypeError, ValueError, OverflowError):
        return None
    # Also false for NaN.
    return round(spent) if 0 <= spent <= _MAX_NS and not isinstance(value, bool) else None


def is_plausible(dialect: ReportDialect, parts: Parts, wall_ns: int) -> bool:
    """Return whether *parts* fit into a call with the duration *wall_ns*."""
    total = sum(spent for _, spent in parts)
    if total > wall_ns + dialect.rounding_ns:
        return False
    return not (dialect.generates and wall_ns // 2 < total * _NEXT_UNIT <= wall_ns)


def divide_wait(parts: Parts, wait: Wait) -> Marks:
    """Return *parts* as marks in the middle of the *wait*, and the rest as `network`, half on each side.

    For a stream only the wait for the first token counts as `network`: later waits may be caused by its reader. What follows the
    first token starts with it, if it then ends within the wait.

    >>> divide_wait([("queue", 20), ("prefill", 40)], Wait(100, 200))
    ['network@rest', 100, 120, 'queue@reported', 120, 140, 'prefill@reported', 140, 180, 'network@rest', 180, 200]
    >>> divide_wait([("prefill", 40), ("decode", 30)], Wait(100, 250, first=180))
    ['network@rest', 100, 120, 'prefill@reported', 120, 160, 'network@rest', 160, 180, 'decode@reported', 180, 210]
    """
    started, ended, first, headers = wait
    total = sum(spent for _, spent in parts)
    if total <= headers - started:
        ended = headers
    if total > ended - started:
        # Exceeds the wait by at most the rounding error.
        parts = [(stage, spent * (ended - started) // total) for stage, spent in parts]
        total = sum(spent for _, spent in parts)
    lead = sum(spent for stage, spent in parts if stage != _AFTER) if first else total
    at = min(started + max(0, (first or ended) - started - lead) // 2, ended - total)
    marks: Marks = []
    for stage, until in (
        (_REST, at),
        *_ends(parts, at, first, ended - total - at),
        *(() if first else ((_REST, ended),)),
    ):
        if until > started:
            marks += (stage, started, until)
            started = until
    return marks


def _ends(parts: Parts, at: int, first: int, rest: int) -> Iterator[tuple[str, int]]:
    for stage, spent in parts:
        if stage == _AFTER and (late := min(first - at, rest)) > 0:
            at += late
            yield _REST, at
        at += spent
        yield f"{stage}@{REPORTED}", at


_SENT: Final = BY_KEY.keys() - {FRAMEWORK, HANDLER}


def parse_server_timing(header: str) -> dict[str, str]:
    """Return the known metrics of a `Server-Timing` header with their durations, unparsed.

    >>> parse_server_timing('cache;desc="hit, or not", Queue;dur=12.5, total;desc=all;dur=80')
    {'queue': '12.5', 'total': '80'}
    """
    field_names = {field.name for field in SERVER_TIMING.fields}
    durations: dict[str, str] = {}
    for metric in _METRIC.findall(header):
        name, *parameters = (part.strip() for part in _QUOTED.sub("", metric).split(";"))
        name = name.lower()
        pairs = [
            (key.strip().lower(), value.strip())
            for key, _, value in (parameter.partition("=") for parameter in parameters)
        ]
        duration = next((value for key, value in pairs if key == "dur"), None)
        if name in field_names and duration is not None:
            # Two chained servers that both report stages: their owner is ambiguous.
            durations[name] = duration if name not in durations else "twice"
    return durations


def with_timing(message: Any, marks: Marks, start: int, now: int) -> Any:
    """Return *message* with a `Server-Timing` header, or unchanged if it has timings of another server; never raises."""
    try:
        headers = message.get("headers", ())
        present = b", ".join(value for name, value in readable(headers) if name.lower() == _HEADER)
        # A gateway forwards the header of the server behind it; with two reports the stages would be ambiguous.
        if parse_server_timing(present.decode("latin-1")):
            return message
        return {**message, "headers": [*headers, (_HEADER, format_server_timing(marks, start, now).encode())]}
    except Exception:
        log_failure("sending Server-Timing")
        return message


def format_server_timing(marks: Marks, start: int, now: int) -> str:
    """Return the `Server-Timing` value: each stage and the total until *now*, truncated to whole microseconds.

    The time of the framework and of the endpoint's code is only in the total: for the caller, all of it is the service.

    >>> format_server_timing(["@open", 0, 0, "queue", 0, 2_500_000, "forward", 3_000_000, 9_000_000], 0, 10_000_000)
    'forward;dur=6.0, queue;dur=2.5, total;dur=10.0'
    """
    stage_times = partition(
        [interval for interval in read_marks(marks[:]).intervals if interval[0] in _SENT], start, now
    )
    spent = [(stage, stage_times[stage]) for stage in ordered(stage_times) if stage_times[stage] and stage != OVERHEAD]
    return ", ".join(f"{name};dur={duration // 1000 / 1000}" for name, duration in (*spent, (TOTAL, now - start)))
