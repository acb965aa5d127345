"""Incidents and silences as a terminal shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from . import formatting
from .incidents.silences import Silence
from .reader import Delivery, Incident, Transition


def incidents(found: Sequence[Incident], *, everything: bool) -> str:
    """Return one line for each incident; *everything* says whether those that are over are among them."""
    if not found:
        return "No incident yet." if everything else "No incident is open; --all shows those that are over."
    rows = [(each.id, each.state, each.severity, _time(each.opened_at), _care(each), each.headline) for each in found]
    return "\n".join(table(("id", "state", "severity", "opened (UTC)", "who", "what"), rows))


def incident(found: Incident) -> str:
    """Return one incident, with its history and what was sent to whom."""
    facts = [
        ("state", _state(found)),
        ("since", f"{formatting.moment(found.since)}, noticed {formatting.moment(found.opened_at)}"),
        ("severity", found.severity),
        ("impact", found.impact),
        ("looked after by", _acked(found)),
        ("told", f"nobody: {found.muted}" if found.muted else "yes"),
        ("see", found.link),
    ]
    happened = [(_time(each.at), each.event, _heard(each), each.headline) for each in found.transitions]
    sent = [
        (each.channel, each.transition, each.state, str(each.attempts), _time(each.at), _trouble(each))
        for each in found.deliveries
    ]
    parts: list[Iterable[str]] = [
        [f"{found.id}: {found.headline}", ""],
        (f"  {name:<16}{value}" for name, value in facts if value),
        ["", *table(("when (UTC)", "what happened", "told", "as"), happened)],
        ["", *table(("channel", "message", "state", "tries", "when (UTC)", "answer"), sent)] if sent else [],
    ]
    return "\n".join(line for part in parts for line in part)


def silences(found: Sequence[Silence], now: datetime) -> str:
    """Return one line for each silence."""
    if not found:
        return "Nothing is silenced."
    rows = [
        (
            each.id,
            "over" if each.ends_at <= now else "in force" if each.holds(now) else "to come",
            _time(each.starts_at),
            _time(each.ends_at),
            each.author,
            matchers(each),
            each.comment,
        )
        for each in found
    ]
    return "\n".join(table(("id", "state", "from (UTC)", "until (UTC)", "by", "what", "why"), rows))


def matchers(silence: Silence) -> str:
    """Return what is silenced, such as `service=shop, severity=ticket`."""
    return ", ".join(f"{key}={value}" for key, value in silence.matchers.items())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield *rows* in columns under *head*."""
    every = [head, *([" ".join(text.split()) for text in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    for row in every:
        yield "   ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _care(found: Incident) -> str:
    if found.muted and found.state == "open":
        return "muted"
    return found.acked_by or ("nobody" if found.state == "open" else "")


def _state(found: Incident) -> str:
    if found.resolved_at is None:
        return found.state
    ended = f"accepted by {found.acked_by}" if found.ending == "accepted" else "resolved"
    return f"{ended} at {formatting.moment(found.resolved_at)}"


def _acked(found: Incident) -> str:
    if found.acked_at is None or found.ending == "accepted":
        return "nobody" if found.state == "open" else ""
    return f"{found.acked_by}, since {formatting.moment(found.acked_at)}"


def _heard(each: Transition) -> str:
    if each.event in ("acknowledged", "accepted"):
        return f"by {each.note}"
    return each.note or (f"{each.told} channel{'s' if each.told != 1 else ''}" if each.told else "nobody")


def _trouble(each: Delivery) -> str:
    if each.next_attempt is not None and each.attempts:
        again = f"again at {each.next_attempt:%H:%M:%S}"
        return f"{each.error}; {again}" if each.error else again
    return each.error or ("accepted" if each.state == "sent" else "")


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"
