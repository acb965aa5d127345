"""Recording and alerting rules for Prometheus, made from an SLO file with the tiers of `evaluation.burn_rate`.

The expressions read the collector's latency histograms. Comments in the rule file list the features of Stagelens' own alerts that
rules do not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import yaml

from ...analysis.burn_rate import AlertTier, is_reachable, needed_windows, policy_tiers
from ...analysis.policies import BurnRatePolicy
from ...core.names import REQUEST_DURATION, STAGE_DURATION, STATUS_CANCELLED, STATUS_ERROR, STATUS_OK
from ...core.prometheus_names import DEFAULT_LABELS, FAMILIES, LABELS, LADDER, format_labels
from ...core.stages import UNEXPLAINED, UNTIMED
from ...store.selection import HISTOGRAMS
from .. import formatting
from ..evaluation.slo_status import tiers_of
from ..objectives.slo import Slo

METRIC_NAMES = {family.source: family.name for family in FAMILIES}
_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1), "s": timedelta(seconds=1)}
REQUESTS, BAD, BURN = "slo:stagelens_requests:rate", "slo:stagelens_bad_requests:rate", "slo:stagelens_burn:ratio_rate"
ALERT = "StagelensBudgetBurns"
# Rounding step of ratios, which hides floating-point errors at thresholds.
_STEP = 0.0001


@dataclass(frozen=True, slots=True)
class HistogramExpressions:
    native: bool = False

    def counted(self, name: str, matchers: str, window: str) -> str:
        if self.native:
            return f"histogram_count(rate({name}{{{matchers}}}[{window}]))"
        return f"rate({name}_count{{{matchers}}}[{window}])"

    def summed(self, name: str, matchers: str, window: str) -> str:
        if self.native:
            return f"histogram_sum(rate({name}{{{matchers}}}[{window}]))"
        return f"rate({name}_sum{{{matchers}}}[{window}])"

    def quantile(self, quantile: float, name: str, matchers: str, window: str, by: str = "") -> str:
        held = f"sum by ({by}) (rate({name}{{{matchers}}}[{window}]))"
        if not self.native:
            labels = ", ".join(filter(None, ("le", by)))
            held = f"sum by ({labels}) (rate({name}_bucket{{{matchers}}}[{window}]))"
        return f"histogram_quantile({quantile}, {held})"

    def requests(self, slo: Slo, window: str) -> str:
        """Return an expression for the rate of requests of *slo*: not of those that their clients cancelled, unless slow."""
        counted, cancelled = self._count(slo, window, ()), (("status", STATUS_CANCELLED),)
        if slo.kind not in ("latency", "availability"):
            return counted
        early = (self._within if slo.kind == "latency" else self._count)(slo, window, cancelled)
        return f"({counted} - ({early} or vector(0)))"

    def bad(self, slo: Slo, window: str) -> str:
        """Return an expression for the rate of bad requests of *slo*, which must not be of the kind `freshness`."""
        requests = self.requests(slo, window)
        if slo.kind == "availability":
            return f"{self._count(slo, window, (('status', STATUS_ERROR),))} or 0 * {requests}"
        if slo.kind == "coverage":
            stages, matchers = METRIC_NAMES[STAGE_DURATION], matchers_of(slo)
            # Requests without stages are excluded: their coverage is unknown.
            summed_stages = self.summed(stages, f'{format_labels(matchers)},stage!="{UNTIMED}"', window)
            unexplained = self.summed(stages, f'{format_labels(matchers)},stage=~"{"|".join(UNEXPLAINED)}"', window)
            return f"{requests} * sum({unexplained}) / sum({summed_stages})"
        served = (("status", STATUS_OK),) if slo.kind == "latency" else ()
        return f"{requests} - ({self._within(slo, window, served)} or vector(0))"

    def _count(self, slo: Slo, window: str, more: Sequence[tuple[str, str]]) -> str:
        return f"sum({self.counted(_metric(slo), format_labels((*matchers_of(slo), *more)), window)})"

    def _within(self, slo: Slo, window: str, more: Sequence[tuple[str, str]]) -> str:
        name, matchers = _metric(slo), (*matchers_of(slo), *more)
        if not self.native:
            return f"sum(rate({name}_bucket{{{format_labels((*matchers, ('le', repr(threshold(slo)))))}}}[{window}]))"
        held = f"sum(rate({name}{{{format_labels(matchers)}}}[{window}]))"
        # Without requests the share is NaN, which the comparison drops.
        return f"(histogram_fraction(-1, {threshold(slo)!r}, {held}) * histogram_count({held}) >= 0)"


def matchers_of(slo: Slo) -> tuple[tuple[str, str], ...]:
    chosen = {LABELS[name]: getattr(slo, name) for name in needed_labels(slo)}
    key = {"stage": slo.stage, "definition": slo.definition}
    return ("service_name", slo.service), *((name, value) for name, value in (chosen | key).items() if value)


def needed_labels(slo: Slo) -> list[str]:
    """Return the optional labels that *slo* needs, with their names in the collector's configuration file."""
    return [name for name in ("version", "environment", "model", "route") if getattr(slo, name)]


