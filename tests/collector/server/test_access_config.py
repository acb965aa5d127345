"""Section `access:` of the collector's file: parsing, and errors without secrets."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from stagelens.collector.server import access_config
from stagelens.collector.server.access_config import (
    Access,
    ServerTlsFiles,
    Token,
    check_exposure,
)
from stagelens.core.errors import ConfigError
from stagelens.core.settings.yaml_config import parse

SECRET = "a3f1" * 16
OTHER = "77b0" * 16
ENV = {"TEAM_A": SECRET, "TEAM_B": OTHER, "SHORT": "guess me", "EMPTY": "", "TWO_LINES": f"{OTHER}\n{OTHER}"}


def sha256(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def read(text: str, held: dict[str, str] | None = None) -> tuple[access_config.AccessSection, list[str]]:
    document = parse(text)
    found = access_config.read_access(document, (), document.value, ENV, {} if held is None else held)
    return found, [f"{problem.line}: {problem.text}" for problem in document.problems]


def test_tokens_are_stored_as_hashes() -> None:
    found, _ = read("tokens: [{name: team-a, token_env: TEAM_A}]")

    assert SECRET not in repr(found)
    assert sha256(SECRET).hex() not in repr(found)


def test_a_temporarily_missing_secret_stays_valid(tmp_path: Path) -> None:
    file, held = tmp_path / "token", dict[str, str]()
    file.write_text(SECRET)
    text = f"tokens: [{{name: team-a, token_file: {file}}}]"
    read(text, held)
    file.write_text("")
    emptied, problems = read(text, held)
    file.write_text(OTHER)
    rotated, _ = read(text, held)

    assert problems == []
    assert [each.access.tokens[0].digest for each in (emptied, rotated)] == [sha256(SECRET), sha256(OTHER)]


def test_one_token_can_come_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{OTHER}\n")

    assert access_config.tokens_from_env({}) == ()
    assert access_config.tokens_from_env({"STAGELENS_COLLECTOR_TOKEN": SECRET}) == (Token("token", sha256(SECRET)),)
    assert access_config.tokens_from_env({"STAGELENS_COLLECTOR_TOKEN_FILE": f"{tmp_path}/token"}) == (
        Token("token", sha256(OTHER)),
    )


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("STAGELENS_COLLECTOR_TOKEN", "short", "STAGELENS_COLLECTOR_TOKEN has 5 characters.*openssl rand"),
        (
            "STAGELENS_COLLECTOR_TOKEN_FILE",
            "/nowhere",
            "STAGELENS_COLLECTOR_TOKEN_FILE is /nowhere, which cannot be read",
        ),
        ("STAGELENS_COLLECTOR_TOKEN_FILE", "/dev/null", "STAGELENS_COLLECTOR_TOKEN_FILE is /dev/null, which is empty"),
    ],
)
def test_an_invalid_environment_token_prevents_the_start(key: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        access_config.tokens_from_env({key: value})


ASKING = Access(tokens=(Token("team-a", b"digest"),))
FILE = Path(__file__)
CERTIFIED = Access(tls=ServerTlsFiles(certificate=FILE, key=FILE, client_ca=FILE))
ENCRYPTED = Access(tls=ServerTlsFiles(certificate=FILE, key=FILE))


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "10.1.2.3", "::", "collector.example", "localhost.example", "", "127.0.0.1.example"]
)
@pytest.mark.parametrize("access", [Access(), ENCRYPTED])
def test_a_collector_without_authentication_needs_a_local_address(host: str, access: Access) -> None:
    with pytest.raises(ConfigError) as caught:
        check_exposure(host, access, is_open=False)

    for fix in ("STAGELENS_COLLECTOR_TOKEN", "client_ca", "STAGELENS_COLLECTOR_OPEN=true", "127.0.0.1"):
        assert fix in str(caught.value)


@pytest.mark.parametrize(
    ("host", "access", "is_open"),
    [
        ("127.0.0.1", Access(), False),
        ("127.8.9.1", Access(), False),
        ("::1", Access(), False),
        ("localhost", Access(), False),
        ("0.0.0.0", ASKING, False),
        ("::", CERTIFIED, False),
        ("0.0.0.0", Access(), True),
    ],
)
def test_the_listen_address_must_be_safe_or_permitted(host: str, access: Access, is_open: bool) -> None:
    check_exposure(host, access, is_open=is_open)
