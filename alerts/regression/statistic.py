"""The arithmetic of the search: how far blocks of minutes are from what was to be expected, and what a window makes of it.

A block's excess is the log of how many requests were beyond the threshold against how many were to be expected there, at
this load and this time of day. In units of its own scatter (the reference's, and that of counting) it is the block's
statistic; a window's is the mean of its smallest blocks, so that a blip, however high, cannot move it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from .minutes import Floats, Ints
from .policy import Window
from .tally import Row, Tally

DAY = 1440
# Half a request on both sides keeps the log finite and nearly unbiased (Anscombe, Haldane).
HALF = 0.5
# The rhythm is learnt on blocks of so many minutes, with outliers counting for less beyond so many spreads (Huber).
FIT_BLOCK, FIT_ROUNDS, HUBER = 10, 3, 1.5
# Before the scatter is known, and the least there is.
FIRST_SCATTER, LEAST_SCATTER = 0.2, 0.02
# Near its limits a service scatters more: the busiest tenth of the time has a scatter of its own, from so many blocks on.
PEAK, LEAST_PEAKS = 0.9, 20
# The statistic is learnt at moments at least so far apart. [minutes]
LEAST_STEP = 2


@dataclass(frozen=True, slots=True)
class Model:
    """What is to be expected of each row.

    Args:
        blocks: Lengths of blocks. [minutes]
        load: Lowest, middle and highest log of requests a minute that it holds for.
        weights: Of the features; shape (rows, features).
        scatter: Over-dispersion of each row at each length of blocks; shape (rows, blocks). [log]
        strained: The same at peaks of the load; empty where they are like any other time.
        peak: Where they begin, as log of requests a minute.
    """

    blocks: tuple[int, ...]
    load: tuple[float, float, float]
    weights: tuple[tuple[float, ...], ...]
    scatter: tuple[tuple[float, ...], ...]
    strained: tuple[tuple[float, ...], ...] = ()
    peak: float = math.inf


class Expectation:
    """What is to be expected of some rows, ready to be asked.

    Args:
        model: Of all rows.
        rows: All rows.
        chosen: The positions of those that will be asked.
    """

    def __init__(self, model: Model, rows: Sequence[Row], chosen: Sequence[int]) -> None:
        self.chosen: Ints = np.array(chosen, np.int64)
        self.load = model.load
        self.share: Floats = np.array([rows[number].expected for number in chosen]).reshape(-1, 1)
        self.weights: Floats = np.array([model.weights[number] for number in chosen])
        self.scatter: Floats = np.array([model.scatter[number] for number in chosen])
        self.strained: Floats = np.array([(model.strained or model.scatter)[number] for number in chosen])
        self.peak = model.peak - model.load[1]
        self.blocks: Ints = np.array(model.blocks)


class Sums:
    """Running sums of a tally, so that any block of minutes is one subtraction.

    Args:
        kept: The counts.
    """

    def __init__(self, kept: Tally) -> None:
        self.start = kept.start
        self.minutes = len(kept)
        self._requests = _running(kept.requests)
        self._n = _running(kept.n)
        self._beyond = _running(kept.beyond)

    def of(self, ends: Ints, lengths: Ints, rows: Ints) -> tuple[Floats, Floats, Floats]:
        """Return requests, shape (blocks,), and n and beyond, shape (rows, blocks), of blocks before *ends*."""
        starts = np.maximum(ends - lengths, 0)
        n, beyond = self._n[rows], self._beyond[rows]
        return (
            self._requests[ends] - self._requests[starts],
            n[:, ends] - n[:, starts],
            beyond[:, ends] - beyond[:, starts],
        )


def fit(rows: Sequence[Row], kept: Tally, blocks: tuple[int, ...], *, rhythm: bool, load: float = 0.0) -> Model:
    """Learn rhythm and scatter from the reference.

    Args:
        rows: The questions.
        kept: Their counts.
        blocks: Lengths of blocks that will be asked for. [minutes]
        rhythm: Whether there are days enough to learn the time of day.
        load: How far beyond the usual loads it holds. [log]
    """
    sums = Sums(kept)
    every = np.arange(len(rows))
    ends = np.arange(FIT_BLOCK, len(kept) + 1, FIT_BLOCK)
    lengths = np.full(len(ends), FIT_BLOCK)
    requests, n, beyond = sums.of(ends, lengths, every)
    busy = requests > 0
    logs = np.log(np.maximum(requests, 1) / FIT_BLOCK)
    low, middle, peak, high = np.quantile(logs[busy], (0.01, 0.5, PEAK, 0.99)) if busy.any() else np.zeros(4)
    bounds = (float(low) - load, float(middle), float(high) + load)
    known = features(bounds, requests, lengths, kept.start + ends)
    if not rhythm:
        known[:, 3:] = 0
    weights = np.stack([_fit_row(known[busy], n[r][busy], beyond[r][busy], row) for r, row in enumerate(rows)])
    least = np.full((len(rows), len(blocks)), LEAST_SCATTER)
    model = Model(blocks, bounds, _table(weights), _table(least), peak=float(peak))
    scatter, strained = np.stack([_scatter(sums, model, rows, block, len(kept)) for block in blocks], axis=-1)
    return replace(model, scatter=_table(scatter), strained=_table(strained))


def features(load: tuple[float, float, float], requests: Floats, lengths: Ints, ends: Ints) -> Floats:
    """Return what a block's expectation depends on: load, its square and the time of day; shape (blocks, 7)."""
    low, middle, high = load
    busy = np.clip(np.log(np.maximum(requests, 1) / lengths), low, high) - middle
    day = 2 * np.pi * (ends - lengths / 2) / DAY
    parts = (np.ones_like(busy), busy, busy**2, np.sin(day), np.cos(day), np.sin(2 * day), np.cos(2 * day))
    return np.stack(parts, axis=1)


