"""OpenSLO v1 documents: supported parts, warnings for other parts, and errors with their lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.objectives.slo_file import WatchedServices, read_slo_file
from stagelens.core.errors import ConfigError
from stagelens.store.selection import Indicator
from tests.alerts.conftest import Problems, ReadSlos

DOCUMENTS = Path(__file__).parent / "openslo.yaml"
LATENCY = """\
apiVersion: openslo/v1
kind: SLO
metadata: {name: checkout-latency}
spec:
  service: checkout
  indicator:
    metadata: {name: x}
    spec:
      thresholdMetric:
        metricSource:
          type: stagelens
          spec: {route: /pay}
  timeWindow: [{duration: 30d, isRolling: true}]
  budgetingMethod: Occurrences
  objectives:
    - {op: lte, value: 0.25, target: 0.99}
"""


def test_openslo_documents_become_slos() -> None:
    window, text = timedelta(days=28), "People stare at an empty box."
    first = Slo("checkout-first-token", "checkout", 0.95, window, timedelta(seconds=0.5), watched="ttft")
    found, available = read_slo_file(DOCUMENTS, {}).slos

    assert found == replace(first, route="/pay", description=text)
    assert (available.name, available.environment) == ("checkout-available", "production")
    assert (available.objective, available.indicator) == (0.999, Indicator("availability"))


def test_unsupported_openslo_fields_are_reported_with_their_line() -> None:
    warnings = [line.removeprefix(f"{DOCUMENTS}:") for line in read_slo_file(DOCUMENTS, {}).warnings]

    own_policy = "pages and tickets follow Stagelens' own burn-rate policy, which `stagelens check` shows"
    left_out = "it is of type 'Prometheus', but only `type: stagelens` is supported; the SLO is skipped"
    assert warnings == [
        "66: spec.timeWindow[0].duration is a calendar window; Stagelens uses a rolling window of 1M",
        "68: spec.budgetingMethod is Timeslices; Stagelens evaluates it as Occurrences",
        "70: spec.objectives[0].timeSliceTarget is not used: Stagelens counts requests, not slices of time",
        "70: spec.objectives[0].timeSliceWindow is not used: Stagelens counts requests, not slices of time",
        f"71: spec.alertPolicies are not used: {own_policy}",
        f"85: spec.indicator.spec.ratioMetric.good.metricSource.type: {left_out}",
        f"91: AlertPolicy 'fast-burn' is not used: {own_policy}",
    ]


def test_several_objectives_are_several_slos(read_slos: ReadSlos) -> None:
    found = read_slos(LATENCY + "    - {op: lt, value: 1, target: 0.999, displayName: at worst}\n")

    assert [slo.name for slo in found.slos] == ["checkout-latency (250 ms)", "checkout-latency (at worst)"]


def test_openslo_documents_combine_with_the_slo_file(read_slos: ReadSlos) -> None:
    own = """\
channels: [{kind: slack, webhook_url_env: NOWHERE}]
maintenance:
  - {from: 2026-11-28T02:00Z, to: 2026-11-28T04:00Z, slos: [checkout-latency]}
