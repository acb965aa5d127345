"""Retained traces of three services that call each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stagelens.store import RetainedTrace
from tests.support.raw_requests import NOON, NS, Series

MS = 1_000_000
AT = NOON - 600


def kept(number: int, service: str, parent: str, start: int, stages: dict[str, int]) -> RetainedTrace:
    spans: list[dict[str, Any]] = []
    now = 0
    for stage, spent in stages.items():
        spans.append({"name": stage, "stage": stage, "start_ns": now * MS, "duration_ns": spent * MS, "attributes": {}})
        now += spent
    ids = {name: f"{number:08x}{place:08x}" for place, name in enumerate(("gateway", "ranker", "triton"), 1)}
    return RetainedTrace(
        f"{number:032x}",
        ids[service],
        Series(service),
        AT * NS + start * MS,
        now * MS,
        "slow",
        max(stages, key=lambda stage: stages[stage]),
        {stage: spent * MS for stage, spent in stages.items()},
        spans,
        parent_id=ids.get(parent, parent),
    )


def distributed(number: int, because: str = "slow") -> list[RetainedTrace]:
    found = [
        kept(number, "gateway", "", 0, {"preprocess": 10, "dependency": 90}),
        kept(number, "ranker", "gateway", 20, {"dependency": 60, "postprocess": 10}),
        kept(number, "triton", "ranker", 25, {"queue": 20, "forward": 30}),
    ]
    return [replace(each, because=because) for each in found]
