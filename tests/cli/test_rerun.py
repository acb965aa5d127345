"""Commands that start again with an extra in the throw-away environments of uvx and pipx."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stagelens.cli import rerun
from stagelens.cli.rerun import command_with

UVX = Path("/cache/uv/archive-v0/Xq3")


@pytest.fixture
def pipx(tmp_path: Path) -> tuple[dict[str, str], Path]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pipx").touch(0o755)
    prefix = tmp_path / ".cache" / "0af7"
    prefix.mkdir(parents=True)
    (prefix / "pipx_metadata.json").touch()
    return {"PATH": str(tmp_path / "bin")}, prefix


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    facts = {"version": "9.9"}

    class Installed:
        version = facts["version"]

        def read_text(self, name: str) -> str | None:
            return facts.get(name)

    monkeypatch.setattr(rerun, "distribution", lambda _name: Installed())
    return facts


@pytest.mark.usefixtures("installed")
def test_uvx_makes_an_environment_with_the_extra() -> None:
    command = command_with("server", ["up", "--port", "1"], {"UV": "/bin/uv"}, UVX)

    assert command == ["/bin/uv", "tool", "run", "--from", "stagelens[server]==9.9", "stagelens", "up", "--port", "1"]


def test_pipx_makes_an_environment_with_the_extra(pipx: tuple[dict[str, str], Path], installed: dict[str, str]) -> None:
    installed["direct_url.json"] = json.dumps({"url": "file:///wheels/stagelens.whl"})
    env, prefix = pipx

    command = command_with("mcp", ["mcp"], env, prefix)

    spec = "stagelens[mcp] @ file:///wheels/stagelens.whl"
    assert command == [f"{env['PATH']}/pipx", "run", "--spec", spec, "stagelens", "mcp"]


@pytest.mark.parametrize(
    ("env", "prefix"),
    [
        ({}, UVX),
        ({"UV": "/bin/uv"}, Path("/srv/project/.venv")),
        ({"UV": "/bin/uv", "STAGELENS_RERUN_WITH": "server"}, UVX),
    ],
)
def test_other_environments_stay_as_they_are(env: dict[str, str], prefix: Path) -> None:
    assert command_with("server", ["up"], env, prefix) is None
