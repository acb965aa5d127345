"""The summary of a run in a terminal and on a page: the numbers of the dashboard with their error bounds."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from stagelens.cli.run_output import print_summary, summarize_run, write_page
from stagelens.cli.saved_run import Run
from stagelens.core.code_stack import CodeFrame, stack_key
from stagelens.core.histogram import Histogram, confidence_interval
from stagelens.core.names import PROBE_DURATION
from stagelens.core.request_histograms import RequestHistograms
from stagelens.dashboard.ui.format import duration
from stagelens.store import Batch, Point, RetainedTrace, Selection, Series, Store
from tests.support.raw_requests import NOON, NS, PointAggregator, Request

MS = 1_000_000
SHOP = Series("shop", route="/items/{id}")
RUN = Run(["python", "serve.py"], datetime.fromtimestamp(NOON, UTC), datetime.fromtimestamp(NOON + 75, UTC), 0)
EVER = (datetime.fromtimestamp(NOON - 7200, UTC), datetime.fromtimestamp(NOON + 7200, UTC))


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    return open_store(clock=lambda: NOON)


def many(number: int, service: Series = SHOP) -> list[Request]:
    return [
        Request(
            {"forward": (10 + index % 10) * MS, "queue": 100 * MS * (index % 50 == 0), "overhead": MS},
            NOON - 600 + index % 60,
            service,
        )
        for index in range(number)
    ]


def trace(service: Series = SHOP, spans: int = 1, name: str = "forward") -> RetainedTrace:
    each = {"name": name, "stage": "forward", "duration_ns": 2 * MS, "attributes": {}}
    inside = [{**each, "start_ns": number * 2 * MS} for number in range(spans)]
    stages = {"forward": 99 * MS, "overhead": MS}
    return RetainedTrace("ab" * 16, "01" * 8, service, (NOON - 600) * NS, 100 * MS, "slow", "forward", stages, inside)


@pytest.fixture
def summary_lines(store: Store) -> Callable[[], list[str]]:
    def lines() -> list[str]:
        file = io.StringIO()
        print_summary(summarize_run(store.read), RUN, Console(file=file, width=80))
        assert "\x1b" not in file.getvalue()
        assert max(map(len, file.getvalue().splitlines())) <= 80
        return file.getvalue().splitlines()

    return lines


def line(lines: list[str], start: str) -> str:
    return next(each for each in lines if each.startswith(start))


def test_the_summary_has_percentiles_with_error_bounds_and_the_stages_of_the_tail(
    store: Store, summary_lines: Callable[[], list[str]]
) -> None:
    store.write([Batch("a", PointAggregator().points(many(2000)))])
    latency = store.read.latency(Selection(*EVER))
    lines = summary_lines()
    values, limits = (lines[lines.index(line(lines, "all")) + each] for each in (0, 1))
    for quantile in (0.5, 0.95, 0.99):
        found = confidence_interval(latency, quantile)
        assert found is not None
        between = [duration(each).split("\u202f")[0] for each in (found.low, found.high)]

        assert duration(found.value).replace("\u202f", " ") in values
        assert "\u2013".join(between) in limits

    assert "2,000 requests in 1 m 15 s" in lines[1]

    queue = line(lines, "Queue").split()

    assert queue[1:5] == ["0", "ms", "100", "ms"]
    assert queue[-1] == "▒" * 28
    assert line(lines, "Total").rstrip().endswith("Queue, 100 % of the increase")
    assert "█" in line(lines, "Forward")


def test_long_texts_are_truncated_before_numbers(store: Store, summary_lines: Callable[[], list[str]]) -> None:
    long = Series("shop", route="/items/" + "x" * 83)
    retained = trace(long, name="a model of some name " * 5)
    store.write([Batch("a", PointAggregator().points([*many(2000), *many(1500, long)]), traces=[retained])])
    text = "\n".join(summary_lines())

    assert not re.search(r"\d\s?…", text)
    assert "…" in text


def write_profiled(store: Store, requests: int) -> None:
    """Write *requests* of which one in fifty is in a function for 100 ms, and one in 25 is sampled."""
    frame = CodeFrame("serve", "resize", "serve.py", 41)
    counts = RequestHistograms()
    for number in range(requests):
        stages = {"forward": 15 * MS, "preprocess": 100 * MS if number % 50 == 0 else MS}
        counts.add(stages, sum(stages.values()))
        if number % 25 == 0:
            counts.add_profile({stack_key(stage, [frame]): stages[stage] for stage in stages}, sum(stages.values()))
    points = [Point(SHOP, metric, key, NOON - 600, value) for metric, key, value in counts.histograms()]
    store.write([Batch("a", points)])


def test_the_summary_names_the_function_of_the_tail(store: Store, summary_lines: Callable[[], list[str]]) -> None:
    write_profiled(store, 2000)
    lines = summary_lines()

    resize = next(each for each in lines if each.startswith("resize (serve.py:41)") and each.endswith("Preprocess"))
    usual, tail = (float(word) for word in resize.split()[2:6:2])
    assert (usual, tail) == (pytest.approx(1, rel=0.03), pytest.approx(100, rel=0.03))
    assert any(each.endswith("stagelens run --stage preprocess=serve:resize") for each in lines)


@pytest.mark.parametrize(("requests", "at"), [(2000, "p99"), (600, "p95"), (90, "")])
def test_the_page_has_the_functions_at_the_highest_percentile(
    store: Store, tmp_path: Path, requests: int, at: str
) -> None:
    write_profiled(store, requests)
    write_page(store, tmp_path / "run.html", RUN)
    page = (tmp_path / "run.html").read_text(encoding="utf-8")

    assert re.findall(r"Your code at (p\d+)", page) == ([at] if at else [])
    assert ("--stage preprocess=serve:resize" in page) is bool(at)


def test_percentiles_with_too_few_requests_are_omitted(store: Store, summary_lines: Callable[[], list[str]]) -> None:
    store.write([Batch("a", PointAggregator().points(many(30)))])
    some = summary_lines()
    store.write([Batch("b", PointAggregator().points(many(5, Series("few"))))])
    few = summary_lines()[len(some) :]

    assert "needs 200" in "".join(some)
    assert "needs 1,000" in "".join(some)
    assert re.search(r"Where the time goes +p50", "\n".join(some))
    assert "needs 20 " in "".join(few)
    assert re.search(r"Where the time goes +mean", "\n".join(few))


def test_errors_routes_and_losses_are_reported(store: Store, summary_lines: Callable[[], list[str]]) -> None:
    routes = [many(60 - number, Series("shop", route=f"/{number}")) for number in range(10)]
    failed = many(15, Series("shop", route="/0", status="error"))
    points = PointAggregator().points([each for own in routes for each in own] + failed)
    probes = Point(Series("shop", route="/healthz"), PROBE_DURATION, "untimed", NOON - 600, Histogram(zero=7))
    store.write([Batch("a", [*points, probes], dropped=4)])
    text = "\n".join(summary_lines())

    assert "15 errors, 2.63 %" in text
    assert re.findall(r"^(/\d)", text, re.MULTILINE) == [f"/{number}" for number in range(8)]
    assert "and 2 routes more" in text
    assert "4 requests could not be counted" in text
    assert "7 health probes not included" in text
    assert "/healthz" not in text


def test_the_slowest_request_is_a_waterfall(store: Store, summary_lines: Callable[[], list[str]]) -> None:
    store.write([Batch("a", PointAggregator().points(many(20)), [trace(spans=20)])])
    lines = summary_lines()
    rows = [each for each in lines[lines.index(line(lines, "The slowest")) :] if each.startswith("Forward")]
    starts = [row.index("█") for row in rows]

    assert len(rows) == 12
    assert starts == sorted(starts)
    assert "8 shorter intervals" in "\n".join(lines)
    assert "/items/{id}  abababab" in line(lines, "The slowest")


def test_a_page_of_several_services_has_a_section_for_each(store: Store, tmp_path: Path) -> None:
    services = [Series(f"service-{number}", route="/x") for number in range(2)]
    for service in services:
        store.write([Batch(service.service, PointAggregator().points(many(200, service)), [])])
    path = tmp_path / "run.html"
    write_page(store, path, RUN)
    text = path.read_text()
    slots = Counter(re.findall(r'data-chart="([\w-]+)"', text))

    assert set(slots.values()) == {1}
    assert sorted(slots) == sorted(re.findall(r'data-spec="([\w-]+)"', text))
    assert {"percentile", "percentile-1"} <= slots.keys()
    assert text.count("data-inspector=") == 1
    assert all(f">{service.service}</h1>" in text for service in services)


def test_a_page_without_requests_has_a_notice(store: Store, tmp_path: Path) -> None:
    run = Run(["python", "<script>"], RUN.start, RUN.start + timedelta(seconds=1), 3)
    write_page(store, tmp_path / "run.html", run)
    text = (tmp_path / "run.html").read_text()

    assert "No request was recorded" in text
    assert "python &#x27;&lt;script&gt;&#x27; ended with exit code 3" in text.replace("'", "&#x27;")
