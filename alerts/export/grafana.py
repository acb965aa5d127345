"""A dashboard for Grafana over what the collector tells on /metrics, and what the exported rules make of it.

The JSON is that of schema version 39, which Grafana 10.4 and later read; it holds nothing of one installation: the data source
and the services are chosen on the page.

Source: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

import json
from typing import Any

from ...core.names import REQUEST_DURATION
from .expressions import NAMES, Histograms
from .panels import Panel, rows

SCHEMA_VERSION = 39
_COLUMNS, _HEIGHT = 24, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def write(histograms: Histograms) -> str:
    """Return the dashboard as JSON.

    Args:
        histograms: How the collector's histograms are read.
    """
    panels: list[dict[str, Any]] = []
    top = 0
    for title, charts in rows(histograms).items():
        panels.append({"type": "row", "title": title, "collapsed": False, "panels": [], **_place(0, top, _COLUMNS, 1)})
        top, left = top + 1, 0
        for chart in charts:
            if left + chart.width > _COLUMNS:
                top, left = top + _HEIGHT, 0
            panels.append(_chart(chart) | _place(left, top, chart.width, _HEIGHT))
            left += chart.width
        top += _HEIGHT
    numbered = [{"id": number, **panel} for number, panel in enumerate(panels, 1)]
    return json.dumps(_dashboard(numbered, histograms), indent=2) + "\n"


def _place(left: int, top: int, width: int, height: int) -> dict[str, Any]:
    return {"gridPos": {"x": left, "y": top, "w": width, "h": height}}


def _chart(panel: Panel) -> dict[str, Any]:
    drawn = {"fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}} if panel.stacked else {"fillOpacity": 0}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for number, (legend, expression) in enumerate(panel.lines.items())
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": drawn}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _dashboard(panels: list[dict[str, Any]], histograms: Histograms) -> dict[str, Any]:
    name = NAMES[REQUEST_DURATION]
    values = f"label_values({name}{'' if histograms.native else '_count'}, service_name)"
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}
    service = {
        "name": "service",
        "label": "Service",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": values, "refId": "service"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }
    return {
        "title": "Stagelens",
        "uid": "stagelens",
        "description": "Where the time of inference requests goes. Made by `stagelens export grafana`.",
        "tags": ["stagelens", "inference"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [source, service]},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }
