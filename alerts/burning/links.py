"""Where the dashboard shows what a message speaks of: the service, the window, the percentile and the filters of the SLO."""

from __future__ import annotations

from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

from ..objectives.slo import Slo

# The page opens on some of the calm before it.
CALM_BEFORE = timedelta(minutes=15)
# The tab of a service that shows what a promise is about, where it is not the first.
_TABS = {"ttft": "/tokens", "tpot": "/tokens"}


def link(dashboard_url: str, slo: Slo, began: datetime, now: datetime, quantile: float = 0.0) -> str:
    """Return the page that shows the trouble and the calm before it, or nothing without a dashboard.

    Args:
        dashboard_url: Where the dashboard is; empty for no link.
        slo: Whose requests; the dashboard shows those of all its routes.
        began: When the trouble began.
        now: Until when it is shown.
        quantile: The percentile the message speaks of; 0 for the one that is promised.

    >>> shop = Slo("x", "shop", 0.99, timedelta(days=30), version="v2")
    >>> link("http://127.0.0.1:8600/", shop, datetime.fromtimestamp(900), datetime.fromtimestamp(1000))
    'http://127.0.0.1:8600/s/shop?p=99&v=v2&from=0&to=1000000'
    """
    if not dashboard_url:
        return ""
    query = {
        "p": f"{100 * (quantile or slo.objective):g}",
        "v": slo.version,
        "m": slo.model,
        "env": slo.environment,
        "from": _milliseconds(began - CALM_BEFORE),
        "to": _milliseconds(now),
    }
    asked = urlencode({key: value for key, value in query.items() if value is not None})
    return f"{dashboard_url.rstrip('/')}/s/{quote(slo.service, safe='')}{_TABS.get(slo.kind, '')}?{asked}"


def trace_link(dashboard_url: str, trace: str) -> str:
    """Return the page of the kept request *trace*, or nothing without a dashboard."""
    return f"{dashboard_url.rstrip('/')}/traces/{quote(trace, safe='')}" if dashboard_url else ""


def where(slo: Slo) -> dict[str, str]:
    """Return what of a service *slo* is about, where it is not about all of it."""
    found = {"environment": slo.environment, "route": slo.route, "model": slo.model, "version": slo.version}
    return {key: value for key, value in found.items() if value}


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)
