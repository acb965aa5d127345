"""Secrets in files: reloaded after a rotation, and retained while the file is missing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from stagelens.alerts.delivery.channels import ChannelEntry
from stagelens.alerts.delivery.channels.slack import SlackBot
from stagelens.alerts.objectives.slo_file import LiveSloFile

NOW = datetime(2026, 11, 20, tzinfo=UTC)
SLO = "slos:\n  - {name: latency, service: shop, objective: 0.99, threshold: 250ms, window: 30d}\n"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    return tmp_path / "token"


@pytest.fixture
def live(slo_yaml: Path, token: Path) -> LiveSloFile:
    slo_yaml.write_text(f"{SLO}channels:\n  - {{kind: slack, channel: C0123456789, token_file: {token}}}\n")
    return LiveSloFile(slo_yaml, {})


def entry(live: LiveSloFile) -> ChannelEntry:
    live.refresh(NOW)
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
