"""`stagelens alerts COMMAND`: list, show, acknowledge, accept and silence incidents, and test channels."""

from __future__ import annotations

import argparse
import getpass
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, TypeAlias

from ..alerts import commands
from ..alerts.config import AlertsConfig
from ..alerts.incidents.silences import MATCHERS
from ..core.errors import StagelensError
from ..store import Store
from ..store.store_factory import StoreConfig, open_existing

_LENGTH = "2h"
# Function of the store, the options and the current time.
_Action: TypeAlias = Callable[[Store, argparse.Namespace, datetime], commands.Result]
_Options: TypeAlias = Mapping[str, Mapping[str, Any]]

_DATABASE = "URL of the store (default sqlite:///stagelens.db) [STAGELENS_DATABASE]"
_STORE: _Options = {
    "--database": {"dest": "STAGELENS_DATABASE", "metavar": "X", "help": _DATABASE},
    "--json": {"action": "store_true", "help": "print JSON"},
}
_ID: _Options = {"id": {"metavar": "ID"}}
_BY: _Options = {"--by": {"metavar": "NAME", "default": "", "help": "name of the acting person (default: login name)"}}
_COMMANDS: dict[str, tuple[str, _Action, _Options]] = {
    "list": (
        "list open incidents, newest first",
        lambda store, options, _: commands.list_incidents(store, options.limit, everything=options.all),
        {
            "--all": {"action": "store_true", "help": "include resolved incidents"},
            "--limit": {"type": int, "default": 50, "help": "maximum number (default %(default)s)"},
        },
    ),
    "show": (
        "show one incident with its history and deliveries",
        lambda store, options, _: commands.show_incident(store, options.id),
        _ID,
    ),
    "ack": (
        "acknowledge an incident and notify its channels",
        lambda store, options, now: commands.acknowledge_incident(
            store, options.id, options.by, now, undo=options.undo
        ),
        {**_ID, "--undo": {"action": "store_true", "help": "undo the acknowledgement"}, **_BY},
    ),
    "accept": (
        "accept as new baseline; notify again only if latency rises further",
        lambda store, options, now: commands.accept_incident(store, options.id, options.by, now, why=options.why),
        {**_ID, "--why": {"metavar": "TEXT", "default": "", "help": "reason, sent to the channels"}, **_BY},
    ),
    "silence": (
        "silence matching incidents",
        lambda store, options, now: commands.add_silence(
            store,
            {key: getattr(options, key) for key in MATCHERS},
            options.by,
            now,
            start=options.start,
            length=options.length,
            comment=options.comment,
        ),
        {
            **{
                f"--{key}": {"metavar": "X", "default": "", "help": f"{meaning}, or * for any (the default)"}
                for key, meaning in MATCHERS.items()
            },
            "--for": {
                "dest": "length",
                "metavar": "TIME",
                "default": _LENGTH,
                "help": f"duration, such as 30m (default {_LENGTH})",
            },
            "--from": {"dest": "start", "metavar": "TIME", "help": "start, as ISO 8601 (default now)"},
            "--comment": {"metavar": "TEXT", "default": "", "help": "reason, shown with the silence"},
            **_BY,
        },
    ),
    "silences": (
        "list active and future silences",
        lambda store, options, now: commands.list_silences(store, now, everything=options.all),
        {"--all": {"action": "store_true", "help": "include ended silences"}},
    ),
    "unsilence": (
        "end a silence now",
        lambda store, options, now: commands.remove_silence(store, options.id, options.by, now),
        {**_ID, **_BY},
    ),
}


def incidents(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (summary, action, arguments) in _COMMANDS.items():
        command = kinds.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        for argument, keywords in {**_STORE, **arguments}.items():
            command.add_argument(argument, **keywords)
        command.set_defaults(run=_run, action=action)
    description = "Send a sample incident to a channel and print the result."
    tested = kinds.add_parser("test", help="send a sample incident to a channel", description=description)
    tested.add_argument("channel", metavar="NAME", help="name of the channel in the SLO file")
    file = "the SLO file (default slo.yaml) [STAGELENS_SLO_FILE]"
    tested.add_argument("--slo", dest="STAGELENS_SLO_FILE", metavar="X", help=file)
    tested.set_defaults(
        run=lambda options, environment: commands.test_channel(options.channel, AlertsConfig.from_env(environment))
    )


def _run(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    if "by" in options:
        options.by = options.by or environment.get("USER") or environment.get("LOGNAME") or _login_name()
    with closing(open_existing(StoreConfig.from_env(environment))) as store:
        result, text = options.action(store, options, _now())
    print(json.dumps(result, default=_json_value, indent=2) if options.json else text)
    return 0


def _now() -> datetime:
    return datetime.now(UTC)


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        msg = "no login name found; name yourself with --by NAME"
        raise StagelensError(msg) from error


def _json_value(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    msg = f"{type(value).__name__} cannot be written as JSON"
    raise TypeError(msg)
