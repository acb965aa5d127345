"""Text of a notification, common to all channels.

The text contains all facts that the person on call needs: subject, impact, onset, stage, release, remaining budget, three slow
requests, and a link to the dashboard view of the incident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ...analysis.comparison import StageGrowth, dominant_growth
from ...core import stages
from ...questions.changed import Failures
from .. import formatting
from ..formatting import sparkline
from .message import Burn, Exemplar, Finding, LatencyRegression, Message, MissingTraffic, SharedAttribute, Trend

# Onsets are accurate to about a minute; larger errors are shown. [seconds]
_SURE_SECONDS = 120
_ICONS = {"page": "🔴", "ticket": "🟠"}
# The rule that fires changes while an incident lasts, and with it the window.
_PEAK_WINDOW = "in the short window of its rule"
# A share up to this value counts as all of the excess.
_ALL = 1.05
# Maximum number of stages in a table; smaller shares of the excess are noise. [ratio]
_MAX_ROWS = 5
_MIN_ROW = 0.01
_UNKNOWN_ENDINGS = {"no_data": "no more data", "removed": "its SLO was removed"}


def regression_subject(shift: LatencyRegression, where: Mapping[str, str] | None = None) -> str:
    """Return the subject of a latency regression: the statistic, the filters and the environment.

    >>> regression_subject(LatencyRegression(0.999, 0.1, 0.2, 1.8, 2.1, 5000, 1800.0, 9.0), {"environment": "prod", "route": "/search"})
    'p99.9 of route /search in prod'
    >>> regression_subject(LatencyRegression("mean", 0.1, 0.2, 1.8, 2.1, 5000, 1800.0, 9.0))
    'mean latency'
    """
    what = "mean latency" if shift.at == "mean" else f"p{100 * shift.at:g}"
    parts = dict(where or {})
    environment = parts.pop("environment", "")
    part = ", ".join(f"{dimension} {value}" for dimension, value in parts.items())
    return what + (f" of {part}" if part else "") + (f" in {environment}" if environment else "")


def regression_change(shift: LatencyRegression, verb: str = "is") -> str:
    """Return the change of a latency regression as text: the reference, the latency before and the latency after.

    >>> regression_change(LatencyRegression(0.99, 0.252, 0.312, 1.2, 1.3, 5000, 1800.0, 9.0))
    'is slower than on previous days: 252 ms → 312 ms (+24 %)'
    >>> regression_change(LatencyRegression(0.99, 0.252, 0.312, 1.2, 1.3, 5000, 604800.0, 9.0, weeks=4))
    'grew slowly over 4 weeks: 252 ms → 312 ms (+24 %)'
    """
    before, after = formatting.latency(shift.before_seconds), formatting.latency(shift.after_seconds)
    than = f"version {shift.against}" if shift.against else "on previous days"
    how = f"grew slowly over {shift.weeks} weeks" if shift.weeks else f"{verb} slower than {than}"
    return f"{how}: {before} → {after} ({_growth(shift.ratio)})"


def regression_basis(shift: LatencyRegression) -> str:
    """Return text that names the two groups of requests whose stages are compared, for a latency regression."""
    if shift.against:
        return f"mean of requests, compared with version {shift.against}"
    if shift.weeks:
        which = f"the slowest {formatting.percent(1 - float(shift.at))} of requests" if shift.at != 0.5 else "requests"  # noqa: PLR2004
        return f"mean of {which}, compared with {shift.weeks - 1} weeks before"
    which = "requests" if shift.at == "mean" else "the slowest 5 % of requests"
    return f"mean of {which}, compared with previous days"


def regression_impact(shift: LatencyRegression) -> str:
    span = formatting.duration(timedelta(seconds=shift.window_seconds))
    sure = f"{_growth(shift.low)} to {_growth(shift.high)} is likely, based on {formatting.count(shift.requests)} requests in {span}."
    mix = f" The traffic also changed: {shift.mix}." if shift.mix else ""
    hosts = " Other services on the same hosts became slower, too." if shift.slow_hosts else ""
    return sure + mix + hosts


def regression_facts(shift: LatencyRegression) -> list[tuple[str, str]]:
    """Return the key numbers of a latency regression as pairs of name and value."""
    before, after = formatting.latency(shift.before_seconds), formatting.latency(shift.after_seconds)
    return [
        (regression_subject(shift), f"{before} → {after} ({_growth(shift.ratio)})"),
        ("Deviation", f"{shift.z:.1f} times the variation of the baseline"),
    ]


def _growth(ratio: float) -> str:
    sign = "+" if ratio >= 1 else ""
    return f"{sign}{formatting.percent(ratio - 1)}"


@dataclass(frozen=True, slots=True)
class _KindText:
    subject: str
    past: str
    unit: str = "requests"
    cause: str = ""


_KIND_TEXTS = {
    "latency": _KindText("latency", "were too slow or failed"),
    "availability": _KindText("availability", "failed"),
    "ttft": _KindText("TTFT", "waited too long for their first token"),
    "tpot": _KindText("TPOT", "took too long per token"),
    "stage": _KindText("stage", "spent too long in the stage"),
    "coverage": _KindText("coverage", "was in no stage", "", "requests spend time outside all stages"),
    "freshness": _KindText("freshness", "had no fresh data", "minutes", "data is late or missing"),
}


def burn_subject(kind: str, stage: str = "") -> str:
    """Return the subject of a burning SLO; *stage* is the name of its stage, if any.

    >>> burn_subject("latency"), burn_subject("ttft"), burn_subject("stage", "queue")
    ('latency SLO', 'TTFT SLO', 'queue SLO')
    """
    return f"{stage or _kind_text(kind).subject} SLO"


def burn_cause(burn: Burn, kind: str, stage: str = "", *, over: bool) -> str:
    """Return the cause of a high burn rate, if it does not follow from the growth of stages; else ""."""
    share = formatting.percent(formatting.whole(burn.bad / burn.total)) if burn.total else "some"
    if kind == "availability":
        return f"{share} of requests {'failed' if over else 'fail'}"
    if stage:
        return f"{share} of requests {'spent' if over else 'spend'} too long in {stage}"
    return _kind_text(kind).cause


def burn_impact(burn: Burn, kind: str) -> str:
    """Return the share of bad requests in the short window as a sentence."""
    text, span = _kind_text(kind), format_recent(burn.short_seconds)
    share = formatting.percent(formatting.whole(burn.bad / burn.total)) if burn.total else "Some"
    if not text.unit:
        return f"{share} of the time of requests in the {span} {text.past}."
    return f"{share} of {text.unit} in the {span} {text.past}: {formatting.count(burn.bad)} of {formatting.count(burn.total)}."


def format_recent(seconds: float) -> str:
    """Return a period up to now as text.

    >>> format_recent(300), format_recent(3600)
    ('last 5 minutes', 'last hour')
    """
    return f"last {formatting.duration(timedelta(seconds=seconds)).removeprefix('1 ')}"


def _burn_size(burn: Burn) -> str:
    return f"{formatting.times(burn.rate)} in {format_seconds(burn.short_seconds)}"


def budget_facts(burn: Burn, kind: str, *, over: bool) -> list[tuple[str, str]]:
    """Return the remaining budget and the time until it is spent, as pairs of name and value."""
    window = formatting.duration(timedelta(seconds=burn.window_seconds))
    left = (f"Error budget left of {window}", _budget_left(burn, _kind_text(kind).unit))
    return [left] if over else [left, ("At this rate", _budget_pace(burn))]


def _budget_left(burn: Burn, unit: str) -> str:
    if burn.budget_left <= 0:
        return f"none; {formatting.count(-burn.bad_left)} {unit} too many" if unit else "none"
    remaining = f", enough for {formatting.count(burn.bad_left)} more bad {unit}" if unit else ""
    return f"{formatting.percent(burn.budget_left)}{remaining}"


def _budget_pace(burn: Burn) -> str:
    left = burn.exhausted_in_seconds
    if left is None:
        return "the budget lasts"
    return f"the budget is spent in {formatting.duration(timedelta(seconds=left))}" if left else "the budget is spent"


def _kind_text(kind: str) -> _KindText:
    return _KIND_TEXTS.get(kind, _KIND_TEXTS["latency"])


def absence_impact(absence: MissingTraffic) -> str:
    """Return the impact of missing traffic as a sentence, with the usual number of requests.

    >>> absence_impact(MissingTraffic(usual=1240, before_seconds=86400, window_seconds=900))
    'No request in 15 minutes; 1,240 arrived in the same period 1 day before. Other objectives of the service cannot be evaluated.'
    """
    missed, before = format_seconds(absence.window_seconds), format_seconds(absence.before_seconds)
    there = f"{formatting.count(absence.usual)} arrived in the same period {before} before"
    return f"No request in {missed}; {there}. Other objectives of the service cannot be evaluated."


def format_seconds(seconds: float) -> str:
    """Return a time as text, such as `5 minutes`."""
    return formatting.duration(timedelta(seconds=seconds))


def headline(message: Message) -> str:
    """Return the headline of a message: one sentence with subject, size, stage and release."""
    what, why = title(message), cause_text(message)
    return what if message.ending in _UNKNOWN_ENDINGS else f"{what} — {why}"


def icon(message: Message) -> str:
    if message.ending in _UNKNOWN_ENDINGS or message.ending == "accepted":
        return "⚪"
    if message.resolved:
        return "🟢"
    return "👀" if message.transition == "acknowledged" else _ICONS[message.finding.severity]


def title(message: Message) -> str:
    finding = message.finding
    what = f"{finding.service}: {_subject_of(finding)}"
    if message.ending in _UNKNOWN_ENDINGS:
        return f"{what}: {_UNKNOWN_ENDINGS[message.ending]}; closed with unknown outcome"
    if message.ending == "accepted":
        return (
            f"{what} {_present_state(finding)}, {message.acked_by or 'an unknown user'} accepted it as the new baseline"
        )
    lasted = formatting.duration(timedelta(seconds=max(60.0, message.at - finding.since)))
    if message.resolved and message.first:
        return f"{what} {_past_state(finding)} for {lasted} and recovered"
    if message.resolved:
        return f"{what} recovered after {lasted}"
    if message.transition in ("acknowledged", "unacknowledged"):
        is_undone = message.transition == "unacknowledged"
        did = (
            f"{message.note} undid the acknowledgement"
            if is_undone
            else f"{message.acked_by or 'an unknown user'} acknowledged it"
        )
        return f"{what} {_present_state(finding)}, {did}"
    again = " again" if message.transition == "reopened" else ""
    more = f", and {len(message.also)} more" if message.also else ""
    return f"{what} {_present_state(finding)}{again}{more}"


def cause_text(message: Message) -> str:
    """Return the cause as a clause that claims only measured facts."""
    finding, over = message.finding, message.resolved and message.ending != "accepted"
    if finding.absence is not None:
        return f"no request in {format_seconds(finding.absence.window_seconds)}"
    if is_silent(message) and finding.silent_since is not None:
        return (
            f"no request since {formatting.moment_of(finding.silent_since)}; before, {_known_cause(finding, over=True)}"
        )
    return _known_cause(finding, over=over)


def _known_cause(finding: Finding, *, over: bool) -> str:
    since = f" since version {finding.version}" if finding.version else ""
    lost, slow = finding.failures, dominant_growth(finding.growth)
    if lost is not None and finding.cause == "failures":
        part = f"; {_slow_clause(finding, slow, over=over)}" if slow else ""
        return f"{_failed_clause(finding, lost, over=over)}{since}{part}"
    if finding.burn is not None and (cause := burn_cause(finding.burn, finding.kind, _stage_of(finding), over=over)):
        return f"{cause}{since}"
    first = f"{_slow_clause(finding, slow, over=over) if slow else 'no dominant stage'}{since}"
    share = formatting.percent(formatting.whole(lost.failed / lost.bad)) if lost else ""
    return f"{first}; {share} of the {_bad_words(finding)} failed" if lost else first


def _failed_clause(finding: Finding, lost: Failures, *, over: bool) -> str:
    fail, details = "failed" if over else "fail", failures_text(lost)
    if finding.burn is not None and finding.kind in ("latency", "availability"):
        share = formatting.percent(formatting.whole(lost.failed / lost.requests))
        counted = f"{formatting.count(lost.failed)} of {formatting.count(lost.requests)} since the onset"
        first = f"{share} of requests {fail} ({counted})"
    else:
        share = formatting.percent(formatting.whole(lost.failed / lost.bad))
        first = f"{share} of the {_bad_words(finding)} {fail}"
    return f"{first}: {details}" if details else first


def _bad_words(finding: Finding) -> str:
    return "bad requests" if finding.shift is None else "requests slower than usual"


def failures_text(lost: Failures) -> str:
    """Return the dominant error type, route and called service of failed requests; "" if none dominates.

    >>> from stagelens.questions.changed import FailureShare
    >>> slow, route = FailureShare("ReadTimeout", 38, 40), FailureShare("/pay", 2300, 2430)
    >>> failures_text(Failures(2430, 2430, 4860, error=slow, route=route))
    'error ReadTimeout (38 of 40 sampled), route /pay (95 % of failures)'
    """
    named = [("error", lost.error), ("route", lost.route), ("failed calls of", lost.dependency)]
    parts = [
        f"{what} {count.value} ({formatting.percent(formatting.whole(count.requests / count.of))} of failures)"
        if count is lost.route
        else f"{what} {count.value} ({formatting.count(count.requests)} of {formatting.count(count.of)} sampled)"
        for what, count in named
        if count is not None
    ]
    return ", ".join(parts)


def _slow_clause(finding: Finding, blamed: StageGrowth, *, over: bool) -> str:
    code = finding.blamed_function
    grown = formatting.latency(blamed.seconds, signed=True)
    if code is not None and code.stage == blamed.stage:
        verb = "had grown" if over else "grew"
        grown = formatting.latency(code.stage_growth_ms / 1e3, signed=True) + code.at
        return f"{stage_name(blamed.stage)} {verb} {grown}, {formatting.share_text(code.share)} in {code.title}"
    amount = f"{grown} ({of_the_excess(blamed)})"
    if finding.shift is not None:
        return f"{stage_name(blamed.stage)} {'had grown' if over else 'grew'} {amount}"
    return f"slow requests {'spent' if over else 'spend'} {amount} in {stage_name(blamed.stage)}"


def impact_text(finding: Finding) -> str:
    if finding.absence is not None:
        return absence_impact(finding.absence)
    if finding.silent_since is not None:
        return f"No request since {formatting.moment_of(finding.silent_since)}: whether it continues is unknown."
    if finding.burn:
        return burn_impact(finding.burn, finding.kind)
    return f"{regression_impact(_regression(finding))} {finding.record}".rstrip()


def worst_impact(finding: Finding, peak: float) -> str:
    if finding.absence is not None:
        return "traffic was missing"
    if finding.burn is not None:
        return f"burned at up to {formatting.times(peak)} {_PEAK_WINDOW}"
    shift = _regression(finding)
    than = f"than version {shift.against}" if shift.against else "than before"
    return f"{regression_subject(shift)} was up to {formatting.percent(peak - 1)} slower {than}"


def comparison_basis(finding: Finding) -> str:
    """Return text that names the two groups of requests whose stages are compared."""
    if finding.shift is not None:
        return regression_basis(finding.shift)
    return "mean of slow requests, compared with good requests"


def message_facts(message: Message) -> list[tuple[str, str]]:
    """Return the key numbers of a message as pairs of name and value."""
    finding, over = message.finding, message.resolved
    if finding.absence is not None:
        window = format_seconds(finding.absence.window_seconds)
        return [("Baseline", f"{formatting.count(finding.absence.usual)} requests in {window}"), _time_fact(message)]
    if finding.burn is not None:
        left = budget_facts(finding.burn, finding.kind, over=over or is_silent(message))
        rate = ("Burn rate", f"{_burn_size(finding.burn)} (alerts from {formatting.times(finding.burn.threshold)})")
        if is_silent(message):
            rate = "Burn rate", "no data"
        elif over:
            rate = "Highest burn rate", f"{formatting.times(finding.burn.rate)} {_PEAK_WINDOW}"
        facts = [rate, _time_fact(message), *left]
    else:
        facts = [*regression_facts(_regression(finding)), _time_fact(message)]
    broken = [
        f"{stage_name(overrun.stage)} {formatting.latency(overrun.seconds)} of {formatting.latency(overrun.budget_seconds)}"
        for overrun in finding.overruns
    ]
    values = {
        "Exceeded stage budgets": ", ".join(broken),
        "Called": finding.called,
        "Slow replica": finding.replica,
        "Slow requests share": "; ".join(map(shared_text, finding.shared)),
    }
    return [*facts, *((name, value) for name, value in values.items() if value)]


def shared_text(shared: SharedAttribute) -> str:
    """Return an attribute that slow requests share as text.

    >>> shared_text(SharedAttribute("tenant acme", 0.06, 0.712))
    'tenant acme (71 % of slow requests, 6 % of all)'
    """
    slow, every = (formatting.percent(formatting.whole(share)) for share in (shared.share_slow, shared.share_all))
    return f"{shared.label} ({slow} of slow requests, {every} of all)"


def stage_table(finding: Finding) -> list[tuple[str, str, str]]:
    """Return the first of at most five stages, and those with 1 % of the excess or more, as rows of stage, growth and share."""
    return [
        (stages.label(row.stage), formatting.latency(row.seconds, signed=True), formatting.share_text(row.share))
        for row in finding.growth[:_MAX_ROWS]
        if row.share >= _MIN_ROW or row is finding.growth[0]
    ]


def of_the_excess(grown: StageGrowth) -> str:
    """Return the share of the excess in one stage as text; the share is above 1 if other stages shrank.

    >>> of_the_excess(StageGrowth("queue", 0.3, 0.92))
    '92 % of the excess'
    >>> of_the_excess(StageGrowth("queue", 0.424, 1.02)), of_the_excess(StageGrowth("queue", 0.424, 1.25))
    ('100 % of the excess', '100 % of the excess, other stages shrank')
    """
    part = f"{formatting.share_text(grown.share)} of the excess"
    return f"{part}, other stages shrank" if grown.share > _ALL else part


def slow_requests(finding: Finding) -> list[tuple[str, str]]:
    """Return the exemplars as pairs of text and link; the reason why there are none as one text without a link."""
    if not finding.exemplars:
        return [(finding.no_exemplars, "")] if finding.no_exemplars else []
    return [(_exemplar_text(exemplar), exemplar.link) for exemplar in finding.exemplars]


def _exemplar_text(exemplar: Exemplar) -> str:
    if exemplar.failed:
        return f"failed after {formatting.latency(exemplar.seconds)}"
    spent = formatting.latency(exemplar.stage_seconds)
    return f"{formatting.latency(exemplar.seconds)}, {spent} of it in {stage_name(exemplar.stage)}"


def link_title(finding: Finding) -> str:
    return "Failed requests" if finding.cause == "failures" and finding.burn else "Where the time goes"


def exemplars_title(failed: Sequence[bool]) -> str:
    """Return the title of exemplars; *failed* is whether each of them failed.

    >>> exemplars_title([True, True]), exemplars_title([True, False]), exemplars_title([])
    ('Failed requests', 'Bad requests', 'Slow requests')
    """
    if failed and any(failed):
        return "Failed requests" if all(failed) else "Bad requests"
    return "Slow requests"


def sparkline_of(message: Message) -> list[tuple[str, str]]:
    """Return the trend as a pair of sparkline and caption; [] without a trend, or if the incident is resolved."""
    trend = message.finding.course
    if message.resolved or trend is None or trend.highest is None:
        return []
    return [(sparkline(trend.values), _trend_text(message.finding, trend, trend.highest))]


def chart_in_words(finding: Finding) -> str:
    trend = finding.course
    if trend is None or trend.highest is None:
        return ""
    shown = _trend_text(finding, trend, trend.highest)
    limit = f"; alerts from {formatting.times(finding.burn.threshold)}" if finding.burn else ""
    usual = f"; baseline {formatting.latency(finding.shift.before_seconds)}" if finding.shift else ""
    return f"Chart: {shown}{limit}{usual}; the problem began at {formatting.moment_of(finding.since)}"


def small_print(message: Message) -> list[str]:
    """Return the objective, and the person who acknowledged or accepted the incident."""
    finding = message.finding
    lines = [f"{finding.name}: {finding.promise}"]
    if message.acked_by and not message.resolved:
        lines.append(f"{message.acked_by} acknowledged it")
    if message.ending == "accepted" and message.note not in ("", message.acked_by):
        lines.append(f"Accepted by {message.note}")
    return lines


def stage_name(stage: str) -> str:
    """Return the name of *stage* for use within a sentence.

    >>> stage_name("load"), stage_name("h2d"), stage_name("rerank")
    ('cold start', 'transfer H→D', 'rerank')
    """
    name = stages.label(stage)
    return name if stage not in stages.BY_KEY else name[0].lower() + name[1:]


def _trend_text(finding: Finding, trend: Trend, highest: float) -> str:
    span = format_recent(trend.step_seconds * len(trend.values))
    step = f" in {format_seconds(trend.step_seconds)}"
    top = formatting.times(highest) + step if finding.burn else formatting.latency(highest)
    return f"{'burn rate' if finding.burn else _subject_of(finding)} of the {span}, up to {top}"


def _subject_of(finding: Finding) -> str:
    if finding.absence is not None:
        return "traffic"
    return (
        burn_subject(finding.kind, _stage_of(finding))
        if finding.burn
        else regression_subject(_regression(finding), finding.where)
    )


def is_silent(message: Message) -> bool:
    """Return whether no request arrives during the incident, so that its state is unknown."""
    return message.finding.silent_since is not None and not message.resolved


def _present_state(finding: Finding) -> str:
    if finding.absence is not None:
        return "stopped"
    if finding.silent_since is not None:
        return f"has no data, {_past_state(finding)} before"
    return f"burning {_burn_size(finding.burn)}" if finding.burn else regression_change(_regression(finding))


def _past_state(finding: Finding) -> str:
    if finding.absence is not None:
        return "was missing"
    return f"burned {_burn_size(finding.burn)}" if finding.burn else regression_change(_regression(finding), "was")


def _stage_of(finding: Finding) -> str:
    return stage_name(finding.stage) if finding.stage else ""


def _time_fact(message: Message) -> tuple[str, str]:
    began = formatting.moment_of(message.finding.since) + _onset_error(message.finding)
    if message.resolved:
        return "When", f"{began}, to {formatting.moment_of(message.at)}"
    return (
        "Since",
        f"{began}, {formatting.duration(timedelta(seconds=max(60.0, message.at - message.finding.since)))} ago",
    )


def _onset_error(finding: Finding) -> str:
    low, high = finding.between or (finding.since, finding.since)
    wrong = max(finding.since - low, high - finding.since)
    return f" ± {formatting.duration(timedelta(seconds=wrong))}" if wrong > _SURE_SECONDS else ""


def _regression(finding: Finding) -> LatencyRegression:
    assert finding.shift is not None  # noqa: S101 - a finding has a burn, a shift or an absence
    return finding.shift
