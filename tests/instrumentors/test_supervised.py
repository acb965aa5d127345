"""Open requests in shared memory: what a supervisor reads of a worker that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from stagelens.instrumentors import records
from stagelens.instrumentors.recorder import OpenRequest
from stagelens.instrumentors.supervised import SharedRequests
from tests.instrumentors.conftest import Sink


@pytest.mark.parametrize("count", [0, 1, 256, 1000])
def test_the_last_written_requests_are_read(count: int) -> None:
    shared = SharedRequests()
    assert shared.read(os.getpid()) == (0, [])
    shared.write([OpenRequest(1, "first")])
    before = records.clock()
    shared.write([OpenRequest(2 + number, "é" * 300) for number in range(count)])

    written, requests = shared.read(os.getpid())
    assert before < written < records.clock()
    assert shared.read(1)[1] == []
    assert len(requests) == count
    assert requests[:256] == [OpenRequest(2 + number, "é" * 64) for number in range(min(count, 256))]
    assert requests[256:] == [OpenRequest(257, "")] * (count - 256)


KILLED = """
import multiprocessing, os, signal, sys, threading, time
import stagelens
def hang():
    with stagelens.request("slow"):
        time.sleep(300)
if __name__ == "__main__":
    method, how = sys.argv[1:]
    processes = multiprocessing.get_context(method)
    child = processes.Process(target=hang)
    # A fork beside other threads is no worse for one of ours.
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
    child.start()
    while not child._popen.stagelens_shared.read(child.pid)[1]:
        time.sleep(0.01)
    if how == "kill":
        child.kill()
    else:
        os.kill(child.pid, signal.SIGKILL)
    if how == "unnoticed":
        # The supervisor looks only at another child.
        other = processes.Process(target=time.sleep, args=(300,))
        other.start()
        while hasattr(child._popen, "stagelens_shared"):
            other.is_alive()
            time.sleep(0.1)
        other.terminate()
    child.join()
    print(child.exitcode)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is shared on Linux")
@pytest.mark.parametrize(
    ("method", "how"),
    # A fork server is the parent of its children, so that nobody else can look for them.
    [*product(("spawn", "fork", "forkserver"), ("kill", "kill -9")), ("spawn", "unnoticed"), ("fork", "unnoticed")],
)
def test_a_supervisor_reports_the_requests_of_a_killed_child(sink: Sink, tmp_path: Path, method: str, how: str) -> None:
    script = tmp_path / "supervisor.py"
    script.write_text(KILLED)
    command = [sys.executable, "-m", "stagelens", "run", "--", sys.executable, str(script), method, how]
    done = subprocess.run(command, env=sink.environment(), timeout=120, check=True, capture_output=True, text=True)

    # The fork server reports another status of its children.
    assert int(done.stdout) in {-9, 255}
    assert (sink.requests(), sink.requests(http_route="slow", inference_status="error")) == (1, 1), done.stderr
