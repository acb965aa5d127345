"""All commands of the command line in one table; only the module of the selected command is imported."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..core.settings.schema import Setting

DESCRIPTION = "Stagelens shows where inference requests spend their time, and why p99 is higher than p50."

EPILOG = """\
first steps:
  stagelens up                        collector, dashboard and alerts on one SQLite file
  stagelens run -- python serve.py    time each request of your service by stage; its code stays unchanged

`stagelens COMMAND --help` lists the options of a command. [STAGELENS_…] is the environment variable of an option.
"""


class Command(NamedTuple):
    """A command: its line in `stagelens --help`, and the function `MODULE.FUNCTION` of this package that defines it.

    The function adds arguments to a parser and sets `run`, which returns the exit code for the parsed options and the environment. If
    the command *takes_command_line*, it gets the words themselves instead.
    """

    summary: str
    target: str
    extra: str = "server"
    takes_command_line: bool = False


COMMANDS = {
    "run": Command("start your program and time every request", "run.main", takes_command_line=True),
    "doctor": Command("check what would be instrumented and suggest fixes", "doctor.main", takes_command_line=True),
    "bench": Command("measure the overhead of `run` on your program", "bench.bench"),
    "check": Command("validate an SLO file; errors show line, key, value and fix", "check.check"),
    "import": Command(
        "import requests from files: OTLP JSON, Triton, vLLM, ONNX Runtime and torch profiles", "store.import_"
    ),
    "compare": Command("compare two saved runs, versions or windows, stage by stage", "compare.compare"),
    "export": Command("write Prometheus rules for your SLOs or for Stagelens, or a Grafana dashboard", "export.export"),
    "mcp": Command("serve assistants over the Model Context Protocol", "mcp_server.mcp", extra="mcp"),
    "event": Command("report an event to the collector, such as a deployment; charts show a marker", "event.event"),
    "up": Command("run collector, alerts and dashboard in one process", "servers.up"),
    "collector": Command("receive OTLP and store it", "servers.collector"),
    "alerts": Command(
        "evaluate objectives and send notifications; `alerts list`, `show`, `ack`, `silence`… manage incidents",
        "servers.alerts",
    ),
    "dashboard": Command("serve the dashboard", "servers.dashboard"),
    "storage": Command(
        "show the size of the store by tier and table, with a projection; delete services", "store.storage"
    ),
    "backup": Command("copy the store into one file; other processes may use the store meanwhile", "store.backup"),
    "restore": Command("copy a backup into an empty database", "store.restore"),
    "migrate": Command(
        "copy the store into an empty database of any kind; a repeated call continues an interrupted copy",
        "store.migrate",
    ),
}
# `alerts` alone is a server; followed by a word that is no option it is one of these commands.
INCIDENTS = Command("list, acknowledge and silence incidents", "incidents.incidents")


def find_command(words: Sequence[str]) -> Command | None:
    if words[:1] == ["alerts"] and words[1:2] and not words[1].startswith("-"):
        return INCIDENTS
    return COMMANDS.get(words[0]) if words else None


def run_command(command: Command, words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run *command*, the first of *words*; settings among the options override those of *environment*."""
    module, _, name = command.target.partition(".")
    function = getattr(import_module(f".{module}", __package__), name)
    if command.takes_command_line:
        return function(list(words[1:]), environment)
    parser = _new_parser(f"stagelens {words[0]}", f"{command.summary[0].upper()}{command.summary[1:]}.")
    function(parser)
    options = parser.parse_args(words[1:])
    given = {key: value for key, value in vars(options).items() if key.startswith("STAGELENS_") and value is not None}
    return options.run(options, {**environment, **given})


def root_parser(version: str) -> argparse.ArgumentParser:
    parser = _new_parser("stagelens", DESCRIPTION, EPILOG)
    parser.add_argument("--version", action="version", version=f"stagelens {version}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.summary)
    return parser


def _new_parser(prog: str, description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog, description=description, epilog=epilog, formatter_class=_layout)


def _layout(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=22)


def add_settings(parser: argparse.ArgumentParser, settings: Iterable[Setting]) -> None:
    for setting in settings:
        if setting.option:
            text = setting.help.replace("%", "%%")
            parser.add_argument(setting.option, dest=setting.variable, metavar="X", help=text)
