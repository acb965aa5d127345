"""Authentication by token, by name and password, and by a trusted proxy; sign-out."""

from __future__ import annotations

import io
import stat
import threading
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from ipaddress import ip_network
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from stagelens.__main__ import main
from stagelens.core.errors import ConfigError
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web import users as users_module
from stagelens.dashboard.web.app import Dashboard
from stagelens.dashboard.web.auth import COOKIE, LoginThrottle, RevokedSessions, is_session, name_in, session_of
from stagelens.dashboard.web.users import Users, add_user
from stagelens.store import Store
from tests.dashboard.rendering import client_of
from tests.support.postgresql_server import Server

TOKEN = "correct horse battery staple, again"  # noqa: S105 - the secret of this test
PASSWORD = "tr0ub4dor and 3"  # noqa: S105 - the secret of this test
HEX = "0" * 128


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "_METHOD", "scrypt:1024:1:1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.txt"
    add_user(path, "ada", PASSWORD)
    return path


@pytest.fixture
def ada(filled: Store, file: Path) -> FlaskClient:
    """Client that is signed in by a password."""
    client = client_of(filled, users=file)
    client.post("/signin", data={"name": "ada", "secret": PASSWORD})
    return client


def test_the_file_holds_no_password_and_is_for_its_owner_only(file: Path) -> None:
    assert PASSWORD not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_name_has_one_password_and_a_changed_file_is_read_again(file: Path) -> None:
    users = Users(file)
    assert users.accept("ada", PASSWORD)
    add_user(file, "bob", PASSWORD)
    add_user(file, "ada", "another password")

    assert users.accept("ada", "another password")
    assert not users.accept("ada", PASSWORD)
    assert users.accept("bob", PASSWORD)
    assert not users.accept("eve", PASSWORD)
    file.write_text("")
    assert not users.accept("bob", PASSWORD)


@pytest.mark.parametrize(
    "line",
    [
        "ada:secret",
        "ada",
        f"a b:scrypt:16384:8:5$salt${HEX}",
        f"ada:pbkdf2:sha256:1000000$secret${HEX}",
        f"ada:scrypt:secret:8:5$salt${HEX}",
        f"ada:scrypt:16383:8:5$salt${HEX}",
        f"ada:scrypt:16384:8:5$salt${HEX}0",
        f"ada:scrypt:2:8:1$salt${HEX}",
        f"ada:scrypt:1048576:8:1$salt${HEX}",
        f"ada:scrypt:16384:8:16$salt${HEX}",
        f"ada:scrypt:16384:{'9' * 5000}:1$salt${HEX}",
    ],
)
def test_an_invalid_line_is_named_but_not_quoted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "users.txt"
    path.write_text(f"# readers\n{line}\n")
    with pytest.raises(ConfigError, match="line 2") as refused:
        Users(path)

    assert "secret" not in str(refused.value)


def test_scrypt_accepts_the_smallest_parameters_of_a_valid_line(tmp_path: Path) -> None:
    for method in ("scrypt:1024:1:1", "scrypt:1024:1:15"):
        path = tmp_path / method
        path.write_text(f"ada:{method}$salt${HEX}\n")

        assert not Users(path).accept("ada", PASSWORD)


def test_a_missing_file_stops_the_start(filled: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--add-user"):
        Dashboard(DashboardConfig(users=tmp_path / "none"), filled)


def test_the_command_adds_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users.txt"
    monkeypatch.setenv("STAGELENS_DASHBOARD_USERS", str(path))
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))

    assert main(["dashboard", "--add-user", "ada"]) == 0
    assert Users(path).accept("ada", PASSWORD)


@pytest.mark.parametrize(("name", "password"), [("a:b", PASSWORD), ("", PASSWORD), ("ada", "short")])
def test_an_invalid_name_or_weak_password_is_not_written(tmp_path: Path, name: str, password: str) -> None:
    with pytest.raises(ConfigError):
        add_user(tmp_path / "users.txt", name, password)

    assert not (tmp_path / "users.txt").exists()


def test_a_name_and_password_sign_in(filled: Store, file: Path) -> None:
    client = client_of(filled, users=file)
    asked = client.get("/s/vision-api?y=share")
    response = client.post("/signin", data={"name": "ada", "secret": PASSWORD, "next": "/s/vision-api?y=share"})

    assert asked.status_code == 401
    assert 'value="/s/vision-api?y=share"' in asked.text
    assert response.status_code == 303
    assert response.headers["Location"] == "/s/vision-api?y=share"
    assert client.get("/s/vision-api?y=share").status_code == 200


def test_signing_in_redirects_to_this_host_only(filled: Store, file: Path) -> None:
    client, form = client_of(filled, users=file), {"name": "ada", "secret": PASSWORD}
    for to in ("https://evil.example", "//evil.example", "/\\evil.example", "javascript:x", "/a\nb", ""):
        assert client.post("/signin", data={**form, "next": to}).headers["Location"] == "/", to

    assert client.get("/signin", query_string={"next": "//["}).status_code == 400
    assert client.post("/signin", data={**form, "next": "//["}).status_code == 400


