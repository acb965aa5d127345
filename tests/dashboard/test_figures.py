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
from hypothesis import given
from hypothesis import strategies as st

from stagelens.dashboard.figures.budget import BurnLine, budget_figure, burn_figure
from stagelens.dashboard.figures.compare import both_figure, delta_figure
from stagelens.dashboard.figures.heat import heat_figure
from stagelens.dashboard.figures.over_time import over_time_figure
from stagelens.dashboard.figures.parts import band_labels, log_ticks, ticks
from stagelens.dashboard.figures.percentile import Objective, percentile_figure, percentile_grid
from stagelens.dashboard.figures.time_axis import TimeAxis, step_for
from stagelens.dashboard.format import percentile
from stagelens.dashboard.tokens import TOKEN

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
AXIS = TimeAxis(START, START + timedelta(minutes=10), timedelta(minutes=1), UTC)
Figure = dict[str, Any]


def breakdown(requests: int = 20_000, slow: float = 1.0) -> pd.DataFrame:
    """A service whose tail is queueing."""
    grid = np.array(percentile_grid(requests))
    stages = {
        "forward": 0.02 + 0.004 * grid,
        "queue": slow * 0.002 / (1.001 - grid),
        "overhead": np.full(len(grid), 0.001),
    }
    total = sum(stages.values())
    frame = pd.DataFrame(
        {
            "percentile": grid,
            "n": 40,
            "value_seconds": total,
            "low_seconds": total * 0.99,
            "high_seconds": total * 1.01,
            **stages,
        }
    )
    frame.attrs["requests"] = requests
    return frame


def over_time(missing: tuple[int, ...] = ()) -> pd.DataFrame:
    """Ten minutes of it, some of which may be missing."""
    rows = [
        {"at": START + timedelta(minutes=minute), "n": 600, "value_seconds": 0.1, "forward": 0.06, "queue": 0.04}
        for minute in range(10)
        if minute not in missing
    ]
    return pd.DataFrame(rows)


def cells() -> pd.DataFrame:
    """Two bands of latency over time, the slow one dominated by queueing."""
    rows = [
        {
            "at": START + timedelta(minutes=minute),
            "low_seconds": low,
            "high_seconds": low * 2 ** (1 / 8),
            "n": n,
            "dominant": stage,
        }
        for minute in range(10)
        for low, n, stage in ((0.03, 500, "forward"), (0.3, 7, "queue"))
    ]
    return pd.DataFrame(rows)


def quantiles() -> pd.DataFrame:
    """p50 and p99 over the same minutes."""
    at = [START + timedelta(minutes=minute) for minute in range(10)]
    return pd.DataFrame({"at": at, "n": 507, "p50": 0.03, "p99": 0.3})


def counts() -> pd.DataFrame:
    """Good and bad requests over the same minutes."""
    at = [START + timedelta(minutes=minute) for minute in range(10)]
    return pd.DataFrame({"at": pd.to_datetime(at), "total": 100.0, "bad": 2.0})


def figures() -> dict[str, Figure]:
    """One of each chart."""
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
        "burn": burn_figure(
            counts(),
            AXIS,
            objective=0.99,
            lines=(BurnLine(1, "1 sustainable", "$faint"),),
            long=timedelta(minutes=5),
            short=timedelta(minutes=1),
        ),
    }


def values(packed: dict[str, str]) -> np.ndarray:
    """Unpack what a chart carries as bytes."""
    return np.frombuffer(base64.b64decode(packed["bdata"]), dtype=packed["dtype"])


def texts(node: Any) -> Iterator[str]:
    """Yield every text of a figure but its packed numbers."""
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
    """Return the stacked bands of a figure, one row each."""
    return np.array([values(trace["y"]) for trace in figure["data"] if trace.get("stackgroup") == group])


def notes(figure: Figure) -> list[str]:
    """Return the texts written into a figure."""
    return [str(note["text"]) for note in figure["layout"]["annotations"]]


