"""PyTorch: the outermost module call is `forward`, and torch.compile does not notice."""

from __future__ import annotations

import copy
import inspect
import io
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounter

from stagelens.instrumentors import recorder
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries import torch as module
from stagelens.instrumentors.libraries.torch import TorchInstrumentor

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = TorchInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

PATCHED = [(nn.Module, "__call__"), (torch, "load"), (torch.jit, "load")]


class Block(nn.Module):
    """Part of a net."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute."""
        return torch.relu(self.linear(x))


class Net(nn.Module):
    """A net of several modules."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute."""
        return self.blocks(x)


class Broken(nn.Module):
    """A net that fails."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Fail."""
        raise KeyError(x.shape)


@pytest.fixture
def in_a_request(finished: Finished) -> Generator[Finished]:
    """Run the test inside a request; what it recorded is in the fixture afterwards."""
    opened = recorder.begin()
    assert opened is not None
    marks, token = opened
    finished.append((marks, marks[1], 0, "", "", 0, "internal"))
    yield finished
    recorder.end(token)


@pytest.fixture
def net() -> Net:
    """A small net, ready for inference."""
    return Net().eval()


@pytest.fixture
def expected(net: Net) -> torch.Tensor:
    """What the net answers; to be asked for before the request opens."""
    return net(X)


X = torch.ones(2, 4)


def test_the_outermost_module_is_one_forward(in_a_request: Finished, net: Net) -> None:
    """Eight modules are called and one stage is recorded, with the name of the outermost class."""
    net(X)

    assert in_a_request.stages() == ["forward"]
    assert in_a_request.facts() == {"@model": "Net", "@device": "cpu"}


def test_modules_called_one_after_another_are_forwards_each(in_a_request: Finished, net: Net) -> None:
    """The last model gives the request its name, but not an activation without a parameter of its own."""
    with torch.inference_mode():
        nn.Softmax(-1)(net(nn.Identity()(X)))

    assert in_a_request.stages() == ["forward"] * 3
    assert in_a_request.facts() == {"@model": "Net", "@device": "cpu"}


def test_threads_of_a_request_are_told_apart(in_a_request: Finished, net: Net) -> None:
    """Being inside a module is a matter of the thread: a model called meanwhile by another one is seen."""
    marks = recorder.current.get()

    class Outer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def inner() -> None:
                recorder.current.set(marks)
                net(x)

            thread = threading.Thread(target=inner)
            thread.start()
            thread.join()
            return x

    Outer()(X)

    assert in_a_request.stages() == ["forward", "forward"]


def test_outside_a_request_nothing_is_recorded(finished: Finished, net: Net) -> None:
    """Warming up serves no request."""
    net(X)

    assert list(finished) == []


