"""What engines say of themselves, in fixed buckets or as sums: by service and model, as intervals and exact means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import select

from ...core import names
from ...core.histogram import BATCH_SIZES, Distribution, Histogram
from ...core.stages import ordered
from .. import schema
from ..columns import Columns, add_up
from ..points import Question, Snapshot
from ..selection import Selection
from .fetch import fetch

_PAIRS = (names.ENGINE_REQUEST, names.ENGINE_STAGE, names.ENGINE_FIRST_TOKEN, names.ENGINE_OUTPUT_TOKEN)
_METRICS = (*(metric for pair in _PAIRS for metric in pair), names.ENGINE_TOKENS, names.ENGINE_BATCH)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What the engines of a service say of one model; times in seconds.

    Args:
        service: `service.name`.
        model: Its name, empty where they do not tell.
        requests: How long requests took; empty where they time steps only.
        stages: How long they spent in each stage, in the order of stages.
        first_token: How long they waited for their first token, by definition (`names.DEFINITIONS`).
        output_token: How long one token took after another, by definition.
        tokens: How many there were, by `names.TOKENS_IN` and `names.TOKENS_OUT`.
        batches: How long the model ran by how many items it ran at once, smallest first: only number and mean are known.
    """

    service: str
    model: str
    requests: Distribution = field(default_factory=Distribution)
    stages: Mapping[str, Distribution] = field(default_factory=dict[str, Distribution])
    first_token: Mapping[str, Distribution] = field(default_factory=dict[str, Distribution])
    output_token: Mapping[str, Distribution] = field(default_factory=dict[str, Distribution])
    tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    batches: Mapping[str, Histogram] = field(default_factory=dict[str, Histogram])

    @property
    def count(self) -> int:
        """How many requests there were: where they are not timed as a whole, as many as the most frequent stage had."""
        return max(self.requests.count, *(stage.count for stage in self.stages.values()), 0)

    @property
    def mean_by_stage(self) -> dict[str, float]:
        """The exact share of the mean request that each stage has, in the order of stages; they need not add up to it."""
        count = self.count
        return {stage: found.lows.sum / count for stage, found in self.stages.items() if count and found.count}


def engines(snapshot: Snapshot, selection: Selection) -> list[EngineModel]:
    """See `Reader.engines`."""
    columns = fetch(snapshot, Question(selection, _METRICS, by="series"))
    owners = _owners(snapshot, selection)
    found = {owners[number] for number in set(columns.series.tolist()) if number in owners}
    made = [_model(columns, owners, *owner) for owner in found]
    return sorted(made, key=lambda each: (-each.count, each.service, each.model))


def _owners(snapshot: Snapshot, selection: Selection) -> dict[int, tuple[str, str]]:
    series = schema.series
    statement = select(series.c.id, series.c.service, series.c.model).where(*selection.conditions())
    return {row.id: (row.service, row.model) for row in snapshot.connection.execute(statement)}


def _model(columns: Columns, owners: Mapping[int, tuple[str, str]], service: str, model: str) -> EngineModel:
    own = [number for number, owner in owners.items() if owner == (service, model)]
    mine = columns.where(np.isin(columns.series, own))
    requests, stages, first_token, output_token = (_pair(mine, pair) for pair in _PAIRS)
    batches = _by_key(mine, names.ENGINE_BATCH)
    return EngineModel(
        service,
        model,
        # How requests are timed is the engine's own matter; there is one way in each.
        requests.get(names.BY_ENGINE, Distribution()),
        {stage: stages[stage] for stage in ordered(stages)},
        first_token,
        output_token,
        {key: found.count for key, found in _by_key(mine, names.ENGINE_TOKENS).items()},
        {band: batches[band] for band in sorted(batches, key=BATCH_SIZES.position)},
    )


def _pair(columns: Columns, pair: Iterable[str]) -> dict[str, Distribution]:
    lows, highs = (_by_key(columns, metric) for metric in pair)
    return {key: Distribution(low, highs[key]) for key, low in lows.items() if key in highs}


def _by_key(columns: Columns, metric: str) -> dict[str, Histogram]:
    found = columns.of(metric)
    present = {found.stages[place]: place for place in found.stage.tolist()}
    return {key: add_up(found.where(found.stage == place)).histogram() for key, place in present.items()}
