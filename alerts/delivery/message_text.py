"""The sentences of a message, once for all channels.

A message can be acted on without opening anything: what, how bad, since when, which stage, since which release, what is
left of the budget, three slow requests, and one link that opens exactly this view.
"""

from __future__ import annotations

from datetime import timedelta

from ...analysis.comparison import StageGrowth
from ...core import stages
from .. import formatting
from . import absence_words, burn_words, shift_words
from .finding_parts import Course, Shift
from .message import Finding, Message
from .truncation import sparkline

# The beginning of trouble is counted in minutes.
_SURE_SECONDS = 120
_ICONS = {"page": "🔴", "ticket": "🟠"}
# So little more than all of the excess is chance.
_ALL = 1.05
_UNKNOWN_ENDINGS = {"no_data": "no data any more", "removed": "it is not watched any more"}


def headline(message: Message) -> str:
    """Return one sentence: what, how bad, which stage, since which release."""
    told, why = title(message), cause(message)
    return told if message.ending in _UNKNOWN_ENDINGS else f"{told} — {why}"


def icon(message: Message) -> str:
    """Return how it stands as one sign."""
    if message.ending in _UNKNOWN_ENDINGS or message.ending == "accepted":
        return "⚪"
    if message.resolved:
        return "🟢"
    return "👀" if message.transition == "acknowledged" else _ICONS[message.finding.severity]


def title(message: Message) -> str:
    """Return the headline without its cause."""
    finding = message.finding
    what = f"{finding.service}: {_subject(finding)}"
    if message.ending in _UNKNOWN_ENDINGS:
        return f"{what}: {_UNKNOWN_ENDINGS[message.ending]}; closed without knowing how it went on"
    if message.ending == "accepted":
        return f"{what} {_is(finding)}, {message.acked_by or 'somebody'} accepts it as the new normal"
    lasted = formatting.duration(timedelta(seconds=max(60.0, message.at - finding.since)))
    if message.resolved and message.first:
        return f"{what} {_was(finding)} for {lasted} and recovered"
    if message.resolved:
        return f"{what} is fine again after {lasted}"
    if message.transition == "acknowledged":
        return f"{what} {_is(finding)}, {message.acked_by or 'somebody'} looks after it"
    again = " again" if message.transition == "reopened" else ""
    more = f", and {len(message.also)} more" if message.also else ""
    return f"{what} {_is(finding)}{again}{more}"


def cause(message: Message) -> str:
    """Return what the trouble comes from, in half a sentence that claims no more than was measured."""
    finding, over = message.finding, message.resolved and message.ending != "accepted"
    if finding.absence is not None:
        return absence_words.cause(finding.absence)
    since = f" since version {finding.version}" if finding.version else ""
    if finding.burn is not None and (known := burn_words.cause(finding.burn, finding.kind, _stage(finding), over=over)):
        return f"{known}{since}"
    blamed = finding.blamed
    if blamed is None:
        return f"no stage {'stood' if over else 'stands'} out{since}"
    amount = f"{formatting.latency(blamed.seconds, signed=True)} ({of_the_excess(blamed)})"
    if finding.shift is not None:
        return f"{stage_name(blamed.stage)} {'had grown' if over else 'grew'} {amount}{since}"
    return f"slow requests {'spent' if over else 'spend'} {amount} in {stage_name(blamed.stage)}{since}"


def impact(finding: Finding) -> str:
    """Return how bad it is, as a sentence."""
    if finding.absence is not None:
        return absence_words.impact(finding.absence)
    return burn_words.impact(finding.burn, finding.kind) if finding.burn else shift_words.impact(_shift(finding))


def worst(finding: Finding, peak: float) -> str:
    """Return how bad it has been, in a few words; *peak* is the largest `Finding.size` it had."""
    if finding.absence is not None:
        return f"{absence_words.SUBJECT} {absence_words.WAS}"
    if finding.burn is not None:
        return f"burned {formatting.times(peak)} at its worst"
    return f"{shift_words.subject(_shift(finding))} was {formatting.percent(peak - 1)} slower at its worst"


def basis(finding: Finding) -> str:
    """Return what the stages were compared to."""
    if finding.shift is not None:
        return shift_words.basis(finding.shift)
    return "a bad request against a good one, on average"


def facts(message: Message) -> list[tuple[str, str]]:
    """Return the numbers worth a line each, as (name, value)."""
    finding, over = message.finding, message.resolved
    if finding.absence is not None:
        return [absence_words.usual(finding.absence), _when(message)]
    if finding.burn is not None:
        left = burn_words.budget(finding.burn, finding.kind, over=over)
        return [burn_words.rate(finding.burn, over=over), _when(message), *left, *_overruns(finding)]
    return [*shift_words.facts(_shift(finding)), _when(message)]


def _overruns(finding: Finding) -> list[tuple[str, str]]:
    broken = [
        f"{stage_name(each.stage)} {formatting.latency(each.seconds)} of {formatting.latency(each.budget_seconds)}"
        for each in finding.overruns
    ]
    return [("Stage budgets broken", ", ".join(broken))] if broken else []


