"""Open requests in shared memory: what a supervisor reads of a worker that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stagelens.instrumentors import recorder, records, supervised
from stagelens.instrumentors.recorder import OpenRequest
from stagelens.instrumentors.supervised import FailedRequests, SharedRequests

if TYPE_CHECKING:
    from conftest import Finished, Sink


@pytest.mark.parametrize("count", [0, 1, 256, 1000])
def test_the_last_written_requests_are_read(count: int) -> None:
    """However many there are, those beyond the limit without their routes; before the first write there are none."""
    shared = SharedRequests()
    assert shared.read(os.getpid()) == []
    shared.write([OpenRequest(1, "first")])
    shared.write([OpenRequest(2 + number, "é" * 300) for number in range(count)])

    requests = shared.read(os.getpid())
    assert shared.read(1) == []
    assert len(requests) == count
    assert requests[:256] == [OpenRequest(2 + number, "é" * 64) for number in range(min(count, 256))]
    assert requests[256:] == [OpenRequest(257, "")] * (count - 256)


def test_requests_of_a_killed_child_count_as_failed(finished: Finished, caplog: pytest.LogCaptureFixture) -> None:
    """With their age at its death."""
    shared = SharedRequests()
    before = records.clock()
    child = os.fork()
    if child == 0:
        supervised.supervise(supervised.Supervised(shared, bool, 1))
        recorder.begin()
        supervised.note_open_requests()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    failed = FailedRequests()
    failed.add(child, shared.read(child))
    failed.record()
    failed.record()

    ((_, start, end, route, error, *_),) = finished
    assert before < start < end < records.clock()
    assert (route, error) == ("", supervised.KILLED)
    assert "1 open requests count as failed" in caplog.text


KILLED = """
import multiprocessing, time
import stagelens
from stagelens.instrumentors.supervised import read_open_requests
def hang():
    with stagelens.request("slow"):
        time.sleep(300)
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=hang)
    child.start()
    while not read_open_requests(child.pid):
        time.sleep(0.01)
    child.kill()
    child.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory of other processes is found on Linux")
def test_a_supervisor_reports_the_requests_of_a_child_that_it_kills(sink: Sink, tmp_path: Path) -> None:
    """As uvicorn does with a worker that does not answer."""
    script = tmp_path / "supervisor.py"
    script.write_text(KILLED)
    command = [sys.executable, "-m", "stagelens", "run", "--", sys.executable, str(script)]
    subprocess.run(command, env=sink.environment(), timeout=120, check=True)

    assert (sink.requests(), sink.requests(http_route="slow", inference_status="error")) == (1, 1)