@pytest.mark.parametrize("name", list(figures()))
def test_a_figure_names_colours_by_token_only(name: str) -> None:
    """No hex value, no rgb() and no CSS colour name comes from Python."""
    found = [text for text in texts(figures()[name]) if re.search(r"#[0-9A-Fa-f]{3}|rgb|hsl", text)]
    coloured = [text for text in texts(figures()[name]) if text.startswith("$")]

    assert found == []
    assert coloured
    assert all(TOKEN.fullmatch(text) for text in coloured)


def test_bands_add_up_to_the_line() -> None:
    """The stack's top edge is the latency."""
    figure = percentile_figure(breakdown())
    total = next(
        values(trace["y"]) for trace in figure["data"] if trace["mode"] == "lines" and "stackgroup" not in trace
    )

    assert bands(figure).sum(axis=0) == pytest.approx(total, rel=1e-5)


def test_the_median_gives_way_to_the_promise() -> None:
    """Where both would stand at the same height, the words of the promise stay readable."""
    clear = percentile_figure(breakdown(), objective=Objective(0.5, 0.99))
    crowded = percentile_figure(breakdown(), objective=Objective(0.03, 0.99))

    assert any("<b>27" in each for each in notes(clear))
    assert not any("<b>27" in each for each in notes(crowded))
    assert any("SLO" in each for each in notes(crowded))


def test_percentiles_have_readable_names() -> None:
    """The inspector and the address name them: p97.8 and p99.44, not p97.7613."""
    assert all(len(percentile(each)) <= len("p99.44") for each in percentile_grid(1_000_000))


def test_shares_add_up_to_one() -> None:
    """In Share mode every column is whole."""
    assert bands(percentile_figure(breakdown(), share=True)).sum(axis=0) == pytest.approx(1.0, rel=1e-5)


def test_the_field_between_two_versions_has_the_colour_of_most_of_it() -> None:
    """Lines that cross at their very end do not turn a slower version green."""
    a, b = breakdown(), breakdown(slow=2)
    b.loc[len(b) - 1, "value_seconds"] = a["value_seconds"].iloc[-1] * 0.9
    fills = [trace["fillcolor"] for trace in both_figure(a, b, ("v1", "v2"))["data"] if "fillcolor" in trace]

    assert fills == ["$bad@.10"]


def test_a_phone_gets_no_names_beside_what_b_adds() -> None:
    """They would take a quarter of its width, and the table below has them."""
    figure = delta_figure(breakdown(), breakdown(slow=2))
    beside = [each for each in figure["narrow"]["annotations"] if each["xref"] == "paper" and each["x"] == 1]

    assert beside == []
    assert any("Queue" in each for each in notes(figure))


def test_gains_and_losses_add_up_to_the_difference() -> None:
    """What B adds, less what it saves, is the difference of the latencies."""
    a, b = breakdown(), breakdown(slow=2)
    figure = delta_figure(a, b)
    difference = (b["value_seconds"] - a["value_seconds"]).to_numpy()

    assert bands(figure, "more").sum(axis=0) + bands(figure, "less").sum(axis=0) == pytest.approx(difference, abs=1e-5)


def test_named_percentiles_are_written_as_durations() -> None:
    """p50 to p99.9 carry their value."""
    frame = breakdown()
    p99 = float(frame.loc[np.isclose(frame["percentile"], 0.99), "value_seconds"].iloc[0])
    written = notes(percentile_figure(frame))

    assert sum("ms</b>" in text for text in written) >= 4
    assert any(f"{p99 * 1000:.0f}" in text for text in written)


def test_the_promise_says_how_many_kept_it() -> None:
    """The line of the objective carries attained and target."""
    written = notes(percentile_figure(breakdown(), objective=Objective(0.2, 0.99, 0.9931)))

    assert any("99.31\u202f%" in text and "target 99\u202f%" in text for text in written)


def test_a_promise_above_the_chart_is_not_drawn() -> None:
    """A line outside the plot would squeeze what is inside."""
    assert not any(
        text.startswith("SLO") for text in notes(percentile_figure(breakdown(), objective=Objective(1e3, 0.99)))
    )


