"""Built-in rules: one test file per convention, with its documented names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagelens.collector.ingest.validation import IngestResult
from stagelens.collector.otlp.model import JSON, PROTOBUF
from stagelens.collector.traces.columns import Flag, Label, Spans, StreamMeasurements
from stagelens.collector.traces.rule_config import Rule, SpanCondition, SpanFacts, built_in
from stagelens.collector.traces.rules import RuleSet
from stagelens.collector.traces.span_reader import SpanReader
from stagelens.core import names, stages
from stagelens.core.health_probes import PROBES, ProbePolicy
from tests.collector.traces.otlp import ALWAYS, KINDS, NOON_NS, as_protobuf, export, read, read_spans, span

FOLDER = Path(__file__).parent / "spans"
SPANS: list[tuple[str, str, dict[str, Any]]] = [
    (f"{file.stem} {place}: {case['name']}", content["scope"], case)
    for file in sorted(FOLDER.glob("*.json"))
    for content in [json.loads(file.read_text(encoding="utf-8"))]
    for place, case in enumerate(content["spans"])
]
CASES = [pytest.param(scope, case, id=name) for name, scope, case in SPANS]
RULES = RuleSet(built_in())


def written(case: dict[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in case.items() if key != "expect"}
    return span(**fields)


def label(spans: Spans, row: int = 0) -> Label:
    return spans.labels[spans.rows["label"][row]]


@pytest.mark.parametrize(("scope", "case"), CASES)
def test_a_span_is_classified_by_its_convention(scope: str, case: dict[str, Any]) -> None:
    expected = case["expect"]
    spans = read(export(written(case), scope=scope))
    found = label(spans)
    own = spans.rows[0]
    parts = [
        [label(spans, place).stage, (row["start"] - NOON_NS) / 1e6, (row["end"] - NOON_NS) / 1e6]
        for place, row in enumerate(spans.rows)
        if row["flags"] & Flag.DERIVED and row["parent"] == own["span"] and row["span"] == 0
    ]
    stream = StreamMeasurements(*spans.streams[0].tolist()[1:]) if len(spans.streams) else StreamMeasurements()

    facts = SpanFacts(scope, case["name"], case["kind"], case.get("values", {}), {}, not case.get("parent"))
    assert RULES.find(facts).name == expected.get("rule", "no rule")
    # Prompts, queries and addresses are not stored.
    assert "secret" not in repr((spans.labels, spans.sources))
    for key in ("name", "stage", "head", "request", "model", "model_version", "route"):
        if key in expected:
            assert getattr(found, key) == expected[key], key
    assert parts == expected.get("parts", [])
    assert [stream.first_token_ns / 1e6, stream.tokens_in, stream.tokens_out] == expected.get("stream", [0, 0, 0])
    if "definition" in expected:
        assert found.definition == expected["definition"]
    if "shown" in expected:
        assert dict(found.attributes) == expected["shown"]
    assert own["start"] == NOON_NS + expected.get("start", 0) * 10**6


def test_every_built_in_rule_has_a_span_a_source_and_known_stages() -> None:
    shown = {case["expect"].get("rule") for _, _, case in SPANS}
    used = {stage for rule in built_in() for stage in (rule.stage, rule.head, *(part.stage for part in rule.parts))}

    assert {rule.name for rule in built_in()} - shown == set()
    assert used - {""} <= stages.BY_KEY.keys() - {stages.OVERHEAD}
    assert all(rule.source for rule in built_in())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parent", [0, 9])
def test_without_a_rule_kind_and_parent_decide(kind: str, parent: int) -> None:
    found = label(read(export(span(kind=kind, parent=parent))))

    assert found.request is (kind in {"server", "consumer"} or (kind == "internal" and not parent))
    for value, flag in ((True, Flag.COUNTED), (False, 0), ("true", 0), (1, 0)):
        counted = span(kind=kind, parent=parent, end_ms=1, values={names.COUNTED: value})
        assert read(export(counted)).rows["flags"][0] & Flag.COUNTED == flag
    assert found.stage == ("dependency" if kind in {"client", "producer"} else "")


def test_custom_rules_have_priority() -> None:
    slow = SpanCondition(attributes={"http.route": ("/slow/*",)}, resource={"service.name": ("shop*",)})
    own = (
        Rule(name="one route", when=(slow,), stage="load", request=False),
        Rule(name="all of HTTP", when=(SpanCondition(kind=("server",)),), stage="queue"),
    )
    for route, service, expected in (
        ("/slow/one", "shop-eu", ("load", False)),
        ("/slow/one", "stock", ("queue", True)),
        ("/fast", "shop-eu", ("queue", True)),
    ):
        sent = span(kind="server", values={"http.request.method": "GET", "http.route": route})
        found = label(read(export(sent, resource={"service.name": service}), own))

        assert (found.stage, found.request) == expected


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        (("a?c",), "abc", True),
        (("a?c",), "abbc", False),
        (("a*",), "a\nb", True),
        (("a.c",), "abc", False),
        (("true",), True, True),
        (("1",), True, False),
        (("200", "2.5"), 200, True),
        (("200", "2.5"), 2.5, True),
        (("*",), "", True),
    ],
)
def test_conditions_match_wildcards_and_values(
    condition: tuple[str, ...], value: str | float | bool, holds: bool
) -> None:
    facts = SpanFacts("", "", "internal", {"key": value}, {}, root=False)

    assert SpanCondition(attributes={"key": condition}).matches(facts) is holds


def test_a_name_can_be_a_template_of_attributes() -> None:
    own = (
        Rule(
            name="job",
            when=(SpanCondition(span=("job *",)),),
            called="job {job.kind}",
            route=("{job.kind}/{job.size}", "job.kind"),
        ),
    )
    full = label(read(export(span("job 7", values={"job.kind": "embed", "job.size": 3})), own))
    part = label(read(export(span("job 7", values={"job.kind": "embed"})), own))
    none = label(read(export(span("job 7")), own))

    assert [(each.name, each.route) for each in (full, part, none)] == [
        ("job embed", "embed/3"),
        ("job embed", "embed"),
        ("job 7", ""),
    ]


def test_a_health_probe_is_recognised_by_route_name_path_and_agent() -> None:
    method = {"http.request.method": "GET"}
    probes = [
        ("GET /healthz", {**method, "http.route": "/healthz"}, "/healthz"),
        ("GET /livez", method, PROBES),
        ("GET", {**method, "url.path": "/v2/health/ready"}, PROBES),
        ("HTTP GET", {"http.method": "GET", "http.target": "/ping?secret=1"}, PROBES),
        ("GET /", {**method, "http.route": "/", "user_agent.original": "kube-probe/1.31"}, PROBES),
        (
            "grpc.health.v1.Health/Check",
            {"rpc.system": "grpc", "rpc.service": "grpc.health.v1.Health", "rpc.method": "Check"},
            "grpc.health.v1.Health/Check",
        ),
    ]
    users = [
        ("POST /ping", {"http.request.method": "POST", "http.route": "/ping"}),
        ("GET /", {**method, "http.route": "/", "user_agent.original": "secret/1"}),
        *(("GET", {**method, "url.path": f"/items/secret-{number}"}) for number in range(300)),
    ]
    nodes = [
        span(name, kind="server", id=place + 1, values=values)
        for place, (name, values, *_) in enumerate([*probes, *users])
    ]
    for media_type, body in ((JSON, json.dumps(export(*nodes)).encode()), (PROTOBUF, as_protobuf(export(*nodes)))):
        spans = read_spans(SpanReader(), media_type, body, ALWAYS, IngestResult()).spans
        is_probe = (spans.rows["flags"] & Flag.PROBE) != 0

        assert [label(spans, int(row)).route for row in np.flatnonzero(is_probe)] == [route for *_, route in probes]
        assert is_probe[: len(probes)].all()
        assert "secret" not in repr(spans.labels)
    none = read_spans(
        SpanReader(probes=ProbePolicy.parse("none")), JSON, json.dumps(export(*nodes)).encode(), ALWAYS, IngestResult()
    )
    assert not (none.spans.rows["flags"] & Flag.PROBE).any()
