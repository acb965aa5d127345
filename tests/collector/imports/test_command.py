"""`stagelens import` on the command line."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stagelens.core.errors import StagelensError
from stagelens.core.histogram import Histogram
from tests.collector.traces.otlp import NOON_NS, export, span
from tests.support import command_line

TRITON = Path(__file__).parent / "files" / "triton.json"


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in a folder of its own; returns its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run_command(*words: str | Path) -> tuple[int, str, str]:
        code = command_line.run("import", "--database", "sqlite:///own.db", *words, environment={})
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


def test_the_output_lists_requests_and_the_next_command(run: Run) -> None:
    code, output, _ = run(TRITON)

    assert code == 0
    assert "a Triton JSON trace" in output
    assert "10 requests, from 84 spans; 10 retained as traces" in output
    assert "services  triton-inference-server 10" in output
    assert "view the data: stagelens dashboard --database sqlite:///own.db" in output
    assert "10 requests were imported before" in run(TRITON)[1]
    assert "services  checkout 10" in run(TRITON, "--service", "checkout")[1]


def test_an_invalid_file_does_not_affect_others(run: Run, tmp_path: Path) -> None:
    Path("notes.txt").write_text("hello")
    Path("empty").touch()
    os.mkfifo("pipe")
    Path("wide.json").write_text(TRITON.read_text(), encoding="utf-16")
    Path("trace.json.gz").write_bytes(b"\x1f\x8b\x08garbage")
    files = ["notes.txt", "empty", "missing", tmp_path, "pipe", "/dev/zero", "wide.json", "trace.json.gz"]
    code, output, errors = run(*files, TRITON)

    assert code == 1
    assert "10 requests" in output
    for error in (
        "notes.txt: has no supported format: line 1 column 1",
        "OTLP JSON",
        "empty: is empty",
        "missing: cannot be read (No such file or directory)",
        f"{tmp_path}: cannot be read (Is a directory)",
        "pipe: is a pipe or a device, which cannot be read twice",
        "/dev/zero: is a pipe or a device",
        "wide.json: is in UTF-16; write it in UTF-8 instead:  iconv",
        "trace.json.gz: after 0 bytes inflated: the gzip stream is",
    ):
        assert error in errors


@pytest.mark.parametrize("text", ["[" * 200_000, '{"resourceSpans": [' + '{"a":' * 200_000])
def test_endless_nesting_is_refused(run: Run, text: str) -> None:
    Path("deep.json").write_text(text)
    code, _, errors = run("deep.json")

    assert code == 1
    assert "deep.json: is nested more than 1000 levels deep" in errors


RECORDS = json.loads(TRITON.read_text())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A byte order mark, and brackets in strings.
        ("\ufeff" + TRITON.read_text(), ["10 requests"]),
        (json.dumps([{"text": "[{" * 2000}, *RECORDS]), ["10 requests"]),
        (
            json.dumps([*([7] * 9), *RECORDS]),
            ["skipped: record 1: is not a record of a Triton trace", "skipped: 9 records in total"],
        ),
        ('{"resourceMetrics": [\n{}], "resourceSpans": [\n{"resour', ["  skipped: "]),
    ],
)
def test_what_is_not_read_is_reported_once(run: Run, text: str, expected: list[str]) -> None:
    Path("trace.json").write_text(text, encoding="utf-8")
    _, output, _ = run("trace.json")

    assert [output.count(line) for line in expected] == [1] * len(expected)


def test_old_data_are_imported_into_the_tiers_that_retain_them(run: Run) -> None:
    shutil.copy(TRITON, "old.json")
    then = time.time() - 20 * 86_400
    os.utime("old.json", (then, then))
    code, output, _ = run("old.json")

    assert code == 0
    for what in ("buckets of 10 s", "buckets of a minute", "traces"):
        assert f"some data is older than the retention of {what} (" in output


def test_a_file_without_requests_is_reported(run: Run) -> None:
    file = Path("others.json")
    point = {"attributes": [], "timeUnixNano": "1", **Histogram().to_otlp()}
    metric = {"name": "http.server.request.duration", "exponentialHistogram": {"dataPoints": [point]}}
    metrics = [{"resource": {}, "scopeMetrics": [{"metrics": [metric]}]}]
    file.write_text(json.dumps({"resourceMetrics": metrics, "resourceLogs": [{}]}))

    code, output, _ = run(file)

    assert code == 0
    assert "the file contains no request" in output
    assert "metrics that Stagelens does not use" in output
    assert "logs" in output


def test_custom_rules_apply_to_imports(run: Run) -> None:
    now_ms = (time.time_ns() - NOON_NS) / 10**6
    file, rules = Path("spans.json"), Path("rules.yaml")
    file.write_text(json.dumps(export(span("ours", parent=2, start_ms=now_ms - 1000, end_ms=now_ms))))
    rules.write_text("rules: {spans: [{name: our request, when: {span: ours}, request: true}]}")

    assert "contains no request" in run(file)[1]
    assert "1 requests" in run("--collector-config", rules, file)[1]
    rules.write_text("rules: {spans: [{nme: our request}]}")
    with pytest.raises(StagelensError, match="nme"):
        run("--collector-config", rules, file)
