"""Triton's statistics: invalid numbers are refused without other exceptions."""

from __future__ import annotations

import json

import pytest

from stagelens.collector.scrape.triton_statistics import StatisticsError, read_triton_statistics


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e400", "-1", '"x"', "null", "[]"])
def test_infinity_is_refused(number: str) -> None:
    run = f'{{"count": 1, "ns": {number}}}'
    text = json.dumps({"model_stats": [{"name": "m", "batch_stats": [{"batch_size": 1, "compute_infer": "RUN"}]}]})

    with pytest.raises(StatisticsError):
        read_triton_statistics(text.replace('"RUN"', run))
