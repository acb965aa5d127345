"""What a page gets and gives: a view and a source in; a title, a trail and a body out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...collector.store import Selection
from ..components import Node, attributes, card, empty
from ..figures.time_axis import TimeAxis, step_for
from ..format import span
from ..source import Source
from ..view import View

_log = logging.getLogger(__name__)

# The first version ever seen is no release, it is where the history begins.
_MAX_MARKERS = 4


@dataclass(frozen=True, slots=True)
class Page:
    """One rendered page.

    Args:
        title: For the window of the browser.
        trail: Where one is: text and address, the last without one.
        body: What it shows, below each other.
        place: Which entry of the navigation is lit: an address.
    """

    title: str
    trail: list[tuple[str, str | None]]
    body: list[Node]
    place: str = "/"


@dataclass(frozen=True)
class Context:
    """What a page is rendered from.

    Args:
        view: The address.
        source: The data.
        service: The service it is about, if it is about one.
    """

    view: View
    source: Source
    service: str | None = None

    @cached_property
    def selection(self) -> Selection:
        """The requests of the window the view is about."""
        view = self.view
        version = view.text("v") if self.service else None
        return Selection(view.start, view.end, service=self.service, version=version, environment=view.text("env"))

    @cached_property
    def previous(self) -> Selection:
        """The requests of the window of the same length before."""
        length = self.view.end - self.view.start
        return replace(self.selection, start=self.view.start - length, end=self.view.start)

    @cached_property
    def versions(self) -> pd.DataFrame:
        """The versions of the service over its whole history, oldest first."""
        view = self.view
        return self.source.versions(self.service or "", view.text("env"), view.start, view.end)

    @cached_property
    def first_data(self) -> datetime | None:
        """When the history begins, of the service or of everything."""
        if self.service is None:
            return self.source.state().oldest
        return None if self.versions.empty else _python(self.versions["first_seen"].min())

    @cached_property
    def axis(self) -> TimeAxis:
        """The time axis: the window, or what there is of it while the history is younger than the window."""
        view = self.view
        start = max(view.start, self.first_data) if self.first_data else view.start
        if start >= view.end:
            start = view.start
        return TimeAxis(start, view.end, step_for(view.end - start), view.zone)

    def axis_of(self, frame: pd.DataFrame) -> TimeAxis:
        """Return the axis with the step *frame* really has: the store widens it where finer rows are gone."""
        seconds = frame.attrs.get("step_seconds")
        return replace(self.axis, step=timedelta(seconds=float(seconds))) if seconds else self.axis

    def rates(self, frame: pd.DataFrame) -> list[float]:
        """Return the requests a second of every step of *frame*.

        Without the newest one where the window ends now: agents have not sent all of it yet, and it would end each course
        with a fall.
        """
        if not len(frame):
            return []
        rates = frame["n"].to_numpy(dtype=float) / self.axis_of(frame).covered_seconds(frame["at"])
        return [float(each) for each in (rates[:-1] if self.view.live else rates)]

    @property
    def seconds(self) -> float:
        """The length of the shown time."""
        return (self.axis.end - self.axis.start).total_seconds()

    @property
    def young(self) -> str:
        """Say that the history is younger than the window, where it is."""
        if self.axis.start <= self.view.start:
            return ""
        return f"history starts {self.axis.start.astimezone(self.view.zone):%H:%M:%S}, {span(self.axis.end - self.axis.start)} of data"

    @cached_property
    def releases(self) -> dict[datetime, str]:
        """The versions first seen in the shown time, to their names; the very first is no release."""
        rows = self.versions.iloc[1:] if len(self.versions) else self.versions
        seen = [(_python(at), str(name)) for at, name in zip(rows["first_seen"], rows["version"], strict=True)]
        shown = [(at, name) for at, name in seen if self.axis.start < at < self.axis.end]
        return dict(shown[-_MAX_MARKERS:])

    @property
    def threshold_seconds(self) -> float | None:
        """The latency the service's objective promises, if it has one."""
        status = self.source.slo_of(self.service) if self.service else None
        return status.slo.threshold_seconds if status else None


def panel(title: str, build: Callable[[], Component], size: str = "c12") -> Component:
    """Return what *build* makes, or a card that says it failed: one broken card must not take the page with it."""
    try:
        return build()
    except Exception as error:  # noqa: BLE001 - whatever a card meets, the others stay
        _log.exception("the card %r could not be made", title)
        failed = html.Div(
            [
                html.H3("This card could not be made"),
                html.P(
                    f"{type(error).__name__}: the rest of the page is not affected. The log of the dashboard says more."
                ),
                html.Div(
                    html.Button("Try again", className="btn", type="button", **attributes({"data-do": "reload"})),
                    className="acts",
                ),
            ],
            className="empty",
        )
        return card(title, failed, size=size)


def nothing(title: str, *text: Node, actions: list[Component] | None = None) -> Component:
    """Return a card for a page that has nothing to show."""
    return card(None, empty(title, *text, actions=actions or []))


def _python(at: object) -> datetime:
    return pd.Timestamp(at).to_pydatetime()  # pyright: ignore[reportArgumentType] - pandas' own timestamps, typed as object
