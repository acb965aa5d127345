"""Link previews: tags of a page, signed images, and links in Slack."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Queue
from types import ModuleType
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from flask.testing import FlaskClient
from PIL import Image
from sqlalchemy import event

from stagelens.alerts.objectives.slo_file import LiveSloFile, read_slo_file
from stagelens.alerts.reader import AlertsReader
from stagelens.core.errors import ConfigError
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.source import Source
from stagelens.dashboard.web.app import build
from stagelens.dashboard.web.preview_image import ViewPreview, preview_png
from stagelens.store import Store
from tests.alerts.receiver import Moods
from tests.alerts.slack_workspace import CHANNEL, TOKEN, SlackWorkspace
from tests.dashboard import notified_store
from tests.dashboard.served_versions import NOW, Served, write

SECRET, READER_TOKEN = "s3cret", "correct horse battery staple, again"
HOST = "lens.example.com"
BASE = f"https://{HOST}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, traffic: ModuleType) -> Iterator[Store]:
    """A service of the environment `demo` with requests, and incidents."""
    opened = Store.open(f"sqlite:///{tmp_path_factory.mktemp('previews') / 'x.db'}", clock=NOW.timestamp)
    write(opened, traffic, Served("checkout", "1", 30))
    notified_store.fill(opened)
    yield opened
    opened.close()


@pytest.fixture
def slack() -> Iterator[SlackWorkspace]:
    """Slack, whose rules were kept."""
    workspace = SlackWorkspace(Moods(failing=0), frozenset({"chat:write", "links:read", "links:write"}))
    yield workspace
    workspace.close()
    assert workspace.violations == []


@pytest.fixture
def slo_file(tmp_path: Path, slack: SlackWorkspace) -> Path:
    """SLO file with an objective and a channel that unfurls."""
    path = tmp_path / "slo.yaml"
    path.write_text(
        "slos:\n  - {name: checkout-latency, service: checkout, objective: 0.99, threshold: 15ms, window: 30d}\n"
        f"channels:\n  - {{kind: slack, token: {TOKEN}, channel: {CHANNEL}, signing_secret: {SECRET}, unfurl: true,"
        f' base_url: "{slack.url}/api"}}\n'
    )
    return path


def client_of(store: Store, slo_file: Path | None, *, access: str = "", now: float = 0, **settings: str) -> _Client:
    """Return a client of a dashboard on https.

    Args:
        store: Data.
        slo_file: SLO file; None for none.
        access: Content of an access file beside the SLO file.
        now: Distance of the dashboard's clock from `NOW`. [seconds]
        settings: Further settings.
    """
    alerts = None if slo_file is None else AlertsReader(store, LiveSloFile(slo_file, {}))
    given: dict[str, object] = {"host": "0.0.0.0", "hosts": (HOST,), "behind_proxy": True, **settings}
    if access and slo_file is not None:
        given["access"] = slo_file.with_name("access.yaml")
        slo_file.with_name("access.yaml").write_text(access)
    config = DashboardConfig(**given)  # pyright: ignore[reportArgumentType] - of the caller
    source = Source(store, alerts, lambda: NOW.timestamp() + now, config=config)
    server = build(source, config)
    server.test_client_class = _Client
    return cast("_Client", server.test_client())


class _Client(FlaskClient):
    """Client of the public address.

    Attributes:
        base: Base URL of the requests.
    """

    base = BASE

    def open(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request."""
        kwargs.setdefault("base_url", self.base)
        return super().open(*args, **kwargs)


class Tags(HTMLParser):
    """Tags of a link preview, as a crawler reads them."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the content of a tag with a property or a name."""
        given = dict(attrs)
        name = given.get("property") or given.get("name")
        if tag == "meta" and name:
            self.found[name] = given.get("content") or ""


def image_of(client: FlaskClient, address: str) -> str:
    """Return the path and query of the image of a page."""
    url = urlsplit(Tags(client.get(address).text).found["og:image"])
    assert f"{url.scheme}://{url.netloc}" == BASE
    return f"{url.path}?{url.query}"


def status(client: FlaskClient, address: str) -> int:
    """Return the status of a request without session."""
    return client.get(address).status_code