def excess(sums: Sums, asked: Expectation, ends: Ints, lengths: Ints) -> tuple[Floats, Floats, Floats]:
    """Return how far blocks are from what was to be expected.

    Args:
        sums: The counts.
        asked: What is to be expected, of which rows.
        ends: The minute after each block, counted from the first of *sums*; shape (b,).
        lengths: Of each block, one of the model's; shape (b,). [minutes]

    Returns:
        In units of scatter; as log of the number beyond; and how many were expected beyond. Each of shape (rows, b).
    """
    requests, n, beyond = sums.of(ends, lengths, asked.chosen)
    expected = n * asked.share
    known = features(asked.load, requests, lengths, sums.start + ends)
    normal = asked.weights @ known.T
    difference = np.log((beyond + HALF) / (expected + HALF)) - normal
    place = np.searchsorted(asked.blocks, lengths)
    scatter = np.where(known[:, 1] >= asked.peak, asked.strained[:, place], asked.scatter[:, place])
    return difference / np.sqrt(scatter**2 + 1 / (expected * np.exp(normal) + HALF)), difference, expected


def trimmed(window: Window, values: Floats) -> Floats:
    """Return the mean of the blocks of each window without the largest; *values* of shape (..., blocks)."""
    kept = window.blocks - window.drop
    return np.partition(values, kept - 1, axis=-1)[..., :kept].mean(axis=-1)


def all_along(window: Window, model: Model, rows: Sequence[Row], kept: Tally, chosen: Sequence[int]) -> Floats:
    """Return the window's statistic at many moments of *kept*, half a block but two minutes apart; shape (rows, moments)."""
    ends = np.arange(window.block, len(kept) + 1)
    lengths = np.full(len(ends), window.block)
    values, _, _ = excess(Sums(kept), Expectation(model, rows, chosen), ends, lengths)
    moments = np.arange(window.length - window.block, len(ends), max(window.block // 2, LEAST_STEP))
    back = moments[:, None] - window.block * np.arange(window.blocks)
    return trimmed(window, values[:, back])


def _fit_row(known: Floats, n: Floats, beyond: Floats, row: Row) -> Floats:
    expected = n * row.expected
    wanted = np.log((beyond + HALF) / (expected + HALF))
    sure = 1 / (FIRST_SCATTER**2 + 1 / (expected + HALF))
    weight = sure
    found: Floats = np.zeros(known.shape[1])
    for _ in range(FIT_ROUNDS):
        weighted = known * weight[:, None]
        found = np.asarray(np.linalg.lstsq(known.T @ weighted, weighted.T @ wanted, rcond=1e-9)[0], np.float64)
        left = (wanted - known @ found) * np.sqrt(sure)
        spread = 1.4826 * np.median(np.abs(left)) + 1e-9
        weight = sure * np.minimum(1, HUBER * spread / np.maximum(np.abs(left), 1e-9))
    return found


def _scatter(sums: Sums, model: Model, rows: Sequence[Row], block: int, minutes: int) -> Floats:
    """Return what scatters beyond counting, of each row in blocks of *block* minutes: always, and at peaks; shape (2, rows)."""
    ends = np.arange(block, minutes + 1, block)
    lengths = np.full(len(ends), block)
    asked = Expectation(model, rows, range(len(rows)))
    requests, _, _ = sums.of(ends, lengths, asked.chosen)
    _, difference, expected = excess(sums, asked, ends, lengths)
    around = difference - np.median(difference, axis=1, keepdims=True)
    counting = 1 / (expected + HALF)
    usual = _beyond_counting(1.4826 * np.median(np.abs(around), axis=1), counting)
    at_peak = np.log(np.maximum(requests, 1) / block) >= model.peak
    if at_peak.sum() < LEAST_PEAKS:
        return np.stack((usual, usual))
    # Upwards: near its limits a service is sometimes much slower, and never much faster.
    above = np.quantile(around[:, at_peak], 0.9, axis=1) / NormalDist().inv_cdf(0.9)
    return np.stack((usual, np.maximum(usual, _beyond_counting(np.maximum(above, 0), counting[:, at_peak]))))


def _beyond_counting(spread: Floats, counting: Floats) -> Floats:
    return np.sqrt(np.maximum(spread**2 - np.median(counting, axis=1), LEAST_SCATTER**2))


def _running(values: Floats) -> Floats:
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def _table(values: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(f"{value:.6g}") for value in row) for row in values)
