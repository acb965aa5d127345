"""`stagelens alerts test`: send a sample incident to one channel, opened and resolved, and report the responses."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from ...analysis.comparison import StageGrowth
from ...core.errors import ChannelError
from .channel import Channel, HeartbeatReceiver, OutcomeUnknownError, find_hint
from .channels import KINDS, ChannelEntry
from .message import Burn, Finding, Message, Trend
from .message_text import headline

DAY_SECONDS = 86_400.0


def check_channel(
    entry: ChannelEntry, *, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Send a sample incident to *entry* and yield the responses and hints, line by line.

    The last line begins with `ok` if everything was accepted, else with `failed`.
    """
    if entry.lacking:
        yield f"failed: {entry.lacking} is not there, so {entry.name} can send nothing; add it and try again"
        return
    if entry.heartbeat is not None:
        yield from _check_heartbeat(entry, entry.heartbeat)
        return
    if entry.channel is not None:
        yield from _send_opened_and_resolved(entry, entry.channel, clock, sleep)


def sample_message(now: float) -> Message:
    """Return the first message of a sample incident."""
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
    reference, trouble = _send(channel, opened)
    yield f"opened: {_outcome(reference, trouble)}"
    if trouble is not None and not isinstance(trouble, OutcomeUnknownError):
        yield _failure(entry, trouble)
        return
    # An incident that may be open is resolved in any case.
    sleep(channel.gap_seconds)
    over = replace(opened, sequence=2, transition="resolved", at=clock(), ending="recovered", first=False)
    again, worse = _send(channel, replace(over, reference=reference))
    yield f"resolved: {_outcome(again, worse)}"
    trouble = trouble or worse
    yield _failure(entry, trouble) if trouble else f"ok: {entry.name} took both; see there how they look"


def _send(channel: Channel, message: Message) -> tuple[str, ChannelError | None]:
    """Return the reference of the channel, and the error if any."""
    try:
        return channel.send(message), None
    except ChannelError as error:
        return "", error


def _outcome(reference: str, trouble: ChannelError | None) -> str:
    if trouble is None:
        return f"accepted{f' as {reference}' if reference else ''}"
    if isinstance(trouble, OutcomeUnknownError):
        return f"not known: {trouble}"
    again = "it would not be tried again" if trouble.permanent else "it would be tried again"
    return f"not accepted ({again}): {trouble}"


def _check_heartbeat(entry: ChannelEntry, heartbeat: HeartbeatReceiver) -> Iterator[str]:
    yield f"to {entry.name} (heartbeat): one ping"
    try:
        heartbeat.ping()
    except ChannelError as error:
        yield _failure(entry, error)
        return
    yield f"ok: {entry.name} took it"


def _failure(entry: ChannelEntry, trouble: ChannelError) -> str:
    return f"failed: {find_hint(str(trouble), KINDS[entry.kind].hints) or trouble}"
