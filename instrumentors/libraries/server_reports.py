"""Times that servers report about a call: the known formats as data, their validation, and their conversion to stages.

A field of a `ReportDialect` is a header or a number in the body, and holds the duration of one stage, or of all of them. The
unit of each is fixed. Sources as of November 2026.

A call of one `dependency` becomes the stages of the server and `network`, if the report is possible. Impossible are:
values that are no number or negative; stages that are longer than their total or than the call; a model that was a
thousand times too fast, which means a wrong unit. Such a call stays a `dependency`, and the request gets the fact
`@suspect`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from ..records import MAX_MARKS, REPORTED, REST, Marks

S: Final = 10**9
MS: Final = 10**6
NS: Final = 1

# What a field says that is no stage: all that the server took, and what it took until it had the first token.
TOTAL: Final = "total"
TO_FIRST: Final = "first"

# No model is loaded sooner: starting the process that runs it takes as long.
BRIEF_NS: Final = 500 * MS


class Field(NamedTuple):
    """One number of a dialect.

    Args:
        name: The header, in lower case, or the key in the body.
        unit_ns: What 1 of it is. [nanoseconds]
        stage: The stage it is the length of, or `TOTAL` or `TO_FIRST`.
        brief: The stage it is where it is shorter than `BRIEF_NS`, if that is another.
    """

    name: str
    unit_ns: int
    stage: str
    brief: str = ""


class ReportDialect(NamedTuple):
    """Report format of one kind of server.

    Args:
        name: What it is called in attributes and counts.
        title: What its server is called.
        known_by: The field without which it is not this dialect.
        fields: In the order in which the stages follow each other.
        places: Of a body: each a way of keys to an object that may hold the fields. Headers have none.
        generates: Whether a model generates meanwhile: it takes more than a thousandth of the wait, or the unit is wrong.
        rounding_ns: By how much a true value may be too large. [nanoseconds]
    """

    name: str
    title: str
    known_by: str
    fields: tuple[Field, ...]
    places: tuple[tuple[str, ...], ...] = ()
    generates: bool = True
    rounding_ns: int = 0


# https://github.com/huggingface/text-generation-inference, router/src/server.rs: whole milliseconds, cut off. What it calls
# inference is prefill and decode in one. `x-compute-time` is milliseconds or seconds, by version, and is not read.
TGI: Final = ReportDialect(
    "tgi",
    "Text Generation Inference",
    "x-validation-time",
    (
        Field("x-validation-time", MS, "preprocess"),
        Field("x-queue-time", MS, "queue"),
        Field("x-inference-time", MS, "decode"),
        Field("x-total-time", MS, TOTAL),
    ),
)

# https://docs.fireworks.ai/api-reference/post-completions, `perf_metrics_in_response`. Seconds, as what its answers hold shows:
# 0.044 where the call took 0.65 s. Only dedicated deployments tell of their stages; a stream has no total in its headers.
_FIREWORKS: Final = (
    Field("tokenizer-queue-duration", S, "queue"),
    Field("tokenizer-duration", S, "tokenize"),
    Field("prefill-queue-duration", S, "queue"),
    Field("prefill-duration", S, "prefill"),
    Field("generation-queue-duration", S, "queue"),
    Field("generation-duration", S, "decode"),
    Field("server-time-to-first-token", S, TO_FIRST),
    Field("server-processing-time", S, TOTAL),
)
FIREWORKS: Final = ReportDialect(
    "fireworks",
    "Fireworks",
    "fireworks-server-time-to-first-token",
    tuple(field._replace(name=f"fireworks-{field.name}") for field in _FIREWORKS),
)

# https://www.w3.org/TR/server-timing/#the-server-timing-header-field: `dur` is in milliseconds. Names are anybody's: those
# of our stages are read, as our own ASGI module writes them, and `total`.
SERVER_TIMING: Final = ReportDialect(
    "server-timing",
    "any server, `Server-Timing`",
    "server-timing",
    tuple(
        Field(stage, MS, stage)
        for stage in (
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
            TOTAL,
        )
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
# what the server behind the proxy took, with the way from the proxy to it.
ENVOY: Final = ReportDialect(
    "envoy",
    "Envoy, Istio",
    "x-envoy-upstream-service-time",
    (Field("x-envoy-upstream-service-time", MS, TOTAL),),
    generates=False,
    rounding_ns=MS,
)

# Who says most comes first: an answer may hold several, such as a server's own and that of the proxy before it.
HEADERS: Final = (TGI, FIREWORKS, SERVER_TIMING, OPENAI, ENVOY)

# https://docs.vllm.ai/en/stable/features/per_request_metrics/, with `--enable-per-request-metrics`; of a stream in its last
# chunk. Its first token counts from when it was scheduled: that is prefill alone.
VLLM: Final = ReportDialect(
    "vllm",
    "vLLM",
    "queue_time_ms",
    (
        Field("queue_time_ms", MS, "queue"),
        Field("time_to_first_token_ms", MS, "prefill"),
        Field("generation_time_ms", MS, "decode"),
    ),
    (("metrics",),),
)

# https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md: `timings`.
LLAMA_CPP: Final = ReportDialect(
    "llama.cpp",
    "llama.cpp",
    "prompt_ms",
    (Field("prompt_ms", MS, "prefill"), Field("predicted_ms", MS, "decode")),
    (("timings",),),
)

# https://console.groq.com/docs/api-reference: `usage`, of a stream in `x_groq` of its last chunk. Its `total_time` is without
# the queue, and the sum of the other two.
GROQ: Final = ReportDialect(
    "groq",
    "Groq",
    "prompt_time",
    (Field("queue_time", S, "queue"), Field("prompt_time", S, "prefill"), Field("completion_time", S, "decode")),
    (("usage",), ("x_groq", "usage")),
)

# https://inference-docs.cerebras.ai/api-reference/chat-completions: `time_info`.
CEREBRAS: Final = ReportDialect(
    "cerebras",
    "Cerebras",
    "prompt_time",
    (
        Field("queue_time", S, "queue"),
        Field("prompt_time", S, "prefill"),
        Field("completion_time", S, "decode"),
        Field("total_time", S, TOTAL),
    ),
    (("time_info",),),
)

FIREWORKS_BODY: Final = ReportDialect(
    "fireworks",
    "Fireworks, `perf_metrics_in_response`",
    "server-processing-time",
    _FIREWORKS,
    (("perf_metrics",),),
)

# https://docs.ollama.com/api/usage: nanoseconds. What it loads is the model, which it may have dropped since the last call; one that
# is there is waited for all the same (server/sched.go), and that call is not a cold one.
OLLAMA: Final = ReportDialect(
    "ollama",
    "Ollama",
    "load_duration",
    (
        Field("load_duration", NS, "load", brief="queue"),
        Field("prompt_eval_duration", NS, "prefill"),
        Field("eval_duration", NS, "decode"),
        Field("total_duration", NS, TOTAL),
    ),
    ((),),
)

BODIES: Final = (VLLM, LLAMA_CPP, GROQ, CEREBRAS, FIREWORKS_BODY, OLLAMA)


_logger = logging.getLogger("stagelens")

# What the server did, in order: stage, nanoseconds.
Parts: TypeAlias = list[tuple[str, int]]

DEPENDENCY: Final = "dependency"
# What the server does not take.
_REST: Final = f"network@{REST}"
# From the first token on.
_AFTER: Final = "decode"
# What is longer is no time that anybody waits for; also what a float cannot hold.
_MAX_NS: Final = 86_400 * 10**9
# A model that took less than its unit allows, but would have taken most of the call in the next larger one.
_NEXT_UNIT: Final = 1000


class Wait(NamedTuple):
    """The wait for a response.

    Args:
        begun: When it was asked for. [nanoseconds]
        ended: When all that is told of was there. [nanoseconds]
        first: When the first token was there; 0 for an answer that came as a whole. [nanoseconds]
        headers: When its headers were there, if that was earlier: who answers as a whole has done all by then. [nanoseconds]
    """

    begun: int
    ended: int
    first: int = 0
    headers: int = 0


def record_report(said: Iterable[tuple[ReportDialect, Mapping[str, Any]]], marks: Marks, wait: Wait) -> bool:
    """Record the first plausible report in *said*, and each implausible one before it as suspect."""
    for dialect, values in said:
        parts = parse_stages(dialect, values)
        if parts is not None and is_plausible(dialect, parts, wait.ended - wait.begun):
            if len(marks) < MAX_MARKS:
                marks.extend(divide_wait(parts, wait))
            return True
        _record_suspect(dialect, marks, wait)
    return False


def _record_suspect(dialect: ReportDialect, marks: Marks, wait: Wait) -> None:
    if len(marks) < MAX_MARKS:
        marks.extend(("@suspect", dialect.name, wait.ended - wait.begun))
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
    """Return the stages of the server in order, the rest as `dependency`; None if they cannot be true."""
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
    """Add the rest of the total to *parts*, before or after the first token."""
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
    # What came before the first token is not split any further, what came after it is known.
    return [*parts, (DEPENDENCY, first - before), (_AFTER, total - first)] if before <= first <= total else None


def _nanoseconds(value: Any, unit_ns: int) -> int | None:
    try:
        spent = float(value) * unit_ns
    except (TypeError, ValueError, OverflowError):
        return None
    # False of what is no number, too.
    return round(spent) if 0 <= spent <= _MAX_NS and not isinstance(value, bool) else None


def is_plausible(dialect: ReportDialect, parts: Parts, wall_ns: int) -> bool:
    """Return whether a call of *wall_ns* can have held *parts*."""
    total = sum(spent for _, spent in parts)
    if total > wall_ns + dialect.rounding_ns:
        return False
    return not (dialect.generates and wall_ns // 2 < total * _NEXT_UNIT <= wall_ns)


def divide_wait(parts: Parts, wait: Wait) -> Marks:
    """Return *parts* as marks, and the rest of the *wait* as `network`, half of it on each side.

    For a stream only the wait for the first token counts as wire time: later waits may come from its reader.

    >>> divide_wait([("queue", 20), ("prefill", 40)], Wait(100, 200))
    ['network@rest', 100, 120, 'queue@reported', 120, 140, 'prefill@reported', 140, 180, 'network@rest', 180, 200]
    """
    begun, ended, first, headers = wait
    total = sum(spent for _, spent in parts)
    if total <= headers - begun:
        ended = headers
    if total > ended - begun:
        # By no more than was rounded up.
        parts = [(stage, spent * (ended - begun) // total) for stage, spent in parts]
        total = sum(spent for _, spent in parts)
    lead = sum(spent for stage, spent in parts if stage != _AFTER) if first else total
    at = min(begun + max(0, (first or ended) - begun - lead) // 2, ended - total)
    marks: Marks = []
    for stage, until in ((_REST, at), *_ends(parts, at), *(() if first else ((_REST, ended),))):
        if until > begun:
            marks += (stage, begun, until)
            begun = until
    return marks


def _ends(parts: Parts, at: int) -> Iterator[tuple[str, int]]:
    for stage, spent in parts:
        at += spent
        yield f"{stage}@{REPORTED}", at