def changed(address: str, **parameters: str) -> str:
    """Return *address* with other parameters."""
    path, _, query = address.partition("?")
    return f"{path}?{urlencode({**dict(parse_qsl(query)), **parameters})}"


@pytest.mark.parametrize(
    ("address", "title"),
    [
        ("/", "Fleet overview"),
        ("/s/checkout?env=demo&p=50", "checkout"),
        (f"/incidents/{notified_store.OPEN}", f"Incident {notified_store.OPEN}"),
        ("/compare?svc=checkout", "Compare: checkout"),
        ("/slo/checkout-latency", "SLO checkout-latency"),
        ("/traces?svc=checkout", "Traces: checkout"),
        ("/s/nobody", "nobody"),
    ],
)
def test_a_crawler_gets_title_and_image(store: Store, slo_file: Path, address: str, title: str) -> None:
    client = client_of(store, slo_file)
    tags = Tags(client.get(address).text).found
    response = client.get(image_of(client, address))
    image = Image.open(io.BytesIO(response.data))

    assert (tags["og:title"], tags["twitter:card"]) == (title, "summary_large_image")
    assert "20 Nov 06:00 to 12:00 UTC" in tags["og:description"]
    assert (response.status_code, response.mimetype, image.format) == (200, "image/png", "PNG")
    assert image.size == (int(tags["og:image:width"]), int(tags["og:image:height"])) == (1200, 630)
    assert "Set-Cookie" not in response.headers


def test_the_tags_come_before_the_data_of_the_page(store: Store, slo_file: Path) -> None:
    response = client_of(store, slo_file).get("/s/checkout", buffered=False)

    first = next(iter(response.response))

    assert 'property="og:image"' in (first.decode() if isinstance(first, bytes) else first)


def test_names_in_an_address_cannot_close_the_tags(store: Store) -> None:
    document = client_of(store, None).get("/s/%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E").text

    assert Tags(document).found["og:title"] == '"><script>alert(1)</script>'
    assert "<script>alert" not in document


def test_other_addresses_have_no_image(store: Store, slo_file: Path) -> None:
    client = client_of(store, slo_file)
    plain = client_of(store, slo_file)
    plain.base = f"http://{HOST}"

    assert "og:title" not in Tags(client.get("/nowhere").text).found
    assert "og:image" not in Tags(client.get("/settings").text).found
    assert Tags(plain.get("/").text).found["twitter:card"] == "summary"


def test_the_configured_address_has_the_image(store: Store) -> None:
    client = client_of(store, None, url=BASE)
    client.base = f"http://{HOST}"

    assert status(client, image_of(client, "/")) == 200


def test_a_signature_opens_one_view_only(store: Store, slo_file: Path) -> None:
    client = client_of(store, slo_file)
    own, other = image_of(client, "/s/checkout"), image_of(client, "/")
    query = dict(parse_qsl(urlsplit(own).query))
    wrong = [
        own.replace("/previews/", "/previews/0"),
        own.replace(own[10:12], "zz", 1),
        other.partition("?")[0] + "?" + own.partition("?")[2],
        changed(own, path="/"),
        changed(own, path=query["path"].replace("to=", "to=1")),
        changed(own, until=str(int(query["until"]) + 1)),
        changed(own, until=""),
        changed(own, env="demo"),
        own.partition("?")[0],
        "/previews/%F0%9F%94%B4.png",
        "/previews/0.png?until=x",
    ]
    responses = [client.get(each) for each in wrong]

    assert status(client, own) == 200
    assert [each.status_code for each in responses] == [404] * len(wrong)
    assert {each.data for each in responses} == {b"not found"}


def test_an_image_expires(store: Store) -> None:
    image = image_of(client_of(store, None), "/")
    day = timedelta(days=1).total_seconds()

    assert status(client_of(store, None, now=7 * day), image) == 200
    assert status(client_of(store, None, now=8 * day), image) == 404


