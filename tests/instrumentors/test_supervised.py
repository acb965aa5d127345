"""Open requests in shared memory: what a supervisor reads of a worker that was killed."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from stagelens.instrumentors import recorder, records, supervised
from stagelens.instrumentors.recorder import OpenRequest
from stagelens.instrumentors.supervised import FailedRequests, SharedRequests

if TYPE_CHECKING:
    from conftest import Finished


@pytest.mark.parametrize("count", [0, 1, 256, 1000])
def test_the_last_written_requests_are_read(count: int) -> None:
    """However many there are, those beyond the limit without their routes; before the first write there are none."""
    shared = SharedRequests()
    assert shared.read() == []
    shared.write([OpenRequest(1, "first")])
    shared.write([OpenRequest(2 + number, "é" * 300) for number in range(count)])

    requests = shared.read()
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
    failed.add(child, shared.read())
    failed.record()
    failed.record()

    ((_, start, end, route, error, *_),) = finished
    assert before < start < end < records.clock()
    assert (route, error) == ("", supervised.KILLED)
    assert "1 open requests count as failed" in caplog.text
