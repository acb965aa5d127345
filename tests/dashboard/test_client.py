"""The Python client against a dashboard over HTTP: frames, their types, and errors."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pytest
from pandas.api.types import is_float_dtype, is_integer_dtype

from stagelens.client import ApiError, Client, connect
from stagelens.dashboard.web.api_queries import QUERIES
from stagelens.dashboard.web.users import add_user
from stagelens.store import Store
from tests.dashboard.conftest import ROOT, SLOS
from tests.dashboard.rendering import alerts_of
from tests.dashboard.served_versions import NOW
from tests.dashboard.tabs import Serve
from tests.support.certificate_authority import Authorities, Pem

TOKEN = "a token of this test, long enough"  # noqa: S105
UTC_TIME = "datetime64[us, UTC]"


@pytest.fixture(scope="module")
def url(filled: Store, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    slos = SLOS.replace("threshold: 120ms\n", "threshold: 120ms\n    budgets: {queue: 20ms, forward: 60ms}\n")
    return serve(filled, alerts_of(filled, tmp_path_factory.mktemp("client"), slos), token=TOKEN)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    with connect(url, TOKEN) as connected:
        yield connected


def refusal(client: Client, path: str, **parameters: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        client.get(path, **parameters)
    return caught.value


def test_every_query_has_a_method(client: Client) -> None:
    arguments = {name: {"service": "vision-api"} for name, query in QUERIES.items() if query.about_one}
    arguments["budgets"] = {"name": "vision-latency"}
    frames = {name: getattr(client, name)(**arguments.get(name, {})) for name in QUERIES}

    assert {name for name, frame in frames.items() if not isinstance(frame, pd.DataFrame)} == set()
    assert all("revision" in frame.attrs for frame in frames.values())


def test_a_breakdown_is_in_seconds_and_adds_up(client: Client) -> None:
    frame = client.breakdown("vision-api", percentiles=[0.5, 0.999], version="1.0.0", start="now-1h")
    stages = frame.iloc[:, list(frame.columns).index("high_seconds") + 1 :]

    assert frame["percentile"].tolist() == [0.5, 0.999]
    assert is_integer_dtype(frame["n"])
    assert all(is_float_dtype(dtype) for dtype in stages.dtypes)
    assert stages.sum(axis=1).tolist() == pytest.approx(frame["value_seconds"].tolist())
    assert frame.attrs["from"] == "2026-11-20T11:00:00Z"
    assert frame.attrs["requests"] > 0
    assert "columns" not in frame.attrs


def test_times_are_utc_timestamps(client: Client) -> None:
    services, traces = client.services(), client.traces("vision-api")

    assert services["first_seen"].dtype == services["last_seen"].dtype == traces["at"].dtype == UTC_TIME
    assert client.audit(end=NOW - timedelta(days=2), start=NOW - timedelta(days=3))["at"].dtype == UTC_TIME
    assert is_float_dtype(client.map()["p99_seconds"])


def test_a_window_of_datetimes_is_that_of_texts(client: Client) -> None:
    texts = client.latency("vision-api", start="2026-11-20T11:30:00Z", end="2026-11-20T11:40:00Z")
    start = datetime(2026, 11, 20, 11, 30, tzinfo=UTC)
    zoned = client.latency("vision-api", start=start, end=pd.Timestamp(start + timedelta(minutes=10)))
    naive = client.latency("vision-api", start=start.replace(tzinfo=None), end=start + timedelta(minutes=10))

    assert texts.attrs == zoned.attrs == naive.attrs
    pd.testing.assert_frame_equal(texts, zoned)


def test_arguments_select_requests(client: Client) -> None:
    slow = client.traces(
        "vision-api",
        dominant="queue",
        failed=False,
        min_seconds=0.1,
        max_seconds=0.5,
        attributes={"http.route": "/v1/classify"},
        order="new",
        page=1,
    )

    assert 0 < len(slow) <= slow.attrs["matching"]
    assert slow["dominant"].unique().tolist() == ["queue"]
    assert slow["status"].unique().tolist() == ["ok"]
    assert slow["route"].unique().tolist() == ["/v1/classify"]
    assert slow["duration_seconds"].between(0.1, 0.5).all()
    assert slow["at"].is_monotonic_decreasing
    assert len(client.latency("vision-api", cold=False)) == 4
    assert client.latency("vision-api", cold=True).attrs["requests"] == 0
    assert client.waste(labels={"team": "nobody"}).empty


def test_objectives_are_rows(client: Client) -> None:
    frame = client.slo("vision-api")

    assert list(frame.iloc[0][["name", "service", "objective"]]) == ["vision-latency", "vision-api", 0.99]
    assert frame.loc[0, "state"]
    assert client.budgets("vision-latency")["stage"].tolist() == ["queue", "forward"]
    assert client.names().loc[client.names()["name"] == "vision-api", "versions"].tolist() == [["2.0.0", "1.0.0"]]


def test_a_trace_is_a_table_of_its_spans(client: Client) -> None:
    row = client.traces("vision-api").iloc[0]
    spans = client.trace(f"{row['trace_id']}-{row['span_id']}")

    assert spans.loc[0, "duration_seconds"] == pytest.approx(row["duration_seconds"], abs=1e-6)
    assert str(spans["at"].dtype).endswith("UTC]")
    assert spans.loc[0, "offset_seconds"] == 0
    assert spans["parent_span_id"].tolist()[1:] == [spans.loc[0, "span_id"]] * (len(spans) - 1)
    assert row["dominant"] in spans["stage"].tolist()
    assert spans.attrs["resource"]["service.name"] == "vision-api"


def test_an_incident_is_found_by_its_id(client: Client) -> None:
    frame = client.incidents(state="open")

    assert frame.empty
    assert frame["opened_at"].dtype == frame["since"].dtype == UTC_TIME
    with pytest.raises(ApiError, match="there is no incident sl-none"):
        client.incident("sl-none")


def test_charts_and_tables_of_a_page(client: Client) -> None:
    over = client.view("/s/vision-api?from=now-1h", chart="over")
    slow = client.view("/s/vision-api", table="Slow exemplars", start="now-1h")

    assert over["time"].dtype == UTC_TIME
    assert is_float_dtype(over["Forward (s)"])
    assert over.attrs["title"] == "Breakdown over time"
    assert list(slow.columns)[:2] == ["Time", "Trace"]
    with pytest.raises(ValueError, match="chart="):
        client.view("/s/vision-api")
    with pytest.raises(ApiError, match="percentile, over, heat"):
        client.view("/s/vision-api", chart="pie")


def test_an_event_is_stored(store: Store, serve: Serve) -> None:
    with connect(serve(store, token=TOKEN), TOKEN) as client:
        stored = client.add_event("3.0.0 is out", kind="deploy", key="3.0.0", service="vision-api", at=NOW)
        with pytest.raises(ApiError) as caught:
            client.add_event("", kind="note")

    assert (stored["text"], stored["at"]) == ("3.0.0 is out", "2026-11-20T12:00:03Z")
    assert (caught.value.status, caught.value.key) == (400, "text")


def test_a_refusal_has_the_parameter_and_the_fix(client: Client) -> None:
    unknown = refusal(client, "query/latency", service="nobody")
    wrong = refusal(client, "query/latency", service="vision-api", colour="red")

    assert (unknown.status, unknown.key) == (404, "service")
    assert unknown.error in str(unknown)
    assert unknown.fix in str(unknown)
    assert (wrong.status, wrong.key) == (400, "colour")
    with pytest.raises(ValueError, match=r"such as 0\.99"):
        client.latency("vision-api", percentiles=99)


def test_settings_come_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGELENS_DASHBOARD_URL", f"{url}/")
    with connect() as client:
        assert refusal(client, "names").status == 401
        assert "STAGELENS_DASHBOARD_TOKEN" in refusal(client, "names").fix
    monkeypatch.setenv("STAGELENS_DASHBOARD_TOKEN", TOKEN)
    with connect() as client:
        assert len(client.names()) == 3


def test_a_name_and_a_password_sign_in(
    filled: Store, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGELENS_DASHBOARD_TOKEN", TOKEN)
    add_user(tmp_path / "users", "ada", "a password of ada")
    address = serve(filled, users=tmp_path / "users")
    with connect(address, user=("ada", "a password of ada")) as client, connect(address) as stranger:
        assert len(client.names()) == 3
        assert refusal(stranger, "names").status == 401


def test_the_documented_example_runs(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = (ROOT / "docs" / "client.md").read_text().split("```python\n")[1].partition("```")[0]
    monkeypatch.setenv("STAGELENS_DASHBOARD_TOKEN", TOKEN)
    exec(example.replace("http://127.0.0.1:8600", url), {})  # noqa: S102 - the code of the documentation

    assert "regression" in capsys.readouterr().out


def test_a_dashboard_that_does_not_answer_is_named_with_the_fix() -> None:
    with connect("http://127.0.0.1:1") as client:
        unreachable = refusal(client, "names")
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, connect(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.05) as client:
        late = refusal(client, "names")

    assert unreachable.status is None
    assert "stagelens up" in unreachable.fix
    assert late.error == "no response within 0.05 s"
    assert "timeout=" in late.fix
    with pytest.raises(ApiError, match=r"http://127\.0\.0\.1:8600"):
        connect("127.0.0.1:8600")


def test_an_unusable_proxy_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with connect("http://dashboard.example") as client:
        assert "add dashboard.example to NO_PROXY" in refusal(client, "names").fix
    monkeypatch.setenv("http_proxy", "gopher://proxy:1")
    with pytest.raises(ApiError, match="the proxy of the environment is not usable"):
        connect("http://dashboard.example")


class SignInPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/api/v1/names"):
            self.send_response(302)
            self.send_header("Location", "https://sso.example.com/login")
            self.end_headers()
        else:
            kind = "text/html" if self.path.startswith("/api/v1/services") else "application/json"
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(b"<form>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Print nothing."""


