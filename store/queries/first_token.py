"""Where the time to the first token goes: the breakdown with another clock.

The first token is found in several ways (`names.DEFINITION`), which never mix. Stages are told apart by series, not by
definition, so only series that know one definition in the window can say where its time went; requests of the others are
left out, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ...core.names import FIRST_TOKEN, FIRST_TOKEN_TIME
from ..columns import Columns, Counts, add_up
from ..points import Question, Snapshot
from ..selection import Selection
from .breakdown import Mixture, at_percentiles
from .fetch import fetch

METRICS = (FIRST_TOKEN, FIRST_TOKEN_TIME)


@dataclass(frozen=True, slots=True)
class Measured:
    """Requests that were measured in one way.

    Args:
        definition: Which; "" where there are no requests.
        definitions: Requests by definition, of the whole selection.
        columns: The points of the series that know this definition only.
    """

    definition: str
    definitions: dict[str, int]
    columns: Columns


def breakdown(
    snapshot: Snapshot, selection: Selection, percentiles: Sequence[float], definition: str | None
) -> pd.DataFrame:
    """See `Reader.first_token_breakdown`."""
    found = measured(fetch(snapshot, Question(selection, METRICS, by="series")), FIRST_TOKEN, definition)
    counted = found.columns.of(FIRST_TOKEN)
    mixed = Mixture(found.columns, METRICS) if len(counted) else None
    made = at_percentiles(mixed, percentiles)
    made.attrs["definition"] = found.definition
    made.attrs["definitions"] = found.definitions
    made.attrs["left_out"] = found.definitions.get(found.definition, 0) - made.attrs["requests"]
    return made


def measured(columns: Columns, metric: str, definition: str | None) -> Measured:
    """Choose *definition*, or the one that most requests were measured by, among *columns*, which tell series apart.

    Args:
        columns: What the answer is made of.
        metric: The one of them that is told apart by definition.
        definition: Which; None for the commonest.
    """
    first = columns.of(metric)
    found = _by_stage(add_up(first), columns.stages)
    wanted = definition if definition is not None else max(found, key=lambda each: (found[each], each), default="")
    is_wanted = np.array([stage == wanted for stage in columns.stages], bool)[first.stage]
    alone = np.setdiff1d(first.series[is_wanted], first.series[~is_wanted])
    return Measured(wanted, found, columns.where(np.isin(columns.series, alone)))


def _by_stage(counts: Counts, stages: Sequence[str]) -> dict[str, int]:
    requests = counts.amount.sum(axis=1) + counts.zero
    return {stage: int(n) for stage, n in zip(stages, requests.tolist(), strict=True) if n}