---
"""
    found = read_slos(own + LATENCY)

    # A threshold without a kind is the latency of requests.
    assert found.slos[0].in_words() == "99 % of requests to checkout, route /pay succeed within 250 ms, over 30 days"
    assert found.channel_names == ("slack",)
    assert len(found.slos[0].maintenance.planned) == 1
    assert read_slos(LATENCY).regressions == WatchedServices(only=frozenset({"checkout"}))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("openslo/v1", "openslo/v2", "1: apiVersion is 'openslo/v2'; write openslo/v1"),
        ("kind: SLO", "kind: SLOO", "2: kind is 'SLOO'; write one of SLO, SLI, Service, DataSource, AlertPolicy"),
        ("route: /pay", "kind: coverage", "10: spec.indicator.spec.thresholdMetric.metricSource is of kind coverage"),
        ("duration: 30d", "duration: 1Y", "13: spec.timeWindow[0].duration is '1Y'; write a window from 7d to 90d"),
        ("op: lte", "op: gte", "16: spec.objectives[0].op is 'gte'; write lte, because lower values are better"),
        ("value: 0.25, ", "", "16: spec.objectives[0].value is missing; add `value: 0.25, in seconds`"),
        ("value: 0.25", "value: 7200", "16: spec.objectives[0].value is longer than an hour"),
        ("target: 0.99", "targetPercent: 100", "16: spec.objectives[0].targetPercent is 100; write less than 100"),
    ],
)
def test_an_error_names_its_line_and_fix(problems: Problems, old: str, new: str, complaint: str) -> None:
    found = problems(LATENCY.replace(old, new))

    assert any(line.startswith(f"slo.yaml:{complaint}") for line in found), found


def test_an_undefined_reference_is_an_error(problems: Problems) -> None:
    start, end = LATENCY.index("  indicator:"), LATENCY.index("  timeWindow")
    text = LATENCY[:start] + "  indicatorRef: nothing\n" + LATENCY[end:]

    assert problems(text) == [
        "slo.yaml:6: spec.indicatorRef is 'nothing', which is not an SLI in these files; add an SLI of that name"
    ]


@pytest.mark.parametrize(
    ("metric", "complaint"),
    [
        ("{raw: {}, rawType: success}", "spec.indicator.spec.ratioMetric.raw is not supported; write good and total"),
        ("{good: {metricSource: {type: stagelens}}}", "spec.indicator.spec.ratioMetric.good (or bad) and total are"),
        (
            "{good: {metricSource: {type: stagelens, spec: {kind: latency}}}, total: {metricSource: {type: stagelens}}}",
            "spec.indicator.spec.ratioMetric.good.metricSource.spec.threshold is missing; add `threshold:",
        ),
        (
            "{good: {metricSource: {type: stagelens, spec: {route: /a}}}, total: {metricSource: {type: stagelens}}}",
            "spec.indicator.spec.ratioMetric.total has other filters than good or bad; use the same filters",
        ),
    ],
)
def test_a_ratio_needs_good_or_bad_and_total(problems: Problems, metric: str, complaint: str) -> None:
    start, end = LATENCY.index("      thresholdMetric"), LATENCY.index("  timeWindow")
    text = LATENCY[:start] + f"      ratioMetric: {metric}\n" + LATENCY[end:]

    assert any(complaint in line for line in problems(text.replace("op: lte, value: 0.25, ", "")))


NUMBERS, TEXTS = [None, True, -1, 1e300, 10**40], ["x", "1e9d", "99999999999999d", "9999-12-31T23:59-12:00"]
JUNK = st.sampled_from([*NUMBERS, *TEXTS, [], {}, [1], {"a": [None]}]) | st.text(max_size=8)
WHOLE = """\
slos:
  - {name: a, service: s, kind: tpot, definition: generate, objective: 0.9, threshold: 1s, window: 30d, reset: 2026-11-01T00:00Z}
  - {name: b, service: s, budgets: {queue: 1ms}, window: 30d, thresholds: [{objective: 0.9, threshold: 1s, name: x}]}
include: [none.yaml]
maintenance:
  - {from: 2026-11-28T02:00Z, to: 2026-11-28T04:00Z, why: x, services: [s], slos: [a]}
  - {every: [sunday], from: "02:00", to: "04:00", zone: UTC}
---
"""


@settings(max_examples=50, deadline=None)
@given(data=st.data(), junk=JUNK)
def test_any_document_is_parsed_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, junk: object
) -> None:
    documents = list(yaml.safe_load_all(WHOLE + DOCUMENTS.read_text(encoding="utf-8")))
    documents = [*documents, yaml.safe_load(LATENCY)]
    holder, key = data.draw(st.sampled_from(list(_places(documents))))
    holder[key] = junk
    path = tmp_path_factory.getbasetemp() / "junk.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    lines = [str(path)]
    try:
        read_slo_file(path, {})
    except ConfigError as error:
        lines = str(error).splitlines()

    assert lines[0].startswith(str(path.parent))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield value, key
        yield from _places(inner)


def test_only_openslo_can_be_included(problems: Problems, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("slos: []\n", encoding="utf-8")
    reported = problems("include: [other.yaml, none.yaml]\n" + LATENCY.replace("apiVersion", "---\napiVersion", 1))

    assert reported == [
        "slo.yaml:1: include: none.yaml cannot be read: No such file or directory; give the path of a file of OpenSLO documents",
        "other.yaml:1: this is not an OpenSLO document; write `apiVersion: openslo/v1`, or keep slos in slo.yaml",
    ]
