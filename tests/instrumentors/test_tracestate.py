"""The service that sent a request, in the header `tracestate`."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.instrumentors.trace_context import caller_of, host_of_target, may_name_service_to, tracestate

# https://www.w3.org/TR/trace-context/#value
VALUE = re.compile(r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_every_name_is_sent_as_a_valid_value(service: str) -> None:
    header = tracestate(service)

    assert VALUE.fullmatch(header.partition("=")[2])
    assert caller_of(header) == caller_of(f"a=1, {header} ,b=2") == service


def test_a_long_name_is_cut() -> None:
    header = tracestate("ü" * 200 + "\ud800")

    assert VALUE.fullmatch(header.partition("=")[2])
    assert set(caller_of(header)) == {"ü"}


@pytest.mark.parametrize("header", ["", "stagelens", "x=stagelens=1", "other=1,STAGELENS=x", ",=,"])
def test_other_headers_name_no_caller(header: str) -> None:
    assert caller_of(header) == ""


PRIVATE = [
    *("checkout", "checkout.shop.svc", "checkout.shop.svc.cluster.local", "LOCALHOST", "db.internal", "nas.home.arpa."),
    *("127.0.0.1", "10.1.2.3", "192.168.0.9", "::1", "fd00::1", "fe80::1%eth0", "::ffff:10.0.0.1"),
]
PUBLIC = [
    "",
    "api.example.com",
    "svc.example.com",
    "checkout.shop",
    "8.8.8.8",
    "2001:4860:4860::8888",
    "::ffff:8.8.8.8",
]


@pytest.mark.parametrize("host", [*PRIVATE, *PUBLIC])
def test_only_private_hosts_get_the_name_of_the_service(host: str) -> None:
    assert may_name_service_to(host, "") == (host in PRIVATE)


def test_listed_hosts_get_the_name_of_the_service() -> None:
    listed = "*.Example.com, 8.8.8.8"

    assert [may_name_service_to(host, listed) for host in ("api.example.COM", "example.com", "8.8.8.8", "8.8.4.4")] == [
        *(True, False, True, False)
    ]
    assert may_name_service_to("api.example.org", "*")
    assert not may_name_service_to("", "*")


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("checkout:50051", "checkout"),
        ("dns:///api.example.com:443", "api.example.com"),
        ("dns:api.example.com", "api.example.com"),
        ("ipv4:10.0.0.1:50051,10.0.0.2:50051", "10.0.0.1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("10.0.0.1:8000/v2", "10.0.0.1"),
        ("unix:/run/model.sock", "localhost"),
        ("google-c2p:///api.example.com", ""),
        ("https://api.example.com", ""),
    ],
)
def test_the_host_of_a_target(target: str, host: str) -> None:
    assert host_of_target(target) == host
