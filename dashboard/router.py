"""Which page an address means."""

from __future__ import annotations

from .pages import compare, overview, service, slo, trace, traces
from .pages.page import Context, Page
from .source import Source
from .view import View

_WITH_TWO = 2


def context_of(view: View, source: Source) -> Context:
    """Return what the page of *view* is rendered from; the service is in the path or in `svc`."""
    parts = view.parts
    if len(parts) == _WITH_TWO and parts[0] == "s":
        return Context(view, source, parts[1])
    if len(parts) == 1 and parts[0] in {"compare", "traces"}:
        return Context(view, source, view.text("svc"))
    return Context(view, source)


def page_of(context: Context) -> Page | None:  # noqa: PLR0911 - a table of addresses
    """Return the page, or None for an address that leads nowhere."""
    match context.view.parts:
        case ():
            return overview.render(context)
        case ("s", _):
            return service.render(context)
        case ("compare",):
            return compare.render(context)
        case ("slo",):
            return slo.render(context, None)
        case ("slo", name):
            return slo.render(context, name)
        case ("traces",):
            return traces.render(context)
        case ("traces", trace_id):
            return trace.render(context, trace_id)
        case _:
            return None
