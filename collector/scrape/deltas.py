"""What was counted between two readings of a target: never less than nothing, and nothing twice.

Counters only grow while a process lives. One that has become smaller, or that says it began later than it did before, began
anew: what it has now was counted since. What a target had counted before it was read for the first time nobody can date: the
first reading counts nothing. A reading that failed leaves the one before it standing, and only widens the time in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from .reading import Counted, Reading, Stream

# What happened in a longer time cannot be told by one point: a chart would show it as a moment's rush, an alert believe it.
MAX_GAP_SECONDS = 600.0
# What clocks of two machines may differ by, and a process may need until it answers.
_SKEW_SECONDS = 30.0
# Times of a start are written with a fraction, and rounded here and there.
_ROUNDED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Difference:
    """What happened between two readings.

    Args:
        base: The reading to compare the next one with.
        added: What was counted; none of it is empty.
        note: Why nothing could be counted, where that is so.
        lost_seconds: How long a time nobody will know of.
    """

    base: Reading
    added: dict[Stream, Counted] = field(default_factory=dict[Stream, Counted])
    note: str = ""
    lost_seconds: float = 0.0


def between(before: Reading | None, after: Reading) -> Difference:
    """Return what was counted between *before*, the base so far, and *after*."""
    if before is None:
        return Difference(after, note="read for the first time: counted from now on")
    if before.rules != after.rules:
        return Difference(after, note="read by other rules than before: counted from now on")
    seconds = after.at - before.at
    if seconds > MAX_GAP_SECONDS:
        note = f"not read for {seconds:.0f} s: counted from now on"
        return Difference(after, note=note, lost_seconds=seconds)
    restarted = _differ(before.started, after.started)
    if restarted and after.started < before.at - _SKEW_SECONDS:
        # Whoever answered before is still alive, and so is this one: both would be counted again with every turn.
        note = "another process answers than last time: scrape each process by its own address"
        return Difference(after, note=note, lost_seconds=max(seconds, 0.0))
    then: Mapping[Stream, Counted] = {} if restarted else before.streams
    added = {
        stream: more
        for stream, now in after.streams.items()
        # Where streams were left out, a new one may have been there all along.
        if (stream in then or restarted or not before.beyond) and (more := _more(then.get(stream), now)).count
    }
    # Labels that come back later go on from where they were.
    gone = {stream: counted for stream, counted in then.items() if stream not in after.streams}
    return Difference(after.with_streams(gone), added)


def _more(then: Counted | None, now: Counted) -> Counted:
    """Return what *now* has more than *then*; all of it if it began anew."""
    if then is None or _differ(then.created, now.created):
        return now
    rest = Counter(now.buckets)
    rest.subtract(then.buckets)
    if min(rest.values(), default=0) < 0 or now.sum < then.sum:
        return now
    return Counted({edges: count for edges, count in rest.items() if count}, now.sum - then.sum, now.created)


def _differ(earlier: float, later: float) -> bool:
    return bool(earlier and later) and abs(later - earlier) > _ROUNDED_SECONDS
