"""Section `access:` of the collector's file: parsing, and errors without secrets."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from stagelens.collector.server import access_config
from stagelens.collector.server.access_config import (
    Access,
    Certificate,
    RateLimits,
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


def test_every_access_setting_is_parsed(files: ServerTlsFiles, tmp_path: Path) -> None:
    (tmp_path / "team-c").write_text("5e5e" * 16 + "\n")
    found, problems = read(f"""\
tls: {{certificate: {files.certificate}, key: {files.key}, client_ca: {files.client_ca}}}
tokens:
  - {{name: team-a, token_env: TEAM_A, environment: prod, requests_per_second: 50, bytes_per_second: 5MiB}}
  - {{name: team-b, sha256: {sha256(OTHER).hex().upper()}}}
  - {{name: team-c, token_file: {tmp_path}/team-c}}
certificates:
  - {{common_name: checkout.prod, environment: prod}}
anonymous: {{requests_per_second: 0.5}}
""")

    assert problems == []
    assert found.files == (tmp_path / "team-c",)
    assert found.access == Access(
        tokens=(
            Token("team-a", sha256(SECRET), "prod", RateLimits(50.0, 5 * 2**20)),
            Token("team-b", sha256(OTHER)),
            Token("team-c", sha256("5e5e" * 16)),
        ),
        certificates=(Certificate("checkout.prod", "prod"),),
        anonymous=RateLimits(0.5),
        tls=files,
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"tokens:\n  - {{name: a, token: {SECRET}}}",
            "2: tokens[0].token is written in this file.*token_file.*sha256",
        ),
        ("tokens:\n  - {name: a}", "2: tokens[0].token_env is missing; add `token_env: TEAM_A_TOKEN`"),
        ("tokens:\n  - {name: a, token_env: NOWHERE}", "2: .*NOWHERE is empty or not set; create one: openssl rand"),
        ("tokens:\n  - {name: a, token_env: EMPTY}", "2: .*EMPTY is empty or not set"),
        ("tokens:\n  - {name: a, token_file: /nowhere}", "2: .*the file /nowhere is empty or not set"),
        ("tokens:\n  - {name: a, token_env: SHORT}", "2: .*has 8 characters, which is too short.*openssl rand"),
        ("tokens:\n  - {name: a, token_env: TWO_LINES}", "2: .*must be one word"),
        (f"tokens:\n  - {{name: a, sha256: {SECRET}x}}", "2: tokens[0].sha256 is not a SHA-256 hash; .*sha256sum"),
        (f"tokens:\n  - {{name: a, token_env: TEAM_A, sha256: {'f' * 64}}}", "2: .*are both set; keep one"),
        ("tokens:\n  - {token_env: TEAM_A}", "2: tokens[0].name is missing"),
        (
            "tokens:\n  - {name: a, token_env: TEAM_A, enviroment: x}",
            "2: .*enviroment is not known; did you mean environ",
        ),
        (
            "tokens:\n  - {name: a, token_env: TEAM_A}\n  - {name: a, token_env: TEAM_B}",
            "3: .*has the same name 'a' as",
        ),
        ("tokens:\n  - {name: a, token_env: TEAM_A}\n  - {name: b, token_env: TEAM_A}", "3: .*the same token as"),
        ("tokens:\n  - {name: a, token_env: TEAM_A, bytes_per_second: much}", "2: .*bytes_per_second is 'much'"),
        ("tokens:\n  - {name: a, token_env: TEAM_A, bytes_per_second: 0MiB}", "2: .*greater than zero"),
        ("tokens:\n  - {name: a, token_env: TEAM_A, requests_per_second: 0}", "2: .*requests_per_second is 0"),
        ("tokens:\n  - team-a", "2: tokens[0] is 'team-a'; write keys"),
        (
            "certificates: [{common_name: a}]",
            "1: certificates has names, but no CA verifies certificates; .*client_ca",
        ),
        (
            "tls: {certificate: /nowhere.crt, key: /nowhere.key}",
            "1: tls.certificate is '/nowhere.crt', which is not a file; write the path",
        ),
        ("tls: yes", "1: tls is True"),
        ("tokenz: []", "1: tokenz is not known; did you mean tokens?"),
        ("[]", "1: the file is a list"),
    ],
)
def test_an_error_has_a_line_and_a_fix(text: str, problem: str) -> None:
    import re  # noqa: PLC0415 - used here only

    _, problems = read(text)
    report = "\n".join(problems)

    assert re.search("^" + problem.replace("[", r"\["), report, re.MULTILINE), report
    assert SECRET not in report
    assert OTHER not in report


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