def test_a_phone_gets_no_labels_beside_the_plot() -> None:
    """There is no room for them; the table beside the chart is the legend."""
    narrow = percentile_figure(breakdown())["narrow"]["annotations"]

    assert all(not (note["xref"] == "paper" and note["x"] == 1) for note in narrow)


@given(st.integers(min_value=0, max_value=10**9))
def test_the_grid_ends_where_ten_requests_stand_above(requests: int) -> None:
    """No percentile is drawn that the requests cannot tell."""
    grid = percentile_grid(requests)

    assert list(grid) == sorted(set(grid))
    assert all(requests * (1 - each) >= 10 - 1e-4 for each in grid)


def test_a_stage_name_of_the_user_is_text_and_not_html() -> None:
    """Plotly reads a part of HTML in texts; a name must not get there as such."""
    frame = breakdown().rename(columns={"queue": "<a href='https://evil.example'>"})
    found = " ".join(texts(percentile_figure(frame)))

    assert "<a href" not in found
    assert "&lt;a href" in found


def test_a_version_of_the_user_is_text_and_not_html() -> None:
    """The same for what stands above a release."""
    written = notes(over_time_figure(over_time(), AXIS, versions={START + timedelta(minutes=4): "<b onclick=x>"}))

    assert any("&lt;b onclick=x&gt;" in text for text in written)


def test_a_missing_step_is_a_gap() -> None:
    """Nothing is drawn across the time nothing was received."""
    figure = over_time_figure(over_time(missing=(4, 5)), AXIS)
    line = next(values(trace["y"]) for trace in figure["data"] if trace.get("connectgaps") is False)

    assert len(line) == 10
    assert np.isnan(line[[4, 5]]).all()


def test_the_strip_shows_requests_a_second() -> None:
    """600 requests in a minute are 10 a second."""
    figure = over_time_figure(over_time(), AXIS)
    strip = next(values(trace["y"]) for trace in figure["data"] if trace["type"] == "bar")

    assert strip == pytest.approx(10.0)


def test_times_are_shown_in_the_reader_s_zone() -> None:
    """Plotly shows the numbers it gets as UTC: they are shifted before."""
    berlin = TimeAxis(AXIS.start, AXIS.end, AXIS.step, ZoneInfo("Europe/Berlin"))

    assert berlin.place(START) - AXIS.place(START) == timedelta(hours=1).total_seconds() * 1000


@given(st.timedeltas(min_value=timedelta(minutes=5), max_value=timedelta(days=100)))
def test_a_window_has_thirty_to_a_hundred_and_twenty_steps(length: timedelta) -> None:
    """Few enough to read, enough to see a course."""
    steps = length / step_for(length)

    assert 30 <= steps <= 120


def test_every_request_is_in_the_heatmap() -> None:
    """The cells' counts add up to the requests."""
    trace = heat_figure(cells(), quantiles(), AXIS)["data"][0]
    packed = np.frombuffer(base64.b64decode(trace["_cells"]["counts"]), dtype="<u2")

    assert packed.sum() == cells()["n"].sum()
    assert len(packed) % trace["_cells"]["columns"] == 0


def test_labels_at_the_edge_do_not_touch() -> None:
    """Thin neighbours are nudged apart, and bands too thin to point at have no label."""
    placed = band_labels({"forward": 0.1, "h2d": 0.04, "d2h": 0.04, "queue": 0.5, "overhead": 0.001}, 1.0)
    heights = [note["y"] for note in placed]

    assert len(placed) == 4
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(heights))


@given(st.floats(min_value=1e-6, max_value=100), st.integers(min_value=2, max_value=8))
def test_ticks_are_few_and_inside(high: float, wanted: int) -> None:
    """An axis has a handful of ticks, all within it."""
    found = ticks(0, high, wanted)

    assert 1 <= len(found["tickvals"]) <= 2 * wanted + 2
    assert all(0 <= value <= high * 1.0001 for value in found["tickvals"])


def test_ticks_of_a_logarithmic_axis_stand_at_one_and_three() -> None:
    """They read 30 ms, 100 ms, 300 ms."""
    assert log_ticks(0.02, 0.4)["ticktext"] == ["30\u202fms", "100\u202fms", "300\u202fms"]
