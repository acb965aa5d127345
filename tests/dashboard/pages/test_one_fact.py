"""One fact, one number: pages, API, alerts and commands say the same of the same data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from flask.testing import FlaskClient

from stagelens.alerts.regression.findings import merged_latency
from stagelens.analysis.regression.scoring import WindowScore
from stagelens.analysis.regression.statistic import END_TO_END, Row
from stagelens.analysis.regression.verdict import make_verdict
from stagelens.cli.compare_output import json_text, verdict
from stagelens.cli.comparison import Side, compare_sides
from stagelens.dashboard.pages.comparison import compared, newest_pair
from stagelens.dashboard.ui.format import percent, times
from stagelens.store import Series, Store
from tests.dashboard.burning_slos import SLO
from tests.dashboard.rendering import alerts_of, client_of, context_at, plain, write_requests
from tests.dashboard.served_versions import FAST, SLOW, Served, write


@pytest.fixture
def client(burning_store: Store, tmp_path: Path) -> FlaskClient:
    return client_of(burning_store, alerts_of(burning_store, tmp_path, SLO))


def rows(client: FlaskClient, query: str) -> Iterator[dict[str, object]]:
    found = client.get(f"/api/v1/query/{query}").get_json()
    for row in found["rows"]:
        yield dict(zip([column["name"] for column in found["columns"]], row, strict=True))


def texts(client: FlaskClient) -> dict[str, str]:
    incidents = [f"/incidents/{each['id']}" for each in rows(client, "incidents")]
    pages = ["/", "/slo", "/slo/hot-latency", "/regressions", "/incidents", "/events", "/s/hot", "/s/failing"]
    return {path: words(client.get(path).text) for path in [*pages, *incidents]}


def words(html: str) -> str:
    bare = re.sub(r"<(script|style).*?</\1>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", plain(bare)))


def test_the_growth_of_a_stage_has_one_number_for_one_basis(client: FlaskClient) -> None:
    found = texts(client)
    (hot,) = (each for each in rows(client, "incidents") if each["service"] == "hot")
    incident = client.get(f"/api/v1/query/incidents?id={hot['id']}").get_json()["incident"]
    amount = f"{incident['stages'][0]['seconds'] * 1e3:.1f} ms"
    own = found[f"/incidents/{hot['id']}"].partition("Timeline")[0]

    said = [
        *re.findall(r"since 11:20 spend ([\d.]+ ms) more in Queue than good ones", found["/"]),
        *(
            each
            for page in ("/incidents", "/events", "/slo")
            for each in re.findall(r"spend \+([\d.]+ ms) [^.]*?queue", found[page])
        ),
        *re.findall(r"spend \+([\d.]+ ms) [^.]*?queue", own),
    ]
    assert len(said) >= 5
    assert set(said) == {amount}
    assert not re.findall(r"[Qq]ueue grew(?! \+[\d.]+ ms at p)", " ".join(found.values()))


def test_a_burn_rate_has_its_window_and_one_number_for_each(client: FlaskClient) -> None:
    found = " ".join(texts(client).values())
    objectives = client.get("/api/v1/query/slo").get_json()["objectives"]
    known = {
        "1 h": {times(objective["burn_1h"]) for objective in objectives},
        "5 minutes": {times(objective["burn_5m"]) for objective in objectives},
    }
    said = re.findall(
        "(?:[Bb]urning|burns at|burned(?: at up to)?) ([\\d.]+\u00d7)( in (?:the short window|[\\d.]+ \\w+))?", found
    )

    assert len(said) >= 8
    for rate, window in said:
        assert window, rate
        assert rate in known.get(window.removeprefix(" in "), {rate})


def test_the_change_of_p99_has_one_number_for_one_pair(client: FlaskClient) -> None:
    found = texts(client)
    verdict = client.get("/api/v1/query/compare?service=hot&a=1&b=2").get_json()["verdict"]
    change = plain(percent(verdict["ratio"] - 1))

    assert f"p99 rose {change} from 1 to 2" in found["/"]
    assert f"p99 +{change}" in found["/regressions"]
    (fleet,) = (each for each in rows(client, "fleet") if each["service"] == "hot")
    side = found["/"].partition("Services hot ")[2] or found["/"]
    assert f"{float(str(fleet['p99_seconds'])) * 1e3:.1f} ms" in side


def test_a_service_with_few_requests_has_a_number_in_the_side_bar(store: Store) -> None:
    write_requests(store, Series("few"), seconds=0.16, count=300)
    client = client_of(store)
    page, (fleet,) = plain(client.get("/").text), rows(client, "fleet")

    assert fleet["p99_seconds"] is None
    assert f">p50 {float(str(fleet['p50_seconds'])) * 1e3:.0f} ms<" in page
    assert "p99 needs 1,000 requests" in page


@pytest.mark.parametrize(
    ("before", "after", "rate", "kind", "sentence"),
    [
        (FAST, SLOW, 20, "regression", "B is slower at p99"),
        (SLOW, FAST, 20, "improvement", "B is faster at p99"),
        (FAST, FAST, 20, "same", "No significant difference at p99"),
        (FAST, {**FAST, "forward": 10.2}, 20, "same", "No significant difference at p99"),
        (FAST, SLOW, 1, "not_enough", "Too few requests to compare p99"),
    ],
)
def test_page_api_alert_and_cli_give_the_same_verdict(  # noqa: PLR0917 - a case of the table
    store: Store,
    traffic: ModuleType,
    before: dict[str, float],
    after: dict[str, float],
    rate: int,
    kind: str,
    sentence: str,
) -> None:
    versions = Served("shop", "1.0", 20, 10, before, rate), Served("shop", "2.0", 10, 0, after, rate)
    source = write(store, traffic, *versions)
    context = context_at(source, "/compare?svc=shop")
    pair = newest_pair(context)
    assert pair is not None

    page = compared(context, pair, 0.99).verdict
    api = client_of(store).get("/api/v1/query/compare?service=shop&p=99").get_json()
    command = compare_sides(source.read, Side("A", pair.a), Side("B", pair.b), 0.99, [])
    sides = merged_latency(source.read, [pair.a]), merged_latency(source.read, [pair.b])
    alert = make_verdict(Row(END_TO_END, 0.99, 0, 1.0, 0.01, 0.4), WindowScore(0, 9.0, 1.0, 0.5), *sides)

    assert (page.kind, api["verdict"]["kind"], command.at.kind) == (kind, kind, kind)
    assert verdict(command).startswith(sentence)
    interval = page.ratio, page.ratio_low, page.ratio_high
    printed = next(each for each in json.loads(json_text(command))["latency"] if each["percentile"] == "p99")
    assert printed["verdict"] == kind
    for found in (api["verdict"], api["summary"], printed):
        assert (found["ratio"], found["ratio_low"], found["ratio_high"]) == pytest.approx(interval)
    assert (command.at.ratio, command.at.ratio_low, command.at.ratio_high) == interval
    assert alert.change is not None
    assert (alert.change.value, alert.change.low, alert.change.high) == interval
    assert (command.at.low > 0) == (alert.change.low > 1)