def test_a_crawler_gets_no_data_without_a_session(store: Store) -> None:
    client = client_of(store, None, token=READER_TOKEN)
    refused = client.get("/s/checkout")
    signed_in = {"Authorization": f"Bearer {READER_TOKEN}"}
    url = urlsplit(Tags(client.get("/s/checkout", headers=signed_in).text).found["og:image"])

    assert (refused.status_code, Tags(refused.text).found["og:title"]) == (401, "Stagelens")
    assert "checkout" not in "".join(Tags(refused.text).found.values())
    assert status(client, f"{url.path}?{url.query}") == 200
    assert client.post(f"{url.path}?{url.query}").status_code in (401, 405)


def test_the_image_of_a_restricted_reader_shows_its_environments(store: Store, slo_file: Path) -> None:
    access = "default: {role: viewer, environments: [staging]}\ngroups:\n  - {name: sre, role: admin, users: [ada]}\n"
    everything, client = client_of(store, slo_file), client_of(store, slo_file, access=access)
    own, whole = image_of(client, "/s/checkout"), image_of(everything, "/s/checkout")

    assert dict(parse_qsl(urlsplit(own).query))["env"] == "staging"
    assert client.get(own).data != client.get(whole).data
    assert client.get(own).data == preview_png(ViewPreview("checkout", "20 Nov 06:00 to 12:00 UTC"))
    assert status(client, own.replace("&env=staging", "")) == 404


def test_a_read_only_database_without_a_key_has_no_image(tmp_path: Path) -> None:
    fresh = Store.open(f"sqlite:///{tmp_path / 'fresh.db'}", clock=NOW.timestamp)
    read_only = {"on": 1}
    event.listen(fresh.engine, "begin", lambda c: c.exec_driver_sql(f"PRAGMA query_only = {read_only['on']}"))
    client = client_of(fresh, None)
    tags = Tags(client.get("/").text).found
    read_only["on"] = 0

    assert tags["twitter:card"] == "summary"
    assert status(client_of(fresh, None), image_of(client_of(fresh, None), "/")) == 200
    fresh.close()


def event_of(
    slack: SlackWorkspace, *links: str, member: str = "U0ANN", composing: bool = False, event_id: str = ""
) -> bytes:
    """Return the body of an event about *links* in a message, which Slack knows."""
    urls = [each.replace("&", "&amp;") for each in links]
    event: dict[str, object] = {"type": "link_shared", "user": member, "links": [{"url": url} for url in urls]}
    place = {"channel": "COMPOSER", "message_ts": "d0f1", "unfurl_id": "u-1", "source": "composer"}
    if not composing:
        place = {"channel": CHANNEL, "message_ts": "1795143840.000100"}
    slack.shared |= {("u-1", "composer"): urls, (CHANNEL, "1795143840.000100"): urls}
    named = {"event_id": event_id} if event_id else {}
    return json.dumps({"type": "event_callback", **named, "event": event | place}).encode()


def send(client: FlaskClient, body: bytes, secret: str = SECRET) -> tuple[int, str]:
    """Send *body* as Slack does, and return the response."""
    at = str(int(NOW.timestamp()))
    mark = hmac.new(secret.encode(), b"v0:" + at.encode() + b":" + body, hashlib.sha256).hexdigest()
    headers = {"X-Slack-Request-Timestamp": at, "X-Slack-Signature": f"v0={mark}"}
    response = client.post("/hooks/slack", data=body, headers=headers, content_type="application/json")
    return response.status_code, response.text


def test_slack_verifies_the_address(store: Store, slo_file: Path) -> None:
    client, body = client_of(store, slo_file), b'{"type": "url_verification", "challenge": "3eZbrw1a"}'

    assert send(client, body) == (200, "3eZbrw1a")
    assert send(client, body, "another secret")[0] == 401
    assert send(client, b'{"type": "event_callback", "event": {"type": "app_mention"}}') == (200, "")
    assert send(client, b"[not JSON") == (200, "")


