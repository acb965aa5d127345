"""Commands and options of the `stagelens` command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..core.settings.schema import ALERT_METRICS, ALERTS, COLLECTOR, DASHBOARD, LOGS, STORE, Setting

DESCRIPTION = "Stagelens shows where inference requests spend their time, and why p99 is higher than p50."

EPILOG = """\
first steps:
  stagelens up                        collector, dashboard and alerts on one SQLite file
  stagelens run -- python serve.py    time each request of your service by stage; its code stays unchanged

`stagelens COMMAND --help` lists the options of a command. [STAGELENS_…] is the environment variable of an option.
"""

SERVERS: dict[str, tuple[str, tuple[Setting, ...]]] = {
    "up": ("run collector, alerts and dashboard in one process", (*STORE, *COLLECTOR, *DASHBOARD, *ALERTS)),
    "collector": ("receive OTLP and store it", (*STORE, *COLLECTOR)),
    "alerts": (
        "evaluate objectives and send notifications; `alerts list`, `show`, `ack`, `silence`… manage incidents",
        (*STORE, *ALERTS, *ALERT_METRICS),
    ),
    "dashboard": ("serve the dashboard", (*STORE, *DASHBOARD, *ALERTS)),
}

CHECK = "validate settings and collector file, show their effect, and exit"
ADD_USER = "add user NAME to the file STAGELENS_DASHBOARD_USERS, prompt for the password, and exit"

# Arguments of the commands that work on the store, in addition to the store settings: name, whether required, help.
TOOLS: dict[str, tuple[str, tuple[tuple[str, bool, str], ...]]] = {
    "storage": (
        "show the size of the store by tier and table, with a projection; delete services",
        (("what", False, "delete services and all their data; `*` matches any characters"),),
    ),
    "backup": (
        "copy the store into one file; other processes may use the store meanwhile",
        (("file", True, "new file; to view it: `stagelens dashboard --database sqlite:///FILE`"),),
    ),
    "restore": ("copy a backup into an empty database", (("file", True, "the backup"),)),
    "migrate": (
        "copy the store into an empty database of any kind; a repeated call continues an interrupted copy",
        (
            ("--to", True, "URL of the new database: sqlite:///path or postgresql://user:password@host/database"),
            ("--to-points", False, "URL of a ClickHouse database for the histograms: clickhousedb://… (default none)"),
        ),
    ),
}

EVENT = (
    ("--service", "NAME", "service of the event (default all services)"),
    ("--kind", "KIND", "deploy, config, advice or note (default note)"),
    ("--key", "KEY", "key of the event, such as the deployed version (default none)"),
    ("--environment", "NAME", "environment of the event (default all environments)"),
    ("--at", "TIME", "time, as ISO 8601 or milliseconds since the epoch (default now)"),
    ("--link", "URL", "URL with details (default none)"),
)


def parser(version: str) -> argparse.ArgumentParser:
    """Return the argument parser; commands with their own parser have only a help line here."""
    made = argparse.ArgumentParser("stagelens", description=DESCRIPTION, epilog=EPILOG, formatter_class=_layout)
    made.add_argument("--version", action="version", version=f"stagelens {version}")
    commands = made.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="start your program and time every request")
    commands.add_parser("doctor", help="check what would be instrumented and suggest fixes")
    commands.add_parser("bench", help="measure the overhead of `run` on your program")
    commands.add_parser("check", help="validate an SLO file; errors show line, key, value and fix")
    commands.add_parser(
        "import", help="import requests from files: OTLP JSON, Triton, vLLM, ONNX Runtime and torch profiles"
    )
    commands.add_parser("compare", help="compare two saved runs, versions or windows, stage by stage")
    commands.add_parser("export", help="write Prometheus rules for your SLOs or for Stagelens, or a Grafana dashboard")
    commands.add_parser("mcp", help="serve assistants over the Model Context Protocol")
    _add_event(commands)
    for name, (meaning, options) in SERVERS.items():
        command = _add_command(commands, name, meaning, (*options, *LOGS))
        if name == "dashboard":
            command.add_argument("--add-user", metavar="NAME", help=ADD_USER)
        if name == "collector":
            command.add_argument("--check", action="store_true", help=CHECK)
    for name, (meaning, arguments) in TOOLS.items():
        command = _add_command(commands, name, meaning, STORE)
        for argument, required, text in arguments:
            given: dict[str, Any] = {"metavar": "FILE"}
            if argument.startswith("--"):
                given = {"metavar": "X", "required": required}
            elif not required:
                given = {"metavar": "forget SERVICE", "nargs": "*"}
            command.add_argument(argument, help=text, **given)
    return made


def _layout(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=22)


def _add_command(commands: Any, name: str, meaning: str, settings: Sequence[Setting]) -> argparse.ArgumentParser:
    sentence = f"{meaning[0].upper()}{meaning[1:]}."
    command = commands.add_parser(name, help=meaning, description=sentence, formatter_class=_layout)
    for setting in settings:
        if setting.option:
            command.add_argument(setting.option, dest=setting.variable, metavar="X", help=setting.help)
    return command


def _add_event(commands: Any) -> None:
    meaning = "report an event to the collector, such as a deployment; charts show a marker"
    sentence = f"{meaning[0].upper()}{meaning[1:]}. The collector address is OTEL_EXPORTER_OTLP_ENDPOINT."
    command = commands.add_parser("event", help=meaning, description=sentence, formatter_class=_layout)
    command.add_argument("text", metavar="TEXT", help="short description of the event")
    for option, value, text in EVENT:
        command.add_argument(option, metavar=value, help=text)
