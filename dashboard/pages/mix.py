"""Whether the requests of A and B are alike at all: what else could explain that B is slower."""

from __future__ import annotations

import pandas as pd

from ...core.histogram import Histogram
from ...core.names import TOKENS, TOKENS_IN
from ..components import ratio_of
from ..format import percent, signed_change
from .comparison import Pair, asked
from .page import Context
from .rows import records

# What senders and the place decide. Batches and failures follow from the version as well, so they are told, not blamed.
_CONFOUNDERS = {"route": "the traffic changed", "model": "the models changed", "device": "the devices changed"}
_LONGER_PROMPTS = "the traffic changed"
_NAMES = {"route": "route", "model": "model", "status": "status", "device": "device", "batch": "batch of"}
# Traffic moves by a tenth without a reason.
BREATH = 0.1


def mixed(context: Context, pair: Pair) -> pd.DataFrame:
    """Return the frame of `read.mix`."""
    return asked(context, context.source.read.mix, pair.a, pair.b)


def confounder(context: Context, pair: Pair) -> str:
    """Return what differs beside the code, to follow "Slower, but"; "" where nothing does."""
    frame = mixed(context, pair)
    changed = {str(each["dimension"]) for each in records(frame) if each["changed"]}
    said = next((text for dimension, text in _CONFOUNDERS.items() if dimension in changed), "")
    return said or (_LONGER_PROMPTS if abs(prompts(context, pair) or 0.0) > BREATH else "")


def sentence(context: Context, pair: Pair) -> str:
    """Return how the mix changed, or that it did not; "" where too little is known."""
    frame = mixed(context, pair)
    parts = [
        f"{_NAMES[str(each['dimension'])]} {each['value'] or 'unnamed'} "
        f"{percent(float(each['a_share']))} → {percent(float(each['b_share']))} of requests"
        for each in records(frame)
        if each["changed"]
    ]
    longer = prompts(context, pair)
    if longer is not None and abs(longer) > BREATH:
        parts.append(f"median prompt {signed_change(longer)}")
    if not parts:
        return "traffic mix unchanged" if len(frame) else ""
    return "changed too: " + ", ".join(parts)


def prompts(context: Context, pair: Pair) -> float | None:
    """Return by how much the median prompt grew, None where nobody counts tokens."""
    sides = [median(tokens(context, pair)[index].get(TOKENS_IN)) for index in (0, 1)]
    return ratio_of(sides[1], sides[0])


def tokens(context: Context, pair: Pair) -> list[dict[str, Histogram]]:
    """Return the tokens a request of A and of B has: by type, input or output."""
    return [asked(context, context.source.read.streams, side, TOKENS) for side in (pair.a, pair.b)]


def median(counted: Histogram | None) -> float | None:
    """Return the middle value, None without any."""
    found = counted.quantile(0.5) if counted else None
    return None if found is None else found.value