@pytest.mark.parametrize("composing", [False, True])
def test_a_link_in_slack_gets_numbers_and_image(
    store: Store, slack: SlackWorkspace, slo_file: Path, *, composing: bool
) -> None:
    client, link = client_of(store, slo_file), f"{BASE}/s/checkout?env=demo&from=now-1h"
    others = ["https://elsewhere.example/s/checkout", f"{BASE}/s/nobody", f"{BASE}/settings", f"{BASE}/nowhere"]
    code, _ = send(client, event_of(slack, *others, link, composing=composing))
    ((url, unfurled),) = slack.unfurled.get(timeout=30).items()
    headline, about, image = unfurled["blocks"]
    address = urlsplit(image["image_url"])

    assert (code, url) == (200, link.replace("&", "&amp;"))
    assert "|checkout>*\np50 13.0" in headline["text"]["text"]
    assert "most in Forward" in headline["text"]["text"]
    assert about["elements"][0]["text"].startswith("20 Nov 11:00 to 12:00 UTC · demo · SLO")
    assert status(client, f"{address.path}?{address.query}") == 200


def test_a_preview_without_a_loadable_image_has_its_numbers(
    store: Store, slack: SlackWorkspace, slo_file: Path
) -> None:
    slack.refuse_once = ["invalid_blocks"]
    send(client_of(store, slo_file), event_of(slack, f"{BASE}/s/checkout"))
    ((_, unfurled),) = slack.unfurled.get(timeout=30).items()

    assert [each["type"] for each in unfurled["blocks"]] == ["section", "context"]


def test_a_member_without_rights_gets_no_preview(store: Store, slack: SlackWorkspace, slo_file: Path) -> None:
    access = (
        "default: {role: none}\ngroups:\n  - {name: sre, role: admin, users: [ada], slack: [U0ADA]}\n"
        "  - {name: qa, role: viewer, environments: [staging], slack: [U0BOB]}\n"
    )
    client = client_of(store, slo_file, access=access)
    for member in ("U0ANN", "U0BOB", "U0ADA"):
        assert send(client, event_of(slack, f"{BASE}/s/checkout?n={member}", member=member))[0] == 200
    found = slack.unfurled.get(timeout=30)

    assert list(found) == [f"{BASE}/s/checkout?n=U0ADA"]


def test_a_repeated_event_gets_no_second_preview(store: Store, slack: SlackWorkspace, slo_file: Path) -> None:
    client = client_of(store, slo_file)
    repeated = event_of(slack, f"{BASE}/s/checkout?n=a", event_id="Ev1")
    sent = send(client, repeated), slack.unfurled.get(timeout=30), send(client, repeated)
    again = send(client, event_of(slack, f"{BASE}/s/checkout?n=b", event_id="Ev2")), slack.unfurled.get(timeout=30)

    assert (sent[0], sent[2], again[0]) == ((200, ""),) * 3
    assert list(sent[1]) == [f"{BASE}/s/checkout?n=a"]
    assert list(again[1]) == [f"{BASE}/s/checkout?n=b"]


def test_unfurling_is_off_by_default(store: Store, slack: SlackWorkspace, slo_file: Path) -> None:
    slo_file.write_text(slo_file.read_text().replace("unfurl: true", "unfurl: false"))
    client = client_of(store, slo_file)

    assert send(client, event_of(slack, f"{BASE}/s/checkout")) == (200, "")
    assert slack.requests == 0


def test_unfurling_needs_a_signing_secret(slo_file: Path) -> None:
    slo_file.write_text(slo_file.read_text().replace(f"signing_secret: {SECRET},", ""))

    with pytest.raises(ConfigError, match="unfurl needs the key signing_secret_env"):
        read_slo_file(slo_file, {})


def test_a_refused_preview_is_logged_with_its_fix(store: Store, slack: SlackWorkspace, slo_file: Path) -> None:
    slack.scopes = frozenset({"chat:write"})
    logged: Queue[logging.LogRecord] = Queue()
    handler, logger = QueueHandler(logged), logging.getLogger("stagelens.dashboard.web.signed_endpoints")
    logger.addHandler(handler)
    send(client_of(store, slo_file), event_of(slack, f"{BASE}/s/checkout"))
    text = logged.get(timeout=30).getMessage()
    logger.removeHandler(handler)

    assert "Slack responded missing_scope to chat.unfurl (needs links:write). The app lacks a scope" in text
