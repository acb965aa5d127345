"""Which page an address means."""

from __future__ import annotations

from collections.abc import Callable

from .pages import (
    advice,
    capacity,
    collectors,
    compare,
    engines,
    events,
    incidents,
    overview,
    regressions,
    replicas,
    service,
    settings,
    slo,
    tokens,
    trace,
    traces,
)
from .pages.page import Context, Page
from .source import Source
from .view import View

_SERVICE = "s"


def context_of(view: View, source: Source) -> Context:
    """Return what the page of *view* is rendered from; the service is in the path or in `svc`."""
    match view.parts:
        case (str(first), str(name), *_) if first == _SERVICE:
            return Context(view, source, name)
        case ("compare",) | ("traces",) | ("advice",) | ("events",):
            return Context(view, source, view.text("svc"))
        case _:
            return Context(view, source)


def page_of(context: Context) -> Page | None:
    """Return the page, or None for an address that leads nowhere."""
    match context.view.parts:
        case ("slo", name):
            return slo.render(context, name)
        case ("incidents", name):
            return incidents.render(context, name)
        case ("traces", name):
            return trace.render(context, name)
        case (str(first), _, *tab) if first == _SERVICE:
            render = _OF_A_SERVICE.get("/".join(tab))
        case parts:
            render = _PAGES.get("/".join(parts))
    return render(context) if render else None


_PAGES: dict[str, Callable[[Context], Page]] = {
    "": overview.render,
    "advice": advice.render,
    "collectors": collectors.render,
    "compare": compare.render,
    "engines": engines.render,
    "events": events.render,
    "incidents": incidents.render,
    "regressions": regressions.render,
    "settings": settings.render,
    "slo": lambda context: slo.render(context, None),
    "traces": traces.render,
}
_OF_A_SERVICE: dict[str, Callable[[Context], Page]] = {
    "": service.render,
    "advice": advice.render,
    "capacity": capacity.render,
    "replicas": replicas.render,
    "tokens": tokens.render,
    "traces": traces.render,
}
