"""Before there is anything to show: how to send the first request, and where the data is if not in this window."""

from __future__ import annotations

import socket
from datetime import timedelta

from dash import html
from dash.development.base_component import Component

from ..components import Node, link
from ..format import span
from ..source import Source
from .page import Context, nothing

_INSTALL = "pip install stagelens"
_RUN = "stagelens run -- uvicorn app:app"
_BY_HAND = """import stagelens

with stagelens.request("classify"):
    with stagelens.stage("preprocess"):
        batch = resize(image)
    with stagelens.stage("forward"):
        scores = model(batch)"""
_DEMO = "make demo"
# Where agents send by default.
_PORT = 4318


def no_data(context: Context) -> list[Node]:
    """Return the body of the overview when its window is empty: the first run, or a way to the last data."""
    view, environment = context.view, context.view.text("env")
    services = context.source.all_services(environment)
    if not len(services) and not environment:
        return [first_run(context.source)]
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


def first_run(source: Source) -> Component:
    """Return the page of an empty store; it fills itself when the first request arrives."""
    endpoint, said = _collector(source)
    return html.Div(
        [
            html.H1("No service yet"),
            html.P(
                "Start a service with Stagelens in front and send it a request. No line of its code changes.",
                className="x",
            ),
            html.H2("In the environment of your service"),
            _code(f"{_INSTALL}\n{endpoint}{_RUN}"),
            html.H2("Or name the stages yourself"),
            _code(_BY_HAND),
            html.H2("Or watch it on a real model, from a clone of Stagelens"),
            _code(_DEMO),
            html.P(said, className="x"),
            html.Div(
                [html.Span(className="pulse"), "Waiting for the first request. It shows here within seconds."],
                className="wait",
                role="status",
            ),
        ],
        className="first",
    )


def _collector(source: Source) -> tuple[str, str]:
    """Return the settings with which agents find the collector, and a sentence about them."""
    found = max(source.read.collectors(), key=lambda each: each.seen, default=None)
    if found is None:
        return "", "No collector has reported to this store yet. Start one with `stagelens up`."
    host, _, port = found.name.rpartition(":")
    host = "127.0.0.1" if host == socket.gethostname() else host
    where = f"http://{host}:{port}"
    if (host, port) == ("127.0.0.1", str(_PORT)):
        return "", f"The collector listens on {where}, where agents send by default."
    return f"OTEL_EXPORTER_OTLP_ENDPOINT={where} ", f"The collector listens on {where}."


def missing(what: str, home: str) -> Component:
    """Return what stands at an address that leads nowhere."""
    return nothing("There is no such page", what, actions=[link("Overview", href=home, className="btn pri")])


def _code(text: str) -> Component:
    return html.Pre(text, className="code mono", tabIndex=0)