def threshold(slo: Slo) -> float:
    """Return the threshold of *slo* in seconds; 0 if the SLO has none."""
    return slo.threshold.total_seconds() if slo.threshold else 0.0


def needed_bucket(slo: Slo) -> float | None:
    bound = threshold(slo)
    return bound if slo.kind != "freshness" and bound and bound not in LADDER else None


def prometheus_duration(length: timedelta) -> str:
    """Return *length* as a Prometheus duration.

    >>> prometheus_duration(timedelta(minutes=90)), prometheus_duration(timedelta(days=3)), prometheus_duration(timedelta(days=1, seconds=30))
    ('90m', '3d', '86430s')
    """
    return next(f"{length // unit}{name}" for name, unit in _UNITS.items() if not length % unit)


def _metric(slo: Slo) -> str:
    return METRIC_NAMES[HISTOGRAMS.get(slo.kind, REQUEST_DURATION)]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _as_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _as_text)


def write_rules(slos: Sequence[Slo], policy: BurnRatePolicy, histograms: HistogramExpressions) -> str:
    lines = [*_head(slos, policy, histograms), "groups:" if _expressible_slos(slos) else "groups: []"]
    for slo in slos:
        lines += ["", *(f"  # {line}" for line in _comments(slo, policy))]
        if slo.kind != "freshness":
            dumped = yaml.dump(
                [_group(slo, policy, histograms)], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000
            )
            lines += [f"  {line}" if line else "" for line in dumped.splitlines()]
    return "\n".join(lines) + "\n"


def _expressible_slos(slos: Sequence[Slo]) -> list[Slo]:
    return [slo for slo in slos if slo.kind != "freshness"]


def _head(slos: Sequence[Slo], policy: BurnRatePolicy, histograms: HistogramExpressions) -> Iterator[str]:
    kind = "native" if histograms.native else "classic"
    yield f"# Made by `stagelens export rules` for Prometheus 2.42 and later, from the {kind} histograms on the collector's /metrics."
    needed = {label: None for slo in _expressible_slos(slos) for label in needed_labels(slo)}
    labels = [label for label in LABELS if label in needed or label in DEFAULT_LABELS]
    buckets = (
        [] if histograms.native else sorted({bound for slo in _expressible_slos(slos) if (bound := needed_bucket(slo))})
    )
    if buckets or set(labels) > set(DEFAULT_LABELS):
        yield "#"
        yield "# The rules need this section in the collector file, since at least the short window of an alert:"
        yield "# without a label no requests match, and without a bucket every request is bad."
        yield f"#   prometheus: {{labels: [{', '.join(labels)}], buckets: {buckets}}}"
    keep, quiet = formatting.percent(policy.hysteresis.keep), prometheus_duration(policy.hysteresis.quiet)
    yield "#"
    yield "# Features of Stagelens' own alerts that rules do not have:"
    yield "# - if a service is newer than a tier's short window, the time before counts as good;"
    yield f"# - an alert fires until its burn rate is below {keep} of the threshold for {quiet} (here: keep_firing_for: {quiet});"
    yield "# - while the collector fails, no incident is opened or resolved (here: alert on absent(up) of its job);"
    yield "# - messages name the responsible stage and link to example requests;"
    yield "# - the remaining error budget: 30 days exceed the default retention of Prometheus."


