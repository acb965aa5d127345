"""What methods name as the cause of slow requests, and whether it is the planted one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stagelens.analysis.attributes import WHEN, AttributeCounts, SharedCauses
from stagelens.core.attributes import attribute

from .simulate import Bools, Floats, Traffic, Truth

METHODS = ("stagelens", "chi-square", "K-S", "difference")


@dataclass(frozen=True, slots=True)
class Named:
    """Value or range that a method names: of `WHEN`, start and end."""

    key: str
    values: tuple[str, ...]


def is_right(named: Named, truths: list[Truth], traffic: Traffic) -> bool:
    """Return whether *named* is one of the planted causes, or the same requests."""
    return any(_is_right(named, truth, traffic) for truth in truths)


def _is_right(named: Named, truth: Truth, traffic: Traffic) -> bool:
    if named.key == WHEN:
        begin, end = (int(each) - traffic.start for each in named.values)
        inside = (traffic.at >= begin) & (traffic.at < end)
        return WHEN in truth.values and _overlap(inside, truth.requests) >= 0.5
    names = traffic.names.get(named.key)
    if names is None:
        return False
    chosen = np.array([name in named.values for name in names])
    planted = truth.values.get(named.key)
    if planted is not None and attribute(named.key).is_number:
        return bool(chosen[-1] and abs(int(chosen.argmax()) - int(planted.argmax())) <= 1)
    requests = chosen[traffic.codes[named.key]]
    return any(
        _overlap(requests, values[traffic.codes[key]]) >= 0.9 for key, values in truth.values.items() if key != WHEN
    )


def _overlap(one: Bools, other: Bools) -> float:
    return float((one & other).sum() / max((one | other).sum(), 1))


def methods(counts: AttributeCounts, found: SharedCauses) -> dict[str, list[Named]]:
    """Return what each method names, first first; ours has *found*."""
    return {
        "stagelens": [Named(each.key, each.values) for each in found.causes],
        **_others(counts, found.threshold),
    }


def _others(counts: AttributeCounts, threshold: float) -> dict[str, list[Named]]:
    """Return what the other methods name, of the same values and ranges."""
    cut = int(np.searchsorted(2.0 ** (counts.index / 2.0**counts.scale), threshold * 0.999))
    named, tables = [], []
    for key, values in counts.requests.items():
        whole = np.stack(list(values.values())).sum(axis=(0, 1))
        for chosen in _sets(key, list(values)):
            inside = np.stack([values[each] for each in chosen]).sum(axis=(0, 1))
            if 5 <= inside.sum() <= whole.sum() - 5:
                named.append(Named(key, tuple(chosen)))
                tables.append((inside, whole - inside))
    inside, outside = (np.array(each, np.float64) for each in zip(*tables, strict=True))
    n, others = inside.sum(axis=1), outside.sum(axis=1)
    k, others_slow = inside[:, cut:].sum(axis=1), outside[:, cut:].sum(axis=1)
    total, slow = n + others, k + others_slow
    expected = n * slow / total
    chi = (k - expected) ** 2 / (expected * (1 - slow / total) * (others / total))
    distance = (outside.cumsum(axis=1) / others[:, None] - inside.cumsum(axis=1) / n[:, None]).max(axis=1)
    ks = 2 * n * others / total * distance**2
    difference = k / slow - (n - k) / (total - slow)
    least = np.log(len(named) / 0.01)
    # Exponents of the probabilities; that of chi-square from the bound of the normal tail.
    return {
        "chi-square": _ranked(named, np.where(k > expected, chi / 2, 0.0), least),
        "K-S": _ranked(named, ks, least),
        "difference": _ranked(named, difference, 0.0),
    }


def _sets(key: str, values: list[str]) -> Iterator[list[str]]:
    yield from ([each] for each in values)
    if attribute(key).is_number:
        ordered = sorted((each for each in values if each.isdecimal()), key=int)
        for place in range(1, len(ordered) - 1):
            yield ordered[place:]
            yield ordered[: place + 1]


def _ranked(named: list[Named], scores: Floats, least: float) -> list[Named]:
    return [named[place] for place in np.argsort(-scores, kind="stable") if scores[place] > least]
