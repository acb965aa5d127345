"""PyTorch on a device: copies and device times at their positions in the request.

The device here is a stream with a clock of its own. Tensors on it are real ones of another kind ("lazy", which nothing on
this machine implements) that hand their operations to it; the host's clock is stopped, and moves when somebody works.
"""

from __future__ import annotations

import contextvars
import copy
import ctypes
import functools
import gc
import inspect
import pickle
import threading
import weakref
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from stagelens.core.partition import partition
from stagelens.instrumentors import loads, recorder, records
from stagelens.instrumentors.libraries import torch as calls
from stagelens.instrumentors.libraries.torch import TorchInstrumentor, models
from stagelens.instrumentors.libraries.torch import copies as torch_copies
from stagelens.instrumentors.libraries.torch import device as torch_device
from stagelens.instrumentors.libraries.torch.device import RELAXED, Driver

INSTRUMENTOR = TorchInstrumentor
KIND = "lazy"
US = 1_000
MS = 1_000_000
# How long the host takes to launch a model and the device to run it; to launch a copy, and to make it.
LAUNCH, RUN, CALL, COPY = MS, 10 * MS, 10 * US, 500 * US


class Host:
    def __init__(self) -> None:
        self.now = 1_000 * MS

    def clock(self) -> int:
        return self.now


class Stream:
    """Does what it is asked for, one after the other, later."""

    device = torch.device(KIND, 0)

    def __init__(self, host: Host) -> None:
        self.host = host
        self.free_at = 0
        self.capturing = False

    def launch(self, duration: int) -> None:
        self.free_at = max(self.free_at, self.host.now) + duration

    def wait(self) -> None:
        self.host.now = max(self.host.now, self.free_at)


class Event:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.at: int | None = None

    def record(self, stream: Stream) -> None:
        assert not stream.capturing
        self.at = max(stream.free_at, stream.host.now)
        self.source.records += 1

    def query(self) -> bool:
        self.source.asked.add(threading.get_ident())
        assert self.source.asked <= self.source.prepared
        return self.at is not None and self.source.host.now >= self.at

    def elapsed_time(self, end_event: Event) -> float:
        assert self.query()
        assert end_event.query()
        assert self.at is not None
        assert end_event.at is not None
        # The device's clock is a little fast, and its answer in whole halves of a microsecond.
        return round((end_event.at - self.at) * 1.00001 / 500) / 2000


class Source:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.streams: contextvars.ContextVar[Stream] = contextvars.ContextVar("stream")
        self._default = Stream(host)
        self.made = self.records = 0
        self.prepared: set[int] = set()
        self.asked: set[int] = set()

    @property
    def default(self) -> Stream:
        return self.streams.get(self._default)

    def stream(self, device: Any) -> Stream | None:
        assert device.type == KIND
        return None if self.default.capturing else self.default

    def event(self) -> Event:
        self.made += 1
        return Event(self)

    def prepare(self, device: Any) -> None:
        assert device == Stream.device
        self.prepared.add(threading.get_ident())


class Tensor(torch.Tensor):
    elem: torch.Tensor

    def __new__(cls, elem: torch.Tensor) -> Self:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, elem.shape, dtype=elem.dtype, device=torch.device(KIND))
        made.elem = elem
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore[reportPrivateUsage] - torch documents it so
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, dict(kwargs or {}))


