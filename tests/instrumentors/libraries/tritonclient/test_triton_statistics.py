"""The server's own part of a call, from the statistics of a real Triton, against its own numbers."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import tritonclient.grpc
import tritonclient.http

from stagelens.instrumentors import recorder
from stagelens.instrumentors.libraries.tritonclient import TritonClientInstrumentor, statistics
from stagelens.instrumentors.libraries.tritonclient.statistics import Averaged, Server
from tests.instrumentors.libraries.tritonclient.averaged_calls import SECOND, ready, spent

if TYPE_CHECKING:
    from tests.support.triton.triton_server import TritonServer

pytestmark = pytest.mark.stacks

http: Any = tritonclient.http
grpc: Any = tritonclient.grpc

INSTRUMENTOR = TritonClientInstrumentor


def server_of(triton: TritonServer, protocol: str) -> Server:
    return Server(protocol, triton.http if protocol == "http" else triton.grpc, {})


def server_statistics(triton: TritonServer, model: str) -> dict[str, dict[str, int]]:
    """Return the statistics of the server, read without Stagelens."""
    with urllib.request.urlopen(f"http://{triton.http}/v2/models/{model}/stats", timeout=10) as response:
        return json.loads(response.read())["model_stats"][0]["inference_stats"]


def drive(triton: TritonServer, model: str, inputs: Any, calls: int, *, batch: bool = False) -> list[Averaged]:
    """Make concurrent calls of one request each; return what each learns later."""

    def request(_: int) -> Averaged:
        marks, token = recorder.begin() or pytest.fail("a request runs already")
        try:
            client.infer(model, inputs(grpc, batch=batch))
        finally:
            recorder.end(token)
        return marks[marks.index("@late") + 1]

    with grpc.InferenceServerClient(triton.grpc) as client, ThreadPoolExecutor(4) as pool:
        return list(pool.map(request, range(calls)))


def is_read_after(call: Any) -> bool:
    """Read the statistics, with one retry; return whether they were read after the end of *call*."""
    call.ready()
    model = statistics.known.model(call._server, call._model, call._version)
    return model is not None and model.window(*call._call) is not None


def counts(triton: TritonServer, model: str, more_than: int) -> bool:
    """Return whether the server has counted more than so many calls."""
    return server_statistics(triton, model)["success"]["count"] > more_than


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize(
    ("model", "batch"), [("double", False), ("batched", True), ("twice", False)], ids=["plain", "batching", "ensemble"]
)
def test_stages_equal_the_server_averages(  # noqa: PLR0917 - fixtures
    model: str, batch: bool, triton: TritonServer, inputs: Any, until: Callable[..., None], monkeypatch: Any
) -> None:
    monkeypatch.setattr(statistics, "READ_EVERY_NS", 0)
    # However long a reading takes, the next one is made.
    monkeypatch.setattr(statistics, "SLOW_NS", 60 * SECOND)
    baseline = drive(triton, model, inputs, 1, batch=batch)[0]
    before = server_statistics(triton, model)
    assert ready(baseline)
    calls = drive(triton, model, inputs, 32, batch=batch)
    until(lambda: counts(triton, model, before["success"]["count"] + 31), "the server to have counted all")
    after = server_statistics(triton, model)
    until(lambda: is_read_after(calls[0]), "us to have read what it counted")

    monkeypatch.setattr(statistics, "READ_EVERY_NS", 60 * SECOND)
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


def test_http_and_grpc_report_equal_statistics(triton: TritonServer) -> None:
    totals = {
        statistics.fetch_totals(server_of(triton, protocol), "failing", version)
        for protocol in ("http", "grpc")
        for version in ("", "1")
    }

    assert len(totals) == 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_missing_model_or_server_raises(protocol: str, triton: TritonServer) -> None:
    with pytest.raises(Exception, match=r"400|404|not available"):
        statistics.fetch_totals(server_of(triton, protocol), "missing", "")
    with pytest.raises(Exception, match=r"refused|UNAVAILABLE"):
        statistics.fetch_totals(Server(protocol, "127.0.0.1:1", {}), "plain", "")


def test_a_path_prefix_before_the_api_is_preserved(triton: TritonServer) -> None:
    with pytest.raises(Exception, match=r"400|404"):
        statistics.fetch_totals(Server("http", f"{triton.http}/below", {}), "plain", "")
    assert statistics.fetch_totals(Server("http", f"{triton.http}/", {}), "plain", "").calls >= 0


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("library", [http, grpc], ids=["http", "grpc"])
def test_every_client_is_mapped_to_its_server(library: Any, triton: TritonServer) -> None:
    address = triton.http if library is http else triton.grpc
    with library.InferenceServerClient(url=address) as named, library.InferenceServerClient(address, False) as placed:
        assert named._stagelens_server == placed._stagelens_server == server_of(triton, library.__name__.split(".")[1])
