"""The server's own part of a call, from its statistics: planted readings, and a real Triton against its own numbers."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import tritonclient.grpc
import tritonclient.http
from hypothesis import given
from hypothesis import strategies as st

from stagelens.instrumentors import recorder
from stagelens.instrumentors.libraries import triton_endpoint, triton_statistics
from stagelens.instrumentors.libraries.triton_endpoint import Server, Totals
from stagelens.instrumentors.libraries.triton_statistics import Averaged, Known, Window, spread
from stagelens.instrumentors.libraries.tritonclient import TritonClientInstrumentor

if TYPE_CHECKING:
    from tests.support.triton.triton_server import TritonServer

pytestmark = pytest.mark.stacks

http: Any = tritonclient.http
grpc: Any = tritonclient.grpc

INSTRUMENTOR = TritonClientInstrumentor

SECOND = 10**9
SERVER = Server("http", "planted:8000", {})


class Planted:
    """A server whose statistics and a clock whose time are set by the test."""

    def __init__(self) -> None:
        self.now = 100 * SECOND
        self.totals = Totals(0, 0, 0, 0, 0)
        self.error: Exception | None = None
        self.asked = 0

    def ask(self, _server: Server, _model: str, _version: str) -> Totals:
        """Answer a reading."""
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.totals

    def serve(self, seconds: float, *added: int) -> Averaged:
        """Let a call of so many seconds pass, of which the server counts so much."""
        begun = self.now
        self.now += round(seconds * SECOND)
        self.totals = Totals(*(before + more for before, more in zip(self.totals, added, strict=True)))
        late = Averaged(SERVER, "m", "", begun, self.now)
        self.now += 1
        return late


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Plant a server and a clock."""
    planted = Planted()
    monkeypatch.setattr(triton_statistics, "ask", planted.ask)
    monkeypatch.setattr(triton_statistics, "clock", lambda: planted.now)
    monkeypatch.setattr(triton_statistics, "known", Known())
    return planted


def ready(call: Averaged) -> bool:
    """Ask as the background does: once when the request has ended, and again when all that ended with it were asked."""
    call.ready()
    return call.ready()


def spent(marks: list[Any]) -> dict[str, int]:
    """Return how long each stage of *marks* took."""
    return {marks[at]: marks[at + 2] - marks[at + 1] for at in range(0, len(marks), 3)}


def test_the_first_call_has_no_reading_before_it(planted: Planted) -> None:
    """It stays on the wire at once, instead of holding its request."""
    first = planted.serve(1, 1, 900, 0, 900, 0)

    assert ready(first)
    assert first.marks() == []


def test_a_call_between_two_readings_has_their_average(planted: Planted) -> None:
    """Of all calls the server counted then, whoever made them."""
    planted.serve(1, 7, 10**12, 0, 10**12, 0).ready()
    planted.now += SECOND
    call = planted.serve(1, 4, 4 * 600, 4 * 20, 4 * 500, 4 * 30)

    assert ready(call)
    assert spent(call.marks()) == {
        "queue@averaged": 50,
        "h2d@averaged": 20,
        "forward@averaged": 500,
        "d2h@averaged": 30,
    }


def test_a_call_waits_for_the_reading_after_it(planted: Planted) -> None:
    """A model is read once a second, and the server counts a call a little after it has answered."""
    planted.serve(0.1, 1, 9, 0, 9, 0).ready()
    call = planted.serve(0.1, 0, 0, 0, 0, 0)

    assert not ready(call)
    planted.now += SECOND
    assert not ready(call)
    planted.now += SECOND
    planted.totals = Totals(2, 12, 0, 12, 0)
    assert not ready(call) or planted.asked == 3
    planted.now += SECOND
    assert ready(call)
    assert spent(call.marks()) == {"forward@averaged": 3}


def test_a_model_is_read_at_most_once_a_second(planted: Planted) -> None:
    """However many calls there are."""
    for _ in range(100):
        planted.serve(0.01, 1, 5, 0, 5, 0).ready()

    assert planted.asked <= 2


def test_a_call_that_waited_in_vain_has_the_average_before_it(planted: Planted) -> None:
    """After three seconds nobody asks any more: the last that is known stands for it."""
    planted.serve(0.1, 1, 9, 0, 9, 0).ready()
    planted.now += SECOND
    planted.serve(0.1, 1, 7, 0, 7, 0).ready()
    call = planted.serve(0.1, 1, 5, 0, 5, 0)

    assert not ready(call)
    assert spent(call.marks()) == {"forward@averaged": 7}


def test_a_server_started_anew_counts_from_the_beginning(planted: Planted) -> None:
    """Its totals are smaller than before: nothing is averaged over that."""
    planted.serve(0.1, 1000, 9000, 0, 9000, 0).ready()
    planted.now += SECOND
    planted.totals = Totals(0, 0, 0, 0, 0)
    call = planted.serve(0.1, 1, 5, 0, 5, 0)

    assert ready(call)
    assert call.marks() == []