class Dispatch(TorchDispatchMode):
    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = [isinstance(arg, Tensor) for arg in args if isinstance(arg, torch.Tensor)]
        out = run(func, args, dict(kwargs or {}))
        crossed = isinstance(out, Tensor) is not before[0] if isinstance(out, torch.Tensor) and before else False
        if crossed or len(set(before)) > 1 or func is torch.ops.aten._local_scalar_dense.default:
            self.source.default.launch(COPY)
            self.source.host.now += CALL
            if not (kwargs or {}).get("non_blocking"):
                self.source.default.wait()
        return out


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the host what the device is asked for."""
    on_device = any(isinstance(arg, Tensor) for arg in args)
    target = kwargs.pop("device", None)
    kwargs.pop("non_blocking", None)
    inner = tree_map(lambda value: value.elem if isinstance(value, Tensor) else value, args)
    out = func(*inner, **kwargs)
    if func is torch.ops.aten.copy_.default:
        return args[0]
    there = on_device if target is None else torch.device(target).type == KIND
    return Tensor(out) if there and isinstance(out, torch.Tensor) else out


class Frozen(nn.Module):
    """A model without parameters, which runs where its input is."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.source.default.launch(RUN)
        self.source.host.now += LAUNCH
        return value


class Net(Frozen):
    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.weight = nn.Parameter(Tensor(torch.ones(3)), requires_grad=False)


def any_method(tensor: torch.Tensor, name: str) -> Any:
    """Return a method that torch's annotations know only in part."""
    return getattr(tensor, name)


