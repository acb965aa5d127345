"""`stagelens import` on the command line."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from stagelens.core import names
from stagelens.core.errors import StagelensError
from stagelens.core.histogram import Histogram
from tests.support import command_line

TRITON = Path(__file__).parent / "files" / "triton.json"


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path / 'own.db'}"


def run(database: str, *words: str | Path) -> int:
    return command_line.run("import", "--database", database, *words, environment={})


def test_the_output_lists_requests_and_the_next_command(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(database, TRITON) == 0
    output = capsys.readouterr().out

    assert "a Triton JSON trace" in output
    assert "10 requests, from 84 spans; 10 retained as traces" in output
    assert "services  triton-inference-server 10" in output
    assert f"view the data: stagelens dashboard --database {database}" in output


def test_options_set_service_and_environment(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(database, TRITON, "--service", "checkout") == 0
    assert "services  checkout 10" in capsys.readouterr().out


def test_a_second_import_reports_no_new_data(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(gzip.compress(TRITON.read_bytes()))
    run(database, TRITON)
    capsys.readouterr()

    assert run(database, copy) == 0
    assert "10 requests were imported before" in capsys.readouterr().out


def test_an_invalid_file_does_not_affect_others(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").touch()

    assert run(database, "notes.txt", "empty", "missing", tmp_path, TRITON) == 1
    captured = capsys.readouterr()
    assert "10 requests" in captured.out
    assert "notes.txt: has no supported format: line 1 column 1" in captured.err
    assert "OTLP JSON" in captured.err
    assert "empty: is empty" in captured.err
    assert "missing: cannot be read (No such file or directory)" in captured.err
    assert f"{tmp_path}: cannot be read (Is a directory)" in captured.err


def test_a_byte_order_mark_is_accepted_and_utf16_explained(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TRITON.read_text()
    (tmp_path / "marked.json").write_text(text, encoding="utf-8-sig")
    (tmp_path / "wide.json").write_text(text, encoding="utf-16")

    assert run(database, "marked.json") == 0
    assert "10 requests" in capsys.readouterr().out
    assert run(database, "wide.json") == 1
    assert "wide.json: is in UTF-16; write it in UTF-8 instead:  iconv" in capsys.readouterr().err


def test_a_pipe_is_refused_without_waiting(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")

    assert run(database, "pipe", "/dev/zero") == 1
    assert capsys.readouterr().err.count("is a pipe or a device, which cannot be read twice") == 2


@pytest.mark.parametrize("text", ["[" * 200_000, '{"resourceSpans": [' + '{"a":' * 200_000])
def test_endless_nesting_is_refused(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "deep.json").write_text(text)

    assert run(database, "deep.json") == 1
    assert "deep.json: is nested more than 1000 levels deep" in capsys.readouterr().err


def test_brackets_in_strings_are_not_nesting(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace.json").write_text(json.dumps([{"text": "[{" * 2000}, *json.loads(TRITON.read_text())]))

    run(database, "trace.json")
    assert "10 requests" in capsys.readouterr().out


def test_an_empty_compressed_file_is_explained(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.json.gz").write_bytes(b"\x1f\x8b\x08garbage")

    assert run(database, "trace.json.gz") == 1
    assert "trace.json.gz: after 0 bytes inflated: the gzip stream is" in capsys.readouterr().err


def test_a_truncated_file_is_reported_once(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text('{"resourceMetrics": [\n{}], "resourceSpans": [\n{"resour')

    assert run(database, "run.json") == 1
    assert capsys.readouterr().out.count("  skipped: ") == 1


def test_omitted_requests_are_reported(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "trace.json"
    broken.write_text(json.dumps([*([7] * 9), *json.loads(TRITON.read_text())]))

    assert run(database, broken) == 1
    output = capsys.readouterr().out
    assert "skipped: record 1: is not a record of a Triton trace" in output
    assert "skipped: 9 records in total" in output


def test_old_data_are_imported_into_the_tiers_that_retain_them(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.json"
    shutil.copy(TRITON, old)
    then = time.time() - 20 * 86_400
    os.utime(old, (then, then))

    assert run(database, old) == 0
    output = capsys.readouterr().out
    for what in ("buckets of 10 s", "buckets of a minute", "traces"):
        assert f"some data is older than the retention of {what} (" in output


def test_a_file_without_requests_is_reported(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "others.json"
    point = {"attributes": [], "timeUnixNano": "1", **Histogram().to_otlp()}
    metric = {"name": "http.server.request.duration", "exponentialHistogram": {"dataPoints": [point]}}
    metrics = [{"resource": {}, "scopeMetrics": [{"metrics": [metric]}]}]
    file.write_text(json.dumps({"resourceMetrics": metrics, "resourceLogs": [{}]}))

    assert run(database, file) == 0
    output = capsys.readouterr().out
    assert "the file contains no request" in output
    assert "metrics that Stagelens does not use" in output
    assert "logs" in output


def test_custom_rules_apply_to_imports(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    span = {
        "traceId": "1" * 32,
        "spanId": "1" * 16,
        "name": "ours",
        "kind": 1,
        "parentSpanId": "2" * 16,
        "startTimeUnixNano": str(time.time_ns() - 10**9),
        "endTimeUnixNano": str(time.time_ns()),
    }
    resource = {"attributes": [{"key": names.SERVICE_NAME, "value": {"stringValue": "shop"}}]}
    file, rules = tmp_path / "spans.json", tmp_path / "rules.yaml"
    file.write_text(json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}))
    rules.write_text("rules: {spans: [{name: our request, when: {span: ours}, request: true}]}")

    assert run(database, file) == 0
    assert "contains no request" in capsys.readouterr().out
    assert run(database, "--collector-config", rules, file) == 0
    assert "1 requests" in capsys.readouterr().out
    rules.write_text("rules: {spans: [{nme: our request}]}")
    with pytest.raises(StagelensError, match="nme"):
        run(database, "--collector-config", rules, file)
