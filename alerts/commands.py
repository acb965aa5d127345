"""Work of `stagelens alerts COMMAND`: list, show, acknowledge, accept and silence incidents, and test channels."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from ..analysis.comparison import StageGrowth
from ..core.errors import ChannelError, ConfigError
from ..core.settings.values import parse_duration
from ..store import Store
from ..store.audit import AuditEntry, Origin
from . import formatting
from .config import AlertsConfig
from .delivery.channel import Channel, HeartbeatReceiver, OutcomeUnknownError, find_hint
from .delivery.channels import KINDS, ChannelEntry
from .delivery.message import Burn, Finding, Message, Trend
from .delivery.message_text import headline
from .incidents.journal import IncidentError, acknowledge
from .incidents.silences import Silence, create_silence, end_silence
from .objectives.slo_file import LiveSloFile, read_slo_file
from .reader import AlertsReader, Delivery, Incident, Transition
from .regression.acceptance import accept_regression

# Origin of actions in the audit log.
_HERE: Origin = "command line"
_LONGEST = timedelta(days=395)
DAY_SECONDS = 86_400.0


def format_incidents(incidents: Sequence[Incident], *, everything: bool) -> str:
    """Return one line of text per incident; *everything* is true if *incidents* includes resolved incidents."""
    if not incidents:
        return "No incident yet." if everything else "No incident is open; --all includes resolved incidents."
    rows = [
        (
            incident.id,
            incident.state,
            incident.severity,
            _format_time(incident.opened_at),
            _incident_owner(incident),
            incident.headline,
        )
        for incident in incidents
    ]
    return "\n".join(format_table(("id", "state", "severity", "opened (UTC)", "owner", "incident"), rows))


def format_incident(incident: Incident) -> str:
    facts = [
        ("state", _incident_state(incident)),
        ("since", f"{formatting.moment(incident.since)}, detected {formatting.moment(incident.opened_at)}"),
        ("severity", incident.severity),
        ("impact", incident.impact),
        ("acknowledged by", _acknowledgement(incident)),
        ("notified", f"no: {incident.muted}".replace("no: notified ", "") if incident.muted else "yes"),
        ("dashboard", incident.link),
    ]
    happened = [
        (_format_time(transition.at), transition.event, _notified(transition), transition.headline)
        for transition in incident.transitions
    ]
    sent = [
        (
            delivery.channel,
            delivery.transition,
            delivery.state,
            str(delivery.attempts),
            _format_time(delivery.at),
            _delivery_error(delivery),
        )
        for delivery in incident.deliveries
    ]
    parts: list[Iterable[str]] = [
        [f"{incident.id}: {incident.headline}", ""],
        (f"  {name:<16}{value}" for name, value in facts if value),
        ["", *format_table(("when (UTC)", "event", "notified", "message"), happened)],
        ["", *format_table(("channel", "message", "state", "tries", "when (UTC)", "response"), sent)] if sent else [],
    ]
    return "\n".join(line for part in parts for line in part)


def format_silences(silences: Sequence[Silence], now: datetime) -> str:
    if not silences:
        return "No silence is active or planned."
    rows = [
        (
            silence.id,
            "ended" if silence.ends_at <= now else "active" if silence.holds(now) else "future",
            _format_time(silence.starts_at),
            _format_time(silence.ends_at),
            silence.author,
            format_matchers(silence),
            silence.comment,
        )
        for silence in silences
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


def _incident_owner(incident: Incident) -> str:
    if incident.muted and incident.state == "open":
        return "muted"
    return incident.acked_by or ("none" if incident.state == "open" else "")


def _incident_state(incident: Incident) -> str:
    if incident.resolved_at is None:
        return incident.state
    ended = f"accepted by {incident.acked_by}" if incident.ending == "accepted" else "resolved"
    return f"{ended} at {formatting.moment(incident.resolved_at)}"


def _acknowledgement(incident: Incident) -> str:
    if incident.acked_at is None or incident.ending == "accepted":
        return "none" if incident.state == "open" else ""
    return f"{incident.acked_by}, since {formatting.moment(incident.acked_at)}"


def _notified(transition: Transition) -> str:
    if transition.event in ("acknowledged", "unacknowledged", "accepted", "note"):
        return f"by {transition.note}"
    return transition.note or (
        f"{transition.notified} channel{'s' if transition.notified != 1 else ''}" if transition.notified else "none"
    )


def _delivery_error(delivery: Delivery) -> str:
    if delivery.next_attempt is not None and delivery.attempts:
        again = f"next attempt at {delivery.next_attempt:%H:%M:%S}"
        return f"{delivery.error}; {again}" if delivery.error else again
    return delivery.error or ("accepted" if delivery.state == "sent" else "")


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def test_channel(name: str, config: AlertsConfig) -> int:
    """Send a sample incident to the channel *name* of the SLO file, print the responses, and return the exit code."""
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


# Result of a command: what it prints as JSON, and as text.
Result: TypeAlias = tuple[Any, str]


def list_incidents(store: Store, limit: int, *, everything: bool) -> Result:
    incidents = _reader(store).incidents(max(1, limit), open_only=not everything)
    return [_incident_json(incident) for incident in incidents], format_incidents(incidents, everything=everything)


def show_incident(store: Store, name: str) -> Result:
    incident = _reader(store).incident(name)
    if incident is None:
        msg = f"there is no incident {name!r}; `stagelens alerts list --all` lists all incidents"
        raise IncidentError(msg)
    return dataclasses.asdict(incident), format_incident(incident)


def acknowledge_incident(store: Store, name: str, by: str, now: datetime, *, undo: bool) -> Result:
    incident = acknowledge(store, name, by, now, undo=undo)
    action = "undo acknowledgement" if undo else "acknowledge"
    _audit(store, AuditEntry(now, by, _HERE, action, incident.id, incident.finding.service), incident.finding.where)
    result = {"id": incident.id, "acked_by": incident.acked_by, "acked_at": None if undo else now}
    did = f"{by} undid the acknowledgement of" if undo else f"{incident.acked_by} acknowledged"
    return result, f"{did} {incident.id}: {incident.finding.name} of {incident.finding.service}"


def accept_incident(store: Store, name: str, by: str, now: datetime, *, why: str) -> Result:
    incident = accept_regression(store, name, by, now, why)
    service = incident.finding.service
    _audit(store, AuditEntry(now, by, _HERE, "accept as baseline", incident.id, service), incident.finding.where)
    ended = now if incident.resolved_at is None else datetime.fromtimestamp(incident.resolved_at, UTC)
    result = {"id": incident.id, "acked_by": incident.acked_by, "resolved_at": ended}
    text = f"{incident.acked_by} accepted {incident.id} as the new baseline of {service}"
    return result, f"{text}; a new notification is sent only if latency rises further"


def add_silence(
    store: Store, matchers: Mapping[str, str], by: str, now: datetime, *, start: str | None, length: str, comment: str
) -> Result:
    duration = parse_duration(length, "--for")
    if duration > _LONGEST:
        msg = f"--for is {length!r}; the longest silence is {_LONGEST.days}d"
        raise IncidentError(msg)
    starts_at = _parse_time(start) if start else now
    with store.transaction() as connection:
        silence = create_silence(
            connection, matchers, starts_at=starts_at, ends_at=starts_at + duration, author=by, comment=comment
        )
    entry = AuditEntry(now, by, _HERE, "silence", silence.id, silence.matchers.get("service", ""))
    _audit(store, entry, silence.matchers)
    return dataclasses.asdict(silence), f"{silence.id}: {format_matchers(silence)} is {silence.in_words()}"


def list_silences(store: Store, now: datetime, *, everything: bool) -> Result:
    silences = _reader(store).silences(now, over=everything)
    return [dataclasses.asdict(silence) for silence in silences], format_silences(silences, now)


def remove_silence(store: Store, name: str, by: str, now: datetime) -> Result:
    with store.transaction() as connection:
        silence = end_silence(connection, name, now)
    entry = AuditEntry(now, by, _HERE, "end silence", silence.id, silence.matchers.get("service", ""))
    _audit(store, entry, silence.matchers)
    text = f"{silence.id} has ended: notifications for {format_matchers(silence)} resume"
    return {"id": silence.id, "ended_at": now}, text


def _audit(store: Store, entry: AuditEntry, where: Mapping[str, str]) -> None:
    store.add_audit_entry(replace(entry, environment=where.get("environment", "")))


def _reader(store: Store) -> AlertsReader:
    return AlertsReader(store, LiveSloFile(None, {}))


def _incident_json(incident: Incident) -> dict[str, Any]:
    whole = dataclasses.asdict(incident)
    return {key: value for key, value in whole.items() if key not in ("deliveries", "transitions", "stages")}


def _parse_time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        msg = f"--from is {text!r}; write a time such as 2026-11-28T02:00Z"
        raise IncidentError(msg) from error
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def check_channel(entry: ChannelEntry) -> Iterator[str]:
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
        yield from _send_opened_and_resolved(entry, entry.channel)


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


def _send_opened_and_resolved(entry: ChannelEntry, channel: Channel) -> Iterator[str]:
    opened = sample_message(time.time())
    yield f"to {entry.name} ({entry.kind}): {headline(opened)}"
    reference, trouble = _try_send(channel, opened)
    yield f"opened: {_describe_outcome(reference, trouble)}"
    if trouble is not None and not isinstance(trouble, OutcomeUnknownError):
        yield _describe_failure(entry, trouble)
        return
    # An incident that may be open is resolved in any case.
    time.sleep(channel.gap_seconds)
    over = replace(opened, sequence=2, transition="resolved", at=time.time(), ending="recovered", first=False)
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
