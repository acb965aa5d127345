"""uvicorn's shutdown: reported once, whatever else happens then."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from stagelens.instrumentors import recorder
from stagelens.instrumentors.libraries import uvicorn as module
from stagelens.instrumentors.libraries.uvicorn import UvicornInstrumentor

INSTRUMENTOR = UvicornInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")


async def app(_scope: Any, _receive: Any, _send: Any) -> None: ...


async def shut_down(server: uvicorn.Server | None = None) -> None:
    server = server or uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="critical"))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    await server.shutdown()


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(recorder, "flush", lambda: threads.append(threading.current_thread()))
    return threads


def test_a_shutdown_reports_once_outside_the_loop(flushed: list[threading.Thread]) -> None:
    asyncio.run(shut_down())

    assert len(flushed) == 1
    assert flushed[0] is not threading.main_thread()
    assert not flushed[0].is_alive()


def test_a_full_pool_does_not_block_the_shutdown(flushed: list[threading.Thread]) -> None:
    release = threading.Event()

    async def go() -> None:
        loop = asyncio.get_running_loop()
        held = [loop.run_in_executor(None, release.wait, 120) for _ in range(64)]
        async with asyncio.timeout(60):
            await shut_down()
        release.set()
        await asyncio.gather(*held)

    asyncio.run(go())

    assert len(flushed) == 1


def test_an_error_of_the_shutdown_comes_through_after_the_report(flushed: list[threading.Thread]) -> None:
    class Broken(uvicorn.Server):
        async def _wait_tasks_to_complete(self) -> None:
            message = "theirs"
            raise LookupError(message)

    server = Broken(uvicorn.Config(app, port=0, lifespan="off", log_level="critical"))
    with pytest.raises(LookupError, match="theirs"):
        asyncio.run(shut_down(server))

    assert len(flushed) == 1


def test_an_agent_failure_is_logged_once_and_the_server_exits(
    reported: set[str], make_fail: Callable[[Any, str], None]
) -> None:
    make_fail(module, "ThreadPoolExecutor")
    asyncio.run(shut_down())
    asyncio.run(shut_down())

    assert len(reported) == 1


def test_a_server_in_a_thread_that_outlives_the_program_shuts_down_silently() -> None:
    code = """
import asyncio, concurrent.futures.thread, threading, time
import uvicorn
from stagelens.instrumentors.libraries.uvicorn import UvicornInstrumentor
from test_uvicorn import shut_down
UvicornInstrumentor().instrument()
def serve():
    while not concurrent.futures.thread._shutdown:
        time.sleep(0.01)
    asyncio.run(shut_down())
    print("down")
threading.Thread(target=serve).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent, timeout=60, check=True
    )

    assert (done.stdout, done.stderr) == ("down\n", "")
