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
from stagelens.dashboard.ui.page_export import children, page_data, text_of
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.shell import environment_menu, side
from stagelens.store import Store
from tests.dashboard.burning_slos import SLO
from tests.dashboard.rendering import alerts_of, check_views, context_at, data_at, page_at, plain, shown, source_of
from tests.dashboard.served_versions import NOW, Served, write

AXIS = TimeAxis(NOW - timedelta(hours=1), NOW, timedelta(minutes=10), UTC)


def moment(minutes: float) -> int:
    return int((NOW - timedelta(minutes=minutes)).timestamp() * 1000)


PAST = f"from={moment(100)}&to={moment(42)}"


@pytest.fixture
def alerts(burning_store: Store, tmp_path: Path) -> AlertsReader:
    return alerts_of(burning_store, tmp_path, SLO)


@pytest.fixture
def source(burning_store: Store, alerts: AlertsReader) -> Source:
    return Source(burning_store, alerts, NOW.timestamp)


def links(node: Any) -> Iterator[str]:
    for name in ("href", "data-href"):
        if getattr(node, name, None):
            yield str(getattr(node, name))
    if isinstance(node, Component):
        yield from itertools.chain.from_iterable(links(child) for child in children(node))


def status_of(source: Source, name: str) -> SloStatus:
    return next(each for each in source.slos() if each.slo.name == name)


def test_an_objective_has_its_budget_what_spent_it_and_its_rules(source: Source) -> None:
    check_views("slo", source)
    check_views("slo_of_service", source)


def test_without_alerts_the_page_explains_how_to_start_them(burning_store: Store) -> None:
    check_views("slo_no_alerts", source_of(burning_store), "/slo")


def test_a_share_inside_says_that_errors_count_as_bad(traffic: ModuleType, store: Store, tmp_path: Path) -> None:
    half = Served("half", "1", 30, rate=4)
    write(store, traffic, half, replace(half, status="error"))
    slos = "slos: [{name: half, service: half, objective: 0.99, threshold: 25.5ms, window: 30d}]"
    source = source_of(store, tmp_path, slos)
    notes = [
        str(annotation["text"])
        for annotation in CHARTS["percentile"](context_at(source, "/s/half"))["layout"]["annotations"]
    ]
    drawn = data_at(source, "/s/half").charts["percentile"]
    shares = r"(\d+\.\d\d)\u202f% of requests inside, (\d\d\.\d\d)\u202f% also without error"
    (found,) = (match for note in notes if (match := re.search(shares, note)))

    assert float(found[2]) == pytest.approx(float(found[1]) / 2, abs=2)
    assert found[0] in drawn.spoken
    assert f"Attained {found[2]} %" in shown(source, "/slo/half")


def test_the_shown_bars_add_up_to_the_bad_requests_of_the_burn_rate(source: Source) -> None:
    spent = data_at(source, "/slo/hot-latency?from=now-1h").charts["spent"].frame
    assert spent is not None
    stages = spent.drop(columns=["time (UTC)", "bad requests"])
    failed = data_at(source, "/slo/failing-up?from=now-1h").charts["spent"].frame
    assert failed is not None

    assert stages.sum(axis=1).tolist() == pytest.approx(spent["bad requests"].tolist())
    assert stages.sum().idxmax() == "Queue (requests)"
    assert list(failed.columns) == ["time (UTC)", "bad requests", "failed"]


def test_five_minutes_of_burn_are_five_minutes_in_every_window(source: Source) -> None:
    frames = [data_at(source, f"/slo/hot-latency?from=now-{each}").charts["burn"].frame for each in ("1h", "6h", "24h")]
    steps = [frame["time (UTC)"].diff().min() for frame in frames if frame is not None]

    assert [timedelta(minutes=5) % step for step in steps] == [timedelta(0)] * 3


def test_each_budget_segment_ends_at_the_value_of_the_tile(source: Source) -> None:
    left = status_of(source, "hot-latency").budget_left
    assert left is not None
    for window in ("30d", "7d", "1d", "garbage"):
        found = data_at(source, f"/slo/hot-latency?w={window}").charts["budget"].frame
        assert found is not None
        assert found["budget left (%)"].iloc[-1] == pytest.approx(100 * left, abs=0.02)


def test_a_budget_segment_starts_at_the_remaining_budget() -> None:
    at = pd.date_range(AXIS.start, periods=6, freq="10min", tz=UTC)
    series = pd.DataFrame({"at": at, "total": 100, "bad": 5.0})
    since = AXIS.start - timedelta(hours=2)
    figure = budget_figure(series, AXIS, allowed_bad=100, window=timedelta(hours=4), since=since, bad_before=40)
    packed = figure["data"][0]["y"]
    values = np.frombuffer(base64.b64decode(packed["bdata"]), dtype=packed["dtype"])

    assert figure["data"][1]["y"] == pytest.approx([50, 25])
    assert values[[0, 1, -1]].tolist() == pytest.approx([60, 55, 30])


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
    at = AXIS.start + timedelta(minutes=30)
    changes = {at - timedelta(seconds=step): f"ingress: keep-alive {step}" for step in range(1, 5)}
    _, crowded, _ = release_markers(AXIS, {at: "2.0.0"}, changes)

    assert len(shapes) == 6
    assert [note["text"] for note in notes] == ["<b>▾ told</b>", "<b>▾ v0</b>", "<b>▾ v1</b>"]
    assert {note["yshift"] for note in notes} == {0, 14}
    assert margin == 8 + 2 * 14
    # A release keeps its label among many events.
    assert "<b>▾ 2.0.0</b>" in [each["text"] for each in crowded]


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


