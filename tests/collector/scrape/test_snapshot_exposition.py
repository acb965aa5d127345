"""Parser of expositions: errors have their line and do not affect other values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.collector.scrape import exposition, snapshot
from stagelens.collector.scrape.config import Engine, SourceMetric
from stagelens.collector.scrape.exposition import ExpositionError

ENGINE = Engine(name="mine", request=SourceMetric(names=("a_seconds",)))


def parse(text: str, media_type: str = "text/plain; version=0.0.4", limit: int = 100) -> exposition.Samples:
    return exposition.parse_exposition(text, media_type, ENGINE.wanted(), limit)


def read(text: str, media_type: str = "text/plain") -> snapshot.Snapshot:
    return snapshot.read_snapshot(parse(text, media_type), ENGINE, 0.0, "")


def test_a_bad_line_is_named() -> None:
    with pytest.raises(ExpositionError, match=r"line 3 .*'a_seconds_count\{b=\"\} 7' \(could not"):
        parse('# TYPE a_seconds histogram\na_seconds_sum{b="c"} 1\na_seconds_count{b="} 7\n')


def test_an_invalid_line_of_an_unused_metric_is_ignored() -> None:
    found = parse("b_seconds_count{b=} 7\n<html>\na_seconds_count 2\na_seconds_sum 3\n")

    assert set(found) == {"a_seconds_count", "a_seconds_sum"}


def test_samples_over_the_limit_are_refused() -> None:
    lines = "".join(f'a_seconds_sum{{b="{number}"}} 1\n' for number in range(101))

    with pytest.raises(ExpositionError, match="more than 100 samples"):
        parse(lines)


@pytest.mark.parametrize(
    "lines",
    [
        'a_seconds_bucket{le="1"} 5\na_seconds_bucket{le="+Inf"} 4\na_seconds_sum 1\n',  # not cumulative
        'a_seconds_bucket{le="1"} 5\na_seconds_sum 1\n',  # no last bucket
        'a_seconds_bucket{le="1"} 5\na_seconds_bucket{le="+Inf"} NaN\na_seconds_sum 1\n',
        'a_seconds_bucket{le="x"} 5\na_seconds_bucket{le="+Inf"} 6\na_seconds_sum 1\n',
        'a_seconds_bucket{le="1"} 5\na_seconds_bucket{le="+Inf"} 6\na_seconds_sum -1\n',
        'a_seconds_bucket{le="1"} 5\na_seconds_bucket{le="+Inf"} 1e30\na_seconds_sum 1\n',
        'a_seconds_bucket{le="+Inf"} 6\n',  # no sum
        "a_seconds_sum 6\n",
        "a_seconds_count -2\na_seconds_sum 6\n",
    ],
)
def test_inconsistent_histograms_are_refused_alone(lines: str) -> None:
    good = 'a_seconds_bucket{m="x",le="+Inf"} 3\na_seconds_sum{m="x"} 2\n'

    found = read(lines + good)

    assert [counted.count for counted in found.streams.values()] == [3]
    assert found.beyond == 1


def test_openmetrics_is_supported() -> None:
    text = (
        "# TYPE a_seconds histogram\n"
        'a_seconds_bucket{le="1.0"} 2\na_seconds_bucket{le="+Inf"} 3\na_seconds_count 3\na_seconds_sum 4.5\n'
        "a_seconds_created 1.79e9\n# EOF\n"
    )

    (counted,) = read(text, "application/openmetrics-text; version=1.0.0").streams.values()

    assert (dict(counted.buckets), counted.sum, counted.created) == (
        {(0.0, 1.0): 2, (1.0, float("inf")): 1},
        4.5,
        1.79e9,
    )


def test_native_histograms_preserve_their_bucket_bounds() -> None:
    text = (
        "# TYPE a_seconds histogram\n"
        "a_seconds {count:6,sum:9.5,schema:0,zero_threshold:0.001,zero_count:1,"
        "positive_spans:[0:2,1:1],positive_deltas:[1,1,0]}\n# EOF\n"
    )

    (counted,) = read(text, "application/openmetrics-text").streams.values()

    assert dict(counted.buckets) == {(0.0, 0.001): 1, (0.5, 1.0): 1, (1.0, 2.0): 2, (4.0, 8.0): 2}
    assert counted.sum == 9.5


@given(st.text(alphabet=st.sampled_from('a_secondsbuct{}",=+Inf# \n0123456789.eTYPhilgrm\\\x00é')))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for media_type in ("text/plain", "application/openmetrics-text"):
        try:
            found = parse(f"a_seconds_sum 1\n{text}", media_type)
        except ExpositionError:
            continue
        snapshot.read_snapshot(found, ENGINE, 0.0, "")
