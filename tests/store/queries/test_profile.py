"""Call stacks of requests at a percentile, compared with the raw samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from stagelens.analysis.profile import ProfileBand
from stagelens.core.code_stack import CodeFrame, stack_key
from stagelens.core.histogram import Histogram
from stagelens.core.names import PROFILE_TIME
from stagelens.core.request_histograms import RequestHistograms
from stagelens.store import Batch, Point, schema, series
from stagelens.store.full_export import open_export
from stagelens.store.queries.profile import ENOUGH_SAMPLED
from tests.support.raw_requests import NOON, SHOP, OpenSite, Series, Site

PREDICT = CodeFrame("serve", "predict", "serve.py", 30)
RESIZE = CodeFrame("serve", "resize", "serve.py", 41)
FRAMES = (PREDICT, RESIZE)
MS = 1_000_000


@dataclass(frozen=True)
class Sampled:
    stages: Mapping[str, int]
    stacks: Mapping[str, int]


@st.composite
def sampled(draw: st.DrawFn) -> Sampled:
    stages: dict[str, int] = draw(
        st.dictionaries(st.sampled_from(["forward", "handler", "rerank"]), st.integers(10**6, 10**9), min_size=1)
    )
    stacks: dict[str, int] = {}
    for stage, spent in stages.items():
        part = draw(st.integers(0, spent // 10**4)) * 10**4
        stacks |= {stack_key(stage, (PREDICT,)): part, stack_key(stage, FRAMES): spent - part}
    return Sampled(stages, stacks)


def batch(name: str, requests: Sequence[Sampled], about: Series = SHOP) -> Batch:
    counts = RequestHistograms()
    for each in requests:
        counts.add(each.stages, sum(each.stages.values()))
        if each.stacks:
            counts.add_profile(each.stacks, sum(each.stages.values()))
    return Batch(name, [Point(about, metric, key, NOON - 600, value) for metric, key, value in counts.histograms()])


def by_stage(band: ProfileBand) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, seconds in band.stacks.items():
        found[key.split(";")[0]] = found.get(key.split(";")[0], 0.0) + seconds
    return found


@settings(max_examples=8, deadline=None)
@given(requests=st.lists(sampled(), min_size=1, max_size=30), quantile=st.floats(0, 1))
def test_stacks_add_up_to_the_breakdown(open_sqlite: OpenSite, requests: list[Sampled], quantile: float) -> None:
    one = open_sqlite()
    half = len(requests) // 2
    one.store.write(
        [batch("a", requests[:half], Series("shop", "1")), batch("b", requests[half:], Series("shop", "2"))]
    )

    for _ in range(2):
        (band,) = one.store.read.profile(one.around(), [quantile])
        stages = one.store.read.breakdown(one.around(), [quantile]).iloc[0]
        assert band.latency == pytest.approx(float(stages["value_seconds"]))
        assert band.sampled >= min(len(requests), ENOUGH_SAMPLED) * 0.9
        for stage, seconds in by_stage(band).items():
            assert seconds == pytest.approx(float(stages[stage]))
        one.store.maintain()


def test_the_tail_and_the_median_have_their_own_stacks(sqlite: Site) -> None:
    slow = Sampled(
        {"handler": 180 * MS, "forward": 20 * MS},
        {stack_key("handler", FRAMES): 150 * MS, stack_key("handler", (PREDICT,)): 30 * MS},
    )
    quick = {"handler": 10 * MS, "forward": 20 * MS}
    of_quick = {stack_key("handler", (PREDICT,)): 10 * MS, stack_key("forward", (PREDICT,)): 20 * MS}
    requests = [Sampled(quick, {})] * 900 + [Sampled(quick, of_quick)] * 20 + [slow] * 40
    sqlite.store.write([batch("a", requests)])

    median, tail = sqlite.store.read.profile(sqlite.around(), [0.5, 0.99])

    assert median.stacks.keys() == of_quick.keys()
    assert tail.stacks[stack_key("handler", FRAMES)] == pytest.approx(0.15, rel=0.02)
    assert by_stage(tail).keys() == {"handler"}
    assert median.sampled == pytest.approx(20, rel=0.05)


def test_selected_requests_have_the_mean_of_their_own_time(sqlite: Site) -> None:
    keys = [stack_key("handler", frames) for frames in ((PREDICT,), FRAMES)]
    sqlite.store.write(
        [
            batch("a", [Sampled({"handler": 30 * MS}, {keys[0]: 30 * MS})] * 900),
            batch("b", [Sampled({"handler": 180 * MS, "forward": 20 * MS}, {keys[1]: 180 * MS})] * 3),
            batch("c", [Sampled({"handler": 230 * MS, "forward": 10 * MS}, {})]),
            batch("d", [Sampled({"handler": 30 * MS}, {})], Series("bank")),
        ]
    )

    slow = sqlite.store.read.profile_between(sqlite.around(), 0.1, 1.0)
    assert slow is not None
    assert slow.stages == pytest.approx({"handler": 0.1925, "forward": 0.0175})
    assert slow.stacks == pytest.approx({keys[1]: 0.1925})
    assert slow.sampled == pytest.approx(3, rel=0.15)
    assert sqlite.store.read.profile_between(sqlite.around(), 1.0, 2.0) is None
    assert sqlite.store.read.profile_between(sqlite.around(service="bank"), 0.0, 1.0) is None


def test_without_samples_there_are_no_bands(sqlite: Site) -> None:
    sqlite.store.write([batch("a", [Sampled({"forward": MS}, {})])])

    assert sqlite.store.read.profile(sqlite.around(), [0.5]) == []
    assert sqlite.store.read.profile(sqlite.around(service="bank"), [0.5]) == []


def test_stacks_beyond_the_cap_stay_in_their_stage(sqlite: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MAX_STACKS", 3)
    keys = [stack_key("forward", (RESIZE._replace(line=line),)) for line in range(1, 11)]
    sqlite.store.write([batch("a", [Sampled({"forward": 10 * MS}, dict.fromkeys(keys, MS))] * 10)])

    (band,) = sqlite.store.read.profile(sqlite.around(), [0.5])

    assert len(band.stacks) == 4
    assert sum(band.stacks.values()) == pytest.approx(band.latency)
    assert band.stacks["forward;:__other__"] == pytest.approx(band.latency * 0.7)


def test_rows_have_hashes_and_texts_are_stored_once(sqlite: Site) -> None:
    long = stack_key("forward", [CodeFrame("m" * 100, "f" * 100, "p" * 100, line) for line in range(24)])
    request = Sampled({"forward": 10 * MS}, {long: 10 * MS})
    other = sqlite.another()
    for number, one in enumerate((sqlite, other, sqlite, other)):
        one.store.write([batch(str(number), [request] * 5, Series("shop", str(number % 2)))])

    with sqlite.store.engine.connect() as connection:
        texts = connection.scalars(select(schema.code_stacks.c.text)).all()
        (row,) = connection.scalars(select(schema.points.c.stage).where(schema.points.c.metric == 28).distinct())
    (band,) = sqlite.store.read.profile(sqlite.around(), [0.5])
    assert texts == [long.partition(";")[2]]
    assert len(row) < 40
    assert band.stacks.keys() == {long}
    assert band.sampled == pytest.approx(20, rel=0.05)


def test_an_export_has_the_texts(sqlite: Site) -> None:
    key = stack_key("forward", FRAMES)
    sqlite.store.write([batch("a", [Sampled({"forward": MS}, {key: MS})])])

    with open_export(sqlite.store) as export:
        found = [each for rows in export.counted() for each in rows if each.metric == "inference.profile.time"]
    assert [each.stage for each in found] == [key]


def test_an_expired_text_leaves_the_stage_whole(sqlite: Site) -> None:
    sqlite.store.write([batch("a", [Sampled({"forward": MS}, {stack_key("forward", FRAMES): MS})] * 9)])
    with sqlite.store.engine.begin() as connection:
        series.forget_stacks(connection, NOON + 10 * 86_400)

    (band,) = sqlite.store.read.profile(sqlite.around(), [0.5])
    assert band.stacks.keys() == {"forward;:__other__"}


def test_the_least_recently_used_texts_are_deleted_first(sqlite: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MAX_STORED_STACKS", 2)
    for day, line in enumerate((1, 2, 1, 3)):
        at = NOON - (6 - day) * 86_400
        key = stack_key("forward", (RESIZE._replace(line=line),))
        histogram = Histogram()
        histogram.record(0.001, 10)
        sqlite.store.write([Batch(str(day), [Point(SHOP, PROFILE_TIME, key, at, histogram)])])
    with sqlite.store.engine.begin() as connection:
        series.forget_stacks(connection, 0)
        texts = connection.scalars(select(schema.code_stacks.c.text)).all()

    assert sorted(texts) == ["serve:resize@serve.py:1", "serve:resize@serve.py:3"]


def test_a_deleted_service_leaves_no_texts(sqlite: Site) -> None:
    sqlite.store.write([batch("a", [Sampled({"forward": MS}, {stack_key("forward", FRAMES): MS})])])
    sqlite.store.forget(["shop"])

    with sqlite.store.engine.connect() as connection:
        assert connection.execute(select(schema.code_stacks)).all() == []
