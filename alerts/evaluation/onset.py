"""When trouble began: the change point of the share of bad requests, with how far it can be wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from . import burn_rate

# Two bad stretches with less between them are one.
_MAX_GAP = timedelta(minutes=5)
# Half the 95 % quantile of chi squared with one degree of freedom: change points that are likelier than that below the likeliest one
# are in the interval. D. V. Hinkley, "Inference about the change-point in a sequence of random variables", Biometrika 57 (1970).
_LOG_LIKELIHOOD = 1.92
# The chance of a bad request is never taken for 0 or 1: the likelihood of one more would be none.
_DUST = 1e-9


@dataclass(frozen=True, slots=True)
class Onset:
    """When trouble began.

    Args:
        at: The likeliest time.
        earliest: Not before this time, with 95 % confidence.
        latest: Not after this time.
    """

    at: datetime
    earliest: datetime
    latest: datetime


# The start of a step of time, its requests, and how many of them broke the objective; not whole when the threshold splits a bucket.
Counted = tuple[datetime, float, float]


def onset(
    buckets: Iterable[Counted],
    objective: float,
    threshold: float,
    otherwise: datetime,
    step: timedelta = timedelta(minutes=1),
) -> Onset:
    """Return when the last stretch of trouble began: from when on more requests were bad than before.

    Args:
        buckets: In order of time, those with requests; from before the trouble until now.
        objective: The share of requests that must be good. [ratio]
        threshold: The burn rate from which a bucket is bad.
        otherwise: The answer when no bucket is.
        step: The length of a bucket.
    """
    known = _last_stretch(list(buckets), objective, threshold)
    if not known:
        return Onset(otherwise, otherwise, otherwise)
    total, bad = (np.array(column, float) for column in tuple(zip(*known, strict=True))[1:])
    # Split k: the trouble began with bucket k; 0 where it went on all the time.
    total_after, bad_after = np.cumsum(total[::-1])[::-1], np.cumsum(bad[::-1])[::-1]
    total_before, bad_before = total_after[0] - total_after, bad_after[0] - bad_after
    likelihood = _log_likelihood(total_before, bad_before) + _log_likelihood(total_after, bad_after)
    likelihood[bad_after * total_before < bad_before * total_after] = -np.inf
    best = int(np.argmax(likelihood))
    # A split has two shares to fit, and one of as many is the best by chance (Bayesian information criterion).
    if likelihood[best] - likelihood[0] < math.log(len(known)):
        best = 0
    near = np.flatnonzero(likelihood >= likelihood[best] - _LOG_LIKELIHOOD)
    # It may have begun within the first bad bucket, or late in the one before.
    return Onset(known[best][0], known[min(best, int(near[0]))][0] - step, known[max(best, int(near[-1]))][0] + step)


def _last_stretch(buckets: Sequence[Counted], objective: float, threshold: float) -> Sequence[Counted]:
    """Return the buckets since the trouble before the last one was over; nothing where no bucket is bad."""
    over, last = 0, None
    for number, (at, total, bad) in enumerate(buckets):
        if burn_rate.burn_rate(bad, total, objective) < threshold:
            continue
        if last is not None and at - buckets[last][0] > _MAX_GAP:
            over = last + 1
        last = number
    return [] if last is None else buckets[over:]


def _log_likelihood(total: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Return the logarithm of the binomial likelihood of *bad* among *total*, at the share that was seen."""
    share = np.clip(bad / np.maximum(total, _DUST), _DUST, 1 - _DUST)
    return bad * np.log(share) + (total - bad) * np.log1p(-share)
