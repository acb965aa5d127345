"""`stagelens alerts`: list, show, acknowledge, accept and silence incidents, and test channels.

`stagelens alerts test` sends a sample incident to one channel, opened and resolved, and reports the responses.
"""

from __future__ import annotations

import argparse
import dataclasses
import getpass
import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ..analysis.comparison import StageGrowth
from ..core.errors import ChannelError, ConfigError, StagelensError
from ..core.settings.values import parse_duration
from ..store import Store
from ..store.audit import AuditEntry, Origin
from ..store.store_factory import StoreConfig, open_existing
from . import formatting
from .config import AlertsConfig
from .delivery.channel import Channel, HeartbeatReceiver, OutcomeUnknownError, find_hint
from .delivery.channels import KINDS, ChannelEntry
from .delivery.message import Burn, Finding, Message, Trend
from .delivery.message_text import headline
from .incidents.journal import IncidentError, acknowledge
from .incidents.silences import MATCHERS, Silence, create_silence, end_silence
from .objectives.slo_file import LiveSloFile, read_slo_file
from .reader import AlertsReader, Delivery, Incident, Transition
from .regression.acceptance import accept_regression

_LENGTH = "2h"
# Origin of actions in the audit log.
_HERE: Origin = "command line"
_LIMIT = 50
_LONGEST = timedelta(days=395)


def format_incidents(found: Sequence[Incident], *, everything: bool) -> str:
    """Return one line of text per incident; *everything* is true if *found* includes resolved incidents."""
    if not found:
        return "No incident yet." if everything else "No incident is open; --all includes resolved incidents."
    rows = [
        (each.id, each.state, each.severity, _format_time(each.opened_at), _incident_owner(each), each.headline)
        for each in found
    ]
    return "\n".join(format_table(("id", "state", "severity", "opened (UTC)", "owner", "incident"), rows))


def format_incident(found: Incident) -> str:
    facts = [
        ("state", _incident_state(found)),
        ("since", f"{formatting.moment(found.since)}, detected {formatting.moment(found.opened_at)}"),
        ("severity", found.severity),
        ("impact", found.impact),
        ("acknowledged by", _acknowledgement(found)),
        ("notified", f"no: {found.muted}".replace("no: notified ", "") if found.muted else "yes"),
        ("dashboard", found.link),
    ]
    happened = [(_format_time(each.at), each.event, _notified(each), each.headline) for each in found.transitions]
    sent = [
        (each.channel, each.transition, each.state, str(each.attempts), _format_time(each.at), _delivery_error(each))
        for each in found.deliveries
    ]
    parts: list[Iterable[str]] = [
        [f"{found.id}: {found.headline}", ""],
        (f"  {name:<16}{value}" for name, value in facts if value),
        ["", *format_table(("when (UTC)", "event", "notified", "message"), happened)],
        ["", *format_table(("channel", "message", "state", "tries", "when (UTC)", "response"), sent)] if sent else [],
    ]
    return "\n".join(line for part in parts for line in part)


def format_silences(found: Sequence[Silence], now: datetime) -> str:
    if not found:
        return "No silence is active or planned."
    rows = [
        (
            each.id,
            "ended" if each.ends_at <= now else "active" if each.holds(now) else "future",
            _format_time(each.starts_at),
            _format_time(each.ends_at),
            each.author,
            format_matchers(each),
            each.comment,
        )
        for each in found
    ]
    return "\n".join(format_table(("id", "state", "from (UTC)", "until (UTC)", "by", "matches", "reason"), rows))


