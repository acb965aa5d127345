"""Summary of an SLO file: its objectives with the alert tiers of each, and when each would have alerted in the last 30 days."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

from ..analysis.burn_rate import AlertTier, is_reachable, policy_tiers, time_to_fire
from ..analysis.policies import BurnRatePolicy, default_burn_rate_policy
from ..core.errors import StoreError
from ..core.settings.yaml_config import meant
from ..store import Reader, Store
from ..store.store_factory import StoreConfig, open_existing
from . import formatting
from .evaluation.backtest import PastIncident, Preview, backtest
from .objectives.slo import Slo
from .objectives.slo_file import Definitions

BACKTEST_WINDOW = timedelta(days=30)
# Number of incidents shown, the worst first.
_SHOWN = 5


class Seen:
    """Services in the store, to distinguish a service without traffic from a misspelt name."""

    def __init__(self, read: Reader) -> None:
        self.read = read

    @cached_property
    def services(self) -> list[str]:
        return sorted(set(self.read.releases()["service"]))


def preview(seen: Seen, slo: Slo, policy: BurnRatePolicy, now: datetime) -> Iterator[str]:
    """Yield lines of text about the alerts that *slo* would have sent in the 30 days before *now*."""
    if slo.service not in seen.services:
        fix = meant(slo.service, seen.services) or f"; known services: {', '.join(seen.services) or 'none yet'}"
        yield f"The store has no data of service {slo.service!r}{fix}"
        return
    yield from _preview_lines(backtest(seen.read, slo, policy, now, BACKTEST_WINDOW), slo)
    yield from _definitions(seen.read, slo, now)


def _preview_lines(preview: Preview, slo: Slo) -> Iterator[str]:
    if preview.seen_from is None:
        yield f"The store has no matching data of {slo.service} in the last {formatting.duration(BACKTEST_WINDOW)}."
        return
    since = max(preview.since, preview.seen_from)
    span = formatting.duration(preview.until - since)
    period = f"the last {span}" if since == preview.since else f"the {span} of available data"
    whole = formatting.duration(slo.window)
    left = (
        ""
        if preview.budget_left is None
        else f"; {formatting.percent(preview.budget_left)} of the budget of {whole} remains"
    )
    yield f"In {period} this SLO would have {_count_incidents(preview.incidents)}{left}."
    worst = sorted(preview.incidents, key=lambda incident: (incident.severity != "page", -incident.spent))[:_SHOWN]
    for incident in sorted(worst, key=lambda incident: incident.opened_at):
        yield f"  {_incident(incident, preview.until)}"
    if len(preview.incidents) > _SHOWN:
        yield f"  and {len(preview.incidents) - _SHOWN} more that used less of the budget"
    if preview.coarse_until is not None:
        yield f"  Before {_format_time(preview.coarse_until)} only hourly data is retained: shorter incidents may be missed."


def _count_incidents(incidents: tuple[PastIncident, ...]) -> str:
    if not incidents:
        return "sent no alert"
    pages = sum(incident.severity == "page" for incident in incidents)
    tickets = len(incidents) - pages
    paged = f"paged {_times(pages)}" if pages else "sent no page"
    return f"{paged} and opened {tickets} {'ticket' if tickets == 1 else 'tickets'}" if tickets else paged


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _incident(past: PastIncident, until: datetime) -> str:
    length = formatting.duration((past.resolved_at or until) - past.opened_at)
    lasted = f"for {length}" if past.resolved_at else f"for {length} so far"
    spent = formatting.percent(past.spent)
    return f"{past.severity:<6} {_format_time(past.opened_at)} {lasted} (burn rate up to {formatting.times(past.peak)} in the short window, {spent} of the budget)"


def _format_time(at: datetime) -> str:
    at = at.astimezone(UTC)
    return f"{at.day} {at:%b %H:%M} UTC"


def _definitions(read: Reader, slo: Slo, now: datetime) -> Iterator[str]:
    if slo.kind not in ("ttft", "tpot") or slo.definition is not None:
        return
    definitions = read.first_token_breakdown(slo.select(now - BACKTEST_WINDOW, now), (0.5,)).attrs["definitions"]
    if len(definitions) > 1:
        yield f"First tokens have several definitions ({', '.join(sorted(definitions))}): select one with `definition`."


def open_store(url: str | None, env: Mapping[str, str]) -> Store | str:
    """Return the store at *url*, by default that of *env*; without one, the reason."""
    config = StoreConfig.from_env(env)
    try:
        return open_existing(config.model_copy(update={"database": url}) if url else config)
    except StoreError as error:
        if url:
            raise
        return f"{str(error).partition(';')[0]}; name one with --store"


def summary(
    path: Path, definitions: Definitions, store: Store | str = "", note: Callable[[str], None] = lambda _: None
) -> Iterator[str]:
    """Yield the summary of an SLO file: objectives, tiers, past alerts, and channels."""
    slos, channels = definitions.slos, definitions.channels
    yield f"{path}: {_plural(len(slos), 'SLO')}, {_plural(len(channels), 'channel')}"
    yield from (f"warning: {line}" for line in definitions.warnings)
    seen = Seen(store.read) if isinstance(store, Store) else None
    for slo in slos:
        yield ""
        yield from _describe_slo(slo)
        if seen is not None:
            note(f"  replaying the last {formatting.duration(BACKTEST_WINDOW)} …")
            lines = list(preview(seen, slo, default_burn_rate_policy(), _now()))
            note("")
            yield from (f"  {line}" for line in lines)
    yield ""
    if isinstance(store, str) and store:
        yield f"Past alerts are not shown: {store}"
    if not channels:
        yield "No channels: incidents are shown on the dashboard only; no notifications are sent."
    for entry in channels:
        waiting = f" (deliveries are paused: {entry.lacking} is not set)" if entry.lacking else ""
        yield f"Notifications go to {entry.name}{'' if entry.name == entry.kind else f' ({entry.kind})'}{waiting}"


def _describe_slo(slo: Slo) -> Iterator[str]:
    yield f"{slo.name}: {slo.in_words()}"
    yield f"  {_budget(slo)}"
    if slo.budgets:
        shares = ", ".join(f"{stage} {formatting.latency(length.total_seconds())}" for stage, length in slo.budgets)
        yield f"  Stage budgets: {shares}."
    now = _now()
    if slo.reset is not None:
        verb = "counts" if slo.reset <= now else "will count"
        yield f"  Only requests since {formatting.moment(slo.reset)} {slo.reset.astimezone(UTC):%Y} {verb}."
    planned = slo.maintenance.intervals(now, now + timedelta(days=14))
    if planned:
        low, high = planned[0]
        yield f"  Next maintenance window: {formatting.moment(low)}, for {formatting.duration(high - low)}; excluded from the SLO."
    for tier in policy_tiers(default_burn_rate_policy(), slo.window):
        yield f"  {_tier(tier, slo)}"


def _budget(slo: Slo) -> str:
    budget = formatting.percent(slo.budget)
    if slo.kind == "coverage":
        return f"The budget is {budget} of the time of requests."
    if slo.kind == "freshness":
        return f"The budget is {budget} of the time: {formatting.duration(slo.budget * slo.window)} of {_span(slo.window)}."
    return f"The budget is {budget} of requests: {formatting.count(1e6 * slo.budget)} per million."


def _tier(tier: AlertTier, slo: Slo) -> str:
    rule = f"{tier.severity:<6} if the burn rate is at least {formatting.times(tier.burn)} over {_span(tier.long)} and also over {_span(tier.short)}"
    if not is_reachable(tier, slo.objective):
        highest = formatting.times(1 / slo.budget)
        return f"{rule}: skipped, the burn rate cannot exceed {highest} at this objective"
    share = formatting.percent(min(1.0, tier.burn * slo.budget))
    what = {"coverage": "time unattributed", "freshness": "the time without fresh data"}.get(slo.kind, "requests bad")
    return f"{rule} ({share} of {what}{_soonest(tier, slo)})"


def _soonest(tier: AlertTier, slo: Slo) -> str:
    outage = time_to_fire(tier, slo.objective, 1.0)
    if outage is None or slo.kind == "coverage":
        return ""
    if slo.kind == "freshness":
        return f"; {_span(outage + (slo.threshold or timedelta(0)))} after the last data"
    return f"; {_span(outage)} after a total outage begins"


def _now() -> datetime:
    return datetime.now(UTC)


def _span(length: timedelta) -> str:
    return formatting.duration(length)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
