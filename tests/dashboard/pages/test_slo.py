"""The page of objectives: budgets, what spent them, the rules as they stand, and the links of alerts."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest
from dash.development.base_component import Component

from stagelens.alerts.delivery.message import Finding, LatencyRegression
from stagelens.alerts.evaluation.slo_status import SloStatus
from stagelens.alerts.incidents.lifecycle import IncidentRecord, save_incident
from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader, Incident
from stagelens.analysis.burn_rate import AlertTier
from stagelens.analysis.slo_status import RuleStatus
from stagelens.dashboard.figures.budget import budget_figure, release_markers, spent_figure
from stagelens.dashboard.figures.time_axis import TimeAxis
from stagelens.dashboard.pages.incidents import incident_path, rules_card
from stagelens.dashboard.pages.measures import urgent_first
from stagelens.dashboard.pages.service_charts import CHARTS
from stagelens.dashboard.pages.slo import slo_sentence, time_to_exhaustion
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import span
from stagelens.dashboard.ui.page_export import PageData, children, page_data, text_of
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.routing import context_of, page_of
from stagelens.dashboard.web.shell import environment_menu, side
from stagelens.store import Store
from tests.dashboard.burning_slos import ENV, NOW, SLO
from tests.dashboard.rendering import context_at, page_at, shown
from tests.dashboard.served_versions import Served, write

AXIS = TimeAxis(NOW - timedelta(hours=1), NOW, timedelta(minutes=10), UTC)


@pytest.fixture
def alerts(burning_store: Store, tmp_path: Path) -> AlertsReader:
    path = tmp_path / "slo.yaml"
    path.write_text(SLO, encoding="utf-8")
    return AlertsReader(burning_store, LiveSloFile(path, ENV))


@pytest.fixture
def source(burning_store: Store, alerts: AlertsReader) -> Source:
    return Source(burning_store, alerts, NOW.timestamp)


def page(source: Source, address: str) -> PageData:
    return page_data(page_at(source, address).body)


def links(node: Any) -> Iterator[str]:
    for name in ("href", "data-href"):
        if getattr(node, name, None):
            yield str(getattr(node, name))
    if isinstance(node, Component):
        yield from itertools.chain.from_iterable(links(each) for each in children(node))


def status_of(source: Source, name: str) -> SloStatus:
    return next(each for each in source.slos() if each.slo.name == name)


def test_the_page_starts_with_the_finding(source: Source) -> None:
    text = shown(source, "/slo")

    assert "4 objectives · 2 burning · 1 no data" in text
    assert "of its error budget left (of 30 d at this traffic; so far " in text
    assert "target 99 %) and burns at" in text
    assert " in 1 h; at this rate it is spent in" in text


def test_a_young_objective_says_over_what_its_numbers_are(source: Source) -> None:
    found = status_of(source, "hot-latency")
    text = shown(source, "/slo/hot-latency")
    over = " ".join(f"{span(found.covered)} of data".split())

    assert found.budget_left is not None
    assert found.attained is not None
    assert found.attained < found.slo.objective < 1 - 0.1 * (1 - found.budget_left)
    assert timedelta(hours=1) < found.covered < timedelta(minutes=75)
    assert f"below target in {over.removesuffix(' of data')}" in text
    assert "left of 30 d" in text
    assert "left of 30 d" in shown(source, "/s/hot")
    assert f"good requests in {over.removesuffix(' of data')}, target 99 %" in shown(source, "/")


def test_a_share_inside_says_that_errors_count_as_bad(traffic: ModuleType, store: Store, tmp_path: Path) -> None:
    half = Served("half", "1", 30, rate=4)
    write(store, traffic, half, replace(half, status="error"))
    path = tmp_path / "slo.yaml"
    path.write_text("slos: [{name: half, service: half, objective: 0.99, threshold: 25.5ms, window: 30d}]")
    source = Source(store, AlertsReader(store, LiveSloFile(path, {})), NOW.timestamp)
    context = context_at(source, "/s/half")
    notes = [str(each["text"]) for each in CHARTS["percentile"](context)["layout"]["annotations"]]
    drawn = page(source, "/s/half").charts["percentile"]
    slo = shown(source, "/slo/half")

    shares = r"(\d+\.\d\d)\u202f% of requests inside, (\d\d\.\d\d)\u202f% also without error"
    (found,) = (match for each in notes if (match := re.search(shares, each)))

    assert float(found[2]) == pytest.approx(float(found[1]) / 2, abs=2)
    assert found[0] in drawn.spoken
    assert f"Attained {found[2]} %" in slo


def test_the_shown_bars_add_up_to_the_bad_requests_of_the_burn_rate(source: Source) -> None:
    found = page(source, "/slo/hot-latency?from=now-1h")
    spent = found.charts["spent"].frame
    assert spent is not None
    stages = spent.drop(columns=["time (UTC)", "bad requests"])

    assert stages.sum(axis=1).tolist() == pytest.approx(spent["bad requests"].tolist())
    assert stages.sum().idxmax() == "Queue (requests)"
    text = shown(source, "/slo/hot-latency?from=now-1h")
    assert "Slow requests in the last 1 h spend 1" in text
    assert "more in Queue than good ones, 9" in text
    assert [each.name for each in found.tables] == [
        "Objectives",
        "Mean stage times of good and slow requests",
        "Alert rules",
        "Alert history",
    ]


def test_five_minutes_of_burn_are_five_minutes_in_every_window(source: Source) -> None:
    frames = [
        page(source, f"/slo/hot-latency?from=now-{window}").charts["burn"].frame for window in ("1h", "6h", "24h")
    ]
    steps = [frame["time (UTC)"].diff().min() for frame in frames if frame is not None]

    assert [timedelta(minutes=5) % step for step in steps] == [timedelta(0)] * 3


def test_failures_blame_no_stage(source: Source) -> None:
    found = page(source, "/slo/failing-up?from=now-1h").charts["spent"].frame
    assert found is not None

    text = shown(source, "/slo/failing-up?from=now-1h")

    assert list(found.columns) == ["time (UTC)", "bad requests", "failed"]
    assert "of requests in the last 1 h failed, 100 % of the bad ones: route / (100 % of failures)" in text
    assert "Mean stage times" not in text


@pytest.mark.parametrize("window", ["30d", "7d", "1d", "garbage"])
def test_each_budget_segment_ends_at_the_value_of_the_tile(source: Source, window: str) -> None:
    found = page(source, f"/slo/hot-latency?w={window}").charts["budget"].frame
    assert found is not None
    left = status_of(source, "hot-latency").budget_left
    assert left is not None

    assert found["budget left (%)"].iloc[-1] == pytest.approx(100 * left, abs=0.02)


def test_a_budget_segment_starts_at_the_remaining_budget() -> None:
    at = pd.date_range(AXIS.start, periods=6, freq="10min", tz=UTC)
    series = pd.DataFrame({"at": at, "total": 100, "bad": 5.0})
    figure = budget_figure(
        series,
        AXIS,
        allowed_bad=100,
        window=timedelta(hours=4),
        since=AXIS.start - timedelta(hours=2),
        bad_before=40,
    )
    pace = figure["data"][1]["y"]

    assert pace == pytest.approx([50, 25])
    assert unpacked(figure["data"][0]["y"])[[0, 1, -1]].tolist() == pytest.approx([60, 55, 30])


def unpacked(packed: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["bdata"]), dtype=packed["dtype"])


def test_a_bar_links_to_the_requests_it_counts() -> None:
    at = pd.DatetimeIndex([AXIS.start, AXIS.start + AXIS.step])
    frame = pd.DataFrame({"at": at, "bad": [3.0, 2.0], "unexplained": [0.0, 2.0], "queue": [3.0, 0.0]})
    figure = spent_figure(frame, AXIS, lambda stage, when: f"/traces?dom={stage}&from={when:%H%M}")

    assert [(bar["name"], bar["customdata"]) for bar in figure["data"]] == [
        ("Queue", ["/traces?dom=queue&from=1100", ""]),
        ("Failed", ["", "/traces?dom=&from=1110"]),
    ]
    assert figure["layout"]["yaxis"]["tickvals"] == [0, 1, 2, 3]


def test_labels_of_markers_never_overlap() -> None:
    close = {AXIS.start + timedelta(minutes=30, seconds=step): f"v{step}" for step in range(5)}
    shapes, notes, margin = release_markers(AXIS, close, {AXIS.start + timedelta(minutes=1): "told"})

    assert len(shapes) == 6
    assert [each["text"] for each in notes] == ["<b>▾ told</b>", "<b>▾ v0</b>", "<b>▾ v1</b>"]
    assert {each["yshift"] for each in notes} == {0, 14}
    assert margin == 8 + 2 * 14


def test_a_release_keeps_its_label_among_many_events() -> None:
    at = AXIS.start + timedelta(minutes=30)
    changes = {at - timedelta(seconds=step): f"ingress: keep-alive {step}" for step in range(1, 5)}
    _, notes, _ = release_markers(AXIS, {at: "2.0.0"}, changes)

    assert "<b>▾ 2.0.0</b>" in [each["text"] for each in notes]


def test_the_rules_show_the_state_of_both_windows(source: Source) -> None:
    slo = status_of(source, "hot-latency")
    tier = AlertTier("page", 10.0, timedelta(hours=1), timedelta(minutes=5))
    rules = tuple(
        RuleStatus(tier, *state)
        for state in ((20, 20, True), (5, 20, False), (20, 5, False), (20, 20, False), (5, 5, False))
    )
    rows = page_data([rules_card(replace(slo, rules=rules))]).tables[0].rows

    assert [row[0] for row in rows] == ["Firing", "Pending", "Recovering", "Too few", "Quiet"]
    assert rows[1][1:4] == ["Page at 10\u00d7", "5.0\u00d7 in 1 h", "20\u00d7 in 5 m"]


def test_the_firing_rules_of_the_page_match_the_incident_severity(source: Source) -> None:
    rules = page(source, "/slo/hot-latency").tables[2].rows
    open_one = next(each for each in source.incidents() if each.name == "hot-latency")

    assert any(row[0] == "Firing" and row[1].lower().startswith(open_one.severity) for row in rules)
    assert len(rules) == len(status_of(source, "hot-latency").rules)


@dataclass
class NotifiedAlerts:
    """Alerts whose only incident was sent to several channels."""

    real: AlertsReader
    incident: Incident

    def slos(self, now: datetime | None = None) -> list[SloStatus]:
        return self.real.slos(now)

    def incidents(self) -> list[Incident]:
        return [self.incident]

    def problems(self) -> tuple[str, ...]:
        return self.real.problems()


def test_the_link_of_a_message_opens_its_window(source: Source, alerts: AlertsReader) -> None:
    for incident in alerts.incidents():
        link = urlsplit(incident.link)
        context = context_of(parse(link.path, link.query, NOW + timedelta(days=2)), source)
        found = page_of(context)
        assert found is not None

        assert context.service == incident.service
        assert context.view.start == pytest.approx(incident.since - timedelta(minutes=15), abs=timedelta(seconds=1))
        assert context.view.percentile == 0.99
        assert page_data(found.body).charts
        assert parse_qs(link.query)["from"] == parse_qs(urlsplit(incident_path(context.view, incident)).query)["from"]


def test_an_objective_is_shown_as_of_the_end_of_the_window(source: Source) -> None:
    end = str(int((NOW - timedelta(minutes=42)).timestamp() * 1000))
    start = str(int((NOW - timedelta(minutes=100)).timestamp() * 1000))
    text = shown(source, f"/slo/hot-latency?from={start}&to={end}")

    assert "hot-latency has 100 % of its error budget left and burns at 0.0\u00d7" in text.replace("\u202f", " ")
    assert "No bad request in this window" in text


@pytest.mark.parametrize("path", ["/", "/s/hot", "/regressions", "/compare", "/compare?svc=hot", "/slo"])
def test_a_past_window_excludes_later_data(source: Source, path: str) -> None:
    moments = (str(int((NOW - timedelta(minutes=each)).timestamp() * 1000)) for each in (100, 42))
    address = "{}{}from={}&to={}".format(path, "&" if "?" in path else "?", *moments)
    context = context_at(source, address)
    # What was told of incidents is their history, below on its page.
    text = shown(source, address).partition("Alert history")[0]
    beside = " ".join(
        text_of(each) for each in (side(context, context.view.path, source.state()), environment_menu(context))
    )

    for each in ("Burning", "burning 3", "At risk", "Regression ", "got slower since", "→ 2"):
        assert each not in text + beside
    assert [row.state for row in urgent_first(context) if row.service == "hot"] == ["healthy"]
    assert not context.open_incidents
    assert context_at(source, "/").open_incidents


def test_an_objective_of_a_silent_service_has_no_data(source: Source) -> None:
    text = shown(source, "/slo/silent-latency")

    assert "silent-latency cannot be evaluated: silent had no request in 7 d." in text.replace("\u202f", " ")
    for part in ("no request in its window", "No request of silent", "No request in this window", "No data"):
        assert part in text
    assert "Quiet" not in text


def test_an_objective_within_its_pace_has_no_exhaustion_date(source: Source) -> None:
    found = status_of(source, "calm-latency")
    slow = replace(found, burn_1h=0.9, exhausted_in=timedelta(days=34))

    assert time_to_exhaustion(slow) is None
    assert time_to_exhaustion(replace(slow, burn_1h=1.1)) == timedelta(days=34)
    assert time_to_exhaustion(replace(slow, exhausted_in=timedelta())) == timedelta()
    assert "gone in" not in slo_sentence(parse("/slo", "", NOW), slow)
    assert "lasts for the whole window" in shown(source, "/slo/calm-latency")


def test_an_overspent_budget_shows_the_excess(source: Source, burning_store: Store) -> None:
    found = status_of(source, "hot-latency")
    spent = replace(found, budget_left=-0.5, bad_left=-120.0, bad=360.0, exhausted_in=timedelta())

    @dataclass
    class Overspent(NotifiedAlerts):
        def slos(self, now: datetime | None = None) -> list[SloStatus]:  # noqa: ARG002 - always the same
            return [spent]

    real = AlertsReader(burning_store, LiveSloFile(None, ENV))
    text = shown(Source(burning_store, Overspent(real, source.incidents()[0]), NOW.timestamp), "/slo").replace(
        "\u202f", " "
    )

    assert "hot-latency is 50 % overspent" in text
    assert "360 bad requests, 120 too many" in text
    assert "-50" not in text

    # Beyond a whole budget a share says nothing.
    spent = replace(spent, budget_left=-18.48)
    text = shown(Source(burning_store, Overspent(real, source.incidents()[0]), NOW.timestamp), "/slo")
    assert "hot-latency has spent 19.5\u00d7 its error budget" in text
    assert "1 848" not in text.replace("\u202f", " ")


def test_the_page_shows_the_record_of_regression_alerts(store: Store, tmp_path: Path) -> None:
    began, ended = (NOW - timedelta(hours=2)).timestamp(), NOW.timestamp()
    shift = LatencyRegression(0.99, 0.252, 0.312, 1.18, 1.31, 48_210, 1800.0, 9.3)
    with store.transaction() as connection:
        for number, service in enumerate(("hot", "calm", "calm")):
            found = Finding("tail", service, "", "tail", "ticket", began, shift=shift)
            last = began if service == "hot" else ended
            save_incident(
                connection,
                IncidentRecord(
                    f"sl-{number}", f"tail:{number}", found, began, last, began, None, last, "recovered", heard="over"
                ),
            )
    tables: list[list[list[list[str]]]] = []
    for text in ("regressions: off\n", ""):
        path = tmp_path / "slo.yaml"
        path.write_text(SLO + text, encoding="utf-8")
        source = Source(store, AlertsReader(store, LiveSloFile(path, ENV)), NOW.timestamp)
        tables.append([each.rows for each in page(source, "/slo").tables if each.name == "Regression alerts"][:1])

    assert tables[0] == []
    assert tables[1][0] == [
        ["hot", "1", "0", "0", "1", "0 %", "+25 % 1 wrong in 12 weeks"],
        ["calm", "2", "0", "2", "0", "100 %", "usual"],
        ["All services", "3", "0", "2", "1", "67 %", ""],
    ]


def test_without_alerts_the_page_explains_how_to_start_them(burning_store: Store) -> None:
    assert "Alerts do not run with this dashboard" in shown(Source(burning_store, None, NOW.timestamp), "/slo")


def test_an_invalid_file_is_shown_with_its_line_and_the_objectives_in_force(
    source: Source, alerts: AlertsReader, burning_store: Store
) -> None:
    assert source.slos()
    path = alerts.file.path
    assert path is not None
    path.write_text(SLO.replace("objective: 0.9,", "objective: 9,"), encoding="utf-8")
    later = Source(burning_store, alerts, (NOW + timedelta(minutes=1)).timestamp)
    text = shown(later, "/slo")

    assert "The previous version stays in effect." in text
    assert f"{path}:4" in text
    assert "hot-latency" in text
    overview = shown(later, "/")
    assert "The SLO file cannot be read:" in overview
    assert f"{path}:4" in overview

    never = AlertsReader(burning_store, LiveSloFile(path, ENV))
    assert "None of its objectives is in effect." in shown(Source(burning_store, never, NOW.timestamp), "/slo")


@pytest.mark.parametrize("name", ["no-such", "<script>", "%00", "a" * 300])
def test_an_unknown_objective_links_back_to_the_list(source: Source, name: str) -> None:
    assert "All objectives" in shown(source, f"/slo/{name}")


def test_every_link_of_the_page_opens_a_page(source: Source) -> None:
    found = page_at(source, "/slo")
    addresses = set(itertools.chain.from_iterable(links(each) for each in found.body))

    assert len(addresses) > 6
    for address in addresses:
        page_at(source, address)


def test_event_markers_are_on_the_charts_of_a_service(source: Source) -> None:
    context = context_at(source, "/s/hot?from=now-1h")

    assert set(context.events.values()) == {"2", "two replicas <b>more</b>"}
