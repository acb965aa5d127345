"""uvicorn in each of its ways to run: every request is reported once, by the process that served it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ...conftest import Sink
    from .conftest import Server

pytestmark = pytest.mark.stacks

Start = Callable[..., "Server"]

HERE = Path(__file__).parent
# A worker that does not answer its supervisor for five seconds is killed otherwise, also while it loads.
UVICORN = ("uvicorn", "--port", "{port}", "--timeout-worker-healthcheck", "120", "fastapi_service:app")
# Exports stand on the multiples of the interval since 1970.
NEVER = "36500d"


def assert_clean(ended: tuple[int, str], status: int) -> None:
    """Check that the server exited as without Stagelens and without errors."""
    assert ended[0] == status, ended[1]
    assert "Traceback" not in ended[1]
    assert "stagelens:" not in ended[1]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (("--lifespan", "on"), -signal.SIGTERM),
        (("--lifespan", "off"), -signal.SIGTERM),
        (("--lifespan", "off", "--workers", "2"), 0),
    ],
)
def test_every_process_reports_all_requests_once(
    start: Start, sink: Sink, options: tuple[str, ...], status: int
) -> None:
    server = start(*UVICORN, *options, STAGELENS_EXPORT_INTERVAL=NEVER)
    bodies = server.send_many("/", 30)

    assert_clean(server.stop(), status)
    assert sink.requests() == 30
    assert len(sink.instances()) == len({body["pid"] for body in bodies})


def test_a_reloaded_process_reports_before_its_exit(
    start: Start, sink: Sink, tmp_path: Path, until: Callable[[Callable[[], object], str], None]
) -> None:
    service, changed = tmp_path / "fastapi_service.py", tmp_path / "changed"
    for name in (service.name, "gate.py"):
        shutil.copy(HERE / name, tmp_path)
    server = start(*UVICORN, "--reload", cwd=tmp_path, STAGELENS_EXPORT_INTERVAL=NEVER)
    first = server.send_request("/")["pid"]

    def replaced() -> bool:
        if sink.requests() == 1:
            return True
        # Again and again: the reloader may not have looked at the file yet. In one go: it may be read at any time.
        changed.write_text(service.read_text() + "# changed\n")
        changed.replace(service)
        return False

    def settled() -> bool:
        _, found, after = server.log().rpartition("last.py")
        return bool(found) and "Started server process" in after

    until(replaced, "the report of the process that was replaced")
    # The reloader may not have seen all changes yet: after this one there is none.
    (tmp_path / "last.py").touch()
    until(settled, "the process that stays")
    second = server.send_request("/")["pid"]

    assert_clean(server.stop(), 0)
    assert second != first
    assert sink.requests() == 2
    assert len(sink.instances()) == 2
