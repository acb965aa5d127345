"""What a promise counts: which histogram, which part of it, and from where on it is bad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.names import FIRST_TOKEN, OUTPUT_TOKEN, REQUEST_DURATION, STAGE_DURATION

Kind = Literal["latency", "ttft", "tpot", "stage", "availability", "coverage", "freshness"]
# The kinds that count one histogram above a threshold.
HISTOGRAMS: dict[Kind, str] = {
    "latency": REQUEST_DURATION,
    "availability": REQUEST_DURATION,
    "ttft": FIRST_TOKEN,
    "tpot": OUTPUT_TOKEN,
    "stage": STAGE_DURATION,
}


@dataclass(frozen=True, slots=True)
class Indicator:
    """A service level indicator: what is counted, and what of it is bad.

    - `latency`: requests; bad are those that failed or took longer than the threshold.
    - `availability`: requests; bad are those that failed.
    - `ttft`, `tpot`: requests that had a first token, or a second; bad are those whose time to the first token, or mean
      time from one token to the next, is above the threshold. What failed before is not among them: that is availability's.
    - `stage`: requests that had the stage; bad are those that spent longer in it.
    - `coverage`: the time of all requests; bad is what no stage explains, `overhead`.
    - `freshness`: minutes since the first data; bad are those at whose end the newest data were older than the threshold.

    Args:
        kind: Which.
        threshold_seconds: Above it is bad; None for `availability` and `coverage`.
        key: The stage of `stage`; the definition of `ttft` and `tpot`, None for all of them.
    """

    kind: Kind
    threshold_seconds: float | None = None
    key: str | None = None
