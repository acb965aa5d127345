"""PyTorch: the outermost module call is `forward`, and torch.compile does not notice."""

from __future__ import annotations

import contextvars
import gc
import io
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo
import torch._dynamo.utils
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

from stagelens.instrumentors import records
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries.torch import TorchInstrumentor, models
from stagelens.instrumentors.stalls import stalls

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = TorchInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError(x.shape)


def warm(model: Any, calls: int = 1) -> Any:
    """Call a model outside of any request, like a warm-up at startup."""
    for _ in range(calls):
        contextvars.Context().run(model, X)
    return model


@pytest.fixture
def net(instrumented: Instrumentor) -> Net:
    assert instrumented
    return warm(Net().eval())


@pytest.fixture
def expected(net: Net) -> torch.Tensor:
    """Output of the net, requested before the request starts."""
    return contextvars.Context().run(net, X)


X = torch.ones(2, 4)


def test_the_outermost_module_is_one_forward(in_a_request: Finished, net: Net) -> None:
    net(X)

    assert in_a_request.stages() == ["forward"]
    assert in_a_request.facts() == {"@model": "Net", "@device": "cpu"}


def test_consecutive_modules_are_separate_forwards(in_a_request: Finished, net: Net) -> None:
    with torch.inference_mode():
        nn.Softmax(-1)(net(nn.Identity()(X)))

    assert in_a_request.stages() == ["forward"] * 3
    assert in_a_request.facts() == {"@model": "Net", "@device": "cpu"}


