"""Authentication and rate limits: valid and invalid tokens and certificates."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest

from stagelens.collector.otlp.model import Attributes
from stagelens.collector.server import auth as module
from stagelens.collector.server.access_config import Access, Certificate, RateLimits, ServerTlsFiles, Token
from stagelens.collector.server.auth import AccessControl, AdmittedClient, Caller, RefusedError
from stagelens.collector.server.service_shares import SERVICES

SECRET = "a3f1" * 16
OTHER = "77b0" * 16
FILE = Path(__file__)
TLS = ServerTlsFiles(certificate=FILE, key=FILE, client_ca=FILE)


def token(
    secret: str, name: str = "team-a", environment: str | None = "prod", limits: RateLimits | None = None
) -> Token:
    return Token(name, hashlib.sha256(secret.encode()).digest(), environment, limits or RateLimits())


def gate(access: Access, *, is_open: bool = False, clock: Callable[[], float] = lambda: 0.0) -> AccessControl:
    return AccessControl(lambda: access, is_open=is_open, clock=clock)


def bearer(secret: str) -> Caller:
    return Caller("10.0.0.1", f"Bearer {secret}")


def status_of(refused: AccessControl, caller: Caller) -> HTTPStatus:
    with pytest.raises(RefusedError) as caught:
        refused.admit(caller)
    return caught.value.status


ASKING = Access(tokens=(token(SECRET), token(OTHER, "team-b", None)))


def test_a_token_gives_its_name_and_environment() -> None:
    asking = gate(ASKING)

    assert asking.admit(bearer(SECRET)) == AdmittedClient("team-a", "prod")
    assert asking.admit(Caller("10.0.0.1", f"bearer {OTHER} ")) == AdmittedClient("team-b", None)


def test_services_over_the_share_of_a_sender_are_aggregated() -> None:
    asking = gate(Access(tokens=ASKING.tokens), is_open=True)
    greedy, honest = asking.admit(bearer(SECRET)), asking.admit(Caller("10.0.0.9"))
    resources: list[Attributes] = [{"service.name": f"invented-{number}"} for number in range(SERVICES // 2 + 1)]
    for resource in resources:
        greedy.correct(resource)
    own: Attributes = {"service.name": "shop"}
    honest.correct(own)

    assert resources[-2] == {"service.name": f"invented-{SERVICES // 2 - 1}", "deployment.environment.name": "prod"}
    assert resources[-1] == {"service.name": "__other__", "deployment.environment.name": "prod"}
    assert own == {"service.name": "shop"}


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {SECRET}",
        SECRET,
        "Bearer " + SECRET[:-1],
        f"Bearer {SECRET}x",
        "Bearer \ud800",
        "Bearer " + "x" * 5000,
    ],
)
def test_an_invalid_token_gets_an_explanation(authorization: str) -> None:
    with pytest.raises(RefusedError) as caught:
        gate(ASKING).admit(Caller("10.0.0.1", authorization))

    assert caught.value.status == HTTPStatus.UNAUTHORIZED
    assert caught.value.retry_after_seconds is None
    assert SECRET not in str(caught.value)
    assert "token" in str(caught.value) or "Bearer" in str(caught.value)


def test_all_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr(module, "hmac", type("hmac", (), {"compare_digest": staticmethod(compare)}))
    asking = gate(ASKING)
    asking.admit(bearer(SECRET))
    asking.admit(bearer(OTHER))
    status_of(asking, bearer("wrong"))

    assert [left for left, _ in compared] == [each.digest for each in ASKING.tokens] * 3
    assert all(len(right) == hashlib.sha256().digest_size for _, right in compared)


def test_a_certificate_replaces_a_token() -> None:
    everybody = gate(Access(tls=TLS))
    listed = gate(Access(tls=TLS, certificates=(Certificate("checkout", "prod"),)))
    checkout, stranger = Caller("10.0.0.1", certificate="checkout"), Caller("10.0.0.1", certificate="stranger")

    assert everybody.admit(stranger) == AdmittedClient("stranger", None)
    assert listed.admit(checkout) == AdmittedClient("checkout", "prod")
    assert status_of(listed, stranger) == HTTPStatus.FORBIDDEN
    assert status_of(listed, Caller("10.0.0.1")) == HTTPStatus.UNAUTHORIZED


def test_a_wrong_token_is_refused_despite_a_valid_certificate() -> None:
    both = gate(replace(ASKING, tls=TLS))

    assert both.admit(replace(bearer(SECRET), certificate="checkout")) == AdmittedClient("team-a", "prod")
    assert status_of(both, replace(bearer("wrong"), certificate="checkout")) == HTTPStatus.UNAUTHORIZED


def test_without_configured_tokens_clients_are_identified_by_address() -> None:
    assert gate(Access()).admit(Caller("127.0.0.1", "Bearer for somebody else")) == AdmittedClient("127.0.0.1")


def test_an_open_collector_refuses_invalid_tokens() -> None:
    is_open = gate(ASKING, is_open=True)

    assert is_open.admit(Caller("10.0.0.9")) == AdmittedClient("10.0.0.9")
    assert is_open.admit(bearer(SECRET)).client == "team-a"
    assert status_of(is_open, bearer("wrong")) == HTTPStatus.UNAUTHORIZED


def test_a_removed_token_is_refused() -> None:
    current = [ASKING]
    asking = AccessControl(lambda: current[0])
    asking.admit(bearer(OTHER))
    current[0] = replace(ASKING, tokens=ASKING.tokens[:1])

    assert status_of(asking, bearer(OTHER)) == HTTPStatus.UNAUTHORIZED


def test_bytes_of_a_body_delay_the_next_request() -> None:
    now = [0.0]
    limited = Access(anonymous=RateLimits(bytes_per_second=100))
    asking = gate(limited, clock=lambda: now[0])
    asking.received(asking.admit(Caller("10.0.0.1")), 1300)
    with pytest.raises(RefusedError) as caught:
        asking.admit(Caller("10.0.0.1"))

    assert caught.value.retry_after_seconds == 3

    now[0] = 3.0

    assert asking.admit(Caller("10.0.0.1")).client == "10.0.0.1"


@pytest.mark.parametrize(
    ("address", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("testclient", "testclient", True),
    ],
)
def test_ipv6_addresses_are_limited_by_network(address: str, other: str, is_same: bool) -> None:
    limits = RateLimits(requests_per_second=0.1)
    asking = gate(Access(tokens=(token(SECRET, address, limits=limits),), anonymous=limits), is_open=True)
    asking.admit(Caller(address))
    # A token of this name has a limit of its own.
    asking.admit(bearer(SECRET))

    if is_same:
        assert status_of(asking, Caller(other)) == HTTPStatus.TOO_MANY_REQUESTS
    else:
        asking.admit(Caller(other))
