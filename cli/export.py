"""`stagelens export rules|itself|grafana`: Prometheus rules or a Grafana dashboard over the collector's /metrics."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ..alerts.config import DEFAULT_FILE
from ..alerts.export import RUNBOOK, write_self_monitoring_rules
from ..alerts.export.grafana import write_dashboard
from ..alerts.export.rules import HistogramExpressions, write_rules
from ..alerts.objectives.slo_file import read_slo_file
from ..analysis.policies import default_burn_rate_policy
from ..core.errors import StagelensError


def export(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write rules for Prometheus or a Grafana dashboard, based on the collector's /metrics."
    kinds = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    of_slos = kinds.add_parser("rules", help="recording and alerting rules for the SLOs of a file")
    file = Path(os.environ.get("STAGELENS_SLO_FILE") or DEFAULT_FILE)
    of_slos.add_argument("--slo", type=Path, default=file, metavar="FILE", help="the SLO file (default %(default)s)")
    dashboard = kinds.add_parser("grafana", help="dashboard as JSON, to import into Grafana")
    itself = kinds.add_parser("itself", help="alerting rules for Stagelens")
    where = "URL of the runbook (default %(default)s)"
    itself.add_argument("--runbook", default=RUNBOOK, metavar="URL", help=where)
    for command in kinds.choices.values():
        command.add_argument("-o", "--output", type=Path, metavar="FILE", help="output file (default: standard output)")
    for command in (of_slos, dashboard):
        native = "use native histograms; they must be enabled in Prometheus"
        command.add_argument("--native", action="store_true", help=native)
    parser.set_defaults(run=_export)


def _export(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    if options.what == "itself":
        text = write_self_monitoring_rules(options.runbook)
    elif options.what == "grafana":
        text = write_dashboard(HistogramExpressions(native=options.native))
    else:
        definitions = read_slo_file(options.slo, environment)
        for line in definitions.warnings:
            print(f"warning: {line}", file=sys.stderr)
        text = write_rules(definitions.slos, default_burn_rate_policy(), HistogramExpressions(native=options.native))
    _write_output(options.output, text)
    return 0


def _write_output(path: Path | None, text: str) -> None:
    if path is None:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"{path} cannot be written ({error.strerror or error}); name another file with -o"
        raise StagelensError(msg) from error
