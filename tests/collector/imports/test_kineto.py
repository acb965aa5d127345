"""Import of torch.profiler traces: real ones of the installed torch, and constructed GPU events."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.collector.imports import kineto
from stagelens.collector.imports.chrome_events import ChromeEvent
from stagelens.collector.imports.source import ImportFileError

if TYPE_CHECKING:
    from tests.collector.imports.conftest import Taking

BASE = time.time_ns() - 3600 * 10**9
HOST, GPU = {"pid": 1, "tid": 1}, {"pid": 0, "tid": 7}


def event(
    category: str, name: str, start: float, duration: float, lane: dict[str, int] | None = None, **args: Any
) -> Any:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "args": args, **(lane or HOST)}


def trace(*events: Any, **more: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, "traceEvents": events, "baseTimeNanoseconds": BASE, **more}


@pytest.mark.stacks
def test_real_ranges_and_steps_are_requests_with_the_operators_as_forward(taking: Taking, tmp_path: Path) -> None:
    subprocess.run([sys.executable, Path(__file__).with_name("profiled.py"), tmp_path], check=True, capture_output=True)
    imported = taking(tmp_path / "ranges.json")

    assert (imported.requests, imported.broken_count, imported.services) == (3, 0, {"torch": 3})
    assert [(route, set(stages)) for route, stages in taking.stages()] == [
        ("predict", {"preprocess", "forward", "overhead"})
    ] * 3
    written = (tmp_path / "ranges.json").stat().st_mtime
    assert written - 60 <= imported.first <= imported.last <= written
    assert taking(tmp_path / "steps.json.gz").requests == 3
    assert [
        {"tokenize", "forward"} <= set(stages) for route, stages in taking.stages() if route == "ProfilerStep#*"
    ] == [True] * 3


def test_device_work_is_part_of_its_launching_request(taking: Taking) -> None:
    profile = trace(
        event("user_annotation", "predict", 0, 1000),
        event("user_annotation", "postprocess", 700, 100),
        event("cuda_runtime", "cudaMemcpyAsync", 10, 5, correlation=1),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 100, 50, GPU, correlation=1, device=0),
        event("cuda_runtime", "cudaLaunchKernel", 20, 5, correlation=2),
        event("kernel", "gemm", 200, 300, GPU, correlation=2, device=0),
        event("cuda_runtime", "cudaLaunchKernel", 750, 5, correlation=3),
        event("kernel", "softmax", 810, 20, GPU, correlation=3, device=0),
        event("cuda_runtime", "cudaMemcpyAsync", 850, 5, correlation=4),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 900, 200, GPU, correlation=4, device=0),
        event("kernel", "of somebody else", 600, 50, GPU, correlation=99, device=0),
        event("gpu_user_annotation", "predict", 100, 800, GPU),
    )

    assert taking(profile).requests == 1
    assert taking.stages() == [
        ("predict", {"h2d": 50, "forward": 300, "postprocess": 120, "d2h": 100, "overhead": 430})
    ]
    assert taking.dimension("device") == {"cuda:0": 1}


def test_a_range_around_many_requests_hides_none(taking: Taking) -> None:
    profile = trace(
        event("python_function", "nn.Module: Server_0", 0, 5000),
        *(event("user_annotation", "predict", at, 500) for at in (100, 1100)),
        *(event("cpu_op", "aten::linear", at, 200) for at in (200, 1200)),
        *(event("cpu_op", "aten::addmm", at, 100) for at in (210, 1210)),
    )

    assert taking(profile).requests == 2
    assert taking.stages() == [("predict", {"forward": 200, "overhead": 300})] * 2


def test_overlapping_requests_of_several_threads_are_separate(taking: Taking) -> None:
    events = [
        event("user_annotation", f"execute_context_{number}({number * 64})_generation_0(0)", 10 * number, 500, lane)
        for number, lane in enumerate(({"pid": 1, "tid": 1}, {"pid": 1, "tid": 2}), 1)
    ]
    work = [event("cpu_op", "aten::linear", 100, 200, {"pid": 1, "tid": tid}) for tid in (1, 2)]

    assert taking(trace(*events, *work)).requests == 2
    assert taking.stages() == [("execute_context_*(*)_generation_*(*)", {"forward": 200, "overhead": 300})] * 2


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12), st.integers(-1, 31))
def test_the_last_open_range_is_found(ends: list[tuple[int, int]], at: int) -> None:
    ranges = [ChromeEvent("r", "user_annotation", min(pair), max(pair), ("1", "1")) for pair in ends]
    open_ = [each for each in ranges if each.start <= at < each.end]

    found = kineto.Nested(ranges).around(at)

    assert (found is None) == (not open_)
    if found:
        assert found in open_
        assert found.start == max(each.start for each in open_)


def test_without_a_base_times_end_with_the_file(taking: Taking) -> None:
    file = taking.write(trace(event("user_annotation", "predict", 0, 1000), baseTimeNanoseconds=None))
    imported = taking(file)

    assert imported.last <= file.stat().st_mtime < imported.last + 20
    assert any("no date" in note for note in imported.notes)


def test_without_ranges_the_error_explains_how_to_record_them(taking: Taking) -> None:
    with pytest.raises(ImportFileError, match="record_function"):
        taking(trace(event("cpu_op", "aten::linear", 0, 10)))


def test_a_truncated_trace_is_reported_with_its_position(taking: Taking) -> None:
    broken = event("user_annotation", "predict", 0, float("nan"))

    with pytest.raises(ImportFileError, match=r"is not JSON.*the rest has no ranges"):
        taking(trace(broken, event("user_annotation", "predict", 0, 1000)))


def test_an_invalid_event_is_named_and_skipped_alone(taking: Taking) -> None:
    good = event("user_annotation", "predict", 0, 1000)
    marker = {"ph": "i", "name": "Iteration Start", "ts": 1}
    imported = taking(trace(good, marker, {"ph": "X", "name": "x", "ts": "nan", "dur": 1}, 5))

    assert imported.requests == 1
    assert [each.split(":")[0] for each in imported.broken] == ["event 3", "event 4"]


def test_a_trace_that_would_fill_the_memory_is_refused(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "MAX_EVENTS", 3)
    events = [event("cpu_op", "aten::linear", number, 1) for number in range(5)]

    with pytest.raises(ImportFileError, match="profile fewer steps"):
        taking(trace(*events))