def _comments(slo: Slo, policy: BurnRatePolicy) -> Iterator[str]:
    yield " ".join(f"{slo.name}: {slo.in_words()}.".split())
    if slo.kind == "freshness":
        yield "Skipped: a rule cannot count minutes without new data. Use Stagelens' own alerts."
        return
    for tier in policy_tiers(policy, slo.window):
        if not is_reachable(tier, slo.objective):
            yield f"Skipped: {tier.severity} over {prometheus_duration(tier.long)}: the burn rate cannot reach {formatting.times(tier.burn)} at this objective."
    if slo.maintenance.planned:
        yield "Maintenance windows are not included: add them to Alertmanager (mute_time_intervals)."
    if slo.reset is not None:
        yield f"Its reset at {slo.reset.isoformat()} is not included: earlier requests count while a window covers them."
    if slo.budgets:
        yield "Stage budgets are not included."


def _group(slo: Slo, policy: BurnRatePolicy, histograms: HistogramExpressions) -> dict[str, Any]:
    tiers = tiers_of(slo, policy)
    recorded = [
        rule
        for length in needed_windows(policy, tiers)
        for rule in _recorded(slo, prometheus_duration(length), histograms)
    ]
    alerts = [_alert(slo, tier, policy) for tier in tiers]
    return {"name": f"stagelens-slo-{slo.name}", "interval": "1m", "rules": [*recorded, *alerts]}


def _recorded(slo: Slo, window: str, histograms: HistogramExpressions) -> Iterator[dict[str, Any]]:
    labels, chosen = _slo_labels(slo), _slo_selector(slo)
    yield {"record": f"{REQUESTS}{window}", "labels": labels, "expr": histograms.requests(slo, window)}
    yield {"record": f"{BAD}{window}", "labels": labels, "expr": histograms.bad(slo, window)}
    ratio = f"{BAD}{window}{chosen} / {REQUESTS}{window}{chosen} / {round(slo.budget, 12)!r}"
    yield {"record": f"{BURN}{window}", "labels": labels, "expr": f"round({ratio}, {_STEP})"}


def _alert(slo: Slo, tier: AlertTier, policy: BurnRatePolicy) -> dict[str, Any]:
    burns = f"{formatting.times(tier.burn)} over {prometheus_duration(tier.long)} and {prometheus_duration(tier.short)}"
    annotations = {
        "summary": f"{slo.name}: the error budget burns {burns}",
        "description": slo.description or slo.in_words(),
    }
    if slo.runbook:
        annotations["runbook_url"] = slo.runbook
    return {
        "alert": ALERT,
        "expr": _condition(slo, tier, policy),
        "keep_firing_for": prometheus_duration(policy.hysteresis.quiet),
        "labels": {
            "severity": tier.severity,
            "window": prometheus_duration(tier.long),
            **_escape_templates(_slo_labels(slo)),
        },
        "annotations": _escape_templates(annotations),
    }


def _condition(slo: Slo, tier: AlertTier, policy: BurnRatePolicy) -> str:
    chosen, guard = _slo_selector(slo), policy.guard
    long, short = prometheus_duration(tier.long), prometheus_duration(tier.short)

    def counted(what: str, length: timedelta) -> str:
        return f"round({what}{prometheus_duration(length)}{chosen} * {length.total_seconds():.0f}, {_STEP})"

    lines = [
        f"{BURN}{long}{chosen} >= {tier.burn:g} and {BURN}{short}{chosen} >= {tier.burn:g}",
        "and (",
        f"  {counted(BAD, tier.long)} >= {guard.bad:g}",
        f"  or ({counted(BAD, tier.short)} >= {guard.all_bad:g}",
        f"      and {BURN}{short}{chosen} >= {1 / slo.budget * (1 - 1e-6):.6g})",
        ")",
    ]
    if tier.short > policy.calm.window:
        recent = prometheus_duration(policy.calm.window)
        expected = policy.calm.evidence / min(1.0, tier.burn * slo.budget)
        lines += [
            "unless (",
            f"  {BURN}{recent}{chosen} < 1",
            f"  and {counted(REQUESTS, policy.calm.window)} >= {expected:.6g}",
            ")",
        ]
    return "\n".join(lines) + "\n"


def _slo_selector(slo: Slo) -> str:
    return f"{{{format_labels([('slo', slo.name)])}}}"


def _slo_labels(slo: Slo) -> dict[str, str]:
    return {"slo": slo.name, "service_name": slo.service}


def _escape_templates(texts: dict[str, str]) -> dict[str, str]:
    """Return *texts* with template delimiters escaped, because alert texts are templates."""
    return {key: text.replace("{{", '{{ "{{" }}') for key, text in texts.items()}
