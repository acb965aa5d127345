"""Grafana dashboard over the collector's /metrics and the exported recording rules.

The JSON follows schema version 39 (Grafana 10.4 and later). The JSON is the same for all installations: users select the data
source and the services on the page.

Source: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...core.names import AGENT_COST, FIRST_TOKEN, OUTPUT_TOKEN, REQUEST_DURATION, STAGE_DURATION, SUSPECT_REPORT
from .rules import METRIC_NAMES, HistogramExpressions

# Grafana variable for a range of at least four scrapes.
_WINDOW = "$__rate_interval"
_CHOSEN = 'service_name=~"$service"'
SCHEMA_VERSION = 39
_COLUMNS, _HEIGHT = 24, 8
# Panels whose expressions do not depend on the kind of the histograms, by row.
_FIXED_PANELS = Path(__file__).parent / "panels.yaml"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    text: str
    lines: Mapping[str, str]
    unit: str = "short"
    stacked: bool = False
    width: int = 12


def panel_rows(histograms: HistogramExpressions) -> dict[str, Sequence[Panel]]:
    written: dict[str, list[dict[str, Any]]] = yaml.safe_load(_FIXED_PANELS.read_text(encoding="utf-8"))
    fixed = {row: [Panel(**panel) for panel in panels] for row, panels in written.items()}
    return {
        "Requests": _requests(histograms),
        "Where the time goes": _stages(histograms),
        "Tokens": _tokens(histograms),
        "Objectives": fixed["Objectives"],
        "Stagelens itself": [*fixed["Stagelens itself"], _recording(histograms), _suspects(histograms)],
    }


def _requests(histograms: HistogramExpressions) -> list[Panel]:
    name = METRIC_NAMES[REQUEST_DURATION]
    rate, failed = (
        f"sum by (service_name) ({histograms.counted(name, matchers, _WINDOW)})"
        for matchers in (_CHOSEN, f'{_CHOSEN},status="error"')
    )
    return [
        Panel(
            "Latency",
            "All requests of the selected services.",
            _quantiles(histograms, REQUEST_DURATION, 0.5, 0.9, 0.99, 0.999),
            "s",
        ),
        Panel("Requests", "Per second, by service.", {"{{service_name}}": rate}, "reqps", width=6),
        Panel(
            "Errors",
            "The share of requests that failed, by service.",
            {"{{service_name}}": f"({failed} or 0 * {rate}) / {rate}"},
            "percentunit",
            width=6,
        ),
    ]


def _stages(histograms: HistogramExpressions) -> list[Panel]:
    spent = f"sum by (stage) ({histograms.summed(METRIC_NAMES[STAGE_DURATION], _CHOSEN, _WINDOW)})"
    name = METRIC_NAMES[REQUEST_DURATION]
    requests = f"scalar(sum({histograms.counted(name, _CHOSEN, _WINDOW)}))"
    whole = f"scalar(sum({histograms.summed(name, _CHOSEN, _WINDOW)}))"
    return [
        Panel(
            "Mean request by stage",
            "Stages add up to the mean latency. For slow requests, use the dashboard of Stagelens.",
            {"{{stage}}": f"{spent} / {requests}"},
            "s",
            stacked=True,
        ),
        Panel(
            "Share of each stage",
            "Share of the time of all requests.",
            {"{{stage}}": f"{spent} / {whole}"},
            "percentunit",
            stacked=True,
        ),
    ]


def _tokens(histograms: HistogramExpressions) -> list[Panel]:
    return [
        Panel(
            title, f"{text} Times of different definitions are not comparable.", _by_definition(histograms, source), "s"
        )
        for title, text, source in (
            ("Time to first token", "Streamed requests, by definition.", FIRST_TOKEN),
            ("Time per output token", "Mean of each request, by definition.", OUTPUT_TOKEN),
        )
    ]


def _recording(histograms: HistogramExpressions) -> Panel:
    spent, requests = (
        f"sum by (level) ({ask(METRIC_NAMES[AGENT_COST], _CHOSEN, _WINDOW)})"
        for ask in (histograms.summed, histograms.counted)
    )
    return Panel(
        "Agent overhead",
        "Per request, by the recording level of the agents.",
        {"{{level}}": f"{spent} / {requests}"},
        "s",
        width=6,
    )


def _suspects(histograms: HistogramExpressions) -> Panel:
    return Panel(
        "Rejected server timings",
        "Calls per second with invalid server timings: the whole call counts as dependency.",
        {"{{dialect}}": f"sum by (dialect) ({histograms.counted(METRIC_NAMES[SUSPECT_REPORT], _CHOSEN, _WINDOW)})"},
        "reqps",
        width=6,
    )


def _by_definition(histograms: HistogramExpressions, source: str) -> dict[str, str]:
    return {
        f"p{100 * quantile:g} {{{{definition}}}}": histograms.quantile(
            quantile, METRIC_NAMES[source], _CHOSEN, _WINDOW, "definition"
        )
        for quantile in (0.5, 0.99)
    }


def _quantiles(histograms: HistogramExpressions, source: str, *quantiles: float) -> dict[str, str]:
    return {
        f"p{100 * quantile:g}": histograms.quantile(quantile, METRIC_NAMES[source], _CHOSEN, _WINDOW)
        for quantile in quantiles
    }


def write_dashboard(histograms: HistogramExpressions) -> str:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, charts in panel_rows(histograms).items():
        panels.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [], **_grid_position(0, top, _COLUMNS, 1)}
        )
        top, left = top + 1, 0
        for chart in charts:
            if left + chart.width > _COLUMNS:
                top, left = top + _HEIGHT, 0
            panels.append(_chart(chart) | _grid_position(left, top, chart.width, _HEIGHT))
            left += chart.width
        top += _HEIGHT
    numbered = [{"id": number, **panel} for number, panel in enumerate(panels, 1)]
    return json.dumps(_dashboard(numbered, histograms), indent=2) + "\n"


def _grid_position(left: int, top: int, width: int, height: int) -> dict[str, Any]:
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


def _dashboard(panels: list[dict[str, Any]], histograms: HistogramExpressions) -> dict[str, Any]:
    name = METRIC_NAMES[REQUEST_DURATION]
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
