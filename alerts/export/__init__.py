"""`stagelens export rules|itself|grafana`: Prometheus rules or a Grafana dashboard over the collector's /metrics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ...analysis.policies import default_burn_rate_policy
from ...core.errors import StagelensError
from ..config import DEFAULT_FILE
from ..objectives import slo_file
from . import grafana, rules
from .rules import HistogramExpressions

SELF_MONITORING_RULES = Path(__file__).parent / "itself.yaml"
# Path of the runbook in the repository; an installation passes the URL of its copy.
RUNBOOK = "docs/runbook.md"


def write_self_monitoring_rules(runbook: str = RUNBOOK) -> str:
    rules: dict[str, Any] = yaml.safe_load(SELF_MONITORING_RULES.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["annotations"]["runbook_url"] = f"{runbook}#{rule['alert'].lower()}"
    dumped = yaml.safe_dump(rules, sort_keys=False, allow_unicode=True, width=10_000)
    return f"# Made by `stagelens export itself`: alerts about Stagelens, based on the /metrics of its processes.\n{dumped}"


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    options = _parser(env).parse_args(argv)
    if options.what == "itself":
        text = write_self_monitoring_rules(options.runbook)
    elif options.what == "grafana":
        text = grafana.write_dashboard(HistogramExpressions(native=options.native))
    else:
        definitions = slo_file.read_slo_file(options.slo, env)
        for line in definitions.warnings:
            print(f"warning: {line}", file=sys.stderr)
        text = rules.write_rules(
            definitions.slos, default_burn_rate_policy(), HistogramExpressions(native=options.native)
        )
    _write_output(options.output, text)
    return 0


def _parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stagelens export",
        description="Write rules for Prometheus or a Grafana dashboard, based on the collector's /metrics.",
    )
    kinds = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    made = kinds.add_parser("rules", help="recording and alerting rules for the SLOs of a file")
    path = Path(env.get("STAGELENS_SLO_FILE") or DEFAULT_FILE)
    made.add_argument("--slo", type=Path, default=path, metavar="FILE", help="the SLO file (default %(default)s)")
    dashboard = kinds.add_parser("grafana", help="dashboard as JSON, to import into Grafana")
    about = kinds.add_parser("itself", help="alerting rules for Stagelens")
    where = "URL of the runbook (default %(default)s)"
    about.add_argument("--runbook", default=RUNBOOK, metavar="URL", help=where)
    for command in kinds.choices.values():
        command.add_argument("-o", "--output", type=Path, metavar="FILE", help="output file (default: standard output)")
    for command in (made, dashboard):
        command.add_argument(
            "--native", action="store_true", help="use native histograms; they must be enabled in Prometheus"
        )
    return parser


def _write_output(path: Path | None, text: str) -> None:
    if path is None:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"{path} cannot be written ({error.strerror or error}); name another file with -o"
        raise StagelensError(msg) from error
