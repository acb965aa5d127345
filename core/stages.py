"""The stages of a request, in the order every chart stacks them: useful compute at the bottom, waiting on top."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """A named, exclusive share of a request's wall time.

    Args:
        key: The name on the wire and in the store.
        label: The name on the screen.
        meaning: One line for a tooltip.
        waiting: Whether the request only waits here, so that no faster code would help.
    """

    key: str
    label: str
    meaning: str
    waiting: bool = False


STAGES: tuple[Stage, ...] = (
    Stage("forward", "Forward", "the model runs (not autoregressive)"),
    Stage("prefill", "Prefill", "the model runs, to the first token"),
    Stage("decode", "Decode", "the model runs, after the first token"),
    Stage("h2d", "Transfer H→D", "copies from host to device"),
    Stage("d2h", "Transfer D→H", "copies from device to host"),
    Stage("preprocess", "Preprocess", "decode, resize, normalise, feature engineering"),
    Stage("tokenize", "Tokenize", "text to ids"),
    Stage("postprocess", "Postprocess", "NMS, label map, detokenise, sampling glue"),
    Stage("serialize", "Serialize", "parsing the request body, building the response"),
    Stage("dependency", "Dependency", "a call to something else inside the request", waiting=True),
    Stage("network", "Network", "bytes on the wire: reading the body, sending the response", waiting=True),
    Stage("queue", "Queue", "waiting before work: proxy, thread pool, executor, batch, scheduler", waiting=True),
    Stage("load", "Cold start", "weights, session creation, compile, first-call warm-up", waiting=True),
    Stage("untimed", "Not timed", "requests of which the agent recorded no stages, to keep within its budget"),
    Stage("overhead", "Overhead", "end to end minus all stages: what nobody claimed"),
)

OVERHEAD = "overhead"
# All of a request that was counted without its stages: never a part of one that has any.
UNTIMED = "untimed"
ORDER: dict[str, int] = {stage.key: position for position, stage in enumerate(STAGES)}
BY_KEY: dict[str, Stage] = {stage.key: stage for stage in STAGES}

# A chart stays readable with three names of the user's own; more fold into OTHER.
MAX_CUSTOM_STAGES = 3
OTHER = "__other__"


def label(key: str) -> str:
    """Return the name of stage *key* on the screen; a user's own stage shows as it is written.

    >>> label("h2d")
    'Transfer H→D'
    >>> label("rerank")
    'rerank'
    """
    known = BY_KEY.get(key)
    if known is not None:
        return known.label
    return "Other" if key == OTHER else key


def position(key: str) -> tuple[int, str]:
    """Return the sort key of stage *key*: the fixed order; a user's own stages stand just below overhead, by name.

    >>> sorted(["overhead", "rerank", "queue", "forward"], key=position)
    ['forward', 'queue', 'rerank', 'overhead']
    """
    if key in ORDER:
        return (ORDER[key] + (key == OVERHEAD), "")
    return (ORDER[OVERHEAD], key)


def ordered(stages: Iterable[str]) -> list[str]:
    """Return *stages* in the order every chart stacks them."""
    return sorted(stages, key=position)
