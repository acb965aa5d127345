"""Before there is anything to show: how to send the first request, and where the data is if not in this window."""

from __future__ import annotations

from datetime import timedelta

from dash import html
from dash.development.base_component import Component

from ..components import Node, link
from ..format import span
from .page import Context, nothing

_INSTALL = "pip install stagelens\nstagelens run -- uvicorn app:app"
_BY_HAND = """import stagelens

with stagelens.request("classify"):
    with stagelens.stage("preprocess"):
        batch = resize(image)
    with stagelens.stage("forward"):
        scores = model(batch)"""
_DEMO = "make demo"
_COLLECTOR = "http://127.0.0.1:4318"


def no_data(context: Context) -> list[Node]:
    """Return the body of the overview when its window is empty: the first run, or a way to the last data."""
    view, environment = context.view, context.view.text("env")
    services = context.source.all_services(environment)
    if not len(services) and not environment:
        return [first_run()]
    if not len(services):
        everywhere = link("All environments", href=view.here(env=None), className="btn pri")
        return [nothing(f"No environment called {environment}", "No request came from there.", actions=[everywhere])]
    last = services["last_seen"].max().to_pydatetime() + timedelta(seconds=10)
    age = context.source.now() - last
    text = (
        f"The last request came {span(age)} ago." if age > timedelta() else "All there is came later than this window."
    )
    return [
        nothing(
            "No request in this window",
            text,
            actions=[
                link(
                    "Go to last data", href=view.with_window(last - (view.end - view.start), last), className="btn pri"
                ),
                link("Last 24 h", href=view.here(from_="now-24h", to=None), className="btn"),
            ],
        )
    ]


def first_run() -> Component:
    """Return the page of an empty store; it fills itself when the first request arrives."""
    return html.Div(
        [
            html.H1("No service yet"),
            html.P(
                "Start a service with Stagelens in front and send it a request. No line of its code changes.",
                className="x",
            ),
            html.H2("In the environment of your service"),
            _code(_INSTALL),
            html.H2("Or name the stages yourself"),
            _code(_BY_HAND),
            html.H2("Or watch it on a real model, from a clone of Stagelens"),
            _code(_DEMO),
            html.P(
                [
                    "Agents send to ",
                    html.Span(_COLLECTOR, className="mono"),
                    " unless OTEL_EXPORTER_OTLP_ENDPOINT says otherwise.",
                ],
                className="x",
            ),
            html.Div(
                [html.Span(className="pulse"), "Waiting for the first request. It shows here within seconds."],
                className="wait",
                role="status",
            ),
        ],
        className="first",
    )


def missing(what: str, home: str) -> Component:
    """Return what stands at an address that leads nowhere."""
    return nothing("There is no such page", what, actions=[link("Overview", href=home, className="btn pri")])


def _code(text: str) -> Component:
    return html.Pre(text, className="code mono", tabIndex=0)