@contextmanager
def sign_in_page(certificate: Pem | None = None) -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SignInPage)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_sign_in_page_is_no_response() -> None:
    with sign_in_page() as address, connect(address) as client:
        redirected, page, broken = (refusal(client, path) for path in ("names", "services", "query/map"))

    assert (redirected.status, page.status, broken.status) == (302, 200, 200)
    assert "sso.example.com" in redirected.error
    assert "text/html" in page.error
    assert "sign-in" in page.fix


def test_tls_errors_name_their_fix(url: str, authority: Authorities, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(url.replace("http:", "https:")) as client:
        plain = refusal(client, "names")
    private = authority("private CA")
    with sign_in_page(private.sign("dashboard")) as address:
        with connect(address) as client:
            untrusted = refusal(client, "names")
        monkeypatch.setenv("SSL_CERT_FILE", str(private.file))
        with connect(address) as client:
            trusted = refusal(client, "names")

    assert (plain.status, untrusted.status, trusted.status) == (None, None, 302)
    assert plain.fix == f"try {url}"
    assert "SSL_CERT_FILE" in untrusted.fix


@pytest.mark.parametrize("missing", ["httpx", "pandas"])
def test_a_missing_library_is_named_with_its_extra(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import stagelens.client"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert f"stagelens.client needs {missing}" in failed.stderr
    assert 'pip install "stagelens[client]"' in failed.stderr


def test_the_client_loads_nothing_of_the_server() -> None:
    code = "import sys, stagelens.client; print(*[name for name in sys.modules if name.startswith('stagelens.')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert loaded == ["stagelens.core", "stagelens.core.import_lock", "stagelens.core.version", "stagelens.client"]
