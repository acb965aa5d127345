"""Silences: matching, active period and retention."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from stagelens.alerts.delivery.message import Finding
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.incidents import silences
from stagelens.alerts.incidents.journal import IncidentError
from stagelens.alerts.incidents.silences import Silence
from stagelens.alerts.objectives.slo_file import Definitions
from stagelens.store import Store
from tests.alerts.traffic import NOW

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def silence(now: datetime, matchers: dict[str, str], length: timedelta = HOUR) -> Silence:
    return Silence("si-1", matchers, now, now + length, "ann", "")


@pytest.mark.parametrize(
    ("matchers", "fits"),
    [
        ({"service": "magika-demo"}, True),
        ({"service": "*"}, True),
        ({"service": "other"}, False),
        ({"service": "magika-demo", "slo": "magika-latency", "severity": "page"}, True),
        ({"severity": "ticket"}, False),
        ({"environment": "prod"}, True),
        ({"environment": "staging"}, False),
        ({"route": "/pay"}, False),
        ({"route": "*"}, True),
        ({"version": "2"}, True),
    ],
)
def test_a_silence_matches_all_its_matchers(finding: Finding, matchers: dict[str, str], fits: bool) -> None:
    about = replace(finding, where={"environment": "prod"})

    assert silence(NOW, matchers).matches(about) is fits


def test_the_reason_is_the_silence_that_lasts_longest(finding: Finding) -> None:
    shorter, longer = silence(NOW, {"service": "*"}), replace(silence(NOW, {"service": "*"}, 2 * HOUR), author="bob")

    assert silences.silence_reason(finding, [shorter, longer]) == "silenced by bob until 05:04 UTC on 20 November"
    assert not silences.silence_reason(finding, [silence(NOW, {"service": "other"})])


def create(store: Store, start: datetime = NOW, **more: Any) -> Silence:
    period = {"starts_at": start, "ends_at": start + HOUR}
    fields: dict[str, Any] = {"matchers": {"service": "x"}, "author": "ann", **period, **more}
    with store.transaction() as connection:
        return silences.create_silence(connection, **fields)


def test_a_silence_holds_from_its_start_to_its_end(store: Store) -> None:
    made = create(store, NOW + HOUR)
    with store.transaction() as connection:
        listed = silences.list_silences(connection, NOW)
        holds = [bool(silences.active_silences(connection, NOW + hours * HOUR)) for hours in (0, 1, 2)]
        silences.end_silence(connection, made.id, NOW)
        after = [bool(silences.active_silences(connection, NOW + hours * HOUR)) for hours in (0, 1, 2)]

    with store.transaction() as connection, pytest.raises(IncidentError, match="has ended already"):
        silences.end_silence(connection, made.id, NOW + MINUTE)

    assert listed == [made]
    assert (holds, after) == ([False, True, False], [False] * 3)


def test_ended_silences_are_retained_for_395_days(store: Store) -> None:
    create(store)
    counts: list[int] = []
    for days in (394, 396):
        Evaluator(store, "me", lease_seconds=30).tick(Definitions(), NOW + timedelta(days=days))
        with store.engine.connect() as connection:
            counts.append(len(silences.list_silences(connection, NOW + timedelta(days=days), over=True)))

    assert counts == [1, 0]


def test_characters_no_database_stores_are_removed(store: Store) -> None:
    made = create(store, matchers={"service": "a\0b\ud800"}, author="\0", comment="x" * 5000)

    assert "\0" not in made.matchers["service"] + made.author
    assert len(made.comment) == silences.MAX_COMMENT_CHARS


def test_an_unknown_matcher_is_refused(store: Store) -> None:
    with pytest.raises(IncidentError, match="a silence has no field 'team'"):
        create(store, matchers={"team": "x"})
