"""Charts as dicts: what is drawn adds up, and no colour is spelt in Python."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.analysis.breakdown import percentile_grid
from stagelens.analysis.comparison import UNKNOWN_ERROR
from stagelens.dashboard.figures.budget import BurnLine, budget_figure, burn_figure
from stagelens.dashboard.figures.compare import both_figure, delta_figure
from stagelens.dashboard.figures.elements import band_labels, log_ticks, ticks
from stagelens.dashboard.figures.heatmap import heat_figure
from stagelens.dashboard.figures.over_time import over_time_figure
from stagelens.dashboard.figures.percentile import Objective, percentile_figure
from stagelens.dashboard.figures.time_axis import Alert, TimeAxis, step_for
from stagelens.dashboard.ui.design_tokens import TOKEN
from stagelens.dashboard.ui.format import percentile

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
AXIS = TimeAxis(START, START + timedelta(minutes=10), timedelta(minutes=1), UTC)
MINUTES = [START + timedelta(minutes=minute) for minute in range(10)]
Figure = dict[str, Any]


def breakdown(requests: int = 20_000, slow: float = 1.0) -> pd.DataFrame:
    grid = np.array(percentile_grid(requests))
    stages = {"forward": 0.02 + 0.004 * grid, "queue": slow * 0.002 / (1.001 - grid), "overhead": 0.001 + 0 * grid}
    total = sum(stages.values())
    bounds = {"value_seconds": total, "low_seconds": total * 0.99, "high_seconds": total * 1.01}
    frame = pd.DataFrame({"percentile": grid, "n": 40, **bounds, **stages})
    frame.attrs["requests"] = requests
    return frame


def over_time(missing: tuple[int, ...] = ()) -> pd.DataFrame:
    at = [each for minute, each in enumerate(MINUTES) if minute not in missing]
    return pd.DataFrame({"at": at, "n": 600, "value_seconds": 0.1, "forward": 0.06, "queue": 0.04})


def cells() -> pd.DataFrame:
    columns = ["at", "low_seconds", "high_seconds", "n", "dominant", "share", "second", "second_share"]
    rows = [
        (at, low, low * 2 ** (1 / 8), n, stage, share, second, 1 - share)
        for at in MINUTES
        for low, n, stage, share, second in ((0.03, 500, "forward", 1.0, ""), (0.3, 7, "queue", 5 / 7, "forward"))
    ]
    return pd.DataFrame(rows, columns=columns)


def quantiles() -> pd.DataFrame:
    """p50 and p99 over the same minutes."""
    return pd.DataFrame({"at": MINUTES, "n": 507, "p50": 0.03, "p99": 0.3})


def counts() -> pd.DataFrame:
    return pd.DataFrame({"at": pd.to_datetime(MINUTES), "total": 100.0, "bad": 2.0})


def burn(counted: pd.DataFrame, *lines: BurnLine) -> Figure:
    long, short = timedelta(minutes=5), timedelta(minutes=1)
    return burn_figure(counted, AXIS, objective=0.99, lines=lines, long=long, short=short)


def figures() -> dict[str, Figure]:
    objective = Objective(0.05, 0.99, 0.95)
    return {
        "percentile": percentile_figure(breakdown(), objective=objective),
        "share": percentile_figure(breakdown(), share=True, even=True),
        "over": over_time_figure(
            over_time(), AXIS, versions={START + timedelta(minutes=4): "v2"}, threshold_seconds=0.05
        ),
        "heat": heat_figure(cells(), quantiles(), AXIS, threshold_seconds=0.1),
        "count": heat_figure(cells(), quantiles(), AXIS, by_stage=False),
        "delta": delta_figure(breakdown(), breakdown(slow=2)),
        "both": both_figure(breakdown(), breakdown(slow=2), ("v1", "v2")),
        "budget": budget_figure(
            counts(), AXIS, allowed_bad=100, window=timedelta(days=30), exhausted_in=timedelta(minutes=3)
        ),
        "burn": burn(counts(), BurnLine(1, "1 sustainable", "$faint")),
    }


def values(packed: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["bdata"]), dtype=packed["dtype"])


def texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for key, value in node.items():
            if key not in {"bdata", "counts", "dominant"}:
                yield from texts(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from texts(value)


def bands(figure: Figure, group: str = "one") -> np.ndarray:
    return np.array([values(trace["y"]) for trace in figure["data"] if trace.get("stackgroup") == group])


def notes(figure: Figure) -> list[str]:
    return [str(note["text"]) for note in figure["layout"]["annotations"]]


def test_a_figure_names_colours_by_token_only() -> None:
    for name, figure in figures().items():
        coloured = [text for text in texts(figure) if text.startswith("$")]

        assert not [text for text in texts(figure) if re.search(r"#[0-9A-Fa-f]{3}|rgb|hsl", text)], name
        assert coloured, name
        assert all(TOKEN.fullmatch(text) for text in coloured), name


def test_stacked_stages_add_up_to_the_line() -> None:
    figure = percentile_figure(breakdown())
    total = next(
        values(trace["y"]) for trace in figure["data"] if trace["mode"] == "lines" and "stackgroup" not in trace
    )

    assert bands(figure).sum(axis=0) == pytest.approx(total, rel=1e-5)
    assert bands(percentile_figure(breakdown(), share=True)).sum(axis=0) == pytest.approx(1.0, rel=1e-5)
    # Named percentiles are written.
    p99 = float(breakdown().loc[np.isclose(breakdown()["percentile"], 0.99), "value_seconds"].iloc[0])
    assert sum("ms</b>" in text for text in notes(figure)) >= 4
    assert any(f"{p99 * 1000:.0f}" in text for text in notes(figure))


@pytest.mark.parametrize(
    ("objective", "label", "has_median"),
    [
        (Objective(0.5, 0.99), ["SLO 500\u202fms"], True),
        (Objective(0.03, 0.99), ["SLO 30\u202fms"], False),
        (
            Objective(0.2, 0.99, 0.9931),
            ["SLO 200\u202fms · 99.31\u202f% of requests inside, target 99\u202f%"],
            True,
        ),
        (Objective(1e3, 0.99), [], True),
    ],
)
def test_the_objective_label_has_attained_and_target_and_priority_over_the_median(
    objective: Objective, label: list[str], has_median: bool
) -> None:
    written = notes(percentile_figure(breakdown(), objective=objective))

    assert [text for text in written if text.startswith("SLO")] == label
    assert any("<b>27" in text for text in written) is has_median


def test_the_area_between_two_versions_has_the_colour_of_the_faster() -> None:
    a, b = breakdown(), breakdown(slow=2)
    b.loc[len(b) - 1, "value_seconds"] = a["value_seconds"].iloc[-1] * 0.9
    crossed, slower = (
        [trace["fillcolor"] for trace in both_figure(a, each, ("v1", "v2"))["data"] if "fillcolor" in trace]
        for each in (b, breakdown(slow=2))
    )

    assert crossed == ["$bad@.10", "$good@.10"]
    assert slower == ["$bad@.10"]


def test_a_difference_within_its_error_has_no_area_and_no_colour() -> None:
    a, b = breakdown(), breakdown(slow=2)
    total = float((b["value_seconds"] - a["value_seconds"]).abs().max())
    errors = [10 * total] * len(a)
    b["value_seconds"] += 20 * total - total
    a["value_seconds"] += 20 * total - total
    delta, both = delta_figure(a, b, errors), both_figure(a, b, ("v1", "v2"), errors)

    assert not bands(delta, "more").any()
    assert not bands(delta, "less").any()
    assert delta["layout"]["yaxis"]["range"][1] >= 10 * total
    unknown = delta_figure(a, b, [*errors[:-1], UNKNOWN_ERROR])
    assert unknown["layout"]["yaxis"]["range"] == delta["layout"]["yaxis"]["range"]
    assert not [trace for trace in both["data"] if "fillcolor" in trace]
    assert "$bad" not in str(both["layout"]["annotations"])


def test_a_change_is_written_above_both_lines() -> None:
    a, b = breakdown(slow=2), breakdown()
    figure = both_figure(a, b, ("v1", "v2"))
    higher = np.log10(np.asarray(np.maximum(a["value_seconds"], b["value_seconds"])))
    written = [annotation for annotation in figure["layout"]["annotations"] if annotation["xref"] == "x"]

    assert written
    assert all(np.isclose(higher, each["y"]).any() for each in written)


@pytest.mark.parametrize("figure", [percentile_figure(breakdown()), delta_figure(breakdown(), breakdown(slow=2))])
def test_a_phone_gets_no_labels_beside_the_plot(figure: Figure) -> None:
    beside = [note for note in figure["narrow"]["annotations"] if note["xref"] == "paper" and note["x"] == 1]

    assert beside == []
    assert any("Queue" in text for text in notes(figure))


def test_gains_and_losses_add_up_to_the_difference() -> None:
    a, b = breakdown(), breakdown(slow=2)
    figure = delta_figure(a, b)
    difference = np.asarray(b["value_seconds"] - a["value_seconds"])

    assert bands(figure, "more").sum(axis=0) + bands(figure, "less").sum(axis=0) == pytest.approx(difference, abs=1e-5)


@given(st.integers(min_value=0, max_value=10**9))
def test_the_grid_ends_at_ten_requests_above_the_percentile(requests: int) -> None:
    grid = percentile_grid(requests)

    assert list(grid) == sorted(set(grid))
    assert all(requests * (1 - each) >= 10 - 1e-4 for each in grid)
    assert all(len(percentile(each)) <= len("p99.44") for each in grid if requests <= 10**6)


def test_a_stage_name_of_the_user_is_text_and_not_html() -> None:
    frame = breakdown().rename(columns={"queue": "<a href='https://evil.example'>"})
    found = " ".join(texts(percentile_figure(frame)))

    assert "<a href" not in found
    assert "&lt;a href" in found


def test_a_version_of_the_user_is_text_and_not_html() -> None:
    written = notes(over_time_figure(over_time(), AXIS, versions={START + timedelta(minutes=4): "<b onclick=x>"}))

    assert any("&lt;b onclick=x&gt;" in text for text in written)


def test_a_reported_release_is_marked_once() -> None:
    seen, reported = {START + timedelta(minutes=5): "v2"}, {START + timedelta(minutes=4): "v2"}
    figure = over_time_figure(over_time(), AXIS, versions=seen, reported=reported)

    assert [text for text in notes(figure) if "v2" in text] == ["<b>▾ v2</b>"]
    assert [each["x0"] for each in figure["layout"]["shapes"] if each["x0"] == each["x1"]] == [
        AXIS.place(START + timedelta(minutes=4))
    ]


def test_the_name_of_a_late_release_stays_in_the_chart() -> None:
    versions = {START + timedelta(minutes=2): "early", START + timedelta(minutes=9, seconds=50): "late"}
    layout = over_time_figure(over_time(), AXIS, versions=versions)["layout"]
    sides = {
        annotation["text"]: annotation["xanchor"] for annotation in layout["annotations"] if "▾" in annotation["text"]
    }

    assert sides == {"<b>▾ early</b>": "left", "<b>▾ late</b>": "right"}


def test_of_thresholds_close_to_each_other_the_highest_is_named() -> None:
    lines = BurnLine(1, "sustainable", "$faint"), BurnLine(14, "page", "$bad")
    apart, close = (burn(counts().assign(bad=bad), *lines) for bad in (15.0, 300.0))

    assert (notes(apart), notes(close)) == (["page", "sustainable"], ["page"])


def test_a_missing_step_is_a_gap() -> None:
    figure = over_time_figure(over_time(missing=(4, 5)), AXIS)
    trace = next(datum for datum in figure["data"] if datum.get("connectgaps") is False)
    line, where = values(trace["y"]), values(trace["x"])
    gap = [AXIS.place(MINUTES[minute]) for minute in (4, 6)]
    alone = values(over_time_figure(over_time(missing=tuple(range(9))), AXIS)["data"][0]["x"])

    assert list(where[np.isnan(line)]) == gap
    assert not ((where > gap[0]) & (where < gap[1])).any()
    # A single step is drawn one step wide.
    assert alone.max() - alone.min() == timedelta(minutes=1).total_seconds() * 1000


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=10).filter(any))
def test_the_time_chart_shows_the_counted_values(there: list[bool]) -> None:
    frame = over_time(missing=tuple(minute for minute, known in enumerate(there) if not known))
    figure = over_time_figure(frame, AXIS)
    line = next(values(trace["y"]) for trace in figure["data"] if trace.get("connectgaps") is False)

    assert bands(figure).sum(axis=0) == pytest.approx(np.nan_to_num(line), abs=1e-6)


def test_steps_with_too_few_requests_are_greyed_and_the_strip_shows_requests_a_second() -> None:
    strip = next(trace for trace in over_time_figure(over_time(), AXIS)["data"] if trace["type"] == "bar")
    assert values(strip["y"]) == pytest.approx(10.0)
    tail, body = (over_time_figure(over_time(), AXIS, quantile=each)["layout"]["shapes"] for each in (0.99, 0.95))

    assert [(shape["x0"], shape["x1"]) for shape in tail] == [(AXIS.place(START), AXIS.place(AXIS.end))]
    assert body == []


def test_an_alert_without_space_for_its_label_keeps_its_marker() -> None:
    starts = [START + timedelta(minutes=minute) for minute in (1, 2)]
    figure = over_time_figure(over_time(), AXIS, alerts=[Alert(at, None, "latency", at == starts[0]) for at in starts])
    narrow = [annotation["text"] for annotation in figure["narrow"]["annotations"]]

    assert notes(figure) == ["■ latency", "◆"]
    assert narrow == ["■", "◆"]


def test_wide_buckets_are_drawn_as_bounds() -> None:
    frame = breakdown()
    frame = frame.assign(low_seconds=0.0625, high_seconds=0.125, value_seconds=0.094)
    figure = percentile_figure(frame)
    dashed = [trace for trace in figure["data"] if trace.get("line", {}).get("dash") == "2px,2px"]

    assert [float(values(trace["y"])[0]) for trace in dashed] == [0.0625, 0.125]
    assert [text for text in notes(figure) if text.endswith("</b>")] == ["<b>62.5\u2013125\u202fms</b>"]
    assert not any(trace.get("line", {}).get("dash") == "2px,2px" for trace in percentile_figure(breakdown())["data"])


def test_a_cell_names_the_two_causes_most_of_its_requests_have() -> None:
    trace = heat_figure(cells(), quantiles(), AXIS)["data"][0]["_cells"]
    first, second, share, others = (
        np.frombuffer(base64.b64decode(trace[name]), "u1") for name in ("dominant", "second", "shares", "others")
    )
    counts = np.frombuffer(base64.b64decode(trace["counts"]), "<u2")
    slow = counts == 7

    assert {trace["labels"][place] for place in first[slow]} == {"Queue"}
    assert {trace["labels"][place] for place in second[slow]} == {"Forward"}
    assert set(share[slow]) == {71}
    assert set(100 - share[slow] - others[slow]) == {29}
    assert set(share[counts == 500]) == {100}


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-60, 40), st.integers(1, 10**6), st.integers(0, 9)),
        min_size=1,
        max_size=60,
        unique_by=lambda cell: (cell[0], cell[2]),
    ),
    st.booleans(),
)
def test_no_request_is_lost_in_the_heatmap(found: list[tuple[int, int, int]], timeless: bool) -> None:
    bands_of = [(2 ** (band / 8), 2 ** ((band + 1) / 8), n, minute) for band, n, minute in found]
    bands_of += [(0.0, 1e-9, 3, 0)] if timeless else []
    frame = pd.DataFrame(bands_of, columns=["low_seconds", "high_seconds", "n", "minute"])
    frame["at"] = pd.to_datetime([START + timedelta(minutes=int(each)) for each in frame["minute"]])
    frame = frame.assign(dominant="forward", share=1.0, second="", second_share=0.0)
    trace = heat_figure(frame, quantiles().iloc[:0], AXIS)["data"][0]
    cells_of = trace["_cells"]
    counts = np.frombuffer(base64.b64decode(cells_of["counts"]), "<u4" if cells_of["wide"] else "<u2")
    edges = values(trace["y"])

    assert counts.sum() == frame["n"].sum()
    assert len(counts) == (len(edges) - 1) * cells_of["columns"] <= 8000
    assert len(values(trace["x"])) == cells_of["columns"] + 1
    assert edges[0] <= min(each[0] for each in bands_of if each[0]) * 1.001
    assert edges[-1] >= max(each[1] for each in bands_of) * 0.999


def test_custom_stages_and_waiting_have_patterns() -> None:
    frame = breakdown().rename(columns={"forward": "rerank"})
    families = {trace["name"]: trace["meta"]["family"] for trace in percentile_figure(frame)["data"] if "meta" in trace}

    assert families == {"rerank": "own", "Queue": "wait", "Unattributed": ""}


@given(st.integers(0, 9_999), st.integers(30_000, 900_000), st.sampled_from([10, 20, 30, 60]))
def test_a_rate_divides_by_the_counted_time(begins_ms: int, length_ms: int, step_seconds: int) -> None:
    start = START + timedelta(milliseconds=begins_ms)
    axis = TimeAxis(start, start + timedelta(milliseconds=length_ms), timedelta(seconds=step_seconds), UTC)
    counted = [at for at in range(0, 1000, 10) if begins_ms <= at * 1000 < begins_ms + length_ms]
    # The store's steps: one that would take all of it is the window.
    width = step_seconds if step_seconds < len(counted) * 10 else 10_000
    steps = pd.Series([max(at // width * width, counted[0]) for at in counted]).value_counts().sort_index()
    covered = axis.covered_seconds(START + timedelta(seconds=at) for at in steps.index)

    assert covered.tolist() == (steps * 10).tolist()


def test_one_step_is_as_wide_as_its_window() -> None:
    start = START + timedelta(minutes=50)
    axis = TimeAxis(start, start + timedelta(hours=1), timedelta(hours=1), UTC)
    frame = over_time().iloc[:1].assign(at=pd.Timestamp(start), n=7200)
    cell = cells().iloc[:1].assign(at=pd.Timestamp(start))
    over, heat = over_time_figure(frame, axis), heat_figure(cell, quantiles().iloc[:0], axis)
    ends = [axis.place(axis.start), axis.place(axis.end)]

    assert next(values(trace["y"]) for trace in over["data"] if trace["type"] == "bar") == pytest.approx(2.0)
    assert np.frombuffer(base64.b64decode(heat["data"][0]["x"]["bdata"]), "<f8").tolist() == ends


def test_a_burn_rate_is_labelled_with_its_window() -> None:
    axis = TimeAxis(START, START + timedelta(hours=10), timedelta(hours=1), UTC)
    long, short = timedelta(hours=6), timedelta(minutes=5)
    figure = burn_figure(counts(), axis, objective=0.99, lines=(), long=long, short=short)
    names = [trace["hovertemplate"].partition(":")[0] for trace in figure["data"]]

    assert names == ["1\u202fh", "6\u202fh"]


@pytest.mark.parametrize(
    ("zone", "night", "hours", "clocks"),
    [
        ("UTC", "2026-10-25T00:00+00:00", 8, [("UTC", 0)]),
        ("Asia/Kathmandu", "2026-10-25T00:00+05:45", 8, [("+0545", 5.75)]),
        ("Europe/Berlin", "2026-10-25T00:00+02:00", 9, [("CEST", 2), ("CET", 1)]),
        ("Europe/Berlin", "2026-03-29T00:00+01:00", 7, [("CET", 1), ("CEST", 2)]),
        ("America/St_Johns", "2026-11-01T00:00-02:30", 9, [("NDT", -2.5), ("NST", -3.5)]),
        ("Australia/Lord_Howe", "2026-04-05T00:00+11:00", 8.5, [("+11", 11), ("+1030", 10.5)]),
    ],
)
def test_an_axis_has_a_place_and_a_text_for_each_instant(
    zone: str, night: str, hours: float, clocks: list[tuple[str, float]]
) -> None:
    start, step = datetime.fromisoformat(night).astimezone(UTC), timedelta(minutes=5)
    axis = TimeAxis(start, start + timedelta(hours=hours), step, ZoneInfo(zone))
    instants = [start + step * number for number in range(int(hours * 12))]
    layout = axis.layout()
    places = [axis.place(instant) for instant in instants]
    low, high = layout["range"]

    assert axis.end.astimezone(axis.zone).hour == 8
    assert (high - low) / 3_600_000 == hours
    assert {later - earlier for earlier, later in pairwise(places)} == {300_000}
    assert len({axis.text(instant) for instant in instants}) == len(instants)
    assert [(name, offset / 3_600_000) for _, offset, name in layout["_clock"]] == clocks
    for since, offset, _ in layout["_clock"]:
        at = datetime.fromtimestamp(since / 1000, axis.zone)
        assert at.utcoffset() == timedelta(milliseconds=offset)


@given(st.timedeltas(min_value=timedelta(minutes=5), max_value=timedelta(days=100)))
def test_a_window_has_thirty_to_a_hundred_and_twenty_steps(length: timedelta) -> None:
    steps = length / step_for(length)

    assert 30 <= steps <= 120


def test_labels_at_the_edge_do_not_touch() -> None:
    placed = band_labels({"forward": 0.1, "h2d": 0.04, "d2h": 0.04, "queue": 0.5, "overhead": 0.001}, 1.0)
    heights = [note["y"] for note in placed]

    assert len(placed) == 4
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(heights))


@given(st.floats(min_value=1e-6, max_value=100), st.integers(min_value=2, max_value=8))
def test_ticks_are_few_and_inside(high: float, wanted: int) -> None:
    found = ticks(0, high, wanted)

    assert 1 <= len(found["tickvals"]) <= 2 * wanted + 2
    assert all(0 <= value <= high * 1.0001 for value in found["tickvals"])


@given(st.floats(min_value=1e-6, max_value=100), st.floats(min_value=1.04, max_value=1e4))
def test_a_logarithmic_axis_always_has_a_scale(low: float, reach: float) -> None:
    found = log_ticks(low, low * reach)

    assert 2 <= len(set(found["ticktext"])) == len(found["tickvals"])
    assert all(low * 0.998 <= value <= low * reach * 1.002 for value in found["tickvals"])


@pytest.mark.parametrize(("bad", "side"), [(0.0, ("right", "top")), (40.0, ("left", "bottom"))])
def test_the_pace_label_does_not_overlap_its_line(bad: float, side: tuple[str, str]) -> None:
    counted = counts().assign(bad=bad)
    figure = budget_figure(counted, AXIS, allowed_bad=100, window=timedelta(minutes=20))
    name = next(
        annotation for annotation in figure["layout"]["annotations"] if annotation["text"] == "sustainable pace"
    )

    assert (name["xanchor"], name["yanchor"]) == side
