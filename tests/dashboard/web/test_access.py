"""Roles: what a reader of one environment gets from every address, and which actions each role may use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from sqlalchemy import Connection

from stagelens.alerts.incidents import journal, silences
from stagelens.alerts.incidents.lifecycle import IncidentRecord
from stagelens.alerts.incidents.notification_rules import IncidentUpdate, grouped_reason
from stagelens.core.errors import ConfigError
from stagelens.dashboard.access import read_access_file
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.service_charts import CHARTS
from stagelens.dashboard.web import routing
from stagelens.dashboard.web.api_queries import QUERIES
from stagelens.dashboard.web.app import Dashboard
from stagelens.dashboard.web.prometheus_api import METRICS
from stagelens.store import Store
from stagelens.store.audit import AuditEntry
from tests.dashboard import notified_store
from tests.dashboard.rendering import alerts_of, check_text, csrf_headers
from tests.support import command_line
from tests.support.environments import fill, first_trace
from tests.support.raw_requests import NOON, Site

OTHER = "zz-other"
BOTH = ("prod", OTHER)
NAMES_OF_OTHER = re.compile(f"{OTHER}|slo-of-both|sl-shared|both")
LINK = "https://stagelens.example"
OWN_INCIDENT, OTHER_INCIDENT, SHARED_INCIDENT = "sl-own", f"sl-{OTHER}", "sl-shared-by-both"
ACCESS = """\
token: {role: responder, environments: [prod]}
groups:
  - {name: sre, role: admin, users: [ada]}
  - {name: shop, role: responder, environments: [prod], users: [bob]}
  - {name: guests, role: viewer, environments: [prod], proxy_groups: [guests]}
  - {name: staging, role: responder, environments: [staging], users: [eve]}
  - {name: watchers, role: viewer, users: [eve]}
