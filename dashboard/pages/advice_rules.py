"""Advice rules: conditions on measured facts, and the optimization catalog from `advice.yaml`.

A finding states that a stage takes enough time to be worth optimizing. The reachable latency is not part of a finding, because
it needs a what-if query that sorts all requests again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ...analysis.costs import cost_by_stage
from ...core.stages import BY_KEY, OTHER, OVERHEAD, label
from ..ui.format import count, duration, percent, times
from .measures import Measures

_FILE = Path(__file__).parents[1] / "advice.yaml"
# Findings below this share of the ranked quantity are left out.
MIN_GAIN = 0.03
# Unattributed share from which it is a finding of its own.
MUCH_OVERHEAD = 0.15
# A stage with a smaller share of the median occurs only in the tail.
_RARE = 0.10
# Ratio of p99 to p50 from which a stage counts as slow for some requests only.
_UNEVEN = 3.0
# Two ratios within this factor have the same cause.
_ALIKE = 1.35
RANKS = ("p99", "p50", "cost")
_TITLES = {
    "forward": "Make the model itself faster",
    "prefill": "Cache prompt prefixes, and prefill in chunks",
    "h2d": "Copy less to the device, or overlap copies with compute",
    "d2h": "Copy less from the device, or overlap copies with compute",
    "serialize": "Serialize faster, or return smaller responses",
    "network": "Send fewer bytes, over a shorter route",
}


@dataclass(frozen=True, slots=True)
class Family:
    """Family of optimizations for one kind of stage time.

    Args:
        key: Name of the family in addresses and events.
        name: Display name.
        stages: Stages to which the family applies.
        options: Optimizations, the first to try first.
        own_stages: Whether the family also applies to custom stages of the user.
    """

    key: str
    name: str
    stages: tuple[str, ...]
    options: tuple[Option, ...]
    own_stages: bool = False


@cache
def families() -> tuple[Family, ...]:
    """Return all optimization families of the catalog."""
    entries: list[dict[str, Any]] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return tuple(_family(entry) for entry in entries)


def family_of(stage: str) -> Family | None:
    """Return the family for *stage*; None if the catalog has none.

    >>> family_of("queue").key, family_of("my_rerank").key
    ('batching', 'cpu')
    """
    own = stage not in BY_KEY
    return next((each for each in families() if stage in each.stages or (own and each.own_stages)), None)


def _family(entry: dict[str, Any]) -> Family:
    options = tuple(Option(**option) for option in entry["options"])
    own_stages = bool(entry.get("own_stages"))
    return Family(str(entry["key"]), str(entry["name"]), tuple(entry["stages"]), options, own_stages=own_stages)


@dataclass(frozen=True, slots=True)
class Facts:
    """Measured facts of one service.

    Args:
        service: Name of the service.
        measures: Measures of its requests.
        means: Mean time by stage; median stage times if unknown. [seconds]
        failed_calls: Number of failed calls to other services. [count]
        answer_tokens: Response length at p50 and p99; None without token counts. [tokens]
    """

    service: str
    measures: Measures
    means: Mapping[str, float] = field(default_factory=dict[str, float])
    failed_calls: int = 0
    answer_tokens: tuple[float, float] | None = None

    def median(self, stage: str) -> float:
        """Return the time [seconds] of *stage* at p50."""
        return self.measures.median_stages.get(stage, 0.0)

    def tail(self, stage: str) -> float:
        """Return the time [seconds] of *stage* at p99."""
        return self.measures.tail_stages.get(stage, 0.0)


@dataclass(frozen=True, slots=True)
class Finding:
    """Stage time of a service that is worth working on.

    Args:
        facts: Facts of the service.
        stage: Key of the stage.
        family: Optimizations for the stage.
    """

    facts: Facts
    stage: str
    family: Family

    @property
    def words(self) -> tuple[str, str]:
        """Title in the imperative, and the reason with its numbers."""
        return _WORDS.get(self.family.key, _work)(self.facts, self.stage)

    @property
    def key(self) -> str:
        """Name of the finding in events."""
        return f"{self.family.key}:{self.stage}"

    def weight(self, rank: str) -> float:
        """Return the estimated gain without a what-if query: share of p99, of p50 or of the cost [ratio]."""
        facts = self.facts
        if rank == "cost":
            return cost_by_stage(1.0, facts.means or facts.measures.median_stages).get(self.stage, 0.0)
        whole, own = (
            (facts.measures.p50, facts.median(self.stage))
            if rank == "p50"
            else (facts.measures.p99, facts.tail(self.stage))
        )
        return own / whole if whole else 0.0

    def expected(self, rank: str) -> float:
        """Return the sort weight: for p99 the time that the stage adds in the tail, else `weight`."""
        return self.added if rank == "p99" else self.weight(rank)

    @property
    def added(self) -> float:
        """Share of p99 by which the stage exceeds its time at p50 [ratio]."""
        p99 = self.facts.measures.p99
        return max(self.facts.tail(self.stage) - self.facts.median(self.stage), 0.0) / p99 if p99 else 0.0


def findings(facts: Facts, rank: str) -> list[Finding]:
    """Return the findings that apply, largest expected gain first, without those below `MIN_GAIN` of *rank*."""
    stages = {*facts.measures.median_stages, *facts.measures.tail_stages, *facts.means} - {OTHER}
    found = [made for stage in stages if (made := _finding(facts, stage)) is not None]
    worth = [each for each in found if each.weight(rank) >= MIN_GAIN]
    return sorted(worth, key=lambda each: (-each.expected(rank), -each.weight(rank), each.key))


def _finding(facts: Facts, stage: str) -> Finding | None:
    family = family_of(stage)
    if family is None or (stage == OVERHEAD and not _gap(facts)):
        return None
    return Finding(facts, stage, family)


def _gap(facts: Facts) -> bool:
    """Return whether too much time is unattributed."""
    p50, p99 = facts.measures.p50, facts.measures.p99
    shares = [facts.median(OVERHEAD) / p50 if p50 else 0.0, facts.tail(OVERHEAD) / p99 if p99 else 0.0]
    return max(shares) > MUCH_OVERHEAD


def _shares(facts: Facts, stage: str) -> str:
    """Return the share of *stage* at both percentiles: `63 % of p99 (138 ms) and 4 % of p50 (2.1 ms)`."""
    measures = facts.measures
    said = [
        f"{percent(own / whole)} of {name} ({duration(own)})"
        for name, whole, own in (("p99", measures.p99, facts.tail(stage)), ("p50", measures.p50, facts.median(stage)))
        if whole
    ]
    return " and ".join(said)


def _rare(facts: Facts, stage: str) -> bool:
    p50 = facts.measures.p50
    return bool(p50) and facts.median(stage) < _RARE * p50


def _uneven(facts: Facts, stage: str) -> float | None:
    """Return the ratio of p99 to p50 of *stage* if it is large, else None."""
    median, tail = facts.median(stage), facts.tail(stage)
    return tail / median if median > 0 and tail / median >= _UNEVEN else None


def _queue(facts: Facts, stage: str) -> tuple[str, str]:
    shares = _shares(facts, stage)
    if _rare(facts, stage):
        why = f"{label(stage)} is {shares}: bursts arrive faster than they are served; between bursts no request waits."
        return "Batch bursts, or add a replica", why
    return (
        "Add capacity, or batch more: even the median waits",
        f"{label(stage)} is {shares}: most requests wait, not only those of a burst.",
    )


def _load(facts: Facts, stage: str) -> tuple[str, str]:
    shares = _shares(facts, stage)
    if _rare(facts, stage):
        return "Keep the model warm", f"{label(stage)} is {shares}: some requests include a cold start, most do not."
    return "Load once, before traffic", f"{label(stage)} is {shares}: requests load it repeatedly."


def _data_work(facts: Facts, stage: str) -> tuple[str, str]:
    name, shares, ratio = label(stage), _shares(facts, stage), _uneven(facts, stage)
    if ratio is not None:
        why = f"{name} is {shares}: {times(ratio)} as long, so some inputs are far larger than others, or wait for a core."
        return f"Bound what {name.lower()} has to do, or give it cores", why
    if _rare(facts, stage):
        return (
            f"Speed up {name.lower()}, or need it less often",
            f"{name} is {shares}: some requests need it, most do not.",
        )
    return f"Speed up {name.lower()}", f"{name} is {shares}: it takes about as long for every request."


def _dependency(facts: Facts, stage: str) -> tuple[str, str]:
    failed = f" {count(facts.failed_calls)} calls failed in the window." if facts.failed_calls else ""
    ratio = _uneven(facts, stage)
    slow = f": some calls take {times(ratio)} as long" if ratio is not None else ""
    return (
        "Cache, parallelize or retry calls to dependencies",
        f"{label(stage)} is {_shares(facts, stage)}{slow}.{failed}",
    )


def _decode(facts: Facts, stage: str) -> tuple[str, str]:
    shares, lengths = f"{label(stage)} is {_shares(facts, stage)}", facts.answer_tokens
    median = facts.median(stage)
    if lengths is None or not median or not lengths[0]:
        return "Decode faster", f"{shares}."
    longer, slower = lengths[1] / lengths[0], facts.tail(stage) / median
    tokens = f"responses have {count(lengths[0])} tokens at p50 and {count(lengths[1])} at p99"
    if slower <= longer * _ALIKE:
        return "Limit response length, or decode faster", f"{shares}, and {tokens}: the tail has longer responses, not slower tokens."  # fmt: skip
    return "Decode faster under load", f"{shares}, but {tokens}: tokens are slower in the tail."


def _unattributed(facts: Facts, stage: str) -> tuple[str, str]:
    why = f"{label(stage)} is {_shares(facts, stage)}: this time is between stages and belongs to no stage."
    return "Add stages for the time between stages", why


def _untimed(facts: Facts, stage: str) -> tuple[str, str]:
    why = f"{label(stage)} is {_shares(facts, stage)}: agents reached their budget and recorded no stages of these requests."
    return "Let agents record stages again", why


def _work(facts: Facts, stage: str) -> tuple[str, str]:
    """Return title and reason for a stage that does work for every request: model, copies, bytes."""
    ratio = _uneven(facts, stage)
    for_some = f", {times(ratio)} as long for some" if ratio is not None else ", similar for every request"
    return _TITLES[stage], f"{label(stage)} is {_shares(facts, stage)}{for_some}."


@dataclass(frozen=True, slots=True)
class Option:
    """Optimization of the catalog; every field is a few words.

    Args:
        name: Name of the optimization.
        does: Effect of the optimization.
        gain: Possible gain, an upper bound.
        accuracy: Effect on the results.
        complexity: `low`, `medium` or `high`.
        hardware: Additional hardware.
        reversible: How to revert it.
        source: Source of the description.
    """

    name: str
    does: str
    gain: str
    accuracy: str
    complexity: str
    hardware: str
    reversible: str
    source: str


_WORDS: dict[str, Callable[[Facts, str], tuple[str, str]]] = {
    "batching": _queue,
    "cold-start": _load,
    "cpu": _data_work,
    "decode": _decode,
    "dependency": _dependency,
    "instrumentation": _unattributed,
    "recording": _untimed,
}
