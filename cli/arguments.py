"""Commands and options of the `stagelens` command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..core.settings.schema import ALERT_METRICS, ALERTS, COLLECTOR, DASHBOARD, LOGS, STORE, Setting

DESCRIPTION = "Stagelens shows where the time of inference requests goes, and why p99 is not p50."

EPILOG = """\
first steps:
  stagelens up                        collector, dashboard and alerts over one SQLite file
  stagelens run -- python serve.py    your own service, timed stage by stage, without a change to it

`stagelens COMMAND --help` names the options of a command; each can be an environment variable as well.
"""

SERVERS: dict[str, tuple[str, tuple[Setting, ...]]] = {
    "up": ("collector, alerts and dashboard in one process", (*STORE, *COLLECTOR, *DASHBOARD, *ALERTS)),
    "collector": ("receive OTLP and keep it in the store", (*STORE, *COLLECTOR)),
    "alerts": (
        "evaluate the objectives and deliver alerts; `alerts list`, `show`, `ack`, `silence`… look after incidents",
        (*STORE, *ALERTS, *ALERT_METRICS),
    ),
    "dashboard": ("serve the pages", (*STORE, *DASHBOARD, *ALERTS)),
}

CHECK = "only say what is wrong with the settings and the file, or what would be done, and end"
ADD_USER = "write NAME with a password, asked for here, into the file STAGELENS_DASHBOARD_USERS names, and end"

# Arguments of commands on the store beside the store settings: name, whether required, help.
TOOLS: dict[str, tuple[str, tuple[tuple[str, bool, str], ...]]] = {
    "storage": (
        "what takes the store's room, by tier and by table, and how large it will get; deletes services",
        (("what", False, "delete services with all that was counted of them; `*` in a name is any letters"),),
    ),
    "backup": (
        "copy the store into one file, while it is used",
        (("file", True, "a new file; `stagelens dashboard --database sqlite:///FILE` shows what is in it"),),
    ),
    "restore": ("copy a backup into a database that holds nothing yet", (("file", True, "the backup"),)),
    "migrate": (
        "copy the store into another database that holds nothing yet, of any kind; goes on where it was interrupted",
        (
            ("--to", True, "the new database: sqlite:///path or postgresql://user:password@host/database"),
            ("--to-points", False, "a ClickHouse for the histograms: clickhousedb://… (default none)"),
        ),
    ),
}

EVENT = (
    ("--service", "NAME", "whose event it is (default all services)"),
    ("--kind", "KIND", "deploy, config, advice or note (default note)"),
    ("--key", "KEY", "what it is about, such as the version that was deployed (default none)"),
    ("--at", "TIME", "when, as ISO 8601 or milliseconds of the epoch (default now)"),
    ("--link", "URL", "where more is said (default none)"),
)


def parser(version: str) -> argparse.ArgumentParser:
    """Return the argument parser of *version*; commands with a parser of their own only have a help line here."""
    made = argparse.ArgumentParser("stagelens", description=DESCRIPTION, epilog=EPILOG, formatter_class=_layout)
    made.add_argument("--version", action="version", version=f"stagelens {version}")
    commands = made.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="start your own program with every request timed")
    commands.add_parser("doctor", help="what `run` would time of your program, and what is in the way, with its cure")
    commands.add_parser("bench", help="what `run` costs your program: with and without, taking turns")
    commands.add_parser("check", help="validate an SLO file: file, line, key, value, cure")
    commands.add_parser(
        "import", help="count what files tell: OTLP JSON, Triton, vLLM, ONNX Runtime and torch profiles"
    )
    commands.add_parser(
        "compare", help="two saved runs, versions or windows beside each other: which is slower, and by which stage"
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
    meaning = "tell the collector that something happened, such as a deploy; charts mark it"
    sentence = f"{meaning[0].upper()}{meaning[1:]}. It goes to OTEL_EXPORTER_OTLP_ENDPOINT, as what agents send."
    command = commands.add_parser("event", help=meaning, description=sentence, formatter_class=_layout)
    command.add_argument("text", metavar="TEXT", help="what happened, in a few words")
    for option, value, text in EVENT:
        command.add_argument(option, metavar=value, help=text)
