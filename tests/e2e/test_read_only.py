"""A database that this user may only read: the dashboard serves it, and every command that has to write says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from stagelens.store import Store
from tests.alerts.traffic import Clock, Traffic
from tests.support.process_output import Printing

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]
MINUTES = timedelta(minutes=10)


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Path]:
    """A read-only folder with a copy of a database, and an SLO file; a mount, because root may write to any file."""
    now = datetime.now(UTC)
    store = Store.open(f"sqlite:///{tmp_path}/live.db")
    Traffic(store, Clock(now))(now - MINUTES, MINUTES, {5: {"forward": 0.1}}, service="shop")
    store.close()
    found = tmp_path / "copy"
    found.mkdir()
    shutil.copy(tmp_path / "live.db", found / "stagelens.db")
    slo = "slos:\n  - {name: shop, service: shop, objective: 0.99, threshold: 250ms, window: 30d}\n"
    (found / "slo.yaml").write_text(slo, encoding="utf-8")
    if os.getuid():
        (found / "stagelens.db").chmod(0o444)
        found.chmod(0o555)
        yield found
        found.chmod(0o755)
        return
    if subprocess.run(["mount", "--bind", found, found], capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount a folder")
    subprocess.run(["mount", "-o", "remount,ro,bind", found], check=True)
    yield found
    subprocess.run(["umount", found], check=True)


def environment(folder: Path) -> dict[str, str]:
    ports = dict.fromkeys(
        ("STAGELENS_DASHBOARD_PORT", "STAGELENS_COLLECTOR_PORT", "STAGELENS_COLLECTOR_GRPC_PORT"), "0"
    )
    database = f"sqlite:///{folder}/stagelens.db"
    slo = str(folder / "slo.yaml")
    return os.environ | ports | {"STAGELENS_DATABASE": database, "STAGELENS_SLO_FILE": slo, "PYTHONUNBUFFERED": "1"}


def test_the_dashboard_serves_a_read_only_copy(folder: Path) -> None:
    dashboard = Printing([sys.executable, "-m", "stagelens", "dashboard"], env=environment(folder), cwd=folder.parent)
    try:
        url = dashboard.wait_for(r"dashboard +(http\S+)", 120)[1]
        with httpx.Client(base_url=url, timeout=60) as client:
            pages = {path: client.get(path).status_code for path in ("/", "/s/shop", "/slo", "/incidents", "/settings")}
            services = client.get("/api/v1/services").text
    finally:
        dashboard.kill()
        dashboard.wait()

    assert set(pages.values()) == {200}
    assert "shop" in services
    assert "Traceback" not in "\n".join(dashboard.lines)


@pytest.mark.parametrize("command", ["collector", "alerts", "up"])
def test_a_command_that_writes_names_the_fix(folder: Path, command: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "stagelens", command],
        env=environment(folder),
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert result.returncode == 1
    assert f"cannot open {folder}/stagelens.db" in result.stderr
    assert "may write to it" in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1
