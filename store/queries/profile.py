"""Query of the tail profiler: the time of the requests at each percentile, by stage and call stack.

Samples only divide the time of a stage that the breakdown of the same requests has measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from ...analysis.profile import ProfileBand
from ...core.histogram import SCALE, bucket_middle
from ...core.names import PROFILE_TIME
from ...core.stages import OTHER
from .. import schema
from ..selection import Selection
from ..series import split_stack_row
from ..storage import PointQuery, StageCounts, StoreSnapshot, add_up
from .fetch import QueryGroup, fetch
from .latency import Mixture, fetch_mixture

# Number of texts read in one statement.
_TEXTS_AT_ONCE = 500
# Number of sampled requests from which samples of other latencies are not needed.
ENOUGH_SAMPLED = 8
# Maximum distance of the samples from the latency at a percentile: a factor of 1.4 on both sides. [buckets at `SCALE`]
_MAX_REACH = 2**SCALE // 2


class ProfileQueries(QueryGroup):
    """Queries of the call stacks of sampled requests."""

    def profile(self, selection: Selection, percentiles: Sequence[float]) -> list[ProfileBand]:
        """Return the time by stage and call stack in the requests at each percentile.

        The stages are those of `breakdown`. Stacks come from the sampled ones of the same requests; where these are fewer than
        `ENOUGH_SAMPLED`, also from sampled requests with the nearest latencies, within a factor of 1.4.

        Returns:
            An item for each of *percentiles*; none without requests or without samples.
        """
        with self._snapshot() as snapshot:
            profiled = _fetch(snapshot, selection)
        if profiled is None:
            return []
        groups = zip(profiled.mixed.bands(percentiles), profiled.mixed.bounds(percentiles), strict=True)
        return [profiled.band(group.seconds(), bounds, _MAX_REACH) for group, bounds in groups]

    def profile_between(self, selection: Selection, low: float, high: float) -> ProfileBand | None:
        """Return the mean time by stage and call stack in the requests with a latency in `[low, high)` seconds.

        Stacks come from the sampled ones of these requests only. None without such requests or without samples in *selection*.
        """
        with self._snapshot() as snapshot:
            profiled = _fetch(snapshot, selection)
        stages = profiled.mixed.between(low, high) if profiled else {}
        return profiled.band(stages, (low, high)) if profiled and stages else None


@dataclass(frozen=True, slots=True)
class _Profiled:
    mixed: Mixture
    samples: StageCounts
    keys: Sequence[str]

    def band(self, stages: Mapping[str, float], bounds: tuple[float, float], reach: int = 0) -> ProfileBand:
        """Return the time of *stages* by stack, from the samples within *bounds*, see `_nearest_samples`."""
        spent, sampled = _nearest_samples(self.samples, bounds, reach)
        seconds_by_key: defaultdict[str, float] = defaultdict(float)
        by_stage: defaultdict[str, int] = defaultdict(int)
        for key, amount in zip(self.keys, spent, strict=True):
            by_stage[key.partition(";")[0]] += amount
        for key, amount in zip(self.keys, spent, strict=True):
            stage = key.partition(";")[0]
            # A stage that the breakdown does not have takes no time.
            if amount and stages.get(stage):
                seconds_by_key[key] += stages[stage] * amount / by_stage[stage]
        return ProfileBand(sum(stages.values()), sampled, stages, dict(seconds_by_key))


def _fetch(snapshot: StoreSnapshot, selection: Selection) -> _Profiled | None:
    columns = fetch(snapshot, PointQuery(selection, (PROFILE_TIME,)))
    mixed = fetch_mixture(snapshot, selection) if len(columns) else None
    if mixed is None:
        return None
    texts = read_stacks(snapshot.connection, columns.stages)
    return _Profiled(mixed, add_up(columns), [texts[stage] for stage in columns.stages])


def _nearest_samples(samples: StageCounts, bounds: tuple[float, float], reach: int) -> tuple[list[int], float]:
    """Return the microseconds of each stack within *bounds*, in seconds, and the number of requests they are of.

    If these are fewer than `ENOUGH_SAMPLED`, also of the nearest others, at most *reach* buckets at `SCALE` from the middle.
    """
    middles = [bucket_middle(index, samples.scale) for index in samples.index.tolist()]
    # The stacks of a request add up to its latency.
    requests = [
        amount / 1e6 / middle for amount, middle in zip(samples.amount.sum(axis=0).tolist(), middles, strict=True)
    ]
    low, high = bounds
    chosen = [low <= middle <= high for middle in middles]
    sampled = sum(count for count, inside in zip(requests, chosen, strict=True) if inside)
    factor = 2 ** (reach / 2**SCALE)
    centre = (low * high) ** 0.5
    rest = [
        number
        for number, middle in enumerate(middles)
        if not chosen[number] and centre / factor <= middle <= centre * factor
    ]
    for number in sorted(rest, key=lambda number: abs(middles[number] - centre)):
        if sampled >= ENOUGH_SAMPLED:
            break
        chosen[number] = True
        sampled += requests[number]
    return samples.amount[:, chosen].sum(axis=1).tolist(), sampled


def read_stacks(connection: Connection, rows: Sequence[str]) -> dict[str, str]:
    """Return the key of stage and stack (`core.code_stack.stack_key`) of each of *rows*, the stages of rows of `PROFILE_TIME`.

    Stacks whose text has expired are `__other__`.
    """
    table = schema.code_stacks
    named = {row: split_stack_row(row) for row in rows}
    wanted = sorted({name for _, name in named.values() if name})
    texts: dict[str, str] = {}
    for first in range(0, len(wanted), _TEXTS_AT_ONCE):
        some = table.c.hash.in_(wanted[first : first + _TEXTS_AT_ONCE])
        texts.update(tuple(row) for row in connection.execute(select(table.c.hash, table.c.text).where(some)))
    return {row: f"{stage};{texts.get(name, f':{OTHER}')}" for row, (stage, name) in named.items()}
