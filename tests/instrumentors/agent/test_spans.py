"""Retained requests as spans: nested requests, facts of a stage, timings and stalls."""

from __future__ import annotations

import pytest

import stagelens
from stagelens.core import names
from stagelens.instrumentors import records, stalls
from stagelens.instrumentors.agent.spans import Span
from stagelens.instrumentors.stalls import Stall
from tests.instrumentors.conftest import Finished, record, trace_of


def spans(record: records.Record) -> list[Span]:
    return trace_of(record).spans


def test_a_request_inside_a_request_is_a_child(finished: Finished) -> None:
    with stagelens.request("outer"), stagelens.stage("preprocess"):
        with stagelens.request("inner"), stagelens.stage("forward"):
            pass
        with stagelens.stage("postprocess"):
            pass
    (record,) = finished
    root, *below = spans(record)
    by_name = {span.name: span for span in below}
    parents = {root.span_id: "outer", **{span.span_id: span.name for span in below}}

    assert root.name == "outer"
    assert {name: parents[span.parent_id] for name, span in by_name.items()} == {
        "preprocess": "outer",
        "inner": "outer",
        "forward": "inner",
        "postprocess": "outer",
    }
    assert names.STAGE not in by_name["inner"].attributes


def test_stage_attributes_are_on_its_span() -> None:
    first = ("forward", 1, 2), ("@model", "detector", 0), ("@batch", 4, 0)
    second = ("forward@gpu", 3, 5), ("@model", "classifier", 0), ("@provider", "CUDAExecutionProvider", 0)
    root, detector, classifier = spans(record(*first, *second, end=9))

    assert detector.attributes == {names.STAGE: "forward", names.MODEL: "detector", names.BATCH_SIZE: 4}
    assert classifier.attributes == {
        names.STAGE: "forward",
        names.TIMING: "gpu",
        names.MODEL: "classifier",
        names.PROVIDER: "CUDAExecutionProvider",
    }
    assert root.attributes["stagelens.timing.forward"] == "gpu"
    assert (root.attributes["stagelens.stage.forward"], root.attributes["stagelens.stage.overhead"]) == (3, 6)


def test_a_call_has_its_host_on_its_span() -> None:
    addresses = enumerate(("api.example.com", b"dns:///ranker:50051", "", object()))
    marks = (("dependency", 2 * at, 2 * at + 1, "@called", address, 0) for at, address in addresses)
    _, *calls = spans(record(*marks, end=9))

    assert [call.attributes.get(names.SERVER) for call in calls[:3]] == ["api.example.com", "ranker", None]


def test_the_root_has_what_is_known_of_the_request() -> None:
    marks = ["@attribute", ("tenant", "acme"), 0, "@attribute", ("tier", ""), 0]
    marks += ["@request_size", "123456", 0, "@queue_length", 0, 0, "@caller", "a=1,stagelens=checkout", 0]
    marks += ["@tokens_in", 5, 0, "@tokens_in", 2, 0, "@batch", 0, 0, "@response_size", "many", 0]
    root, *_ = spans(record(marks))
    plain, *_ = spans(record())
    shown = {key: value for key, value in root.attributes.items() if key.startswith(names.ATTRIBUTE)}

    assert shown == {
        "inference.attribute.tenant": "acme",
        "inference.attribute.request_size": 123_456,
        "inference.attribute.queue_length": 0,
        "inference.attribute.caller": "checkout",
        "inference.attribute.input_tokens": 7,
    }
    assert not [key for key in plain.attributes if key.startswith(names.ATTRIBUTE)]


def test_a_trace_reports_process_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls.stalls, "_ring", [Stall("gc", 12, 15), Stall("gc", 90, 99)])
    stages = ("preprocess", 10, 14), ("forward", 20, 30)
    root, preprocess, forward = spans(record(*stages, start=10, end=40))

    assert root.attributes["stagelens.stall.gc"] == 3
    assert root.attributes["stagelens.stall.gc.preprocess"] == 2
    assert root.attributes["stagelens.stall.gc.overhead"] == 1
    assert preprocess.attributes["stagelens.stall.gc"] == 2
    assert "stagelens.stall.gc" not in forward.attributes


def test_a_request_with_thousands_of_stages_reads_the_stalls_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def during(start: int, end: int) -> list[Stall]:
        asked.append((start, end))
        return [Stall("gc", 0, end)]

    monkeypatch.setattr(stalls.stalls, "during", during)
    root, *below = spans(record(*(("forward", at * 10, at * 10 + 9) for at in range(4000)), end=40_000))

    assert len(asked) <= 2
    assert {span.attributes["stagelens.stall.gc"] for span in below} == {9}
    assert {span.parent_id for span in below} == {root.span_id}
    assert len({span.span_id for span in below}) == len(below)


def test_an_inner_request_with_another_trace_does_not_change_the_outer(finished: Finished) -> None:
    outer, inner = (f"00-{number:032x}-{number:016x}-01" for number in (1, 2))
    with stagelens.request("outer", traceparent=outer), stagelens.request("inner", traceparent=inner):
        pass
    late = record(("@trace", (f"{3:032x}", f"{3:016x}"), 0), ("@traceparent", inner, 0))

    assert [span.parent_id for span in spans(finished[0])][:1] == [f"{1:016x}"]
    assert spans(late)[0].parent_id == ""
