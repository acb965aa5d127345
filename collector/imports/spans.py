"""Conversion of imported requests into spans in OTLP/JSON, and the rules for these spans."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ...core import names, stages
from ..traces.rule_config import Rule, SpanCondition, StreamRule

SCOPE = "stagelens.import"
TOKEN, FIRST_TOKEN, TOKENS_IN, TOKENS_OUT = "token", "first_token", "tokens.input", "tokens.output"
_SERVER, _INTERNAL, _ERROR = 2, 1, 2
# Approximate number of spans in one export; a request is never split.
EXPORT_SPANS = 2000


@dataclass(frozen=True, slots=True)
class StageInterval:
    stage: str
    start: int
    end: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class ImportedRequest:
    name: str
    start: int
    end: int
    intervals: Sequence[StageInterval] = ()
    attributes: Mapping[str, str | int] = field(default_factory=dict[str, str | int])
    tokens: Sequence[int] = ()
    failed: bool = False


@cache
def import_rules() -> tuple[Rule, ...]:
    request = Rule(
        name="imported request",
        when=(SpanCondition(scope=(SCOPE,), kind=("server",)),),
        request=True,
        model=(names.MODEL,),
        route=(names.ROUTE,),
        device=(names.DEVICE,),
        stream=StreamRule(
            first_token=(FIRST_TOKEN,),
            answers=(TOKEN,),
            tokens_in=(TOKENS_IN,),
            tokens_out=(TOKENS_OUT,),
            definition=names.BY_CLIENT_CHUNK,
            unit="ns",
        ),
    )
    of_stages = (
        Rule(
            name=f"imported {key}",
            when=(SpanCondition(scope=(SCOPE,), attributes={names.STAGE: (key,)}),),
            stage=key,
            request=False,
        )
        for key in stages.BY_KEY
        if key != stages.OVERHEAD
    )
    return (request, *of_stages)


def span_exports(requests: Iterable[ImportedRequest], service: str, digest: str) -> Iterator[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for number, request in enumerate(requests):
        spans += _spans(request, f"{digest}/{number}")
        if len(spans) >= EXPORT_SPANS:
            yield span_export(spans, service, SCOPE)
            spans = []
    if spans:
        yield span_export(spans, service, SCOPE)


def span_export(spans: list[dict[str, Any]], service: str, scope: str) -> dict[str, Any]:
    resource = {"attributes": otlp_attributes({names.SERVICE_NAME: service})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": scope}, "spans": spans}]}]}


def otlp_attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in values.items()
    ]


def make_id(text: str, digits: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=digits // 2).hexdigest()


def otlp_span(
    ids: tuple[str, str, str], name: str, times: tuple[int, int], kind: int, values: Mapping[str, str | int]
) -> dict[str, Any]:
    trace, span_id, parent = ids
    return {
        "traceId": trace,
        "spanId": span_id,
        "parentSpanId": parent,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(times[0]),
        "endTimeUnixNano": str(times[1]),
        "attributes": otlp_attributes(values),
    }


def otlp_event(name: str, at: int) -> dict[str, str]:
    return {"name": name, "timeUnixNano": str(at)}


def _spans(request: ImportedRequest, key: str) -> Iterator[dict[str, Any]]:
    trace, root = make_id(key, 32), make_id(key, 16)
    span = otlp_span((trace, root, ""), request.name, (request.start, request.end), _SERVER, request.attributes)
    span["events"] = [otlp_event(TOKEN, at) for at in request.tokens]
    if request.failed:
        span["status"] = {"code": _ERROR}
    yield span
    for number, interval in enumerate(request.intervals):
        ids = trace, make_id(f"{key}/{number}", 16), root
        yield otlp_span(
            ids,
            interval.name or interval.stage,
            (interval.start, interval.end),
            _INTERNAL,
            {names.STAGE: interval.stage},
        )
