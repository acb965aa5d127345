"""`stagelens compare` as people and pipelines run it: two files, versions or windows, what is written, and the exit code."""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from stagelens.cli import compare as compare_command
from stagelens.cli.saved_run import Run, save_run
from stagelens.collector.imports.spans import ImportedRequest, StageInterval, span_exports
from stagelens.core import names
from stagelens.core.code_stack import CodeFrame, stack_key
from stagelens.core.histogram import Histogram
from stagelens.core.request_histograms import RequestHistograms
from stagelens.store import Batch, Point, Series, Store
from tests.support import command_line

MS = 10**6
NOW = int(time.time()) - 3600
NOW_10 = NOW - NOW % 10


def write_run(
    path: Path, times: Sequence[tuple[float, float]], *, service: str = "shop", route: str = "/", failed: int = 0
) -> Path:
    def requests() -> Any:
        for number, (queued, ran) in enumerate(times):
            start = (NOW + number // 20) * 10**9
            queue = start + int(queued * MS)
            end = queue + int(ran * MS)
            stages = [StageInterval("queue", start, queue), StageInterval("forward", queue, end)]
            yield ImportedRequest("predict", start, end, stages, {names.ROUTE: route}, failed=number < failed)

    path.write_text("\n".join(json.dumps(export) for export in span_exports(requests(), service, path.name)))
    return path


def run_file(path: Path, *, count: int = 500, queue_ms: float = 2, seed: int = 1, **options: Any) -> Path:
    random_ = random.Random(seed)
    return write_run(path, [(random_.expovariate(1 / queue_ms), random_.gauss(20, 1)) for _ in range(count)], **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run_file(folder / "base.json")
    run_file(folder / "same.json", seed=2)
    run_file(folder / "slow.json", seed=3, queue_ms=12)
    run_file(folder / "short.json", seed=4, queue_ms=12, count=30)
    run_file(folder / "fast.json", seed=5, queue_ms=0.2, count=30)
    return folder


def compare(*words: str | Path, **environment: str) -> int:
    return command_line.run("compare", *words, environment=environment)


def window(start: int, end: int) -> str:
    """Return a window for `--windows`, in seconds from now."""
    return "/".join(datetime.fromtimestamp(NOW_10 + at, UTC).isoformat() for at in (start, end))


LIMITS = ("--fail-on", "p90:+10%,stage:queue:p90:+5ms")


def test_a_slower_run_breaks_the_thresholds_and_an_equal_one_passes(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = compare(runs / "base.json", runs / "slow.json", *LIMITS, "--percentile", "p90")
    output = capsys.readouterr().out

    assert code == 1
    (verdict,) = [line for line in output.splitlines() if line.startswith("B is slower at p90 by")]
    assert verdict.endswith("of the change is in Queue.")
    assert output.count("FAILED") == 2
    assert output.count("500 requests of shop") == 2

    assert compare(runs / "base.json", runs / "same.json", *LIMITS) == 0
    output = capsys.readouterr().out
    assert "No significant difference at p90." in output
    assert "of the change is in" not in output
    assert output.count("passed") == 2


def test_the_first_sentence_names_a_broken_stage_threshold_when_totals_are_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, queue in (("a", 2), ("b", 12)):
        choice = random.Random(7)
        write_run(tmp_path / name, [(queue, choice.randint(1, 1000)) for _ in range(500)])

    assert compare(tmp_path / "a", tmp_path / "b", "--fail-on", "stage:queue:p50:+5ms", "--percentile", "p50") == 1
    assert "No significant difference at p50, but over the limit: queue p50 (+9.90 ms)." in (capsys.readouterr().out)


def test_a_run_compared_with_itself_has_no_difference(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "base.json.gz"
    packed.write_bytes(gzip.compress((runs / "base.json").read_bytes()))

    assert compare(runs / "base.json", packed, "--fail-on", "p50:+0%,p99:+0%", "--strict", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert {each["difference_seconds"] for each in document["latency"]} == {0}
    assert {stage["own"]["difference_seconds"] for stage in document["stages"]} == {0}


def test_a_fast_run_of_failures_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound, failing = (
        write_run(tmp_path / f"{failed}.json", [(0, 1)] * failed + [(0, 20)] * (500 - failed), failed=failed)
        for failed in (5, 100)
    )
    where = tmp_path / "found.json", tmp_path / "junit.xml"

    assert compare(sound, failing, "--fail-on", "p50:+10%") == 0
    assert (
        "B has more errors: 1.00 % of A, 20.00 % of B: +14.37 to +24.03 percentage points." in capsys.readouterr().out
    )
    assert compare(sound, failing, "--fail-on", "p50:+10%,errors:+1%", "--json", where[0], "--junit", where[1]) == 1
    assert "FAILED      errors:+1%  1.00 % of A, 20.00 % of B" in capsys.readouterr().out
    assert json.loads(where[0].read_text())["failures"]["b_share"] == 0.2
    suite = ET.parse(where[1])  # noqa: S314 - our own
    assert [each.get("name") for each in suite.iterfind("testcase[failure]")] == ["errors:+1%"]
    assert compare(sound, failing, "--fail-on", "errors:+20%") == 0
    assert compare(failing, sound, "--fail-on", "errors:+0%", "--strict") == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--fail-on", "p99:+10%"), 3),
        (("--fail-on", "p99:+10%", "--strict"), 1),
        (("--fail-on", "p50:+10%"), 1),
        (("--fail-on", "p50:+10%,p99:+10%"), 1),
        (("--fail-on", "p50:+10%", "--min-requests", "31"), 3),
        (("--fail-on", "p50:+10%", "--min-requests", "30"), 1),
        (("--fail-on", "p50:+10%", "--min-requests", "31", "--strict"), 3),
        (("--min-requests", "31"), 3),
        ((), 0),
    ],
)
def test_too_few_requests_differ_from_a_broken_threshold(runs: Path, words: tuple[str, ...], code: int) -> None:
    assert compare(runs / "fast.json", runs / "slow.json", *words) == code


def test_the_json_has_all_numbers(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"

    assert compare(runs / "base.json", runs / "short.json", "--percentile", "p90", "--json", file) == 0
    document = json.loads(file.read_text())

    assert (document["a"]["requests"], document["b"]["requests"]) == (500, 30)
    at = {each["percentile"]: each for each in document["latency"]}
    for side in ("a_seconds", "b_seconds"):
        assert sum(stage[side] for stage in document["stages"]) == pytest.approx(at["p90"][side])
    assert sum(stage["share_of_change"] for stage in document["stages"]) == pytest.approx(1)
    assert document["stages"][0]["stage"] == "queue"
    assert at["p99"]["high_seconds"] is None
    assert at["p50"]["low_seconds"] <= at["p50"]["difference_seconds"] <= at["p50"]["high_seconds"]


def test_a_stage_missing_on_one_side_counts_as_no_time(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = run_file(tmp_path / "a.json", queue_ms=1e-6)
    limit = ("--fail-on", "stage:queue:p50:+1ms")

    assert compare(without, runs / "slow.json", *limit) == 1
    assert compare(runs / "slow.json", without, *limit) == 0
    assert compare(runs / "base.json", runs / "slow.json", "--fail-on", "stage:decode:p50:+1ms") == 0
    assert compare(runs / "base.json", runs / "slow.json", "--fail-on", "stage:quue:+1ms") == 2
    assert "no request has the stage 'quue'; known stages: forward, queue" in capsys.readouterr().err


def test_a_changed_traffic_mix_is_reported(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = run_file(tmp_path / "b.json", route="/large")

    assert compare(runs / "base.json", other) == 0
    assert "The mix of requests differs: route /large is 0 % of A and 100 % of B." in capsys.readouterr().out
    assert compare(runs / "base.json", other, "--route", "/") == 3
    assert "b.json has no request of route '/' of shop: nothing to compare" in capsys.readouterr().err


def test_markdown_and_junit_equal_the_terminal_output(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "base|<b>.json"
    odd.write_bytes((runs / "base.json").read_bytes())
    markdown, junit = tmp_path / "latency.md", tmp_path / "latency.xml"
    limits = "p90:+10%,p90:+900%,p99.9:+1ms"

    assert compare(odd, runs / "slow.json", "--fail-on", limits, "--markdown", markdown, "--junit", junit) == 1
    text = markdown.read_text()
    assert text.startswith("### B is slower at p90 by")
    assert "base\\|&lt;b>.json" in text
    assert "| p90:+10% | FAILED |" in text
    assert "B is slower at p90" in capsys.readouterr().out

    suite = ET.parse(junit).getroot()  # noqa: S314 - our own
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["3", "1", "1"]
    cases = {case.get("name"): [each.tag for each in case] for case in suite.iter("testcase")}
    assert cases == {"p90:+10%": ["failure"], "p90:+900%": [], "p99.9:+1ms": ["error"]}


def test_a_terminal_of_80_columns_shows_every_number(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("NO_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)

    compare(runs / "base.json", runs / "slow.json")
    output = capsys.readouterr().out

    assert "…" not in output
    assert output.count("Queue") == 3


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "give two files"),
        (("base.json",), "give two files"),
        (("base.json", "slow.json", "--versions", "1", "2"), "give two files"),
        (("base.json", "missing.json"), "missing.json: cannot be read"),
        (("base.json", "slow.json", "--fail-on", "p99"), "--fail-on 'p99'"),
        (("base.json", "slow.json", "--fail-on", ""), "--fail-on '': it is empty"),
        (("base.json", "slow.json", "--percentile", "99"), "--percentile: '99' is not a percentile"),
        (("base.json", "slow.json", "--service", "other"), "has no service 'other'; known services: shop"),
        (("base.json", "slow.json", "--environment", "prod"), "--environment applies to stores"),
        (("base.json", "slow.json", "--json", "nowhere/x.json"), "--json nowhere/x.json cannot be written"),
        (("--versions", "1", "2", "--database", "sqlite:///none.db"), "there is no store"),
    ],
)
def test_wrong_usage_is_explained_and_exits_with_2(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    monkeypatch.chdir(runs)

    assert compare(*words) == 2
    assert text in capsys.readouterr().err


def test_ctrl_c_exits_with_130(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_command, "import_file", interrupted)

    assert compare(runs / "base.json", runs / "slow.json", *LIMITS) == 130
    assert "interrupted; nothing was compared" in capsys.readouterr().err


def test_files_of_several_services_and_of_none(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = tmp_path / "both.json"
    lines = [run_file(tmp_path / "x", service=service, seed=9).read_text() for service in ("shop", "search")]
    both.write_text("\n".join(lines))

    assert compare(runs / "base.json", both) == 2
    assert "has several services (shop, search); choose one with --service" in capsys.readouterr().err
    assert compare(runs / "base.json", both, "--service", "shop") == 0
    assert compare(runs / "base.json", run_file(tmp_path / "y", service="shop-pr", seed=8)) == 0
    empty = tmp_path / "empty.json"
    empty.write_text('{"resourceMetrics": [], "resourceSpans": []}')
    assert compare(runs / "base.json", empty) == 3
    assert "contains no request: nothing to compare" in capsys.readouterr().err


def vllm_file(path: Path, *, first_ms: float, gap_ms: float = 5, count: int = 500, seed: int = 1) -> Path:
    random_ = random.Random(seed)
    found = {
        "date": datetime.fromtimestamp(NOW).astimezone().strftime("%Y%m%d-%H%M%S"),
        "backend": "vllm",
        "duration": 100.0,
        "ttfts": [random_.gauss(first_ms, first_ms / 20) / 1000 for _ in range(count)],
        "itls": [[random_.gauss(gap_ms, gap_ms / 20) / 1000 for _ in range(3)] for _ in range(count)],
        "output_lens": [4] * count,
    }
    path.write_text(json.dumps(found))
    return path


def test_times_to_tokens_are_compared_with_thresholds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = vllm_file(tmp_path / "a.json", first_ms=50, gap_ms=20)
    b = vllm_file(tmp_path / "b.json", first_ms=65, gap_ms=15, seed=2)
    markdown, numbers = tmp_path / "latency.md", tmp_path / "latency.json"

    assert compare(a, b, "--fail-on", "p50:+10%,tpot:p50:+10%") == 0
    assert compare(a, b, "--fail-on", "ttft:p50:+10%", "--markdown", markdown, "--json", numbers) == 1
    output = capsys.readouterr().out
    assert "FAILED      ttft:p50:+10%  TTFT p50 +14.8 ms" in output
    assert "| TTFT p99 | " in markdown.read_text()
    found = json.loads(numbers.read_text())["tokens"]
    at = {name: {each["percentile"]: each for each in one["latency"]} for name, one in found.items()}
    assert at["ttft"]["p50"]["difference_seconds"] == pytest.approx(0.015, rel=0.1)
    assert at["tpot"]["p50"]["difference_seconds"] == pytest.approx(-0.005, rel=0.1)
    assert found["ttft"]["definition"] == names.BY_CLIENT_CHUNK


def test_missing_token_times_exit_with_3(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    streamed = vllm_file(tmp_path / "a.json", first_ms=50)
    limit = ("--fail-on", "ttft:+10%", "--strict")

    assert compare(streamed, runs / "base.json", *limit) == 3
    assert "the two sides have no TTFT p99 in common" in capsys.readouterr().out
    assert compare(runs / "base.json", runs / "slow.json", *limit, "--json", "-") == 3
    assert json.loads(capsys.readouterr().out)["thresholds"][0]["measured"] is None


def test_times_by_different_definitions_are_never_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    points: list[Point] = []
    for at, first in (
        (NOW_10 - 1000, {names.BY_ENGINE: 0.1}),
        (NOW_10, {names.BY_ENGINE: 0.2, names.BY_GENERATE: 9.0}),
    ):
        latency = Histogram()
        latency.record(1.0, 500 * len(first))
        points.append(Point(Series("shop"), names.REQUEST_DURATION, "decode", at, latency))
        for definition, seconds in first.items():
            times = Histogram()
            times.record(seconds, 500)
            points.append(Point(Series("shop"), names.FIRST_TOKEN, definition, at, times))
    with closing(Store.open(url)) as opened:
        opened.write([Batch("a", points)])
    windows = window(-1000, -900), window(0, 100)

    assert compare("--windows", *windows, "--fail-on", "ttft:p50:+10%", STAGELENS_DATABASE=url) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "TTFT p50 +99.6 ms" in output
    assert "0 requests of A and 500 requests of B have another definition" in output


def store_of(folder: Path, *periods: tuple[str, int, int, float]) -> str:
    """Return the URL of a store in which each version has 20 requests of so many seconds per 10 s from a start to an end."""
    url = f"sqlite:///{folder / 'store.db'}"
    points: list[Point] = []
    for version, start, end, seconds in periods:
        latency = Histogram()
        latency.record(seconds, 20)
        points += [
            Point(Series("shop", version=version), metric, "forward", at, latency)
            for at in range(NOW_10 + start, NOW_10 + end, 10)
            for metric in (names.REQUEST_DURATION, names.STAGE_DURATION)
        ]
    with closing(Store.open(url)) as opened:
        opened.write([Batch("a", points)])
    return url


@pytest.fixture
def store(tmp_path: Path) -> str:
    return store_of(tmp_path, ("1.0", -7200, -6200, 0.1), ("1.1", -3600, -2600, 0.2))


def test_versions_are_compared_over_their_last_requests(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--database", store, "--service", "shop")

    assert compare(*where, "--versions", "1.0", "1.1", "--window", "5m", "--fail-on", "p99:+50%") == 1
    assert capsys.readouterr().out.count("600 requests of shop") == 2
    assert compare(*where, "--versions", "1.1", "1.0", "--fail-on", "p99:+50%") == 0
    assert compare(*where, "--versions", "1.0", "2.0") == 2
    assert "shop has no version '2.0'; known versions: 1.0, 1.1" in capsys.readouterr().err


@pytest.fixture
def profiled(tmp_path: Path) -> Path:
    resize, prepare = (CodeFrame("serve", name, "serve.py", line) for name, line in (("resize", 41), ("prepare", 36)))
    for name, spent in (("a", 20), ("b", 200)):
        counts = RequestHistograms()
        for number in range(1000):
            own = {"forward": 15 * MS, "preprocess": (spent + number % 7) * MS}
            counts.add(own, sum(own.values()))
            parts = {
                stack_key("preprocess", [prepare]): 5 * MS,
                stack_key("preprocess", [prepare, resize]): (spent - 5) * MS,
            }
            counts.add_profile(parts, sum(own.values()))
        points = [Point(Series("shop"), metric, key, NOW, value) for metric, key, value in counts.histograms()]
        with closing(Store.open(f"sqlite:///{tmp_path / name}.db")) as made:
            made.write([Batch(name, points)])
            save_run(made, tmp_path / name, Run(["serve"], datetime.now(UTC), datetime.now(UTC), 0))
    return tmp_path


def test_the_first_sentence_names_the_function_that_grew(profiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(profiled / "a", profiled / "b") == 0
    assert "% of that in resize (serve.py:41)." in " ".join(capsys.readouterr().out.split())
    assert compare(profiled / "a", profiled / "b", "--json", profiled / "found.json") == 0
    document = json.loads((profiled / "found.json").read_text())
    assert [(function["stage"], function["function"]) for function in document["functions"]] == [
        ("preprocess", "resize (serve.py:41)")
    ]
    capsys.readouterr()
    assert compare(profiled / "b", profiled / "a") == 0
    assert "serve.py" not in capsys.readouterr().out


def test_overlapping_versions_are_compared_over_the_common_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = store_of(tmp_path, ("1.0", -9000, -3600, 0.1), ("1.0", -3600, 0, 0.9), ("1.1", -7200, -3600, 0.1))

    assert compare("--database", url, "--versions", "1.0", "1.1", "--window", "30m", "--json", "-") == 0
    result = json.loads(capsys.readouterr().out)
    time = dict(zip(("from", "to"), window(-5400, -3600).split("/"), strict=True))
    assert {key: result["a"][key] for key in time} == {key: result["b"][key] for key in time} == time
    assert compare("--database", url, "--versions", "1.0", "1.1", "--window", "30m") == 0
    expected = f"3,600 requests of shop, {datetime.fromtimestamp(NOW_10 - 5400, UTC):%Y-%m-%d %H:%M:%S} to"
    assert capsys.readouterr().out.count(expected) == 2


def test_windows_are_compared_and_a_wrong_one_is_explained(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = window(-7200, -6600), window(-3600, -3000)

    assert compare("--windows", old, new, "--fail-on", "p50:+50%", STAGELENS_DATABASE=store) == 1
    assert capsys.readouterr().out.count("200 requests of shop") == 2
    assert compare("--windows", old, window(-60, 0), STAGELENS_DATABASE=store) == 3
    assert compare("--windows", old, window(0, -60), STAGELENS_DATABASE=store) == 2
    assert "the end is not after the start" in capsys.readouterr().err
    assert compare("--windows", old, "yesterday", STAGELENS_DATABASE=store) == 2
    assert "write FROM/TO" in capsys.readouterr().err