class Request:
    def __init__(self, host: Host) -> None:
        self.host = host
        scope = recorder.begin()
        assert scope is not None
        self.marks, self.token = scope
        self.start = self.marks[1]
        self.end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end = self.host.now
        self.marks[0] = records.CLOSED
        recorder.end(self.token)

    def late(self) -> list[Any]:
        """Return what the background thread is given to ask."""
        return [late for key, late in zip(self.marks[::3], self.marks[1::3], strict=True) if key == "@late"]

    def finish_marks(self, *, wait: bool = True) -> dict[str, tuple[int, int]]:
        """Add what comes late, and return the last interval of each stage, in us of the request."""
        for late in self.late():
            assert late.ready() is wait
        for late in self.late():
            self.marks.extend(late.marks())
        return {
            key: ((t0 - self.start) // US, (t1 - self.start) // US)
            for key, t0, t1 in zip(self.marks[::3], self.marks[1::3], self.marks[2::3], strict=True)
            if not key.startswith("@")
        }

    def own_times(self) -> dict[str, int]:
        triples = zip(self.marks[::3], self.marks[1::3], self.marks[2::3], strict=True)
        intervals = [(key.partition("@")[0], t0, t1) for key, t0, t1 in triples if not key.startswith("@")]
        return {stage: round(own / US) for stage, own in partition(intervals, self.start, self.end).items()}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Generator[Host]:
    host = Host()
    for module in (recorder, calls, loads, torch_copies, torch_device):
        monkeypatch.setattr(module, "clock", host.clock)
    yield host
    records.current.set(None)


@pytest.fixture
def source(host: Host, monkeypatch: pytest.MonkeyPatch, instrumented: TorchInstrumentor) -> Generator[Source]:
    assert instrumented
    source = Source(host)
    monkeypatch.setattr(torch_device.devices, "sources", {KIND: source})
    monkeypatch.setattr(torch_device.devices, "timelines", {})
    monkeypatch.setattr(torch_device.devices, "in_use", True)
    with Dispatch(source):
        yield source


@pytest.fixture
def net(source: Source) -> Net:
    net = Net(source)
    net(torch.ones(3))
    source.default.wait()
    source.host.now += MS
    return net


@pytest.fixture
def x(source: Source) -> torch.Tensor:
    assert source
    return Tensor(torch.ones(3))


class Work(NamedTuple):
    """Work of a request with a model, a tensor on the device and the device; its intervals and its own times, in us."""

    run: Callable[[Net, torch.Tensor, Source], Any]
    last: dict[str, tuple[int, int]]
    own: dict[str, int]
    idle: int = 0
    """Time of the host after it."""
    is_ready: bool = True


def launch_before(net: Net, x: torch.Tensor, source: Source) -> None:
    source.default.launch(4 * MS)
    net(net(x)).cpu()


def run_after_the_copy(net: Net, x: torch.Tensor, _: Source) -> None:
    net(x).cpu()
    net(x)


MODEL = {"forward@launch": (0, 1_000), "forward@gpu": (0, 10_000)}
WORKS = {
    "model and copy": Work(
        lambda net, x, _: net(x).cpu(),
        {**MODEL, "d2h@gpu": (10_000, 10_500)},
        {"forward": 10_000, "d2h": 500, "overhead": 300},
        idle=300 * US,
    ),
    "copies in both directions": Work(
        lambda net, _, __: net(torch.ones(3).to(KIND)).cpu(),
        {},
        {"h2d": 500, "forward": 10_000, "d2h": 500, "overhead": 0},
    ),
    "first call": Work(lambda _, x, source: Net(source)(x).cpu(), {"load@gpu": (0, 10_000)}, {}),
    "model without parameters": Work(lambda _, x, source: Frozen(source)(x).cpu(), {"forward@gpu": (0, 10_000)}, {}),
    # 1 ms of the launches each; 4 ms of kernels are under them and after them.
    "earlier work of the request": Work(launch_before, {}, {"forward": 22_000, "d2h": 500, "overhead": 2_000}),
    "no event in time": Work(
        lambda net, x, _: (net(x), x.to("cpu", non_blocking=True)),
        {"forward@launch": (0, 1_000), "d2h@launch": (1_000, 1_010)},
        {},
        is_ready=False,
    ),
    "some events in time": Work(
        run_after_the_copy,
        {"forward@gpu": (0, 10_000)},
        {"forward": 11_000, "d2h": 500, "overhead": 0},
        is_ready=False,
    ),
    "copy that nothing waits for": Work(
        lambda net, x, _: net(x).to("cpu", non_blocking=True),
        {**MODEL, "d2h@launch": (1_000, 1_010), "d2h@gpu": (10_000, 10_500)},
        {},
        idle=20 * MS,
    ),
}


@pytest.mark.parametrize("name", WORKS)
def test_work_has_the_times_of_the_device(host: Host, net: Net, x: torch.Tensor, source: Source, name: str) -> None:
    work = WORKS[name]
    with Request(host) as request:
        work.run(net, x, source)
        host.now += work.idle
    last = request.finish_marks(wait=work.is_ready)

    assert {key: last[key] for key in work.last} == work.last
    assert name != "no event in time" or set(last) == set(work.last)
    assert not work.own or request.own_times() == work.own
    assert sum(request.own_times().values()) == (request.end - request.start) // US


def test_a_kind_of_device_without_events_is_timed_by_the_host(
    host: Host, net: Net, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_device.devices, "sources", {})
    with Request(host) as request:
        net(x).cpu()

    assert request.finish_marks() == {"forward@launch": (0, 1_000), "d2h@launch": (1_000, 10_500)}


def test_the_first_call_with_a_shape_is_load_with_cudnn_benchmark(
    host: Host, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "BENCHMARKED", (KIND,))
    monkeypatch.setattr(models, "MAX_SHAPES", 2)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with Request(host) as request:
        for length in (3, 3, 4, 5):
            net(Tensor(torch.ones(length)))

    assert [key for key in request.marks[::3] if key.endswith("@launch")] == [
        "load@launch",
        "forward@launch",
        "load@launch",
        "forward@launch",
    ]


def test_the_wait_for_another_request_is_queue(host: Host, net: Net, x: torch.Tensor) -> None:
    other = contextvars.Context().run(Request, host)
    token = records.current.set(other.marks)
    net(x)
    records.current.reset(token)
    with Request(host) as request:
        net(x).cpu()
    request.finish_marks()

    # The other one's has run for 1 ms when ours is launched, which takes another.
    assert request.own_times() == {"forward": 1_000 + 10_000, "queue": 8_000, "d2h": 500, "overhead": 0}


def test_two_threads_on_two_streams_are_two_timelines(host: Host, net: Net, x: torch.Tensor, source: Source) -> None:
    with Request(host) as request:

        def work() -> None:
            source.streams.set(Stream(host))
            records.current.set(request.marks)
            with Dispatch(source):
                net(x).cpu()

        thread = threading.Thread(target=work)
        net(x)
        thread.start()
        thread.join()
        source.default.wait()
    request.finish_marks()

    assert len(request.late()) == 2
    assert request.own_times() == {"forward": 11_000, "d2h": 500, "overhead": 0}


def test_a_capturing_stream_is_not_timed(host: Host, net: Net, x: torch.Tensor, source: Source) -> None:
    records = source.records
    source.default.capturing = True
    with Request(host) as request:
        net(x)
        x.cpu()
        captured = records, request.marks[6:]
        source.default.capturing = False
        net(x)

    assert captured == (source.records - 2, [])


def in_a_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_request_threads_query_no_events(host: Host, net: Net, x: torch.Tensor, source: Source) -> None:
    with Request(host) as request:
        net(x).cpu()
    times = in_a_thread(request.finish_marks)

    assert times["forward@gpu"] == (0, 10_000)
    assert threading.get_ident() not in source.asked
    assert host.now == request.end


def test_every_querying_thread_has_a_device_context(host: Host, net: Net, x: torch.Tensor) -> None:
    with Request(host) as request:
        net(x)
    (late,) = request.late()
    before = late.ready()
    host.now += 20 * MS

    assert (before, "forward@gpu" in in_a_thread(late.marks)) == (False, True)


def test_event_placement_stays_accurate_with_clock_drift(host: Host, net: Net, x: torch.Tensor, source: Source) -> None:
    errors: set[int] = set()
    for pause in (*[5 * MS] * 300, 3_600_000 * MS, 5 * MS):
        with Request(host) as request:
            net(x).cpu()
        start, end = request.finish_marks()["d2h@gpu"]
        errors.update((abs(start - 10_000), abs(end - 10_500)))
        host.now += pause

    assert max(errors) <= 50
    # Events are used again.
    assert source.records == 4 * 302
    assert source.made <= 10


def test_events_of_a_busy_device_are_placed(host: Host, net: Net, x: torch.Tensor, source: Source) -> None:
    with Request(host) as busy:
        net(x)
    errors: list[int] = []
    for _ in range(400):
        with Request(host) as request:
            truth = source.default.free_at
            net(x)
        # Into the middle of what was launched now: what was launched before is done.
        host.now = source.default.free_at - 3 * MS
        busy.finish_marks()
        busy, before = request, busy
        if before.start > 1_000 * MS + 30 * MS:
            starts = [t0 for key, t0 in zip(before.marks[::3], before.marks[1::3], strict=True) if key == "forward@gpu"]
            errors.append(abs(starts[0] - (truth - RUN)))

    assert len(errors) > 300
    assert max(errors) <= 150 * US


def test_only_transfers_between_devices_are_copies(host: Host, net: Net, x: torch.Tensor) -> None:
    here = torch.ones(3)

    class Inside(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value.to(KIND).cpu()

    assert net
    with Request(host) as request:
        for nothing in (
            lambda: here.to(torch.float64).to("cpu").to(here).cpu().to("cpu", torch.float16),
            lambda: (x.to(torch.float64), x.to(KIND), x.to(x), x.to(device=KIND), x.copy_(x)),
            lambda: (here.numpy(), here.tolist(), here.sum().item(), here.copy_(here), here.to("meta")),
            lambda: Inside()(here),
        ):
            nothing()
        nothing_of_it = {key for key in request.marks[::3] if key.partition("@")[0] in {"h2d", "d2h"} or key == "@late"}
        copies = (
            lambda: here.to(KIND),
            lambda: here.to(device=torch.device(KIND)),
            lambda: here.to(x),
            lambda: any_method(here, "to")(tensor=x),
            lambda: x.copy_(here),
            lambda: any_method(here, "copy_")(other=x),
            x.cpu,
            lambda: x.to("cpu", torch.float64),
            x[0].item,
            lambda: torch.Tensor.cpu(x),
        )
        for crossing in copies:
            crossing()
    request.finish_marks()

    assert nothing_of_it == set()
    assert [key for key in request.marks[::3] if key.endswith("@gpu")] == ["h2d@gpu"] * 5 + ["d2h@gpu"] * 5


def test_the_first_copy_of_a_process_is_its_launch(host: Host, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source
    monkeypatch.setattr(torch_device.devices, "in_use", False)
    with Request(host) as request:
        for _ in range(2):
            torch.ones(3).to(KIND)
    request.finish_marks()

    assert [key for key in request.marks[::3] if "@" in key[1:]] == ["h2d@launch", "h2d@gpu"]


def test_moving_a_model_is_load_and_no_copies(host: Host, source: Source) -> None:
    assert source
    net = nn.Linear(3, 3).requires_grad_(requires_grad=False)
    contextvars.Context().run(net, torch.ones(3))
    with Request(host) as request:
        net.to(KIND)
        net(Tensor(torch.ones(3)))
        net.to("cpu")
        net(torch.ones(3))

    assert [key for key in request.marks[::3] if not key.startswith("@")] == ["load", "load@launch", "load", "forward"]
    assert request.marks[request.marks.index("@device") + 1] == KIND


class Handler(torch.Tensor):
    """A subclass that knows methods by what they are, as torchvision's images do."""

    known: frozenset[Any] = frozenset()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "to":
            seen.append(func in Handler.known)
        return super().__torch_function__(func, types, args, kwargs or {})


seen: list[bool] = []


def test_subclasses_find_the_original_methods(instrumented: TorchInstrumentor, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = torch.Tensor.to
    instrumented.uninstrument()
    original: Any = torch.Tensor.to
    found: list[list[bool]] = []
    for known in (ours, original):
        monkeypatch.setattr(Handler, "known", frozenset({known}))
        for change in (instrumented.instrument, instrumented.uninstrument):
            change()
            seen.clear()
            torch.ones(3).as_subclass(Handler).to(torch.float64)
            found.append(seen[:])
    instrumented.instrument()

    assert ours is not original
    assert found == [[True]] * 4


def test_method_metadata_is_unchanged(instrumented: TorchInstrumentor) -> None:
    assert instrumented
    ours: Any = torch.Tensor.to
    bound: Any = torch.ones(3).to

    assert (ours.__name__, ours.__doc__, repr(ours)) == ("to", ours.original.__doc__, repr(ours.original))
    assert (bound.__name__, inspect.isroutine(ours)) == ("to", True)
    assert pickle.loads(pickle.dumps(ours)) == ours  # noqa: S301 - our own bytes
    assert pickle.loads(pickle.dumps(torch.ones(2).tolist))() == [1.0, 1.0]  # noqa: S301 - our own bytes
    assert copy.deepcopy(ours) == ours
    assert bound(torch.float64).dtype is torch.float64
    assert functools.partial(ours, torch.ones(3))(torch.float64).dtype is torch.float64
    with pytest.raises(TypeError):
        ours(3, "cpu")
    with pytest.raises(TypeError, match="needs an argument"):
        ours()


class Strict(torch.Tensor):
    """A subclass that refuses what it does not know, such as being asked where it is."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "__get__":
            raise NotImplementedError
        return super().__torch_function__(func, types, args, kwargs or {})


class Elsewhere:
    """An input that is no tensor and not on the host."""

    is_cpu = False


def test_arguments_without_a_device_are_passed_through(host: Host, source: Source, reported: set[str]) -> None:
    class Count(nn.Module):
        def forward(self, _: Any) -> int:
            return 7

    tensor: Any = torch.ones(3).as_subclass(Strict)
    assert source
    with Request(host) as request:
        assert isinstance(tensor.to(torch.float64), Strict)
        assert tensor.copy_(torch.zeros(3)) is tensor
        assert isinstance(tensor.cpu(), Strict)
        assert Count()(Elsewhere()) == 7
    assert set(request.finish_marks()) == {"forward"}
    assert reported == set()


def test_methods_replaced_by_other_code_are_not_restored(
    instrumented: TorchInstrumentor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def theirs(self: torch.Tensor, *_: Any) -> torch.Tensor:
        return self

    instrumented.uninstrument()
    monkeypatch.setattr(torch.Tensor, "to", theirs, raising=False)
    instrumented.instrument()
    present = vars(torch.Tensor)["to"]
    instrumented.uninstrument()

    assert present is theirs
    assert vars(torch.Tensor)["to"] is theirs
    instrumented.instrument()


def test_a_copy_after_the_request_leaves_no_event(host: Host, x: torch.Tensor, source: Source) -> None:
    with Request(host) as request:
        task = contextvars.copy_context()
    task.run(x.cpu)

    assert request.late() == []
    assert source.made == 0


def test_events_of_a_copy_loop_are_bounded(host: Host, x: torch.Tensor, source: Source) -> None:
    with Request(host) as request:
        for _ in range(torch_device.MAX_WORKS + 10):
            x.cpu()
    request.finish_marks()
    stages = [key for key in request.marks[::3] if not key.startswith("@")]

    assert stages.count("d2h@gpu") == torch_device.MAX_WORKS
    assert source.made <= 2 * torch_device.MAX_WORKS + 20


@pytest.mark.parametrize("broken", ["stream", "record", "query", "elapsed_time", "prepare"])
def test_a_device_event_failure_does_not_affect_the_model(  # noqa: PLR0917 - fixtures
    host: Host, net: Net, x: torch.Tensor, reported: set[str], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: Any) -> None:
        message = "ours"
        raise ZeroDivisionError(message)

    monkeypatch.setattr(Source if broken in ("stream", "prepare") else Event, broken, fail)
    with Request(host) as request:
        results = [net(x).cpu() for _ in range(3)]
    times = {key for late in request.late() if late.ready() for key in late.marks()[::3]} | set(request.marks[::3])

    torch.testing.assert_close(results, [torch.ones(3)] * 3)
    assert {"forward@launch", "d2h@launch"} <= times
    assert not {"forward@gpu", "d2h@gpu"} & times
    assert len(reported) == 1


class Backend:
    """As `torch.cuda` and `torch.xpu`, as far as events go."""

    capturing = False

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_stream(self, device: Any) -> str:
        return f"stream of {device}"

    def Event(self, *, enable_timing: bool) -> str:  # noqa: N802 - torch's name
        return f"event {enable_timing}"


class RequestedFunctions:
    """A part of a library, and the functions that it is asked for."""

    def __init__(self, part: Any, names: set[str]) -> None:
        self._part = part
        self._names = names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if callable(found):
            self._names.add(name)
        return found


def test_only_events_are_requested_from_a_device(
    host: Host, net: Net, x: torch.Tensor, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: set[str] = set()
    backend = SimpleNamespace(
        is_current_stream_capturing=lambda: source.default.capturing,
        current_stream=lambda _: source.default,
        Event=lambda *, enable_timing: RequestedFunctions(Event(source), names) if enable_timing else None,
    )
    source.prepare(Stream.device)
    monkeypatch.setattr(
        torch_device.devices, "sources", {KIND: torch_device.TorchEvents(RequestedFunctions(backend, names), None)}
    )
    with Request(host) as request:
        net(x).cpu()

    assert request.finish_marks()["forward@gpu"] == (0, 10_000)
    assert names == {"is_current_stream_capturing", "current_stream", "Event", "record", "query", "elapsed_time"}


def test_real_device_events_come_from_torch() -> None:
    backend = Backend()
    events = torch_device.TorchEvents(backend, None)
    events.prepare(torch.device("cuda:1"))
    streams = [events.stream("cuda:1")]
    backend.capturing = True
    streams.append(events.stream("cuda:1"))

    assert streams == ["stream of cuda:1", None]
    assert str(events.event()) == "event True"
    assert isinstance(torch_device.event_source(torch, "cuda"), torch_device.TorchEvents)
    assert isinstance(torch_device.event_source(torch, "xpu"), torch_device.TorchEvents)
    assert torch_device.event_source(torch, "mps") is None


def test_a_stream_is_looked_up_once_for_each_id() -> None:
    calls: list[torch.device] = []
    current: dict[int, int] = {0: 7, 1: 7}
    backend = SimpleNamespace(current_stream=lambda device: calls.append(device) or object())
    events = torch_device.TorchEvents(backend, None, lambda index: (current[index], index))
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    default, other_device = events.stream(first), events.stream(second)
    current[0] = 8
    other_stream = events.stream(first)
    current[0] = 7

    assert len({default, other_device, other_stream}) == 3
    assert events.stream(first) is default
    assert calls == [first, second, first]
    # Of a device without an index only `current_stream` knows which is meant.
    assert events.stream(torch.device("cuda")) is not default


def test_stream_objects_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_device, "MAX_STREAMS", 2)
    made: weakref.WeakSet[Backend] = weakref.WeakSet()
    ids = iter(range(5))

    def current_stream(_: torch.device) -> Backend:
        stream = Backend()
        made.add(stream)
        return stream

    events = torch_device.TorchEvents(SimpleNamespace(current_stream=current_stream), None, lambda _: next(ids))
    for _ in range(5):
        events.stream(torch.device("cuda:0"))
    gc.collect()

    assert len(made) <= 2


# A thread needs a context and the relaxed mode before it queries events.
NOTHING, FIRST, OWN = 0, 100, 77


class DriverLibrary:
    """A driver with a context for each device, and a thread that has one of them or none."""

    def __init__(self, current: int, refuses: str = "") -> None:
        self.current = current
        self.refuses = refuses
        self.retained: list[int] = []
        self.modes: list[int] = []

    def cuCtxGetCurrent(self, context: Any) -> int:  # noqa: N802 - its name there
        context._obj.value = self.current
        return 0

    def cuDeviceGet(self, handle: Any, index: int) -> int:  # noqa: N802
        handle._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, handle: Any) -> int:  # noqa: N802
        context._obj.value = FIRST + handle.value
        self.retained.append(handle.value)
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        self.current = context.value
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802
        """Take the mode of a thread, which needs a context for it."""
        self.modes.append(mode._obj.value)
        return 201 if self.current == NOTHING or self.refuses else 0


@pytest.mark.parametrize(("current", "retained", "after"), [(NOTHING, [3], FIRST + 3), (OWN, [], OWN)])
def test_a_thread_has_the_context_of_a_device_in_use(
    monkeypatch: pytest.MonkeyPatch, current: int, retained: list[int], after: int
) -> None:
    library = DriverLibrary(current)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    driver = Driver("libcuda.so.1", "cu")
    driver.prepare(3)
    driver.prepare(3)

    assert (library.retained, library.current, library.modes) == (retained, after, [RELAXED])

    thread = threading.Thread(target=driver.prepare, args=(3,))
    thread.start()
    thread.join()

    assert library.modes == [RELAXED, RELAXED]


def test_a_refusing_driver_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    library = DriverLibrary(OWN, refuses="always")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    driver = Driver("libcuda.so.1", "cu")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cuThreadExchangeStreamCaptureMode must return 0"):
            driver.prepare(0)

    assert library.modes == [RELAXED, RELAXED]


@pytest.mark.parametrize(("library", "error"), [("no-such-driver.so", OSError), ("libc.so.6", AttributeError)])
def test_a_missing_driver_is_not_queried(library: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Driver(library, "cu").prepare(0)
