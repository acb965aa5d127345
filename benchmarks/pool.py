"""What histograms of a fleet look like: a pool of encoded rows for each tier, the wider ones really added up from the finer.

One draw of a pool is what one stream of requests (a service, version, route and status) leaves behind in one bucket: `KINDS`
rows. Latencies are lognormal; one request in ten waits in a queue first, five times as long as it works.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagelens.core.columns import Buckets, Ints, merge_buckets
from stagelens.core.histogram import SCALE
from stagelens.core.names import REQUEST_DURATION, STAGE_DURATION, STAGE_TIME
from stagelens.store.bucket_blobs import decode_buckets, encode_buckets
from stagelens.store.schema import METRIC_CODES, TIERS

STAGES = ("preprocess", "forward", "queue", "overhead")
DOMINANTS = ("forward", "queue")
# Metric code and stage of each row of a draw.
KINDS = (
    *((METRIC_CODES[REQUEST_DURATION], stage) for stage in DOMINANTS),
    *((METRIC_CODES[STAGE_DURATION], stage) for stage in STAGES),
    *((METRIC_CODES[STAGE_TIME], stage) for stage in STAGES),
)
REQUESTS = 20  # of a stream in 10 s
_QUEUED = 0.05
# Draws of the finest tier and of each wider one, and how many of the finer make one.
_DRAWS, _MERGED = (4096, 4096, 2048, 2048, 1024, 512), (6, 10, 6, 6, 4)
# Draws decoded at once.
_BLOCK = 256
_US = 1e6

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pool:
    """Encoded rows of one tier: those of draw d are `[d * len(KINDS), (d + 1) * len(KINDS))`."""

    blobs: list[bytes]
    count: list[int]
    sum: Floats
    parts: Ints

    @property
    def draws(self) -> int:
        return len(self.blobs) // len(KINDS)


def pools(seed: int = 0) -> dict[int, Pool]:
    """Return a pool for each tier; the same for the same *seed*."""
    random = np.random.default_rng(seed)
    made = {TIERS[0]: _finest(random)}
    for finer, coarser, draws, merged in zip(TIERS, TIERS[1:], _DRAWS[1:], _MERGED, strict=False):
        parts = random.integers(made[finer].draws, size=(draws, merged))
        made[coarser] = _added(made[finer], parts)
    return made


def _finest(random: np.random.Generator) -> Pool:
    draws = _DRAWS[0]
    seconds = _requests(random, draws)
    whole = seconds.sum(axis=0)
    dominant = np.where(seconds[2] > seconds[1], 1, 0)
    draw = np.repeat(np.arange(draws), REQUESTS).reshape(draws, REQUESTS)
    ones = np.ones_like(draw)
    # For each kind of row: the value that is counted, how often, and by which rows.
    entries = [(whole, ones, draw * len(KINDS) + dominant, whole)]
    for place, spent in enumerate(seconds):
        entries.append((spent, ones, draw * len(KINDS) + 2 + place, spent))
        row = draw * len(KINDS) + 6 + place
        entries.append((whole, np.rint(spent * _US).astype(np.int64), row, np.zeros_like(whole)))
    value, amount, row, total = (np.concatenate([entry[at].ravel() for entry in entries]) for at in range(4))
    index = np.ceil(np.log2(value) * 2**SCALE).astype(np.int64) - 1
    is_used = amount > 0
    single = Buckets(np.arange(int(is_used.sum()) + 1), index[is_used], amount[is_used])
    rows = draws * len(KINDS)
    merged = merge_buckets(single, row[is_used], np.zeros(int(is_used.sum()), np.int64), rows)
    return _pool(merged, np.bincount(row, total, rows).astype(np.float64), np.zeros((draws, 0), np.int64))


def _requests(random: np.random.Generator, draws: int) -> Floats:
    """Return the seconds each request spends in each stage; shape (stages, draws, `REQUESTS`)."""
    shape = (draws, REQUESTS)
    work = random.lognormal(np.log(0.04), 0.35, shape)
    waits = random.random(shape) < _QUEUED
    # Every series is active in every bucket.
    waits[:, 0], waits[:, 1] = True, False
    wait = np.where(waits, 5 * random.lognormal(np.log(0.04), 0.4, shape), random.lognormal(np.log(3e-4), 0.5, shape))
    preprocess, forward = (work * random.uniform(low, high, shape) for low, high in ((0.1, 0.2), (0.6, 0.75)))
    wait[:, 0] = np.maximum(wait[:, 0], 1.01 * forward[:, 0])
    return np.stack((preprocess, forward, wait, work - preprocess - forward))


def _added(finer: Pool, parts: Ints) -> Pool:
    kinds = len(KINDS)
    blocks: list[Buckets] = []
    for start in range(0, len(parts), _BLOCK):
        block = parts[start : start + _BLOCK]
        # Row by row of the block: all its parts.
        rows = (block[:, None, :] * kinds + np.arange(kinds)[None, :, None]).reshape(-1)
        group = np.repeat(np.arange(len(block) * kinds), parts.shape[1])
        found = decode_buckets([finer.blobs[row] for row in rows.tolist()])
        blocks.append(merge_buckets(found, group, np.zeros_like(group), len(block) * kinds))
    offsets = np.concatenate(([0], np.cumsum(np.concatenate([block.lengths for block in blocks]))))
    merged = Buckets(
        offsets, np.concatenate([block.index for block in blocks]), np.concatenate([block.amount for block in blocks])
    )
    total = finer.sum.reshape(-1, kinds)[parts].sum(axis=1).ravel()
    return _pool(merged, total, parts)


def _pool(buckets: Buckets, total: Floats, parts: Ints) -> Pool:
    return Pool(encode_buckets(buckets), np.add.reduceat(buckets.amount, buckets.offsets[:-1]).tolist(), total, parts)
