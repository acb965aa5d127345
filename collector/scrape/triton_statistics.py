"""Triton statistics: sums and numbers of executions by batch size, without distributions.

The mean of each batch-size bucket is exact, and there are no quantiles.

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ...core.errors import StagelensError
from ...core.histogram import BATCH_SIZES
from .snapshot import MAX_COUNT, ONE_BUCKET, MetricStream, StreamCounts

_NANOSECONDS = 1e9
# Maximum number of statistics, more than the models and batch sizes of any server.
_MAX_ENTRIES = 20_000


class StatisticsError(StagelensError):
    """A response does not follow the statistics extension."""


def read_triton_statistics(text: str) -> dict[MetricStream, StreamCounts]:
    """Return the executions of every model by batch-size bucket, with the inference time as the sum."""
    runs: Counter[MetricStream] = Counter()
    spent: Counter[MetricStream] = Counter()
    try:
        entries = [
            (model, batch) for model in json.loads(text)["model_stats"] for batch in model.get("batch_stats") or ()
        ]
        for model, batch in entries[:_MAX_ENTRIES]:
            labels = (("model", str(model["name"])), ("version", str(model.get("version", ""))))
            stream = MetricStream("batch", BATCH_SIZES.bucket_of(_bounded_int(batch["batch_size"], least=1)), labels)
            runs[stream] += _bounded_int(batch["compute_infer"]["count"])
            spent[stream] += _bounded_int(batch["compute_infer"]["ns"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        msg = (
            f"its statistics are not in Triton's format ({type(error).__name__}: {error}); the path is /v2/models/stats"
        )
        raise StatisticsError(msg) from error
    return {
        stream: StreamCounts({ONE_BUCKET: count} if count else {}, spent[stream] / _NANOSECONDS)
        for stream, count in runs.items()
    }


def _bounded_int(value: Any, least: int = 0) -> int:
    number = int(value)
    if not least <= number <= MAX_COUNT * int(_NANOSECONDS):
        msg = f"{number} is out of range"
        raise ValueError(msg)
    return number
