"""Stopping a command and the processes that it started."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from stagelens.instrumentors import session
from stagelens.instrumentors.session import Session

# A signal that is ignored stays ignored in what a shell starts.
IGNORES_SIGTERM = "trap '' TERM; sleep 600 & trap - TERM; wait"


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="processes are known from /proc")  # noqa: PTH110
def test_a_process_that_ignores_sigterm_is_killed(
    monkeypatch: pytest.MonkeyPatch, until: Callable[[Callable[[], object], str], None]
) -> None:
    monkeypatch.setattr(session, "END_SECONDS", 0.0)
    with Session(["sh", "-c", IGNORES_SIGTERM], os.environ) as command:
        until(lambda: len(command.processes()) == 2, "the process that the shell starts")
        started = {each.pid for each in command.processes()}

    until(lambda: started.isdisjoint(each.pid for each in session.processes()), "the end of both")
