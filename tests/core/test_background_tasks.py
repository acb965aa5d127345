"""Periodic threads: stopping."""

from __future__ import annotations

import threading

import pytest

from stagelens.core.background_tasks import TaskSupervisor


async def nothing(_: str) -> None:
    """Do nothing."""


def test_a_thread_stopped_before_its_start_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    joining = threading.Event()
    run, join = vars(TaskSupervisor)["_run"], threading.Thread.join

    def late(self: TaskSupervisor[str]) -> None:
        assert joining.wait(60)
        run(self)

    def joined(self: threading.Thread, timeout: float | None = None) -> None:
        joining.set()
        join(self, 60 if timeout is None else timeout)

    monkeypatch.setattr(TaskSupervisor, "_run", late)
    supervisor = TaskSupervisor[str](
        "tending", wanted=dict[str, str], run_task=nothing, on_removed=print, check_seconds=3600
    )
    supervisor.start()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", joined)
        supervisor.stop()

    assert not supervisor.thread.is_alive()
