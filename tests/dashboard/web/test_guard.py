"""Authentication: loopback by default, a token elsewhere, nothing from other hosts, and a port of its own."""

from __future__ import annotations

import socket
from http.client import HTTPConnection
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from stagelens.core.errors import ConfigError, StagelensError
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store
from tests.dashboard.rendering import client_of
from tests.support.ports import free_port

TOKEN = "correct horse battery staple, again"  # noqa: S105 - the secret of this test


def test_unauthenticated_access_is_for_loopback_only() -> None:
    with pytest.raises(ConfigError) as refused:
        DashboardConfig(host="0.0.0.0")

    for way in ("TOKEN", "USERS", "PROXY_HEADER", "BEHIND_PROXY"):
        assert f"STAGELENS_DASHBOARD_{way}" in str(refused.value)

    assert DashboardConfig(host="0.0.0.0", token=TOKEN).token == TOKEN
    assert DashboardConfig(host="0.0.0.0", behind_proxy=True).behind_proxy


def test_a_weak_token_is_for_loopback_only() -> None:
    with pytest.raises(ConfigError, match=r"STAGELENS_DASHBOARD_TOKEN has 1 characters.*\n.*openssl rand"):
        DashboardConfig(host="0.0.0.0", token="x")  # noqa: S106 - of this test

    assert DashboardConfig(token="x").token == "x"  # noqa: S105, S106 - of this test


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("PORT", "86oo"),
        ("PORT", "70000"),
        ("BEHIND_PROXY", "maybe"),
        ("PORT", "-1"),
        ("TRUSTED_PROXIES", "proxy.local"),
        ("TOKEN_FILE", "/nowhere/token"),
        ("PROXY_HEADER", "X-Forwarded-User"),
    ],
)
def test_a_wrong_setting_names_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"STAGELENS_DASHBOARD_{key}"):
        DashboardConfig.from_env({f"STAGELENS_DASHBOARD_{key}": value})


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    env = {
        "HOST": "0.0.0.0",
        "PORT": "0",
        "TOKEN_FILE": str(tmp_path / "token"),
        "BEHIND_PROXY": "yes",
        "USERS": "users.txt",
        "PROXY_HEADER": "X-Forwarded-User",
        "TRUSTED_PROXIES": "10.0.0.5, fd00::/8",
        "HOSTS": "Lens.example.com",
    }
    config = DashboardConfig.from_env({f"STAGELENS_DASHBOARD_{key}": value for key, value in env.items()})
    (tmp_path / "token").write_text("\n")

    with pytest.raises(ConfigError, match="empty"):
        DashboardConfig.from_env({"STAGELENS_DASHBOARD_TOKEN_FILE": str(tmp_path / "token")})
    assert config == DashboardConfig(
        host="0.0.0.0",
        port=0,
        token=TOKEN,
        behind_proxy=True,
        users=Path("users.txt"),
        proxy_header="X-Forwarded-User",
        trusted_proxies=(ip_network("10.0.0.5"), ip_network("fd00::/8")),
        hosts=("lens.example.com",),
    )


OPEN: dict[str, Any] = {"host": "0.0.0.0", "behind_proxy": True, "hosts": ("lens.example.com",)}


@pytest.mark.parametrize(
    ("config", "host", "status"),
    [
        *(({}, name, 200) for name in ("127.0.0.1:8600", "localhost:1", "[::1]:8600")),
        *(({}, name, 421) for name in ("evil.example", "evil.example:8600", "127.0.0.1.evil.example", "0.0.0.0")),
        *(({}, name, 421) for name in ("evil@localhost", "<script>")),
        *((OPEN, name, 200) for name in ("lens.example.com", "LENS.example.com:443", "10.1.2.3:8600")),
        (OPEN, "evil.example", 421),
    ],
)
def test_loopback_is_served_by_its_own_names_only(
    filled: Store, config: dict[str, Any], host: str, status: int
) -> None:
    for path in ("/healthz", *(["/"] if not config else [])):
        response = client_of(filled, **config).get(path, headers={"Host": host})

        assert response.status_code == status
        assert status == 200 or b"<script>" not in response.data


def test_without_the_token_every_request_is_refused(filled: Store) -> None:
    client = client_of(filled, token=TOKEN)
    codes = {client.get(path).status_code for path in ("/", "/parts", "/assets/style.css", "/?token=wrong")}

    assert codes == {401}


def test_the_token_is_required_once_and_removed_from_the_address(filled: Store) -> None:
    client = client_of(filled, token=TOKEN)
    response = client.get("/s/a", query_string={"token": TOKEN, "y": "share"})
    cookie = response.headers["Set-Cookie"]

    assert response.status_code == 302
    assert response.headers["Location"] == "/s/a?y=share"
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "horse" not in cookie
    assert client.get("/s/a").status_code == 200


def test_probes_need_no_token(filled: Store) -> None:
    for client in (client_of(filled), client_of(filled, host="0.0.0.0", token=TOKEN)):
        responses = [client.get(path) for path in ("/livez", "/readyz", "/healthz")]

        assert [(each.status_code, each.text) for each in responses] == [(200, "ok\n")] * 3


def test_healthz_reports_why_the_store_fails(store: Store) -> None:
    with store.transaction() as connection:
        connection.execute(text("DROP TABLE services"))
    client = client_of(store)
    response, living = client.get("/healthz"), client.get("/livez")

    assert response.status_code == 503
    assert "services" in response.text
    # A restart would not mend the database.
    assert living.status_code == 200


def test_the_content_security_policy_allows_this_host_only(filled: Store) -> None:
    policy = client_of(filled).get("/").headers["Content-Security-Policy"]
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))

    assert "default-src 'none'" in policy
    assert "unsafe" not in scripts
    assert "http" not in policy


def test_a_port_in_use_is_reported_with_a_fix(filled: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StagelensError, match=f"127.0.0.1:{port}.*\n.*STAGELENS_DASHBOARD_PORT"):
            Dashboard(DashboardConfig(port=port), filled).start()


def test_the_server_starts_serves_stops_and_restarts(filled: Store) -> None:
    dashboard = Dashboard(DashboardConfig(port=free_port()), filled)
    for _ in range(2):
        dashboard.start()
        host, port = dashboard.address
        connection = HTTPConnection(host, port, timeout=60)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
        dashboard.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), timeout=60)


def test_another_origin_is_refused(filled: Store) -> None:
    client = client_of(filled, token=TOKEN)
    foreign = ["http://[", "null", "http://localhost.evil.example", "http://localhost:80.evil.example", "localhost"]
    foreign += ["http://localhost@evil.example", "http://evil.example@localhost", "http://localhost:81"]
    foreign += ["http://localhost/", "ftp://localhost"]
    refused = {origin: client.post("/signin", headers={"Origin": origin}).status_code for origin in foreign}
    own = client.post("/signin", headers={"Origin": "HTTP://LocalHost:80"}, data={"secret": TOKEN})

    assert refused == dict.fromkeys(foreign, 403)
    assert own.status_code == 303
