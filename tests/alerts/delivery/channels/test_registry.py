"""Channels of the SLO file: all kinds, errors, and secrets, also in files that are rotated or missing for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from stagelens.alerts.delivery.channels import KINDS, ChannelEntry
from stagelens.alerts.delivery.channels.alertmanager import AlertmanagerChannel
from stagelens.alerts.delivery.channels.email import EmailChannel
from stagelens.alerts.delivery.channels.slack import SlackBot, SlackWebhook
from stagelens.alerts.objectives.slo_file import LiveSloFile, SloFileError, read_slo_file

SLO = "slos:\n  - {name: latency, service: shop, objective: 0.99, threshold: 250ms, window: 30d}\n"
ENV = {
    "TOKEN": "xoxb-secret-token",
    "SIGNING": "signing-secret",
    "PASSWORD": "pass-word-secret",
    "URL": "https://x.example/secret-path",
    "UMLAUT": "Schlüssel",
}


def entries(tmp_path: Path, *channels: str) -> tuple[ChannelEntry, ...]:
    path = tmp_path / "slo.yaml"
    path.write_text(SLO + "channels:\n" + "".join(f"  - {{{channel}}}\n" for channel in channels), encoding="utf-8")
    return read_slo_file(path, ENV).channels


def complaint(tmp_path: Path, channel: str) -> str:
    with pytest.raises(SloFileError) as caught:
        entries(tmp_path, channel)
    return str(caught.value).partition(":3: ")[2] or str(caught.value).partition(":4: ")[2]


def test_every_kind_is_parsed(tmp_path: Path) -> None:
    mail = "host: smtp.example.com, from: a@example.com, to: [b@example.com, c@example.com]"
    found = entries(
        tmp_path,
        "kind: slack, webhook_url_env: URL",
        "kind: slack, name: bot, token_env: TOKEN, channel: C0123456789, signing_secret_env: SIGNING",
        "kind: pagerduty, routing_key_env: TOKEN, webhook_secret_env: SIGNING",
        "kind: alertmanager, url_env: URL",
        f"kind: email, {mail}, user: u, password_env: PASSWORD",
        "kind: webhook, url_env: URL, secret_env: SIGNING",
        "kind: heartbeat, url_env: URL",
    )
    to = ("b@example.com", "c@example.com")
    sent_by = EmailChannel("email", "smtp.example.com", "a@example.com", to, user="u", password="pass-word-secret")  # noqa: S106

    assert {entry.kind for entry in found} == set(KINDS)
    assert [type(entry.channel) for entry in found[:2]] == [SlackWebhook, SlackBot]
    assert [entry.signing_secret for entry in found[:3]] == ["", "signing-secret", "signing-secret"]
    assert found[1].channel == SlackBot("bot", "xoxb-secret-token", "C0123456789", buttons=True)
    assert isinstance(found[3].channel, AlertmanagerChannel)
    assert found[4].channel == sent_by
    assert [entry.takes_messages for entry in found] == [True] * 6 + [False]
    assert [secret for secret in ("secret", "xoxb", "pass-word") if secret in repr(found)] == []


@pytest.mark.parametrize(
    ("channel", "lacking"),
    [
        ("kind: slack, webhook_url_env: NOT_SET", "NOT_SET"),
        ("kind: slack, webhook_url_file: /none/there", "the file /none/there"),
        ("kind: webhook, url_env: URL, secret_env: NOT_SET", "NOT_SET"),
        ("kind: email, host: h, from: a@b.example, to: a@b.example, user: u, password_env: NOT_SET", "NOT_SET"),
        ("kind: heartbeat, url_env: NOT_SET", "NOT_SET"),
    ],
)
def test_a_missing_secret_is_named(tmp_path: Path, channel: str, lacking: str) -> None:
    entry = entries(tmp_path, channel)[0]

    assert (entry.lacking, entry.channel, entry.heartbeat) == (lacking, None, None)


@pytest.mark.parametrize(
    ("channel", "error"),
    [
        ("kind: slack, token_env: TOKEN", "channels[0].channel is missing; add `channel: C0123456789`"),
        ("kind: slack, channel: C0123456789", "channels[0].token_env is missing; add `token_env: SLACK_BOT_TOKEN`"),
        ("kind: slack, token_env: TOKEN, channel: '#alerts'", "channels[0].channel is '#alerts'; write the channel's"),
        ("kind: email, host: h, from: me, to: a@b.example", "channels[0].from has 'me'; write a mail address"),
        ("kind: email, host: h, from: a@b.example, to: [x]", "channels[0].to has 'x'; write a mail address"),
        ("kind: email, host: h, from: a@b.example, to: a@b.example, user: u", "channels[0].password_env is missing"),
        (
            "kind: email, host: h, from: a@b.example, to: a@b.example, user: u, password_env: UMLAUT",
            "channels[0].user or its password has a non-ASCII letter; SMTP",
        ),
        (f"kind: webhook, url_env: URL, name: {'x' * 65}", "channels[0].name has 65 characters; use at most 64"),
    ],
)
def test_an_error_is_named_with_its_fix(tmp_path: Path, channel: str, error: str) -> None:
    assert complaint(tmp_path, channel).startswith(error)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    return tmp_path / "token"


@pytest.fixture
def live(slo_yaml: Path, token: Path) -> LiveSloFile:
    slo_yaml.write_text(f"{SLO}channels:\n  - {{kind: slack, channel: C0123456789, token_file: {token}}}\n")
    return LiveSloFile(slo_yaml, {})


def entry(live: LiveSloFile) -> ChannelEntry:
    live.refresh(datetime.now(UTC))
    assert live.current is not None
    return live.current.channels[0]


def bot(secret: str) -> SlackBot:
    return SlackBot("slack", secret, "C0123456789")


def test_a_secret_that_appears_or_is_rotated_is_used(live: LiveSloFile, token: Path) -> None:
    before = entry(live)
    token.write_text("xoxb-first\n")
    first = entry(live).channel
    token.write_text("xoxb-second\n")
    second = entry(live).channel
    folders = [token.with_name(name) for name in ("one", "two")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "token").write_text(f"xoxb-mounted-{number}")
    token.unlink()
    token.symlink_to(folders[0] / "token")
    mounted = entry(live).channel
    token.with_name("new").symlink_to(folders[1] / "token")
    token.with_name("new").replace(token)

    assert (before.channel, before.lacking) == (None, f"the file {token}")
    assert [first, second, mounted] == [bot("xoxb-first"), bot("xoxb-second"), bot("xoxb-mounted-0")]
    assert entry(live).channel == bot("xoxb-mounted-1")


@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b" \n", "is empty"),
        (b"\xff\xfe", "is not text"),
        (b"xoxb-1\nxoxb-2", "is not one line of text"),
    ],
)
def test_an_emptied_file_does_not_remove_the_secret(
    live: LiveSloFile, token: Path, content: bytes | None, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    token.write_text("xoxb-good")
    entry(live)
    if content is None:
        token.unlink()
    else:
        token.write_bytes(content)
    retained = entry(live)
    token.write_text("xoxb-mended")

    assert (retained.channel, retained.lacking) == (bot("xoxb-good"), "")
    assert f"channels[0].token_file names {token}, which {trouble}; the previous secret stays in use" in caplog.text
    assert "xoxb" not in caplog.text
    assert entry(live).channel == bot("xoxb-mended")


def test_another_file_is_another_secret(live: LiveSloFile, slo_yaml: Path, token: Path) -> None:
    token.write_text("xoxb-first")
    entry(live)
    slo_yaml.write_text(slo_yaml.read_text().replace(str(token), f"{token}-2"))

    assert entry(live).lacking == f"the file {token}-2"
