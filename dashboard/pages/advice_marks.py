"""What people did with a piece of advice: dismissed it, put it off, or did it. Each is an event, the newest one counts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from dash import html
from dash.development.base_component import Component

from ..advising import Finding
from ..components import attributes
from ..format import span
from ..view import View
from .page import Context
from .rows import records
from .windows import window_name

SNOOZE = timedelta(days=7)
_KEPT = timedelta(days=400)
_SNOOZED = "snoozed until "
# A comparison of less says nothing.
_SHORTEST = timedelta(minutes=10)

State = Literal["open", "dismissed", "snoozed", "done"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What was done last.

    Args:
        state: What.
        at: When.
        until: Until when it is put off; None for the others.
    """

    state: State
    at: datetime
    until: datetime | None = None

    def hides(self, now: datetime) -> bool:
        """Say whether the advice is out of sight at *now*."""
        return self.state in ("dismissed", "done") or (self.until is not None and now < self.until)


def marks(context: Context) -> dict[tuple[str, str], Mark]:
    """Return what was done last, by service and key of the advice."""
    # By the day, so that the answer is asked for once a revision and not once a moment.
    today = context.view.now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    read = context.source.read
    found = context.source.ask(read.events, today - _KEPT, today + timedelta(days=2), kind="advice")
    newest: dict[tuple[str, str], Mark] = {}
    for row in records(found):
        newest.setdefault((str(row["service"]), str(row["key"])), _mark(str(row["text"]), row["at"].to_pydatetime()))
    return newest


def buttons(finding: Finding, mark: Mark | None, now: datetime) -> Component:
    """Return what can be done with *finding*: put it out of sight in one of three ways, or bring it back."""
    name = f"{finding.words[0]}, {finding.facts.service}"
    if mark is not None and mark.hides(now):
        return html.Div([_button("Show again", "open", finding, name)], className="acts")
    until = (now + SNOOZE).astimezone(UTC).replace(second=0, microsecond=0).isoformat()
    made = [
        _button("Done", "done", finding, name),
        _button(f"Snooze {span(SNOOZE)}", f"{_SNOOZED}{until}", finding, name),
        _button("Dismiss", "dismissed", finding, name),
    ]
    return html.Div(made, className="acts")


def before_and_after(view: View, service: str, mark: Mark) -> str:
    """Return the address that compares as long a time before *mark* as has passed since, at most the window."""
    length = min(max(view.now - mark.at, _SHORTEST), view.end - view.start)
    before, after = window_name(mark.at - length, mark.at), window_name(mark.at, mark.at + length)
    return view.link("/compare", svc=service, a=before, b=after, **view.part_of_each_version)


def _mark(text: str, at: datetime) -> Mark:
    if text.startswith(_SNOOZED):
        try:
            until = datetime.fromisoformat(text.removeprefix(_SNOOZED))
        except ValueError:
            return Mark("open", at)
        return Mark("snoozed", at, until if until.tzinfo else until.replace(tzinfo=UTC))
    return Mark(text, at) if text in ("dismissed", "done") else Mark("open", at)


def _button(words: str, text: str, finding: Finding, name: str) -> Component:
    told = {"service": finding.facts.service, "kind": "advice", "key": finding.key, "text": text}
    said = {"data-post": json.dumps(told), "aria-label": f"{words}: {name}"}
    return html.Button(words, className="btn", type="button", **attributes(said))