def test_an_exception_of_the_model_is_unchanged(in_a_request: Finished, net: Net) -> None:
    with pytest.raises(KeyError):
        Broken()(X)
    net(X)

    assert in_a_request.stages() == ["forward", "forward"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_scripted_and_loaded_models_are_forwards(expected: torch.Tensor, net: Net, in_a_request: Finished) -> None:
    scripted = torch.jit.script(net)
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    loaded: Any = torch.jit.load(file)

    torch.testing.assert_close(warm(scripted, 2)(X), expected)
    torch.testing.assert_close(warm(loaded, 2)(X), expected)
    assert in_a_request.stages() == ["load", "forward", "forward"]
    assert in_a_request.facts()["@model"] == "Net"


@pytest.mark.parametrize("when", ["before", "after"])
def test_torch_compile_is_unaffected(
    expected: torch.Tensor, net: Net, instrumented: Instrumentor, in_a_request: Finished, when: str
) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    if when == "after":
        instrumented.uninstrument()
    compiled: Any = torch.compile(net, backend=counter, fullgraph=True)
    compiled(X)
    instrumented.instrument()
    graphs = counter.frame_count

    results = [compiled(X) for _ in range(3)]

    assert graphs == counter.frame_count == 1
    # Dynamo's work and the whole first call; a model that was called before we were there seems cold.
    forwards = {"before": ["load", "load", *["forward"] * 3], "after": ["load", *["forward"] * 2]}
    assert in_a_request.stages() == forwards[when]
    assert in_a_request.facts()["@model"] == "Net"
    torch.testing.assert_close(results, [expected] * 3)


def test_a_recompilation_is_load_inside_a_forward(in_a_request: Finished, net: Net) -> None:
    torch._dynamo.reset()
    compiled: Any = torch.compile(net, backend="eager", dynamic=False)
    warm(compiled)
    compiled(X)
    compiled(torch.ones(3, 4))
    started, ended = next((started, ended) for stage, started, ended in in_a_request.marks() if stage == "load")
    held_up = [stall for stall in stalls.during(started, ended) if stall.cause == "compile"]

    assert in_a_request.stages() == ["forward", "load", "forward"]
    assert (held_up[0].start, held_up[-1].end) == (started, ended)


def test_instrumentation_does_not_change_graph_breaks_and_recompilations(instrumented: Instrumentor) -> None:
    class Breaking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.Tensor.to(self.net(x), torch.float64).to(torch.float32)
            torch._dynamo.graph_break()
            return x.to("cpu").cpu() * x.sum().item()

    def counts() -> tuple[int, dict[str, dict[str, int]]]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        counter = CompileCounter()
        compiled: Any = torch.compile(Breaking().eval(), backend=counter, dynamic=False)
        with torch.inference_mode():
            for rows in (2, 3, 2):
                compiled(torch.ones(rows, 4))
        return counter.frame_count, {key: dict(value) for key, value in torch._dynamo.utils.counters.items()}

    with_us = counts()
    instrumented.uninstrument()
    without_us = counts()
    instrumented.instrument()

    assert with_us == without_us == counts()
    assert with_us[0] > 1


def test_threads_are_timed_while_another_compiles(in_a_request: Finished, net: Net) -> None:
    torch._dynamo.reset()
    marks = records.current.get()

    def backend(graph: Any, _: Any) -> Any:
        def serve() -> None:
            records.current.set(marks)
            net(X)

        assert torch.compiler.is_compiling()
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()
        return graph.forward

    contextvars.Context().run(torch.compile(nn.ReLU(), backend=backend), X)

    assert in_a_request.stages() == ["forward"]


@pytest.mark.stacks
@pytest.mark.parametrize("when", ["before", "after"])
def test_tensor_methods_compile_unchanged(when: str) -> None:
    ours = "import stagelens; stagelens.instrument()"
    dynamo = (
        "import torch._dynamo.testing, torch._dynamo.variables.tensor; torch.compile(torch.neg, backend='eager')(X)"
    )
    code = f"""
import torch
X = torch.ones(3)
{ours if when == "before" else dynamo}
{dynamo if when == "before" else ours}
method = torch.Tensor.cpu
class Sub(torch.Tensor): pass
for function, x in [
    (lambda x: torch.Tensor.to(x, torch.float64) + 1, X),
    (lambda x: x.to(torch.float64).to("cpu") + 1, X),
    (lambda x: method(x) + 1, X),
    (lambda x: list(map(torch.Tensor.cpu, [x]))[0] + 1, X),
    (lambda x: torch.zeros(3).copy_(x) + getattr(x, "to")("cpu"), X),
    (lambda x: x.to(torch.float64) + 1, X.as_subclass(Sub)),
]:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for _ in range(3):
        compiled(x)
    print(counter.frame_count, "to" in vars(torch.Tensor))
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert completed.stdout.split() == ["1", "True"] * 6, completed.stderr


def test_the_first_call_of_a_model_is_load(in_a_request: Finished) -> None:
    net = Net()
    with pytest.raises(RuntimeError, match="shapes"):
        net(torch.ones(2, 3))
    net(X)
    net(X)

    assert in_a_request.stages() == ["load", "load", "forward"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_scripted_model_warms_up_twice(in_a_request: Finished) -> None:
    for scripted in (torch.jit.script(Net().eval()), torch.jit.freeze(torch.jit.script(Net().eval()))):
        for _ in range(3):
            scripted(X)

    assert in_a_request.stages() == ["load", "load", "forward"] * 2


def test_modules_without_warm_up_are_never_load(in_a_request: Finished) -> None:
    for _ in range(2):
        nn.Softmax(-1)(X)

    assert in_a_request.stages() == ["forward", "forward"]


def test_copies_that_data_parallel_makes_are_warm(in_a_request: Finished, net: Net) -> None:
    net._replicate_for_data_parallel()(X)  # pyright: ignore[reportPrivateUsage] - DataParallel's own way

    assert in_a_request.stages() == ["forward"]


def test_state_of_deleted_models_is_freed() -> None:
    torch._dynamo.reset()
    nets = [warm(Net()) for _ in range(10)]
    known = {id(net) for net in nets} & models.known_models.keys()
    del nets
    gc.collect()

    assert len(known) == 10
    assert not [model for model in models.known_models.values() if model.module() is None]
    # Those of other tests may live.
    assert known.isdisjoint(models.known_models)


def test_a_loop_of_thousands_is_recorded_completely(in_a_request: Finished) -> None:
    layer = warm(nn.Linear(4, 4))
    for _ in range(3000):
        layer(X)

    assert in_a_request.stages() == ["forward"] * 3000
    assert in_a_request.facts()["@model"] == "Linear"


def test_weights_and_moves_of_a_model_are_loads(in_a_request: Finished, net: Net) -> None:
    net.to(torch.float64).to("cpu").cpu()
    nothing = in_a_request.stages()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    net.load_state_dict(torch.load(file))
    net.to("meta")

    assert nothing == []
    assert in_a_request.stages() == ["load"] * 3


def test_other_ways_of_calling_work_and_nothing_is_added_to_a_model(expected: torch.Tensor, net: Net) -> None:
    state: dict[str, torch.Tensor] = dict(net.named_parameters())

    torch.testing.assert_close(torch.func.functional_call(net, state, (X,)), expected)
    torch.testing.assert_close(torch.vmap(net)(X), expected)
    torch.testing.assert_close(checkpoint(net, X, use_reentrant=False), expected)
    torch.testing.assert_close(torch.export.export(net, (X,)).module()(X), expected)
    torch.testing.assert_close(torch.fx.symbolic_trace(net)(X), expected)
    assert vars(net).keys() == vars(Net()).keys()
