"""The buttons of an incident: to look after it, accept it, silence it, end a silence. Each says what it sends (`tell.js`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote

from dash import html
from dash.development.base_component import Component

from ...alerts.incidents.silences import Silence
from ...alerts.reader import Incident
from ..components import attributes
from ..incidents_api import INCIDENTS, SILENCES

# For how long a button silences: a look, and a working day.
_LENGTHS = ("1h", "8h")


def acknowledge_button(found: Incident) -> Component | None:
    """Return the button of whoever looks after *found*; None when somebody does."""
    if found.acked_by:
        return None
    return _button("I look after it", f"{INCIDENTS}/{quote(found.id, safe='')}/acknowledge", {}, css="btn pri")


def accept_button(found: Incident) -> Component | None:
    """Return the button that takes *found* for the new normal; None for what cannot be, such as a broken promise."""
    if found.kind != "tail":
        return None
    what = "Nobody is told of it again unless it gets slower still"
    return _button("Accept as normal", f"{INCIDENTS}/{quote(found.id, safe='')}/accept", {}, title=what)


def silence_buttons(found: Incident) -> list[Component]:
    """Return the buttons after which nobody is told of *found* for a while."""
    about = {"service": found.service, "slo": found.name, "comment": f"from {found.id}"}
    return [_button(f"Silence {length}", SILENCES, {**about, "for": length}) for length in _LENGTHS]


def end_button(silence: Silence, what: str) -> Component:
    """Return the button that ends *silence*, which is about *what*."""
    return _button("End now", f"{SILENCES}/{quote(silence.id, safe='')}/end", {}, said=f"End now: silence of {what}")


def _button(
    words: str, to: str, body: Mapping[str, str], *, css: str = "btn", said: str = "", title: str = ""
) -> Component:
    data = {"data-to": to, "data-post": json.dumps(body)} | ({"aria-label": said} if said else {})
    return html.Button(words, className=css, type="button", title=title or None, **attributes(data))
