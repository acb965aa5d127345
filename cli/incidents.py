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

_DEFAULT_LENGTH, _DEFAULT_LIMIT = "2h", 50
# Function of the store, the options and the current time.
_Action: TypeAlias = Callable[[Store, argparse.Namespace, datetime], commands.Result]


def incidents(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(required=True, metavar="COMMAND")
    listed = _add(
        kinds,
        "list",
        "list open incidents, newest first",
        lambda store, options, _now: commands.list_incidents(store, options.limit, everything=options.all),
    )
    listed.add_argument("--all", action="store_true", help="include resolved incidents")
    listed.add_argument("--limit", type=int, default=_DEFAULT_LIMIT, help="maximum number (default %(default)s)")

    shown = _add(
        kinds,
        "show",
        "show one incident with its history and deliveries",
        lambda store, options, _now: commands.show_incident(store, options.id),
    )
    shown.add_argument("id", metavar="ID")

    acknowledged = _add(
        kinds,
        "ack",
        "acknowledge an incident and notify its channels",
        lambda store, options, now: commands.acknowledge_incident(
            store, options.id, options.by, now, undo=options.undo
        ),
    )
    acknowledged.add_argument("id", metavar="ID")
    acknowledged.add_argument("--undo", action="store_true", help="undo the acknowledgement")
    _add_author(acknowledged)

    accepted = _add(
        kinds,
        "accept",
        "accept as new baseline; notify again only if latency rises further",
        lambda store, options, now: commands.accept_incident(store, options.id, options.by, now, why=options.why),
    )
    accepted.add_argument("id", metavar="ID")
    accepted.add_argument("--why", metavar="TEXT", default="", help="reason, sent to the channels")
    _add_author(accepted)

    silence = _add(kinds, "silence", "silence matching incidents", _add_silence)
    for key, meaning in MATCHERS.items():
        silence.add_argument(f"--{key}", metavar="X", default="", help=f"{meaning}, or * for any (the default)")
    length = f"duration, such as 30m (default {_DEFAULT_LENGTH})"
    silence.add_argument("--for", dest="length", metavar="TIME", default=_DEFAULT_LENGTH, help=length)
    silence.add_argument("--from", dest="start", metavar="TIME", help="start, as ISO 8601 (default now)")
    silence.add_argument("--comment", metavar="TEXT", default="", help="reason, shown with the silence")
    _add_author(silence)

    silences = _add(
        kinds,
        "silences",
        "list active and future silences",
        lambda store, options, now: commands.list_silences(store, now, everything=options.all),
    )
    silences.add_argument("--all", action="store_true", help="include ended silences")

    removed = _add(
        kinds,
        "unsilence",
        "end a silence now",
        lambda store, options, now: commands.remove_silence(store, options.id, options.by, now),
    )
    removed.add_argument("id", metavar="ID")
    _add_author(removed)

    description = "Send a sample incident to a channel and print the result."
    tested = kinds.add_parser("test", help="send a sample incident to a channel", description=description)
    tested.add_argument("channel", metavar="NAME", help="name of the channel in the SLO file")
    file = "the SLO file (default slo.yaml) [STAGELENS_SLO_FILE]"
    tested.add_argument("--slo", dest="STAGELENS_SLO_FILE", metavar="X", help=file)
    tested.set_defaults(
        run=lambda options, environment: commands.test_channel(options.channel, AlertsConfig.from_env(environment))
    )


def _add(kinds: Any, name: str, summary: str, action: _Action) -> argparse.ArgumentParser:
    description = f"{summary[0].upper()}{summary[1:]}."
    command: argparse.ArgumentParser = kinds.add_parser(name, help=summary, description=description)
    where = "URL of the store (default sqlite:///stagelens.db) [STAGELENS_DATABASE]"
    command.add_argument("--database", dest="STAGELENS_DATABASE", metavar="X", help=where)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=_run, action=action)
    return command


def _add_author(command: argparse.ArgumentParser) -> None:
    command.add_argument("--by", metavar="NAME", default="", help="name of the acting person (default: login name)")


def _add_silence(store: Store, options: argparse.Namespace, now: datetime) -> commands.Result:
    matchers = {key: getattr(options, key) for key in MATCHERS}
    return commands.add_silence(
        store, matchers, options.by, now, start=options.start, length=options.length, comment=options.comment
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