def test_a_server_started_anew_may_have_served_more_than_before(planted: Planted) -> None:
    """Within a second it counts more calls than it had, but less time: that is no average of anything."""
    planted.serve(0.1, 10, 10 * SECOND, 0, 9 * SECOND, 0).ready()
    planted.now += SECOND
    planted.totals = Totals(0, 0, 0, 0, 0)
    late = planted.serve(0.1, 12, 12 * 900, 0, 12 * 800, 0)

    assert ready(late)
    assert late.marks() == []


def test_a_slow_server_takes_a_tenth_of_the_time_at_most(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait to be counted while it is asked, and it may be asked about many models."""

    def slowly(*_: object) -> Totals:
        planted.asked += 1
        planted.now += SECOND // 2
        return planted.totals

    monkeypatch.setattr(triton_statistics, "ask", slowly)
    began = planted.now
    while planted.now < began + 60 * SECOND:
        for model in range(10):
            Averaged(SERVER, str(model), "", planted.now, planted.now).ready()
        planted.now += SECOND

    assert 8 <= planted.asked <= 13


def test_a_server_that_does_not_tell_is_asked_ever_more_rarely(
    planted: Planted, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named in the log once, no request waits for it, and it is heard again when it tells."""
    planted.error = ConnectionRefusedError()
    with caplog.at_level(logging.WARNING, "stagelens"):
        for _ in range(200):
            call = planted.serve(0.5, 1, 5, 0, 5, 0)
            assert ready(call)
            assert call.marks() == []
    asked = planted.asked
    planted.error = None
    planted.now += 64 * SECOND
    planted.serve(0.1, 1, 5, 0, 5, 0).ready()
    planted.now += SECOND
    call = planted.serve(0.1, 1, 5, 0, 5, 0)

    assert asked <= 7
    (logged,) = caplog.records
    assert "planted:8000 does not tell its statistics (ConnectionRefusedError)" in logged.getMessage()
    assert ready(call)
    assert spent(call.marks()) == {"forward@averaged": 5}


def test_so_many_models_are_read_and_no_more(planted: Planted) -> None:
    """A model named by each request must not grow us; who is called no more makes room."""

    def call(number: int) -> Averaged:
        return Averaged(SERVER, f"m{number}", "", planted.now - 1, planted.now)

    assert all(ready(call(number)) for number in range(1000))
    assert planted.asked == triton_statistics.MAX_MODELS
    assert call(999).marks() == []
    planted.now += triton_statistics.IDLE_NS + 1
    assert ready(call(999))
    assert planted.asked == triton_statistics.MAX_MODELS + 1


amounts = st.integers(0, 10**12)


@given(count=st.integers(1, 10**6), parts=st.tuples(*[amounts] * 4), wall=st.integers(0, 10**12), mean=amounts)
def test_the_servers_stages_lie_inside_the_call(
    count: int, parts: tuple[int, int, int, int], wall: int, mean: int
) -> None:
    """One after the other, whatever the server counted: an average may be longer than this call was."""
    marks = spread(Window(Totals(count, *parts), mean), 1000, 1000 + wall)
    edges = [edge for at in range(0, len(marks), 3) for edge in marks[at + 1 : at + 3]]

    assert [1000, *edges, 1000 + wall] == sorted([1000, *edges, 1000 + wall])
    assert all(key.endswith("@averaged") for key in marks[::3])


def test_steps_side_by_side_share_the_time_they_took() -> None:
    """An ensemble's steps may compute longer together than the ensemble ran."""
    marks = spread(Window(Totals(calls=1, whole=100, h2d=20, forward=180, d2h=0), 200), 0, 200)

    assert marks == ["h2d@averaged", 50, 60, "forward@averaged", 60, 150]


@given(st.lists(st.integers(1_000, 10**9), min_size=1, max_size=50), st.floats(0, 1))
def test_all_calls_together_have_what_the_server_says(walls: list[int], share: float) -> None:
    """However different they were: cutting the average to the short ones would lose what the long ones had more."""
    whole = int(sum(walls) * share)
    window = Window(Totals(len(walls), whole, 0, whole, 0), sum(walls) / len(walls))
    marks = [spread(window, 0, wall) for wall in walls]
    told = sum(end - start for each in marks for start, end in zip(each[1::3], each[2::3], strict=True))

    assert whole - 2 * len(walls) <= told <= whole + 1


# The real server.


def server_of(triton: TritonServer, protocol: str) -> Server:
    """Return the server as a client of *protocol* is told of it."""
    return Server(protocol, triton.http if protocol == "http" else triton.grpc, {})


def own_statistics(triton: TritonServer, model: str) -> dict[str, dict[str, int]]:
    """Return what the server says, without any of our code."""
    with urllib.request.urlopen(f"http://{triton.http}/v2/models/{model}/stats", timeout=10) as answer:
        return json.loads(answer.read())["model_stats"][0]["inference_stats"]


def drive(triton: TritonServer, model: str, inputs: Any, calls: int, *, batch: bool = False) -> list[Averaged]:
    """Make calls of one request each, several at once; return what each learns later."""

    def request(_: int) -> Averaged:
        marks, token = recorder.begin() or pytest.fail("a request runs already")
        try:
            client.infer(model, inputs(grpc, batch=batch))
        finally:
            recorder.end(token)
        return marks[marks.index("@late") + 1]

    with grpc.InferenceServerClient(triton.grpc) as client, ThreadPoolExecutor(4) as pool:
        return list(pool.map(request, range(calls)))


def counts(triton: TritonServer, model: str, more_than: int) -> bool:
    """Say whether the server has counted more than so many calls."""
    return own_statistics(triton, model)["success"]["count"] > more_than


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize(
    ("model", "batch"), [("double", False), ("batched", True), ("twice", False)], ids=["plain", "batching", "ensemble"]
)
def test_the_stages_are_the_servers_own_averages(  # noqa: PLR0917 - fixtures
    model: str, batch: bool, triton: TritonServer, inputs: Any, until: Callable[..., None], monkeypatch: Any
) -> None:
    """Of 32 calls, four at once: what we report adds up to what the server counted, in every stage."""
    monkeypatch.setattr(triton_statistics, "READ_EVERY_NS", 0)
    # However long a reading takes, the next one is made.
    monkeypatch.setattr(triton_statistics, "SLOW_NS", 60 * SECOND)
    baseline = drive(triton, model, inputs, 1, batch=batch)[0]
    before = own_statistics(triton, model)
    assert ready(baseline)
    calls = drive(triton, model, inputs, 32, batch=batch)
    until(lambda: counts(triton, model, before["success"]["count"] + 31), "the server to have counted all")
    after = own_statistics(triton, model)

    monkeypatch.setattr(triton_statistics, "READ_EVERY_NS", 60 * SECOND)
    for call in calls:
        call.ready()
    assert calls[0].ready()
    reported = [spent(call.marks()) for call in calls]

    def server_ns(key: str) -> int:
        return after[key]["ns"] - before[key]["ns"]

    computed = {"h2d": "compute_input", "forward": "compute_infer", "d2h": "compute_output"}
    queue = server_ns("success") - sum(server_ns(key) for key in computed.values())
    expected = {**{stage: server_ns(key) for stage, key in computed.items()}, "queue": queue}
    whole = server_ns("success")
    for stage, total in expected.items():
        assert sum(each.get(f"{stage}@averaged", 0) for each in reported) == pytest.approx(
            total, rel=0.2, abs=whole / 50
        )
    assert expected["forward"] / 32 > 30e6
    # One instance, four calls: they wait for each other, or for a batch to fill, the first of four its whole 20 ms.
    assert expected["queue"] / 32 > 4e6


def test_http_and_grpc_tell_the_same(triton: TritonServer) -> None:
    """By version or without."""
    answers = {
        triton_endpoint.ask(server_of(triton, protocol), "failing", version)
        for protocol in ("http", "grpc")
        for version in ("", "1")
    }

    assert len(answers) == 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_model_or_server_that_is_not_there_raises(protocol: str, triton: TritonServer) -> None:
    """Whoever asks has to count with it."""
    with pytest.raises(Exception, match=r"400|404|not available"):
        triton_endpoint.ask(server_of(triton, protocol), "missing", "")
    with pytest.raises(Exception, match=r"refused|UNAVAILABLE"):
        triton_endpoint.ask(Server(protocol, "127.0.0.1:1", {}), "plain", "")


def test_a_path_before_the_api_is_kept(triton: TritonServer) -> None:
    """A proxy may serve Triton below a path: the client's address says so."""
    with pytest.raises(Exception, match=r"400|404"):
        triton_endpoint.ask(Server("http", f"{triton.http}/below", {}), "plain", "")
    assert triton_endpoint.ask(Server("http", f"{triton.http}/", {}), "plain", "").calls >= 0


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("library", [http, grpc], ids=["http", "grpc"])
def test_every_client_knows_its_server(library: Any, triton: TritonServer) -> None:
    """By position or keyword; arguments about TLS are kept for our own connection."""
    address = triton.http if library is http else triton.grpc
    with library.InferenceServerClient(url=address) as named, library.InferenceServerClient(address, False) as placed:
        assert named._stagelens_server == placed._stagelens_server == server_of(triton, library.__name__.split(".")[1])