def test_signing_in_leads_to_the_address_of_the_link(filled: Store) -> None:
    client, address = client_of(filled, token=TOKEN), "/s/team%2Fvision?p=50"
    form, entered = client.get(address), client.get(f"{address}&token={TOKEN.replace(' ', '+')}")

    assert f'value="{address}"' in form.text
    assert entered.headers["Location"] == address


def test_failed_tokens_of_cross_site_requests_do_not_count(filled: Store) -> None:
    client = client_of(filled, token=TOKEN)
    foreign = {"Sec-Fetch-Site": "cross-site"}
    codes = {client.get("/", query_string={"token": f"bad {index}"}, headers=foreign).status_code for index in range(9)}

    assert codes == {401}
    assert client.get("/", query_string={"token": TOKEN}, headers={"Sec-Fetch-Site": "none"}).status_code == 302
    assert client.get("/").status_code == 200


def test_a_session_and_a_copy_of_its_cookie_end_with_the_sign_out(filled: Store, file: Path, ada: FlaskClient) -> None:
    copied = ada.get_cookie(COOKIE)
    assert copied is not None
    assert ada.post("/signout").status_code == 303
    assert ada.get("/").status_code == 401
    codes: list[int] = []
    for thief in (ada, client_of(filled, users=file)):
        thief.set_cookie(COOKIE, copied.value)
        codes.append(thief.get("/").status_code)
    again = client_of(filled, users=file)
    again.post("/signin", data={"name": "ada", "secret": PASSWORD})

    assert codes == [401, 401]
    assert again.get("/").status_code == 200


def test_a_user_removed_from_the_file_is_signed_out(file: Path, ada: FlaskClient) -> None:
    before = ada.get("/parts").status_code
    file.write_text("")

    assert before == 200
    assert ada.get("/parts").status_code == 401


def test_programs_show_a_password_or_the_token(filled: Store, file: Path) -> None:
    client = client_of(filled, users=file, token=TOKEN)
    codes = [
        client.get("/api/v1/names", auth=auth).status_code
        for auth in (("ada", PASSWORD), ("ada", PASSWORD), ("ada", "wrong"), ("", TOKEN))
    ]
    bearer = {"Authorization": f"Bearer {TOKEN}"}

    assert codes == [200, 200, 401, 200]
    assert client.get("/api/v1/names", headers=bearer).status_code == 200
    assert client.get("/api/v1/names", headers={"Authorization": "Bearer x"}).status_code == 401
    assert client.get("/api/v1/names", headers={"Authorization": "Digest x=y"}).status_code == 401


def test_a_program_gets_a_challenge_and_a_browser_does_not(filled: Store, file: Path) -> None:
    client = client_of(filled, users=file)
    program = client.get("/api/v1/names")
    browser = client.get("/api/v1/names", headers={"Sec-Fetch-Mode": "cors"})

    assert program.status_code == browser.status_code == 401
    assert "Basic" in program.headers["WWW-Authenticate"]
    assert program.json is not None
    assert program.json["key"] == "Authorization"
    assert "WWW-Authenticate" not in browser.headers


