"""Where the dashboard shows what a message speaks of: the service, the window, the percentile and the filters of the SLO."""

from __future__ import annotations

from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

from ...store.schema import storable_name as stored
from ..objectives.slo import Slo

# The page opens on some of the calm before it.
CALM_BEFORE = timedelta(minutes=15)
# The tab of a service that shows best what a promise is about. All others are on the first, where each stage, and what no
# stage claimed, stands with the time it takes at the percentile.
_TOKENS, _ERRORS = "/tokens", "/traces"
_TABS = {"ttft": _TOKENS, "tpot": _TOKENS, "availability": _ERRORS}


def link(dashboard_url: str, slo: Slo, began: datetime, now: datetime, quantile: float = 0.0) -> str:
    """Return the page that shows the trouble and the calm before it, or nothing without a dashboard.

    Args:
        dashboard_url: Where the dashboard is; empty for no link.
        slo: Whose requests, and what of them.
        began: When the trouble began.
        now: Until when it is shown.
        quantile: The percentile of the latency that the message speaks of; 0 where it speaks of what is promised.

    >>> shop = Slo("x", "shop", 0.99, timedelta(days=30), timedelta(seconds=1), version="v2", route="/pay/{id}")
    >>> link("http://127.0.0.1:8600/", shop, datetime.fromtimestamp(900), datetime.fromtimestamp(1000))
    'http://127.0.0.1:8600/s/shop?p=99&v=v2&r=/pay/%7Bid%7D&from=0&to=1000000'
    """
    if not dashboard_url:
        return ""
    tab = "" if quantile else _TABS.get(slo.kind, "")
    # In the order the dashboard writes them in: equal views have equal addresses.
    query = {
        "p": None if tab == _ERRORS else f"{100 * (quantile or slo.objective):g}",
        "by": slo.definition if tab == _TOKENS else None,
        **part_of(slo),
        "err": "1" if tab == _ERRORS else None,
        "env": slo.environment or None,
        "from": _milliseconds(began - CALM_BEFORE),
        "to": _milliseconds(now),
    }
    asked = urlencode({key: value for key, value in query.items() if value is not None}, safe=":,/")
    return f"{dashboard_url.rstrip('/')}/s/{quote(slo.service, safe='')}{tab}?{asked}"


def part_of(slo: Slo) -> dict[str, str]:
    """Return which part of its service *slo* is about, by the keys of a dashboard address, cut as the store cuts names."""
    found = {"v": slo.version, "m": slo.model, "r": slo.route}
    return {key: stored(value) for key, value in found.items() if value}


def trace_link(dashboard_url: str, trace: str) -> str:
    """Return the page of the kept request *trace*, or nothing without a dashboard."""
    return f"{dashboard_url.rstrip('/')}/traces/{quote(trace, safe='')}" if dashboard_url else ""


def where(slo: Slo) -> dict[str, str]:
    """Return what of a service *slo* is about, where it is not about all of it."""
    found = {"environment": slo.environment, "route": slo.route, "model": slo.model, "version": slo.version}
    return {key: value for key, value in found.items() if value}


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)