"""
TOKEN = "correct horse battery staple, again"  # noqa: S105 - the secret of this test
# Every route that a reader may request; a new route has to be walked, too.
WALKED = {
    *("/", "/<path:path>", "/report", "/figures/<name>", "/api/v1/view", "/api/v1/services", "/api/v1/names"),
    *("/api/v1/query/<question>", "/api/v1/traces/<name>", "/parts"),
    *("/api/v1/query", "/api/v1/query_range", "/api/v1/series", "/api/v1/label/<name>/values"),
}
# Routes without data of an environment: files, probes, sign-in, refusals, and actions, which have tests of their own.
WITHOUT_DATA = re.compile(
    r"/(assets|livez|readyz|healthz|signin|signout"
    r"|hooks/|charts/|api/<path|api/v1/(events|incidents|silences|labels|metadata|status))"
)


def slo_file(environments: tuple[str, ...]) -> str:
    each = "  - {{name: slo-{0}, service: shop, environment: {0}, objective: 0.99, threshold: 100ms, window: 7d}}\n"
    both = "  - {name: slo-of-both, service: shop, objective: 0.99, threshold: 100ms, window: 7d}\n"
    labels = "".join(f"  only-{name}: {{team: team-{name}, key-{name}: x}}\n" for name in environments)
    slos = "".join(each.format(name) for name in environments) + (both if len(environments) > 1 else "")
    return f"slos:\n{slos}labels:\n{labels}"


def write_incidents(store: Store, environments: tuple[str, ...], now: float) -> None:
    """Write an open incident and a silence of each environment, and of both; the own one was grouped with the other.

    Each environment also has an earlier incident that is over.
    """
    # A silence of all environments muted the earlier incident.
    names = {"prod": OWN_INCIDENT, "": SHARED_INCIDENT} | {name: f"sl-{name}" for name in environments[1:]}
    with store.transaction() as connection:
        for environment in (*environments, *([""] if len(environments) > 1 else [])):
            made = notified_store.record(names[environment], f"slo-{environment or 'of-both'}", 31.2, 720, "shop")
            where = {"environment": environment} if environment else {}
            moved = {"opened_at": now - 700, "seen_at": now - 10, "finding": replace(made.finding, where=where)}
            made = replace(made, **moved)
            if environment:
                by = f" by ann until 04:00 UTC on 20 November: quiet in {OTHER}" if len(environments) > 1 else ""
                _write_earlier(connection, made, environment, now - 9000, f"silenced{by}")
            if environment == "prod":
                is_alone = len(environments) == 1
                why = "grouped with another incident" if is_alone else grouped_reason(OTHER_INCIDENT, "other")
                made = replace(made, muted=why, story=made.id if is_alone else OTHER_INCIDENT)
            turn = IncidentUpdate(made, "opened", notifies=True, note=made.muted)
            journal.write_update(connection, turn, ("ops",), now - 700)
            silences.create_silence(
                connection,
                {"service": "batch", **where},
                starts_at=datetime.fromtimestamp(now - 60, UTC),
                ends_at=datetime.fromtimestamp(now + 3600, UTC),
                author="ann",
                comment=f"quiet in {environment or OTHER}",
            )


def _write_earlier(connection: Connection, made: IncidentRecord, environment: str, at: float, muted: str) -> None:
    name, finding = f"sl-old-{environment}", replace(made.finding, since=at - 300, called=f"Called: {environment}.")
    old = replace(made, id=name, story=name, opened_at=at, finding=finding, acked_by=f"by-{environment}", muted=muted)
    journal.write_update(connection, IncidentUpdate(old, "opened", note=muted), (), at)
    over = replace(old, resolved_at=at + 1000, ending="recovered", sequence=2, heard="over")
    journal.write_update(connection, IncidentUpdate(over, "resolved", note=f"note of {environment}"), (), at + 1000)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, ...], Site]]:
    found: dict[tuple[str, ...], Site] = {}
    for environments in (BOTH, ("prod",)):
        folder = tmp_path_factory.mktemp("access")
        one = Site(f"sqlite:///{folder}/access.db", {})
        fill(one, environments, BOTH)
        prices = (
            f"  - {{service: shop, environment: {name}, per_hour: {n}}}\n" for n, name in enumerate(environments, 2)
        )
        (folder / "prices.yaml").write_text("currency: EUR\nprices:\n" + "".join(prices))
        (folder / "slo.yaml").write_text(slo_file(environments))
        write_incidents(one.store, environments, one.clock.now)
        found[environments] = one
    yield found
    for one in found.values():
        one.close()


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "access.yaml"
    path.write_text(ACCESS)
    return path


def client_of(one: Site, rules: Path | None) -> FlaskClient:
    folder = Path(one.url.removeprefix("sqlite:///")).parent
    alerts = alerts_of(one.store, folder, (folder / "slo.yaml").read_text())
    prices = folder / "prices.yaml"
    config = DashboardConfig(
        prices=prices if prices.exists() else None,
        token=TOKEN,
        proxy_header="X-User",
        proxy_groups_header="X-Groups",
        trusted_proxies=(ip_network("127.0.0.0/8"),),
        access=rules,
    )
    return Dashboard(config, one.store, alerts, clock=one.clock).server.test_client()


def of(name: str, groups: str = "") -> dict[str, str]:
    return {"X-User": name, "X-Groups": groups}


GUEST = of("guest", "others, guests")


TRACES = [f"{first_trace(name) + number:032x}" for name in BOTH for number in (0, 1)]


def page_paths() -> list[str]:
    services = ("shop", f"only-{OTHER}")
    pages = [f"/{page}" for page in routing.PAGES]
    pages += [f"/s/{name}/{tab}".rstrip("/") for name in services for tab in routing.SERVICE_PAGES]
    pages += [f"/slo/slo-{name}" for name in (*BOTH, "of-both")]
    pages += [f"/incidents/{name}" for name in (OWN_INCIDENT, OTHER_INCIDENT, SHARED_INCIDENT)]
    return pages + [f"/traces/{name}" for name in TRACES]


def addresses() -> list[str]:
    pages = page_paths()
    window, foreign = "from=now-6h", f"from=now-6h&svc=shop&env={OTHER}&v={OTHER}-1"
    searched = [f"{key}:{value}" for key, value in (("tenant", f"tenant-{OTHER}"), ("service.name", f"served-{OTHER}"))]
    return [
        *(f"{page}?{window}" for page in pages),
        *(f"/api/v1/view?path={page}&{window}" for page in pages),
        *(f"/api/v1/view?path={page}&{foreign}" for page in ("/", "/s/shop", "/traces", "/compare", "/events")),
        *(f"/report?path={page}&{window}" for page in ("/", "/s/shop", "/incidents", f"/s/only-{OTHER}")),
        *(f"/figures/{chart}?path=/s/{name}&{window}" for chart in CHARTS for name in ("shop", f"only-{OTHER}")),
        *(f"/api/v1/traces/{name}" for name in TRACES),
        *(f"/api/v1/query/traces?{window}&at={quote(each)}" for each in searched),
        *(_query(name, environment) for name in QUERIES for environment in (None, *BOTH)),
        *(f"/parts?path={page}&{window}" for page in pages),
        *("/api/v1/services", "/api/v1/names"),
        *_prometheus_addresses(),
    ]


def _prometheus_addresses() -> list[str]:
    selectors = [*METRICS, *(f'{name}{{environment=~".*",route=~".*"}}' for name in METRICS)]
    selectors.append(f'stagelens_latency_seconds{{quantile="0.5",environment="{OTHER}"}}')
    window = f"start={NOON - 10_800}&end={NOON}"
    found = [f"query?lookback_delta=6h&query={quote(selector)}" for selector in selectors]
    found += [
        f"query_range?{window}&step=30m&query={quote(selector)}" for selector in selectors if "_slo_" not in selector
    ]
    found += [f"series?{window}&match[]={quote(selector)}" for selector in selectors]
    names = ("service_name", "environment", "service_version", "route", "stage", "slo")
    found += [f"label/{name}/values?{window}" for name in names]
    return [f"/api/v1/{each}" for each in found]


def _query(name: str, environment: str | None) -> str:
    given = {"service": "shop", "from": "now-6h", "env": environment, "name": f"slo-{environment or 'of-both'}"}
    kept = {key: value for key, value in given.items() if key in QUERIES[name].keys and value}
    return f"/api/v1/query/{name}?" + "&".join(f"{key}={value}" for key, value in kept.items())


def names_of_other(text: str) -> set[str]:
    """Return the places in *text* with a name of the other environment, without revisions, which count all writes."""
    lines = re.sub(r'"revision": \d+', '"revision": 0', text).splitlines()
    found = ((line, match) for line in lines for match in NAMES_OF_OTHER.finditer(line))
    return {line[max(0, each.start() - 40) : each.end() + 40] for line, each in found}


def exports(client: FlaskClient) -> Iterator[str]:
    for path in ("/", "/s/shop", "/s/shop/replicas", "/s/shop/traces", "/traces", "/events", "/incidents", "/engines"):
        view = f"/api/v1/view?path={path}&from=now-6h"
        document = json.loads(client.get(view, headers=GUEST).text)
        names = [
            *(("chart", name) for name in document["charts"]),
            *(("table", table["name"]) for table in document["tables"]),
        ]
        yield from (f"{view}&{kind}={quote(name)}&format=csv" for kind, name in names)


def numbers_of(response: Any) -> object:
    """Return the status and the JSON of *response* without revisions, which count all writes of a service."""
    return response.status_code, json.loads(re.sub(r'"revision":\d+', '"revision":0', response.text))


def test_every_route_is_walked(sites: dict[tuple[str, ...], Site], rules: Path) -> None:
    rules_of_server = client_of(sites[BOTH], rules).application.url_map.iter_rules()
    unknown = {rule.rule for rule in rules_of_server if rule.rule not in WALKED and not WITHOUT_DATA.match(rule.rule)}

    assert unknown == set()


def test_a_reader_gets_its_own_environment_only(sites: dict[tuple[str, ...], Site], rules: Path) -> None:
    """Every page, report, chart and response of the API has the names and numbers of a store without the other environment.

    Also with guessed addresses, which return only what the reader typed.
    """
    mixed, alone = client_of(sites[BOTH], rules), client_of(sites["prod",], rules)
    names: dict[str, set[str]] = {}
    numbers: list[str] = []
    for address in (*addresses(), *exports(mixed)):
        actual = mixed.get(address, headers=GUEST)
        assert actual.status_code in (200, 400, 403, 404), address
        assert address.startswith("/report") or "could not be rendered" not in actual.text, address
        found, is_json = names_of_other(actual.text), actual.is_json and address.startswith("/api/")
        expected = alone.get(address, headers=GUEST) if found or is_json else actual
        if more := found - names_of_other(expected.text):
            names[address] = more
        if is_json and numbers_of(actual) != numbers_of(expected):
            numbers.append(address)

    assert (names, numbers) == ({}, [])
    for number in range(3):
        path = f"{first_trace(OTHER) + number:032x}"
        assert sites[BOTH].store.read.trace(path) is not None
        assert mixed.get(f"/api/v1/traces/{path}", headers=GUEST).status_code == 404


@pytest.fixture
def acting(tmp_path: Path) -> Iterator[Site]:
    """Site with two environments, for tests that write."""
    one = Site(f"sqlite:///{tmp_path}/access.db", {})
    fill(one, ("prod", "staging"))
    (tmp_path / "slo.yaml").write_text(slo_file(("prod", "staging")))
    write_incidents(one.store, ("prod", "staging"), one.clock.now)
    yield one
    one.close()


def audited(one: Site) -> list[AuditEntry]:
    now = datetime.fromtimestamp(one.clock.now, UTC)
    return one.store.read.audit(now - timedelta(days=1), now + timedelta(days=1), 100)[::-1]


EVENT = {"text": "v3 is out", "service": "only-prod", "kind": "deploy", "key": "v3"}
SILENCE = {"service": "shop", "environment": "prod", "for": "1h", "comment": "deploy"}
ACTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "acknowledge": (f"/api/v1/incidents/{OWN_INCIDENT}/acknowledge", {}),
    "acknowledge of both": (f"/api/v1/incidents/{SHARED_INCIDENT}/acknowledge", {}),
    "acknowledge of staging": ("/api/v1/incidents/sl-staging/acknowledge", {}),
    "event": ("/api/v1/events", EVENT),
    "event of shop": ("/api/v1/events", EVENT | {"service": "shop"}),
    "event of staging": ("/api/v1/events", EVENT | {"service": "shop", "environment": "staging"}),
    "event of all": ("/api/v1/events", EVENT | {"service": ""}),
    "silence": ("/api/v1/silences", SILENCE),
    "silence of both": ("/api/v1/silences", {key: SILENCE[key] for key in ("service", "for", "comment")}),
    "silence of staging": ("/api/v1/silences", SILENCE | {"environment": "staging"}),
    "silence of staging alone": ("/api/v1/silences", {"service": "only-staging", "for": "1h", "comment": "deploy"}),
}
# Status of each action by reader: 404 for what the reader may not see, 403 without the role.
EXPECTED = {
    "ada": dict.fromkeys(ACTIONS, 200),
    "bob": {
        **dict.fromkeys(ACTIONS, 403),
        **dict.fromkeys(("acknowledge of both", "acknowledge of staging"), 404),
        **dict.fromkeys(("acknowledge", "event", "event of shop", "event of all", "silence"), 200),
    },
    "guest": {name: 404 if "acknowledge of" in name else 403 for name in ACTIONS},
    "eve": {name: 200 if "of staging" in name else 403 for name in ACTIONS},
    "nobody": dict.fromkeys(ACTIONS, 403),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_actions_need_a_role(acting: Site, rules: Path, name: str) -> None:
    client = client_of(acting, rules)
    reader = of(name, "guests" if name == "guest" else "")
    csrf = csrf_headers(client, headers=reader) if name != "nobody" else reader
    for action, (path, body) in ACTIONS.items():
        response = client.post(path, json=body, headers=csrf)
        status = 200 if response.status_code == 201 else response.status_code

        assert (action, status) == (action, EXPECTED[name][action]), response.text
        if status == 403 and name != "nobody":
            assert re.fullmatch(
                r"this needs the role responder in .*(environment|environments).*", json.loads(response.text)["error"]
            )
            assert json.loads(response.text)["fix"] == "ada can grant it"
            assert "staging" not in response.text or name == "eve" or body.get("environment") == "staging"
    rows = audited(acting)

    assert [row.person for row in rows] == [name] * len(ACTIONS)
    outcomes = {200: "done", 403: "refused", 404: "failed"}
    assert [row.outcome for row in rows] == [outcomes[status] for status in EXPECTED[name].values()]


def test_an_event_of_a_reader_of_one_environment_is_about_it(acting: Site, rules: Path) -> None:
    client = client_of(acting, rules)
    client.post("/api/v1/events", json=EVENT | {"service": "shop"}, headers=csrf_headers(client, headers=of("bob")))
    now = datetime.fromtimestamp(acting.clock.now, UTC)
    events = acting.store.read.within(frozenset({"prod"})).events(
        now - timedelta(minutes=1), now + timedelta(minutes=1)
    )

    assert events[["service", "environment", "text"]].to_numpy().tolist() == [["shop", "prod", "v3 is out (by bob)"]]


def test_buttons_are_shown_to_those_who_may_use_them(acting: Site, rules: Path) -> None:
    client = client_of(acting, rules)

    def buttons(reader: Mapping[str, str], path: str) -> int:
        text = client.get(path, headers=reader).text
        return sum(text.count(f">{words}<") for words in ("Acknowledge", "Silence 1h", "End silence now"))

    assert buttons(of("ada"), f"/incidents/{OWN_INCIDENT}") == buttons(of("bob"), f"/incidents/{OWN_INCIDENT}") > 0
    assert buttons(GUEST, f"/incidents/{OWN_INCIDENT}") == buttons(of("eve"), f"/incidents/{OWN_INCIDENT}") == 0
    assert [buttons(reader, "/incidents") for reader in (of("ada"), of("bob"), of("eve"), GUEST)] == [3, 1, 1, 0]


def test_pages_of_the_installation_are_for_admins(sites: dict[tuple[str, ...], Site], rules: Path) -> None:
    client, paths = client_of(sites[BOTH], rules), ("/settings", "/collectors", "/audit")
    for reader, status in ((of("ada"), 200), (of("eve"), 403), (of("bob"), 403), (GUEST, 403), (of("nobody"), 403)):
        overview = client.get("/", headers=reader).text
        for path in paths:
            assert client.get(path, headers=reader).status_code == status
            assert client.get(f"/api/v1/view?path={path}", headers=reader).status_code == status
            assert (path in overview) == (status == 200)
    assert all("ada can grant it" in client.get(path, headers=GUEST).text for path in paths)


def test_the_token_has_its_own_role(acting: Site, rules: Path) -> None:
    client = client_of(acting, rules)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    path, body = ACTIONS["silence"]

    assert client.post(path, json=body, headers=bearer).status_code == 201
    assert client.post(path, json=body | {"environment": "staging"}, headers=bearer).status_code == 403
    assert client.get("/settings", headers=bearer).status_code == 403
    assert [(row.person, row.origin) for row in audited(acting)] == [("the shared token", "api")] * 2
    rules.write_text(ACCESS.replace("token:", "default:"))

    assert client.post(path, json=body, headers=bearer).status_code == 201
    rules.write_text(ACCESS.partition("\n")[2])

    assert client.get("/api/v1/names", headers=bearer).status_code == 403


def test_an_etag_belongs_to_the_rights_of_a_reader(sites: dict[tuple[str, ...], Site], rules: Path) -> None:
    client = client_of(sites[BOTH], rules)
    tag = {"If-None-Match": client.get("/api/v1/names", headers=of("ada")).headers["ETag"]}

    assert client.get("/api/v1/names", headers=of("ada") | tag).status_code == 304
    assert client.get("/api/v1/names", headers=GUEST | tag).status_code == 200
    own = {"If-None-Match": client.get("/api/v1/names", headers=GUEST).headers["ETag"]}
    rules.write_text(ACCESS.replace("environments: [prod], proxy", f"environments: [{OTHER}], proxy"))

    assert client.get("/api/v1/names", headers=GUEST | own).status_code == 200
    # Headers of an untrusted client give no group.
    assert client.get("/api/v1/names", headers=GUEST, environ_base={"REMOTE_ADDR": "10.0.0.9"}).status_code == 401


def test_the_file_is_reloaded_and_the_last_valid_version_stays(
    sites: dict[tuple[str, ...], Site], rules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(sites[BOTH], rules)
    assert client.get("/", headers=GUEST).status_code == 200
    rules.write_text("groups: 5\n")

    assert client.get("/", headers=GUEST).status_code == 200
    assert f"{rules}:1: groups is 5" in caplog.text
    rules.write_text(ACCESS.replace("proxy_groups: [guests]", "proxy_groups: [others-than-that]"))

    assert client.get("/", headers=GUEST).status_code == 403


def test_without_a_file_every_reader_may_do_everything(acting: Site) -> None:
    client = client_of(acting, None)
    csrf = csrf_headers(client, headers=of("anybody"))
    for path, body in ACTIONS.values():
        assert client.post(path, json=body, headers=csrf).status_code in (200, 201)
    assert len(audited(acting)) == len(ACTIONS)


# Files with an error each.
INVALID = (
    "",
    "groups: 5",
    "groups:\n  - {name: a, role: boss, users: [x]}",
    "groups:\n  - {name: a, role: admin, users: x}\n  - {name: b, role: viewer, slack: [ann]}",
    "groups:\n  - {name: a, role: admin}",
    "groups:\n  - name: a\n    role: admin\n    environments: [prod]\n    users: x",
    "groups:\n  - {name: a, role: admin, users: x}\n  - {name: a, role: viewer, users: x}",
    "default: {role: viewer, environments: ['*', prod]}",
    "default: {role: viewer}",
    "default: {role: viewer}\ntokens: {role: admin}",
)


def test_errors_of_the_file_name_line_and_key(tmp_path: Path) -> None:
    path, lines = tmp_path / "access.yaml", list[str]()
    for text in INVALID:
        path.write_text(text)
        with pytest.raises(ConfigError) as refused:
            read_access_file(path)
        lines.append(f"{text}\n→ {refused.value}\n".replace(str(path), "access.yaml"))

    check_text("access_errors", "\n".join(lines))


def test_the_documented_file_is_valid(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    path = tmp_path / "access.yaml"
    path.write_text(text.partition("### Roles")[2].partition("```yaml\n")[2].partition("```")[0])
    found = read_access_file(path)

    assert found.access("bob", (), by_token=False).environments == {"prod", "staging"}
    assert found.access("eve", (), by_token=False).environments == {"staging"}
    assert found.access("ada", (), by_token=False).is_admin
    assert found.slack_access("U061F7AUR").is_admin


def test_a_groups_header_needs_a_name_header() -> None:
    with pytest.raises(ConfigError, match="Set STAGELENS_DASHBOARD_PROXY_HEADER"):
        DashboardConfig(proxy_groups_header="X-Groups")


def test_sign_ins_are_audited(acting: Site) -> None:
    client = Dashboard(DashboardConfig(token=TOKEN), acting.store, clock=acting.clock).server.test_client()
    client.post("/signin", data={"name": "", "secret": TOKEN})
    client.get(f"/?token={TOKEN}")
    client.post("/signin", data={"name": "my password", "secret": "x"})
    found = [(row.person, row.action, row.outcome) for row in audited(acting)]

    assert found == [
        ("the shared token", "sign in", "done"),
        ("the shared token", "sign in", "done"),
        ("unknown name", "sign in", "refused"),
    ]
    for number in range(30):
        address = {"REMOTE_ADDR": f"10.1.{number}.1"}
        client.post("/signin", data={"name": "x", "secret": "x"}, environ_base=address)

    assert len(audited(acting)) == 2 + 10


def test_the_command_line_is_audited(acting: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.fromtimestamp(acting.clock.now, UTC)
    where = ["--database", acting.url, "--by", "joe"]
    monkeypatch.setattr("stagelens.cli.incidents._now", lambda: now)
    command_line.run("alerts", "ack", OWN_INCIDENT, *where)
    command_line.run("alerts", "silence", "--service", "shop", "--environment", "prod", "--comment", "x", *where)
    made = next(each.subject for each in audited(acting) if each.action == "silence")
    command_line.run("alerts", "unsilence", made, *where)
    found = [(each.person, each.origin, each.action, each.service, each.environment) for each in audited(acting)]

    assert found == [
        ("joe", "command line", "acknowledge", "shop", "prod"),
        ("joe", "command line", "silence", "shop", "prod"),
        ("joe", "command line", "end silence", "shop", "prod"),
    ]


def test_the_audit_log_is_a_page_and_a_query(acting: Site, rules: Path) -> None:
    client = client_of(acting, rules)
    first = client.get("/api/v1/query/audit", headers=of("ada"))
    client.post(ACTIONS["silence"][0], json=SILENCE, headers=csrf_headers(client, headers=of("bob")))
    acting.clock.now += 1
    tag = {"If-None-Match": first.headers["ETag"]}
    later = client.get("/api/v1/query/audit", headers=of("ada") | tag)
    columns = [column["name"] for column in json.loads(later.text)["columns"]]
    (row,) = json.loads(later.text)["rows"]
    csv = client.get("/api/v1/view?path=/audit&table=Audit log&format=csv", headers=of("ada")).text

    assert json.loads(first.text)["rows"] == []
    assert columns == ["at", "person", "origin", "action", "subject", "service", "environment", "outcome", "reason"]
    assert row == [
        *("2026-11-20T14:01:40Z", "bob", "dashboard", "silence", "environment prod, service shop", "shop", "prod"),
        *("done", ""),
    ]
    assert csv.splitlines()[1].split(",")[1:3] == ["bob", "silence"]
    assert "bob" in client.get("/audit", headers=of("ada")).text
    assert client.get("/api/v1/query/audit", headers=of("eve")).status_code == 403