def test_repeated_failed_logins_are_delayed(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagelens.dashboard.web.auth.LoginThrottle", lambda: LoginThrottle(lambda: 0.0))
    server = Dashboard(DashboardConfig(token=TOKEN), filled).server
    inside, guesser = server.test_client(), server.test_client()
    inside.get("/", query_string={"token": TOKEN})
    for _ in range(5):
        guesser.post("/signin", data={"secret": "wrong"})
    response = guesser.post("/signin", data={"secret": "also wrong"})

    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 1
    assert inside.get("/parts").status_code == 200


def test_the_login_delay_doubles_expires_and_is_bounded() -> None:
    now = [0.0]
    throttle = LoginThrottle(lambda: now[0])
    waits: list[float] = []
    for _ in range(8):
        assert throttle.attempt("a") == 0
        waits.append(throttle.attempt("a") if len(waits) >= 4 else 0)
        now[0] += waits[-1]
    for number in range(5000):
        throttle.attempt(str(number))

    assert waits == [0, 0, 0, 0, 1, 2, 4, 8]
    assert throttle.attempt("a") == 0

    for _ in range(5):
        throttle.attempt("b")
    throttle.succeeded("b")

    assert throttle.attempt("b") == 0
    for _ in range(3000):
        now[0] += 300
        assert throttle.attempt("c") == 0
    now[0] += 299
    assert throttle.attempt("c") == 1


def test_an_ipv6_network_is_throttled_as_one_client() -> None:
    throttle = LoginThrottle(lambda: 0.0)
    for number in range(5):
        throttle.attempt(f"2001:db8::{number}")

    assert throttle.attempt("2001:db8::ffff") > 0
    assert throttle.attempt("2001:db8:0:1::1") == 0


def test_concurrent_failed_logins_are_throttled(filled: Store, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagelens.dashboard.web.auth.LoginThrottle", lambda: LoginThrottle(lambda: 0.0))
    looked_at: list[str] = []
    hashing = threading.Event()

    def accept(_users: Users, _name: str, password: str) -> bool:
        looked_at.append(password)
        hashing.wait(60)
        return password == PASSWORD

    server = Dashboard(DashboardConfig(users=file), filled).server
    inside = server.test_client()
    monkeypatch.setattr(Users, "accept", accept)
    hashing.set()
    inside.post("/signin", data={"name": "ada", "secret": PASSWORD})
    looked_at.clear()
    hashing.clear()

    def guess(number: int) -> int:
        return server.test_client().post("/signin", data={"name": "ada", "secret": str(number)}).status_code

    with ThreadPoolExecutor(60) as guessers:
        attempts = [guessers.submit(guess, number) for number in range(60)]
        page = inside.get("/parts").status_code
        # All but those that are looked at are answered without waiting for them.
        refused, _ = wait(attempts, timeout=60, return_when=FIRST_COMPLETED)
        hashing.set()
        codes = [attempt.result() for attempt in attempts]

    assert page == 200
    assert refused
    assert len(looked_at) <= 5
    assert codes.count(429) == 60 - len(looked_at)


@pytest.mark.parametrize(
    ("address", "name", "status"),
    [
        ("10.0.0.5", "ada", 200),
        ("::ffff:10.0.0.5", "ada", 200),
        ("10.0.0.5", None, 401),
        ("10.0.0.5", " ", 401),
        ("10.0.1.5", "ada", 401),
        ("127.0.0.1", "ada", 401),
    ],
)
def test_only_a_trusted_proxy_names_the_user(filled: Store, address: str, name: str | None, status: int) -> None:
    proxies = (ip_network("10.0.0.0/24"),)
    client = client_of(filled, host="0.0.0.0", proxy_header="X-Forwarded-User", trusted_proxies=proxies)
    headers = {} if name is None else {"X-Forwarded-User": name}
    response = client.get("/parts", headers=headers, environ_overrides={"REMOTE_ADDR": address})

    assert response.status_code == status


def test_behind_tls_the_cookie_stays_on_https(filled: Store) -> None:
    for address, is_secure in (("10.0.0.5", True), ("10.0.0.6", False)):
        client = client_of(filled, token=TOKEN, trusted_proxies=(ip_network("10.0.0.5"),))
        sent = {"headers": {"X-Forwarded-Proto": "https"}, "environ_overrides": {"REMOTE_ADDR": address}}
        response = client.get("/", query_string={"token": TOKEN}, **sent)

        assert ("Secure" in response.headers["Set-Cookie"]) is is_secure


@given(name=st.text(max_size=20), secret=st.text(min_size=1, max_size=20), other=st.text(min_size=1, max_size=20))
def test_a_session_is_valid_for_its_name_secret_and_time(name: str, secret: str, other: str) -> None:
    name, secret, other = (each.encode(errors="replace").decode() for each in (name, secret, other))
    cookie = session_of(name, secret, 1000.0)

    assert name_in(cookie) == name
    assert is_session(cookie, secret, 1000.0)
    assert not is_session(cookie, secret, 1000.0 + 30 * 86_400 + 1)
    assert is_session(cookie, other, 1000.0) == (other == secret)


def test_a_session_has_one_cookie_only() -> None:
    cookie = session_of("ada", "secret", 0.0)
    who, until, which, signature = cookie.split(".")
    altered = [cookie[:at] + other + cookie[at + 1 :] for at in range(len(cookie)) for other in "aAgQ1-_=. "]
    altered += [
        f"{cookie}=",
        f"{cookie} ",
        f"{who}=.{until}.{which}.{signature}",
        f"{who}.0{until}.{which}.{signature}",
    ]
    valid = [
        each for each in altered if each != cookie and name_in(each) is not None and is_session(each, "secret", 0.0)
    ]

    assert valid == []


@given(st.text(max_size=60))
def test_invalid_cookies_are_refused(cookie: str) -> None:
    assert name_in(cookie) is None or not is_session(cookie, "secret", 0.0)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.stacks)])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Store]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/stagelens.db"
    else:
        server: Server = request.getfixturevalue("postgresql_server")
        url = server.new_database()
    opened = Store.open(url)
    yield opened
    opened.close()


def test_a_sign_out_holds_in_every_dashboard_of_the_store(any_store: Store) -> None:
    RevokedSessions(any_store, lambda: 0.0).add("cookie")
    other = RevokedSessions(any_store, lambda: 1.0)

    assert "cookie" in other
    assert "another cookie" not in other