def table(finding: Finding, *, limit: int = 5) -> list[tuple[str, str, str]]:
    """Return the stages that grew most, as (stage, growth, share)."""
    return [
        (stages.label(row.stage), formatting.latency(row.seconds, signed=True), formatting.part(row.share))
        for row in finding.growth[:limit]
    ]


def of_the_excess(grown: StageGrowth) -> str:
    """Say how much of the excess a stage made: all of it and more, when others shrank.

    >>> of_the_excess(StageGrowth("queue", 0.3, 0.92))
    '92 % of the excess'
    >>> of_the_excess(StageGrowth("queue", 0.424, 1.02)), of_the_excess(StageGrowth("queue", 0.424, 1.25))
    ('all of the excess', 'all of the excess, others shrank')
    """
    part = f"{formatting.part(grown.share)} of the excess"
    return f"{part}, others shrank" if grown.share > _ALL else part


def examples(finding: Finding) -> list[tuple[str, str]]:
    """Return a few slow requests, as (what, link)."""
    return [
        (
            f"{formatting.latency(each.seconds)}, {formatting.latency(each.stage_seconds)} of it in {stage_name(each.stage)}",
            each.link,
        )
        for each in finding.exemplars
    ]


def picture(message: Message) -> list[tuple[str, str]]:
    """Return how it went so far, as (bars, what they show); nothing where that is not known, or it is over."""
    course = message.finding.course
    if message.resolved or course is None or course.highest is None:
        return []
    return [(sparkline(course.values), _shown(message.finding, course, course.highest))]


def chart_in_words(finding: Finding) -> str:
    """Return what a chart of *finding* shows, for those who do not see it; nothing where there is none."""
    course = finding.course
    if course is None or course.highest is None:
        return ""
    shown = _shown(finding, course, course.highest)
    limit = f"; alerts from {formatting.times(finding.burn.threshold)}" if finding.burn else ""
    usual = f"; {formatting.latency(finding.shift.before_seconds)} is usual" if finding.shift else ""
    return f"Chart: {shown}{limit}{usual}; the trouble began at {formatting.moment_of(finding.since)}"


def small_print(message: Message) -> list[str]:
    """Return what was promised, and who looks after it."""
    finding = message.finding
    lines = [f"{finding.name}: {finding.promise}"]
    if message.acked_by and not message.resolved:
        lines.append(f"{message.acked_by} looks after it")
    if message.note not in ("", message.acked_by):
        lines.append(f"Accepted by {message.note}")
    return lines


def stage_name(stage: str) -> str:
    """Return the name of *stage* within a sentence.

    >>> stage_name("load"), stage_name("h2d"), stage_name("rerank")
    ('cold start', 'transfer H→D', 'rerank')
    """
    name = stages.label(stage)
    return name if stage not in stages.BY_KEY else name[0].lower() + name[1:]


def _shown(finding: Finding, course: Course, highest: float) -> str:
    span = burn_words.lately(course.step_seconds * len(course.values))
    top = formatting.times(highest) if finding.burn else formatting.latency(highest)
    return f"{'burn rate' if finding.burn else _subject(finding)} of the {span}, up to {top}"


def _subject(finding: Finding) -> str:
    if finding.absence is not None:
        return absence_words.SUBJECT
    return (
        burn_words.subject(finding.kind, _stage(finding))
        if finding.burn
        else shift_words.subject(_shift(finding), finding.where)
    )


def _is(finding: Finding) -> str:
    if finding.absence is not None:
        return absence_words.IS
    return f"burning {formatting.times(finding.size)}" if finding.burn else f"is {shift_words.change(_shift(finding))}"


def _was(finding: Finding) -> str:
    if finding.absence is not None:
        return absence_words.WAS
    return f"burned {formatting.times(finding.size)}" if finding.burn else f"was {shift_words.change(_shift(finding))}"


def _stage(finding: Finding) -> str:
    return stage_name(finding.stage) if finding.stage else ""


def _when(message: Message) -> tuple[str, str]:
    began = formatting.moment_of(message.finding.since) + _between(message.finding)
    if message.resolved:
        return "When", f"{began}, to {formatting.moment_of(message.at)}"
    return (
        "Since",
        f"{began}, {formatting.duration(timedelta(seconds=max(60.0, message.at - message.finding.since)))} ago",
    )


def _between(finding: Finding) -> str:
    """Say by how much the time the trouble began may be wrong, where that is more than the steps it is counted in."""
    low, high = finding.between or (finding.since, finding.since)
    wrong = max(finding.since - low, high - finding.since)
    return f" ± {formatting.duration(timedelta(seconds=wrong))}" if wrong > _SURE_SECONDS else ""


def _shift(finding: Finding) -> Shift:
    assert finding.shift is not None  # noqa: S101 - a finding has a burn, a shift or an absence
    return finding.shift