def test_the_link_of_a_message_opens_its_window(source: Source, alerts: AlertsReader) -> None:
    for incident in alerts.incidents():
        link = urlsplit(incident.link)
        address, later = f"{link.path}?{link.query}", NOW + timedelta(days=2)
        context = context_at(source, address, later)

        assert context.service == incident.service
        assert context.view.start == pytest.approx(incident.since - timedelta(minutes=15), abs=timedelta(seconds=1))
        assert context.view.percentile == 0.99
        assert data_at(source, address, later).charts
        assert parse_qs(link.query)["from"] == parse_qs(urlsplit(incident_path(context.view, incident)).query)["from"]


@pytest.mark.parametrize("path", ["/", "/s/hot", "/regressions", "/compare", "/compare?svc=hot", "/slo"])
def test_a_past_window_excludes_later_data(source: Source, path: str) -> None:
    address = f"{path}{'&' if '?' in path else '?'}{PAST}"
    context = context_at(source, address)
    # What was told of incidents is their history, below on its page.
    text = shown(source, address).partition("Alert history")[0]
    text += " ".join(map(text_of, (side(context, context.view.path, source.state()), environment_menu(context))))

    for each in ("Burning", "burning 3", "At risk", "Regression ", "got slower since", "→ 2"):
        assert each not in text
    assert [row.state for row in urgent_first(context) if row.service == "hot"] == ["healthy"]
    assert not context.open_incidents
    assert context_at(source, "/").open_incidents


def test_an_objective_within_its_pace_has_no_exhaustion_date(source: Source) -> None:
    found = status_of(source, "calm-latency")
    slow = replace(found, burn_1h=0.9, exhausted_in=timedelta(days=34))

    assert time_to_exhaustion(slow) is None
    assert time_to_exhaustion(replace(slow, burn_1h=1.1)) == timedelta(days=34)
    assert time_to_exhaustion(replace(slow, exhausted_in=timedelta())) == timedelta()
    assert "gone in" not in slo_sentence(parse("/slo", "", NOW), slow)


@dataclass
class Overspent:
    """Alerts with one objective, which is overspent."""

    spent: SloStatus
    incident: Incident

    def slos(self, now: datetime | None = None) -> list[SloStatus]:  # noqa: ARG002 - always the same
        return [self.spent]

    def incidents(self) -> list[Incident]:
        return [self.incident]

    def problems(self) -> tuple[str, ...]:
        return ()


def test_an_overspent_budget_shows_the_excess(source: Source, burning_store: Store) -> None:
    found = status_of(source, "hot-latency")
    # Beyond a whole budget a share says nothing.
    for left, texts in (
        (-0.5, ["hot-latency is 50 % overspent", "360 bad requests, 120 too many"]),
        (-18.48, ["hot-latency has spent 19.5\u00d7 its error budget"]),
    ):
        spent = replace(found, budget_left=left, bad_left=-120.0, bad=360.0, exhausted_in=timedelta())
        alerts = Overspent(spent, source.incidents()[0])
        text = plain(shown(Source(burning_store, alerts, NOW.timestamp), "/slo"))

        assert [each for each in texts if each not in text] == []
        assert "-50" not in text
        assert "1 848" not in text


def test_the_page_shows_the_record_of_regression_alerts(store: Store, tmp_path: Path) -> None:
    began, ended = (NOW - timedelta(hours=2)).timestamp(), NOW.timestamp()
    shift = LatencyRegression(0.99, 0.252, 0.312, 1.18, 1.31, 48_210, 1800.0, 9.3)
    with store.transaction() as connection:
        for number, service in enumerate(("hot", "calm", "calm")):
            found = Finding("tail", service, "", "tail", "ticket", began, shift=shift)
            last = began if service == "hot" else ended
            times = (began, last, began, None, last, "recovered")
            save_incident(connection, IncidentRecord(f"sl-{number}", f"tail:{number}", found, *times, heard="over"))

    check_views("slo_regressions_off", source_of(store, tmp_path, f"{SLO}regressions: off\n"), "/slo # Regression")
    check_views("slo_regressions", source_of(store, tmp_path, SLO), "/slo # Regression")


def test_an_invalid_file_is_shown_with_its_line_and_the_objectives_in_force(
    source: Source, alerts: AlertsReader, burning_store: Store
) -> None:
    assert source.slos()
    path = alerts.file.path
    assert path is not None
    path.write_text(SLO.replace("objective: 0.9,", "objective: 9,"), encoding="utf-8")
    later = Source(burning_store, alerts, (NOW + timedelta(minutes=1)).timestamp)
    never = Source(burning_store, AlertsReader(burning_store, LiveSloFile(path, {})), NOW.timestamp)

    for found, page, texts in (
        (later, "/slo", ["The previous version stays in effect.", f"{path}:4", "hot-latency"]),
        (later, "/", ["The SLO file cannot be read:", f"{path}:4"]),
        (never, "/slo", ["None of its objectives is in effect."]),
    ):
        assert [each for each in texts if each not in shown(found, page)] == []


def test_every_link_of_the_page_opens_a_page(source: Source) -> None:
    addresses = set(itertools.chain.from_iterable(links(each) for each in page_at(source, "/slo").body))

    assert len(addresses) > 6
    for address in addresses:
        page_at(source, address)


def test_event_markers_are_on_the_charts_of_a_service(source: Source) -> None:
    context = context_at(source, "/s/hot?from=now-1h")

    assert set(context.events.values()) == {"2", "two replicas <b>more</b>"}
