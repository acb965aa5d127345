"""The tables of docs/design/upstream.md: a row for each suite, and what is left out and explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.upstream.runs import EXIT, FAILED, PASSED, Compared, Outcomes
from tests.upstream.suites import ROOT, Suite

DOCUMENT = ROOT / "docs" / "design" / "upstream.md"
BEGIN, END = "<!-- written by `make upstream`: begin -->", "<!-- written by `make upstream`: end -->"
HEAD = (
    "| Library | Version | Tests | Without the agent | `stagelens run` | Each test in a request | Each request profiled |",
    "|---|---|---|---|---|---|---|",
)
REASONS_HEAD = ("| Library | Tests | Reason |", "|---|---|---|")


def row(suite: Suite, before: Outcomes, ways: Mapping[str, Compared]) -> str:
    cells = [_numbers(before)]
    for way in ways.values():
        explained = len(way.documented) + len(way.known)
        cells.append(f"{_numbers(way.outcomes)} / {explained:,} / {len(way.differences):,}")
    return f"| {suite.title} | {suite.version or suite.python_version()} | {before.tests:,} | {' | '.join(cells)} |"


def _numbers(outcomes: Outcomes) -> str:
    passed, failed = (outcomes.number(outcome) for outcome in (PASSED, FAILED))
    return f"{passed - (outcomes.by_test.get(EXIT) == PASSED):,} / {failed:,}"


def write(rows: dict[str, str], suites: Sequence[Suite]) -> None:
    text = DOCUMENT.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    found = text[start:end].split("\n\n")[0].splitlines()[3:]
    titles = {suite.title for suite in suites}
    kept = {title: line for line in found if (title := line.split(" | ")[0][2:]) in titles}
    lines = [*HEAD, *(line for _, line in sorted((kept | rows).items(), key=lambda item: item[0].lower()))]
    for head, reasons in (
        ("Explained differences:", [(suite, suite.differences) for suite in suites]),
        ("Tests that do not run:", [(suite, suite.left_out) for suite in suites]),
    ):
        rows_of_reasons = [
            f"| {suite.title} | `{test}` | {why} |" for suite, each in reasons for test, why in each.items()
        ]
        if rows_of_reasons:
            lines += ["", head, "", *REASONS_HEAD, *rows_of_reasons]
    DOCUMENT.write_text(text[:start] + "\n" + "\n".join(lines) + "\n" + text[end:])
