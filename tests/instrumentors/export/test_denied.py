"""A collector with access control: credentials of the agent, and the messages for rejected ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stagelens.instrumentors.config import ClientTlsFiles
from tests.instrumentors.export.conftest import Exporters, Guarded, Sink, batch, until
from tests.support.certificate_authority import Authorities, Pem

# Where a server goes while a client's connection waits to be accepted, Python's ssl leaves the client's socket to the collector of
# garbage, which tells (python/cpython#108310: the peer reset before `wrap_socket` looked at it).
pytestmark = pytest.mark.filterwarnings("ignore:.*SSLSocket:pytest.PytestUnraisableExceptionWarning")


def shown(trusted: Path, client: Pem) -> ClientTlsFiles:
    return ClientTlsFiles(str(trusted), str(client.certificate), str(client.key))


@pytest.mark.parametrize("status", [401, 403])
def test_a_denied_batch_is_sent_once_and_logged_once_with_the_fix(
    sink: Sink, exporter: Exporters, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    sink.answers.extend([(status, {}, b"who are you?")] * 3)
    agent = exporter()
    for number in range(3):
        agent.offer(batch(sink.url, number))

    assert agent.drain(60)
    assert [post.name for post in sink.posts] == ["instance:0", "instance:1", "instance:2"]
    assert exporter.losses == [("rejected", 1)] * 3

    (line,) = caplog.messages

    for part in (
        f"HTTP {status}",
        "who are you?",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    ):
        assert part in line


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 2), (3600.0, 1)])
def test_a_token_that_expires_later_is_logged_again(
    sink: Sink, exporter: Exporters, caplog: pytest.LogCaptureFixture, seconds: float, lines: int
) -> None:
    sink.answers.extend([(401, {}, b""), (200, {}, b""), (401, {}, b"")])
    agent = exporter(quiet_seconds=seconds)
    for number in range(3):
        agent.offer(batch(sink.url, number))

    assert agent.drain(60)
    assert len(caplog.messages) == lines


def test_a_client_certificate_is_presented(guarded: Guarded, authority: Authorities, exporter: Exporters) -> None:
    agent = exporter(trust=shown(authority("servers").file, authority("clients").sign("checkout")))
    agent.offer(batch(guarded.url))

    assert agent.drain(60)
    assert guarded.seen == ["checkout"]


@pytest.mark.parametrize("client", [None, "strangers"])
def test_without_a_valid_certificate_data_waits_and_the_settings_are_named(
    guarded: Guarded, authority: Authorities, exporter: Exporters, caplog: pytest.LogCaptureFixture, client: str | None
) -> None:
    trusted = authority("servers").file
    agent = exporter(
        trust=shown(trusted, authority(client).sign("checkout")) if client else ClientTlsFiles(str(trusted))
    )
    agent.offer(batch(guarded.url))
    agent.wake()
    until(lambda: caplog.messages)

    assert guarded.seen == []
    assert len(caplog.messages) == 1
    assert not agent.drain(1)


def test_an_untrusted_server_is_reported(
    guarded: Guarded, exporter: Exporters, caplog: pytest.LogCaptureFixture
) -> None:
    agent = exporter()
    agent.offer(batch(guarded.url))
    agent.wake()
    until(lambda: caplog.messages)

    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in caplog.messages[0]


def test_a_renewed_certificate_is_used_at_the_next_attempt(
    guarded: Guarded, authority: Authorities, exporter: Exporters, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, good = authority("strangers").sign("old"), authority("clients").sign("new")
    trust = ClientTlsFiles(str(authority("servers").file), str(tmp_path / "own.pem"), str(tmp_path / "own.key"))
    for source in (own, good):
        shutil.copyfile(source.certificate, tmp_path / "own.pem")
        shutil.copyfile(source.key, tmp_path / "own.key")
        if source is own:
            agent = exporter(trust=trust)
            agent.offer(batch(guarded.url))
            agent.wake()
            until(lambda: caplog.messages)
    until(lambda: guarded.seen)

    assert guarded.seen == ["new"]


def test_an_encrypted_key_prompts_for_no_password(
    guarded: Guarded, authority: Authorities, exporter: Exporters, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = authority("clients").sign("checkout")
    locked = tmp_path / "locked.key"
    own.encrypt_key(locked)
    agent = exporter(trust=ClientTlsFiles(str(authority("servers").file), str(own.certificate), str(locked)))
    agent.offer(batch(guarded.url))
    agent.wake()
    until(lambda: caplog.messages)

    assert guarded.seen == []
    assert "OTEL_EXPORTER_OTLP_CLIENT_KEY" in caplog.messages[0]
