"""Section `forward:` of the collector's file: parsing, and errors with lines and without secrets."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from stagelens.collector.forward import config
from stagelens.collector.forward.config import Destination, HeaderSecret
from stagelens.core.egress import CallTls, EgressPolicy
from stagelens.core.settings import yaml_config


def read(entry: str, env: dict[str, str] | None = None) -> tuple[tuple[Destination, ...], list[str]]:
    """Return the destinations of *entry*, one of a list, and its problems as line and text."""
    document = yaml_config.parse(f"forward:\n  destinations:\n{entry}")
    found = config.read_destinations(document, ("forward",), document.value["forward"], env or {}, EgressPolicy())
    return found, [f"{problem.line}: {problem.text}" for problem in document.problems]


def test_a_destination_needs_a_name_and_an_endpoint() -> None:
    destinations, problems = read("  - {name: tempo, endpoint: 'http://tempo:4318/'}\n")

    assert problems == []
    assert destinations == (Destination(name="tempo", endpoint="http://tempo:4318"),)
    assert (destinations[0].signals, destinations[0].when_full) == (("metrics", "traces", "logs"), "refuse")


def test_every_setting_is_parsed(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("key", "ca.pem", "cert.pem", "key.pem")]
    for file in files:
        file.touch()
    destinations, problems = read(
        f"""\
  - name: cloud
    endpoint: https://otlp.example.com/secret-path
    signals: [traces, metrics]
    headers:
      X-Scope-OrgID: team
      Authorization: {{env: AUTH}}
      Api-Key: {{file: {files[0]}}}
    tls: {{ca_file: {files[1]}, cert_file: {files[2]}, key_file: {files[3]}}}
    compression: zstd
    timeout: 30s
    most_waiting: 1GiB
    when_full: drop_oldest
""",
        {"AUTH": "Basic c2VjcmV0"},
    )
    (found,) = destinations

    assert problems == []
    assert found.signals == ("metrics", "traces")
    assert found.headers == {
        "X-Scope-OrgID": "team",
        "Authorization": HeaderSecret(env="AUTH"),
        "Api-Key": HeaderSecret(file=files[0]),
    }
    assert found.tls == CallTls(ca_file=files[1], cert_file=files[2], key_file=files[3])
    assert (found.compression, found.timeout) == ("zstd", timedelta(seconds=30))
    assert (found.most_waiting, found.when_full) == (1024**3, "drop_oldest")
    assert found.place == "https://otlp.example.com"
    assert "secret-path" not in repr(found)
    assert "c2VjcmV0" not in repr(found)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{endpoint: 'http://a'}", "destinations[0].name is missing; add `name: tempo`"),
        ("{name: a}", "endpoint is missing; add `endpoint: http://tempo:4318`"),
        ("{name: a, endpoint: 'grpc://a:4317'}", "endpoint is not a web address"),
        ("{name: a, endpoint: 'http://'}", "endpoint is not a URL; write one such as http://tempo:4318"),
        ("{name: a, endpoint: 'http://u:p@a'}", "endpoint contains a user or a query; put secrets into headers:"),
        ("{name: a, endpoint: 'http://a?key=s3cret'}", "endpoint contains a user or a query"),
        ("{name: a, endpoint: 'http://a/v1/traces'}", "endpoint ends with the path of one signal; remove this path"),
        ("{name: a, protocol: grpc}", "endpoint is missing; add `endpoint: http://tempo:4317`"),
        (
            "{name: a, endpoint: 'http://a', protocol: grcp}",
            "protocol is 'grcp'; write one of http, grpc; did you mean grpc?",
        ),
        (
            "{name: a, endpoint: 'http://a', protocol: http/protobuf}",
            "protocol is 'http/protobuf'; write one of http, grpc",
        ),
        (
            "{name: a, endpoint: 'http://a/otlp', protocol: grpc}",
            "endpoint has a path, which gRPC does not support; write a URL such as http://tempo:4317",
        ),
        (
            "{name: a, endpoint: 'http://a', protocol: grpc, compression: zstd}",
            "compression is zstd, which gRPC does not support; write gzip or none",
        ),
        (
            "{name: a, endpoint: 'http://a', protocol: grpc, headers: {grpc-timeout: 1S}}",
            "is not valid gRPC metadata; use letters",
        ),
        (
            "{name: a, endpoint: 'http://a', protocol: grpc, headers: {Trace-Bin: x}}",
            "is not valid gRPC metadata; use letters",
        ),
        (
            "{name: a, endpoint: 'http://169.254.169.254', protocol: grpc}",
            "of a cloud metadata service with credentials, which is not",
        ),
        (
            "{name: a, endpoint: 'http://169.254.169.254'}",
            "of a cloud metadata service with credentials, which is not allowed",
        ),
        (
            "{name: a, endpoint: 'http://a', signals: [spans]}",
            "signals has 'spans'; write some of metrics, traces, logs",
        ),
        (
            "{name: a, endpoint: 'http://a', headers: {Key: {env: NOT_SET}}}",
            "env is NOT_SET, which is not set",
        ),
        (
            "{name: a, endpoint: 'http://a', headers: {Key: {}}}",
            "Key needs `env:` with the name of a variable, or `file:`",
        ),
        (
            "{name: a, endpoint: 'http://a', headers: {Key: {file: /nowhere}}}",
            "file is '/nowhere', which is not a file",
        ),
        ("{name: a, endpoint: 'http://a', headers: {'a b': c}}", "is not a valid header; use ASCII characters"),
        (
            "{name: a, endpoint: 'http://a', headers: {Content-Type: x}}",
            "Content-Type is set by Stagelens; remove it",
        ),
        (
            "{name: a, endpoint: 'http://a', compression: brotli}",
            "compression is 'brotli'; write one of gzip, zstd, none",
        ),
        ("{name: a, endpoint: 'http://a', timeout: 5m}", "timeout is 300s; write 1s to 60s, such as 10s"),
        ("{name: a, endpoint: 'http://a', most_waiting: 5kB}", "most_waiting is '5kB'; it must be at least 1MiB"),
        ("{name: a, endpoint: 'http://a', most_waiting: much}", "most_waiting"),
        (
            "{name: a, endpoint: 'http://a', when_full: explode}",
            "when_full is 'explode'; write one of refuse, drop_oldest",
        ),
        ("{name: a, endpoint: 'http://a', endpont: b}", "endpont is not known; did you mean endpoint?"),
        ("nonsense", "is 'nonsense'; write keys and values"),
    ],
)
def test_an_error_has_a_line_and_a_fix(entry: str, problem: str) -> None:
    _, problems = read(f"  - {entry}\n")

    assert len(problems) == 1
    assert problems[0].startswith("3: ")
    assert problem in problems[0]
    assert "s3cret" not in problems[0]


def test_a_destination_can_use_grpc() -> None:
    destinations, problems = read("  - {name: a, endpoint: 'https://a:4317/', protocol: grpc, headers: {X-Org.1: b}}\n")

    assert problems == []
    assert destinations == (
        Destination(name="a", endpoint="https://a:4317", protocol="grpc", headers={"X-Org.1": "b"}),
    )


def test_destination_names_are_unique() -> None:
    destinations, problems = read("  - {name: a, endpoint: 'http://a'}\n  - {name: a, endpoint: 'http://b'}\n")

    assert destinations == ()
    assert problems == ["4: forward.destinations[1].name is 'a', the name of another destination; use unique names"]


def test_a_metadata_address_can_be_permitted() -> None:
    destinations, problems = read("  - {name: a, endpoint: 'http://169.254.1.1', allow_link_local: true}\n")

    assert (len(destinations), problems) == (1, [])
