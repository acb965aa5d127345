"""Triton's statistics: how long a model ran by how many items it ran at once.

It tells sums and numbers of runs, no distribution. They stay sums: the mean of each band is exact, and no run is made up at it,
which would look like a measurement and hide every tail.

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ...core.errors import StagelensError
from ...core.histogram import BATCH_SIZES
from .reading import MAX_COUNT, ONE_BUCKET, Counted, Stream

_NANOSECONDS = 1e9
# More models with more batch sizes than any server has loaded.
_MAX_ENTRIES = 20_000


class StatisticsError(StagelensError):
    """It is not what the statistics extension says."""


def read(text: str) -> dict[Stream, Counted]:
    """Return the runs of every model by the band of their batch size; their sum is the time of inference alone.

    Raises:
        StatisticsError: *text* is something else.
    """
    runs: Counter[Stream] = Counter()
    spent: Counter[Stream] = Counter()
    try:
        entries = [
            (model, batch) for model in json.loads(text)["model_stats"] for batch in model.get("batch_stats") or ()
        ]
        for model, batch in entries[:_MAX_ENTRIES]:
            labels = (("model", str(model["name"])), ("version", str(model.get("version", ""))))
            stream = Stream("batch", BATCH_SIZES.bucket_of(_whole(batch["batch_size"], least=1)), labels)
            runs[stream] += _whole(batch["compute_infer"]["count"])
            spent[stream] += _whole(batch["compute_infer"]["ns"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        msg = f"its statistics are not what Triton says ({type(error).__name__}: {error}); the path is /v2/models/stats"
        raise StatisticsError(msg) from error
    return {
        stream: Counted({ONE_BUCKET: count} if count else {}, spent[stream] / _NANOSECONDS)
        for stream, count in runs.items()
    }


def _whole(value: Any, least: int = 0) -> int:
    number = int(value)
    if not least <= number <= MAX_COUNT * int(_NANOSECONDS):
        msg = f"{number} is no number of it"
        raise ValueError(msg)
    return number