def test_an_exception_is_the_models_own(in_a_request: Finished, net: Net) -> None:
    """What failed is recorded, raises what it always raised, and the next call is outermost again."""
    with pytest.raises(KeyError):
        Broken()(X)
    net(X)

    assert in_a_request.stages() == ["forward", "forward"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_scripted_and_loaded_models_are_forwards(expected: torch.Tensor, net: Net, in_a_request: Finished) -> None:
    """TorchScript comes through the same call and keeps the name of its class; loading it is load."""
    scripted = torch.jit.script(net)
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    loaded: Any = torch.jit.load(file)

    torch.testing.assert_close(scripted(X), expected)
    torch.testing.assert_close(loaded(X), expected)
    assert in_a_request.stages() == ["load", "forward", "forward"]
    assert in_a_request.facts()["@model"] == "Net"


def test_loading_weights_is_load(in_a_request: Finished, net: Net) -> None:
    """torch.load inside a request is a cold start."""
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    weights = torch.load(file)

    assert set(weights) == set(net.state_dict())
    assert in_a_request.stages() == ["load"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_torch_compile_does_not_notice(
    expected: torch.Tensor, net: Net, instrumented: Instrumentor, in_a_request: Finished, when: str
) -> None:
    """No graph break (fullgraph would raise), one graph, no recompilation: patched before or after compiling."""
    torch._dynamo.reset()
    counter = CompileCounter()
    if when == "after":
        instrumented.uninstrument()
    compiled: Any = torch.compile(net, backend=counter, fullgraph=True)
    if when == "after":
        compiled(X)
        instrumented.instrument()

    with torch.no_grad():
        compiled(X)
        graphs = counter.frame_count
        results = [compiled(X) for _ in range(3)]

    assert graphs == counter.frame_count
    assert in_a_request.stages() == ["forward"] * 4
    assert in_a_request.facts()["@model"] == "Net"
    torch.testing.assert_close(results, [expected] * 3)


def test_compiled_graphs_are_as_many_as_without_us(instrumented: Instrumentor, net: Net) -> None:
    """The counts of Dynamo are the same patched and unpatched, and patching late recompiles nothing."""

    def graphs() -> int:
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled: Any = torch.compile(net, backend=counter, fullgraph=True)
        compiled(X)
        compiled(X)
        return counter.frame_count

    with_us = graphs()
    instrumented.uninstrument()
    without_us = graphs()
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled: Any = torch.compile(net, backend=counter, fullgraph=True)
    compiled(X)
    instrumented.instrument()
    compiled(X)

    assert with_us == without_us == counter.frame_count == 1


def test_a_compiled_function_stays_whole(expected: torch.Tensor, net: Net, in_a_request: Finished) -> None:
    """A compiled function that calls modules is one graph; it is not a module itself and so no forward."""
    torch._dynamo.reset()
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=True)
    def pipeline(x: torch.Tensor) -> torch.Tensor:
        return net(x) + net(x)

    torch.testing.assert_close(pipeline(X), expected * 2)
    assert counter.frame_count == 1
    assert in_a_request.stages() == []


def test_export_and_symbolic_tracing_work(expected: torch.Tensor, net: Net) -> None:
    """What else looks into a module's call gets the graph it always got."""
    exported = torch.export.export(net, (X,))
    traced = torch.fx.symbolic_trace(net)

    torch.testing.assert_close(exported.module()(X), expected)
    torch.testing.assert_close(traced(X), expected)


def test_models_copy_pickle_and_subclass_as_before(net: Net) -> None:
    """Nothing of ours sticks to a model."""
    copied = pickle.loads(pickle.dumps(copy.deepcopy(net)))  # noqa: S301 - our own bytes

    net(X)

    assert vars(net).keys() == vars(copied).keys()
    torch.testing.assert_close(copied(X), net(X))


def test_our_failure_is_logged_once_and_the_result_comes_through(
    net: Net,
    in_a_request: Finished,
    reported: set[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A module we cannot describe is timed all the same."""

    def broken(_: Any) -> None:
        message = "ours"
        raise ZeroDivisionError(message)

    monkeypatch.setattr(module, "describe", broken)
    with caplog.at_level(logging.WARNING, "stagelens"):
        results = [net(X) for _ in range(3)]

    torch.testing.assert_close(results, [results[0]] * 3)
    assert in_a_request.stages() == ["forward"] * 3
    assert len(caplog.records) == len(reported) == 1


def test_instrumenting_twice_doubles_nothing(in_a_request: Finished, instrumented: Instrumentor, net: Net) -> None:
    """A second call, on another instance, finds everything patched."""
    instrumented.instrument()
    TorchInstrumentor().instrument(skip_dep_check=True)
    net(X)

    assert in_a_request.stages() == ["forward"]


def test_uninstrumenting_restores_the_very_same_objects(instrumented: Instrumentor) -> None:
    """Every attribute is again the object it was, and looks the same meanwhile."""
    originals = [vars(owner)[name].__wrapped__ for owner, name in PATCHED]
    signatures = [inspect.signature(vars(owner)[name]) for owner, name in PATCHED]
    instrumented.uninstrument()

    assert [vars(owner)[name] for owner, name in PATCHED] == originals
    assert [inspect.signature(original) for original in originals] == signatures


@pytest.mark.parametrize(
    "order",
    [
        "import torch; stagelens.instrument()",
        "from torch.nn import Module, Linear; stagelens.instrument(); import torch",
        "stagelens.instrument(); import torch",
    ],
)
def test_the_order_of_imports_does_not_matter(order: str) -> None:
    """Instrumented before or after, the library is patched; instrumenting imports nothing."""
    code = f"""
import sys, stagelens
{order}
from stagelens.instrumentors import recorder
marks, token = recorder.begin()
torch.nn.Linear(2, 2)(torch.ones(1, 2))
print(*[mark for mark in marks[::3]])
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert answer.stdout.split() == ["@open", "forward", "@model", "@device"]