def format_matchers(silence: Silence) -> str:
    """Return the text of the matchers of a silence, such as `service=shop, severity=ticket`."""
    return ", ".join(f"{key}={value}" for key, value in silence.matchers.items())


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    every = [head, *([" ".join(text.split()) for text in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    for row in every:
        yield "   ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _incident_owner(found: Incident) -> str:
    if found.muted and found.state == "open":
        return "muted"
    return found.acked_by or ("none" if found.state == "open" else "")


def _incident_state(found: Incident) -> str:
    if found.resolved_at is None:
        return found.state
    ended = f"accepted by {found.acked_by}" if found.ending == "accepted" else "resolved"
    return f"{ended} at {formatting.moment(found.resolved_at)}"


def _acknowledgement(found: Incident) -> str:
    if found.acked_at is None or found.ending == "accepted":
        return "none" if found.state == "open" else ""
    return f"{found.acked_by}, since {formatting.moment(found.acked_at)}"


def _notified(each: Transition) -> str:
    if each.event in ("acknowledged", "unacknowledged", "accepted", "note"):
        return f"by {each.note}"
    return each.note or (f"{each.notified} channel{'s' if each.notified != 1 else ''}" if each.notified else "none")


def _delivery_error(each: Delivery) -> str:
    if each.next_attempt is not None and each.attempts:
        again = f"next attempt at {each.next_attempt:%H:%M:%S}"
        return f"{each.error}; {again}" if each.error else again
    return each.error or ("accepted" if each.state == "sent" else "")


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def main(words: Sequence[str], environment: Mapping[str, str], now: datetime | None = None) -> int:
    options = _parser(environment).parse_args(words)
    given = {key: value for key, value in vars(options).items() if key.startswith("STAGELENS_") and value}
    settings = {**environment, **given}
    if options.command == "test":
        return _test_channel(options.channel, AlertsConfig.from_env(settings))
    with ExitStack() as stack:
        store = open_existing(StoreConfig.from_env(settings))
        stack.callback(store.close)
        run: Callable[[Store, argparse.Namespace, datetime], tuple[Any, str]] = options.run
        found, text = run(store, options, now or datetime.now(UTC))
    print(json.dumps(found, default=_json_value, indent=2) if options.json else text)
    return 0


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("stagelens alerts", description="List, acknowledge and silence incidents.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listed = _add_command(commands, "list", "list open incidents, newest first", _list_incidents)
    listed.add_argument("--all", action="store_true", help="include resolved incidents")
    listed.add_argument("--limit", type=int, default=_LIMIT, help="maximum number (default %(default)s)")
    shown = _add_command(commands, "show", "show one incident with its history and deliveries", _show_incident)
    shown.add_argument("id", metavar="ID")
    acked = _add_command(commands, "ack", "acknowledge an incident and notify its channels", _acknowledge_incident)
    acked.add_argument("id", metavar="ID")
    acked.add_argument("--undo", action="store_true", help="undo the acknowledgement")
    _add_author_option(acked, environment)
    normal = "accept as new baseline; notify again only if latency rises further"
    accepted = _add_command(commands, "accept", normal, _accept_regression)
    accepted.add_argument("id", metavar="ID")
    accepted.add_argument("--why", metavar="TEXT", default="", help="reason, sent to the channels")
    _add_author_option(accepted, environment)
    _add_silence_options(_add_command(commands, "silence", "silence matching incidents", _create_silence), environment)
    every = _add_command(commands, "silences", "list active and future silences", _list_silences)
    every.add_argument("--all", action="store_true", help="include ended silences")
    ended = _add_command(commands, "unsilence", "end a silence now", _end_silence)
    ended.add_argument("id", metavar="ID")
    _add_author_option(ended, environment)
    tested = commands.add_parser(
        "test",
        help="send a sample incident to a channel",
        description="Send a sample incident to a channel and print the result.",
    )
    tested.add_argument("channel", metavar="NAME", help="name of the channel in the SLO file")
    file = "the SLO file (default slo.yaml) [STAGELENS_SLO_FILE]"
    tested.add_argument("--slo", dest="STAGELENS_SLO_FILE", metavar="X", help=file)
    return parser


def _add_command(
    commands: Any, name: str, meaning: str, run: Callable[[Store, argparse.Namespace, datetime], tuple[Any, str]]
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=meaning, description=f"{meaning[0].upper()}{meaning[1:]}."
    )
    where = "URL of the store (default sqlite:///stagelens.db) [STAGELENS_DATABASE]"
    command.add_argument("--database", dest="STAGELENS_DATABASE", metavar="X", help=where)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)
    return command


def _add_silence_options(command: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    for key, meaning in MATCHERS.items():
        command.add_argument(f"--{key}", metavar="X", default="", help=f"{meaning}, or * for any (the default)")
    length = f"duration, such as 30m (default {_LENGTH})"
    command.add_argument("--for", dest="length", metavar="TIME", default=_LENGTH, help=length)
    command.add_argument("--from", dest="start", metavar="TIME", help="start, as ISO 8601 (default now)")
    command.add_argument("--comment", metavar="TEXT", default="", help="reason, shown with the silence")
    _add_author_option(command, environment)


def _add_author_option(command: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    name = environment.get("USER") or environment.get("LOGNAME") or ""
    command.add_argument("--by", metavar="NAME", default=name, help="name of the acting person (default: login name)")


def _test_channel(name: str, config: AlertsConfig) -> int:
    if config.slo_file is None:
        msg = "no slo.yaml in this directory; name the file that defines the channels with --slo or STAGELENS_SLO_FILE"
        raise ConfigError(msg)
    entries = {entry.name: entry for entry in read_slo_file(config.slo_file, config.env).channels}
    if name not in entries:
        msg = f"{config.slo_file} has no channel {name!r}; known channels: {', '.join(entries) or 'none'}"
        raise ConfigError(msg)
    line = ""
    for line in check_channel(entries[name]):
        print(line, flush=True)
    return 1 if line.startswith("failed") else 0


def _list_incidents(store: Store, options: argparse.Namespace, _now: datetime) -> tuple[Any, str]:
    found = _reader(store).incidents(max(1, options.limit), open_only=not options.all)
    return [_incident_json(each) for each in found], format_incidents(found, everything=options.all)


def _show_incident(store: Store, options: argparse.Namespace, _now: datetime) -> tuple[Any, str]:
    found = _reader(store).incident(options.id)
    if found is None:
        msg = f"there is no incident {options.id!r}; `stagelens alerts list --all` lists all incidents"
        raise IncidentError(msg)
    return dataclasses.asdict(found), format_incident(found)


def _acknowledge_incident(store: Store, options: argparse.Namespace, now: datetime) -> tuple[Any, str]:
    by, undo = _author_name(options), options.undo
    found = acknowledge(store, options.id, by, now, undo=undo)
    about = ("undo acknowledgement" if undo else "acknowledge", found.id, found.finding.service)
    _audit(store, AuditEntry(now, _author_name(options), _HERE, *about), found.finding.where)
    result = {"id": found.id, "acked_by": found.acked_by, "acked_at": None if undo else now}
    did = f"{by} undid the acknowledgement of" if undo else f"{found.acked_by} acknowledged"
    return result, f"{did} {found.id}: {found.finding.name} of {found.finding.service}"


def _accept_regression(store: Store, options: argparse.Namespace, now: datetime) -> tuple[Any, str]:
    found = accept_regression(store, options.id, _author_name(options), now, options.why)
    about = ("accept as baseline", found.id, found.finding.service)
    _audit(store, AuditEntry(now, _author_name(options), _HERE, *about), found.finding.where)
    ended = now if found.resolved_at is None else datetime.fromtimestamp(found.resolved_at, UTC)
    result = {"id": found.id, "acked_by": found.acked_by, "resolved_at": ended}
    normal = f"{found.acked_by} accepted {found.id} as the new baseline of {found.finding.service}"
    return result, f"{normal}; a new notification is sent only if latency rises further"


def _create_silence(store: Store, options: argparse.Namespace, now: datetime) -> tuple[Any, str]:
    length = parse_duration(options.length, "--for")
    if length > _LONGEST:
        msg = f"--for is {options.length!r}; the longest silence is {_LONGEST.days}d"
        raise IncidentError(msg)
    start = _parse_time(options.start) if options.start else now
    with store.transaction() as connection:
        made = create_silence(
            connection,
            {key: getattr(options, key) for key in MATCHERS},
            starts_at=start,
            ends_at=start + length,
            author=_author_name(options),
            comment=options.comment,
        )
    about = ("silence", made.id, made.matchers.get("service", ""))
    _audit(store, AuditEntry(now, made.author, _HERE, *about), made.matchers)
    return dataclasses.asdict(made), f"{made.id}: {format_matchers(made)} is {made.in_words()}"


def _list_silences(store: Store, options: argparse.Namespace, now: datetime) -> tuple[Any, str]:
    found = _reader(store).silences(now, over=options.all)
    return [dataclasses.asdict(each) for each in found], format_silences(found, now)


def _end_silence(store: Store, options: argparse.Namespace, now: datetime) -> tuple[Any, str]:
    with store.transaction() as connection:
        ended = end_silence(connection, options.id, now)
    about = ("end silence", ended.id, ended.matchers.get("service", ""))
    _audit(store, AuditEntry(now, _author_name(options), _HERE, *about), ended.matchers)
    return {"id": ended.id, "ended_at": now}, f"{ended.id} has ended: notifications for {format_matchers(ended)} resume"


def _audit(store: Store, entry: AuditEntry, where: Mapping[str, str]) -> None:
    store.add_audit_entry(replace(entry, environment=where.get("environment", "")))


def _reader(store: Store) -> AlertsReader:
    return AlertsReader(store, LiveSloFile(None, {}))


def _incident_json(incident: Incident) -> dict[str, Any]:
    whole = dataclasses.asdict(incident)
    return {key: value for key, value in whole.items() if key not in ("deliveries", "transitions", "stages")}


def _author_name(options: argparse.Namespace) -> str:
    if options.by:
        return options.by
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:
        msg = "no login name found; name yourself with --by NAME"
        raise StagelensError(msg) from error


def _parse_time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        msg = f"--from is {text!r}; write a time such as 2026-11-28T02:00Z"
        raise IncidentError(msg) from error
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def _json_value(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    msg = f"{type(value).__name__} cannot be written as JSON"
    raise TypeError(msg)


DAY_SECONDS = 86_400.0


def check_channel(
    entry: ChannelEntry, *, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Send a sample incident to *entry* and yield the responses and hints, line by line.

    The last line begins with `ok` if everything was accepted, else with `failed`.
    """
    if entry.lacking:
        yield f"failed: {entry.lacking} is not set, so {entry.name} cannot send; set it and try again"
        return
    if entry.heartbeat is not None:
        yield from _check_heartbeat(entry, entry.heartbeat)
        return
    if entry.channel is not None:
        yield from _send_opened_and_resolved(entry, entry.channel, clock, sleep)


def sample_message(now: float) -> Message:
    finding = Finding(
        name="a-test",
        service="stagelens-test",
        promise="99 % of requests to stagelens-test succeed within 250 ms, over 30 days",
        kind="latency",
        severity="ticket",
        since=now - 720.0,
        burn=Burn(
            rate=6.2,
            threshold=6.0,
            long_seconds=6 * 3600.0,
            short_seconds=1800.0,
            bad=372.0,
            total=6000.0,
            budget_left=0.94,
            bad_left=48_900.0,
            window_seconds=30 * DAY_SECONDS,
            exhausted_in_seconds=4.5 * DAY_SECONDS,
        ),
        growth=(StageGrowth("preprocess", 0.18, 0.92), StageGrowth("queue", 0.011, 0.06)),
        course=Trend((0.3, 0.4, 0.2, 0.5, 2.8, 6.1, 6.4, 6.2), 120.0, now - 960.0),
        description="This is a test of the channel: nothing is wrong.",
    )
    return Message(f"sl-test-{secrets.token_hex(6)}", 1, "opened", now, now, finding)


def _send_opened_and_resolved(
    entry: ChannelEntry, channel: Channel, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Iterator[str]:
    opened = sample_message(clock())
    yield f"to {entry.name} ({entry.kind}): {headline(opened)}"
    reference, trouble = _try_send(channel, opened)
    yield f"opened: {_describe_outcome(reference, trouble)}"
    if trouble is not None and not isinstance(trouble, OutcomeUnknownError):
        yield _describe_failure(entry, trouble)
        return
    # An incident that may be open is resolved in any case.
    sleep(channel.gap_seconds)
    over = replace(opened, sequence=2, transition="resolved", at=clock(), ending="recovered", first=False)
    again, worse = _try_send(channel, replace(over, reference=reference))
    yield f"resolved: {_describe_outcome(again, worse)}"
    trouble = trouble or worse
    yield (
        _describe_failure(entry, trouble) if trouble else f"ok: {entry.name} accepted both; check how it displays them"
    )


def _try_send(channel: Channel, message: Message) -> tuple[str, ChannelError | None]:
    try:
        return channel.send(message), None
    except ChannelError as error:
        return "", error


def _describe_outcome(reference: str, trouble: ChannelError | None) -> str:
    if trouble is None:
        return f"accepted{f' as {reference}' if reference else ''}"
    if isinstance(trouble, OutcomeUnknownError):
        return f"unknown: {trouble}"
    again = "would not be retried" if trouble.permanent else "would be retried"
    return f"not accepted ({again}): {trouble}"


def _check_heartbeat(entry: ChannelEntry, heartbeat: HeartbeatReceiver) -> Iterator[str]:
    yield f"to {entry.name} (heartbeat): one ping"
    try:
        heartbeat.ping()
    except ChannelError as error:
        yield _describe_failure(entry, error)
        return
    yield f"ok: {entry.name} accepted the ping"


def _describe_failure(entry: ChannelEntry, trouble: ChannelError) -> str:
    return f"failed: {find_hint(str(trouble), KINDS[entry.kind].hints) or trouble}"
