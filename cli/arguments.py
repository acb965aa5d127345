"""Commands and options of the `stagelens` command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..core.settings.schema import ALERT_METRICS, ALERTS, COLLECTOR, DASHBOARD, LOGS, STORE, Setting

DESCRIPTION = "Stagelens shows where the time of inference requests goes, and why p99 is not p50."

EPILOG = """\
first steps:
  stagelens up                        collector, dashboard and alerts on one SQLite file
  stagelens run -- python serve.py    your own service, timed by stage, with its code unchanged

`stagelens COMMAND --help` names the options of a command; each can be an environment variable as well.
"""

SERVERS: dict[str, tuple[str, tuple[Setting, ...]]] = {
    "up": ("collector, alerts and dashboard in one process", (*STORE, *COLLECTOR, *DASHBOARD, *ALERTS)),
    "collector": ("receive OTLP and store it", (*STORE, *COLLECTOR)),
    "alerts": (
        "evaluate the objectives and deliver alerts; `alerts list`, `show`, `ack`, `silence`… manage incidents",
        (*STORE, *ALERTS, *ALERT_METRICS),
    ),
    "dashboard": ("serve the pages", (*STORE, *DASHBOARD, *ALERTS)),
}

CHECK = "validate the settings and the file, and exit"
ADD_USER = "add user NAME to the file STAGELENS_DASHBOARD_USERS, ask for the password, and exit"

# Arguments of the commands that work on the store, in addition to the store settings: name, whether required, help.
TOOLS: dict[str, tuple[str, tuple[tuple[str, bool, str], ...]]] = {
    "storage": (
        "show the size of the store by tier and table, with a projection; delete services",
        (("what", False, "delete services and all their data; `*` in a name is any letters"),),
    ),
    "backup": (
        "copy the store into one file, while it is used",
        (("file", True, "a new file; `stagelens dashboard --database sqlite:///FILE` shows what is in it"),),
    ),
    "restore": ("copy a backup into an empty database", (("file", True, "the backup"),)),
    "migrate": (
        "copy the store into another, empty database of any kind; continues after an interruption",
        (
            ("--to", True, "the new database: sqlite:///path or postgresql://user:password@host/database"),
            ("--to-points", False, "a ClickHouse for the histograms: clickhousedb://… (default none)"),
        ),
    ),
}

EVENT = (
    ("--service", "NAME", "service of the event (default all services)"),
    ("--kind", "KIND", "deploy, config, advice or note (default note)"),
    ("--key", "KEY", "key of the event, such as the deployed version (default none)"),
    ("--at", "TIME", "time, as ISO 8601 or milliseconds since the epoch (default now)"),
    ("--link", "URL", "URL with details (default none)"),
)


def parser(version: str) -> argparse.ArgumentParser:
    """Return the argument parser; commands with their own parser have only a help line here."""
    made = argparse.ArgumentParser("stagelens", description=DESCRIPTION, epilog=EPILOG, formatter_class=_layout)
    made.add_argument("--version", action="version", version=f"stagelens {version}")
    commands = made.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="start your own program with every request timed")
    commands.add_parser("doctor", help="check what would be instrumented and suggest fixes")
    commands.add_parser("bench", help="measure the overhead of `run` on your program")
    commands.add_parser("check", help="validate an SLO file: file, line, key, value, fix")
    commands.add_parser(
        "import", help="import requests from files: OTLP JSON, Triton, vLLM, ONNX Runtime and torch profiles"
    )
    commands.add_parser(
        "compare", help="compare two saved runs, versions or windows: which is slower, and by which stage"
    )
    commands.add_parser(
        "export", help="rules for Prometheus, from an SLO file or about Stagelens itself, and a dashboard for Grafana"
    )
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
    sentence = f"{meaning[0].upper()}{meaning[1:]}. It is sent to OTEL_EXPORTER_OTLP_ENDPOINT, like the data of agents."
    command = commands.add_parser("event", help=meaning, description=sentence, formatter_class=_layout)
    command.add_argument("text", metavar="TEXT", help="short description of the event")
    for option, value, text in EVENT:
        command.add_argument(option, metavar=value, help=text)
