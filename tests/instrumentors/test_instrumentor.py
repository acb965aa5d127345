"""The contract of a library module, tried on a library made for it."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import itertools
import logging
import signal
import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import stagelens
from stagelens.instrumentors import instrumentor
from stagelens.instrumentors.instrumentor import Instrumentor, log_failure, timed, timed_async
from stagelens.instrumentors.probes import probed, unprobed
from stagelens.instrumentors.stalls import stalls
from tests.instrumentors.conftest import Finished

LIBRARY = """
class Base:
    def inherited(self): return "inherited"
class Model(Base):
    def run(self, x): return x
    def wrapped(self): return "wrapped"
    async def wrapped_async(self): return "wrapped"
async def fetch(x): return x
"""


class ToyInstrumentor(Instrumentor):
    library = "toy_library"

    def hooks(self) -> Mapping[str, instrumentor.Hook]:
        return {"toy_library": self._toy, "toy_library_extra": self._extra}

    def _toy(self, module: ModuleType) -> None:
        self.replace(module.Model, "run", timed("forward"))
        self.replace(module.Model, "inherited", timed("forward"))
        self.replace(module.Model, "absent", timed("forward"))
        self.replace(module, "fetch", timed_async("dependency"))
        # As a function that is not written in Python.
        for name in ("wrapped", "wrapped_async"):
            self.replace(module.Model, name, timed("serialize").__call__)

    def _extra(self, module: ModuleType) -> None:
        raise AttributeError(module.__name__)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ToyInstrumentor]:
    (tmp_path / "toy_library.py").write_text(LIBRARY)
    (tmp_path / "toy_library_extra.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    toy = ToyInstrumentor()
    toy.instrument()
    yield toy
    toy.uninstrument()
    sys.modules.pop("toy_library", None)
    sys.modules.pop("toy_library_extra", None)


@pytest.mark.usefixtures("toy")
def test_missing_or_inherited_methods_are_not_patched() -> None:
    library: Any = importlib.import_module("toy_library")

    assert hasattr(library.Model.wrapped, "__wrapped__")
    assert "inherited" not in vars(library.Model)
    assert not hasattr(library.Model, "absent")


@pytest.mark.usefixtures("toy")
def test_a_library_that_cannot_be_patched_still_loads(reported: set[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "stagelens"):
        extra: Any = importlib.import_module("toy_library_extra")
        importlib.reload(extra)

    assert extra.VALUE == 1
    assert reported == {"instrumenting toy_library_extra"}
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_later_patch_survives_uninstrumentation(toy: ToyInstrumentor) -> None:
    library: Any = importlib.import_module("toy_library")
    ours = library.Model.wrapped

    def theirs(self: Any) -> Any:
        return ours(self)

    library.Model.wrapped = theirs
    toy.uninstrument()
    toy.instrument()

    assert library.Model.wrapped is theirs
    assert not hasattr(ours.__wrapped__, "__wrapped__")


def test_a_function_under_a_later_patch_keeps_one_probe(toy: ToyInstrumentor, finished: Finished) -> None:
    library: Any = importlib.import_module("toy_library")
    ours = library.Model.run
    library.Model.run = functools.lru_cache(ours)
    toy.uninstrument()
    plain = ours.__code__
    toy.instrument()
    with stagelens.request("toy"):
        library.Model().run(1)

    assert finished.stages() == ["forward"]

    toy.uninstrument()

    assert ours.__code__ is plain


def test_a_reloaded_library_is_patched_again(toy: ToyInstrumentor) -> None:
    library: Any = importlib.import_module("toy_library")
    for _ in range(2):
        library = importlib.reload(library)

    assert not hasattr(library.Model.wrapped.__wrapped__, "__wrapped__")
    for function in (library.Model.run, library.fetch):
        original = unprobed(function.__code__)
        assert original is not function.__code__
        assert unprobed(original) is original

    toy.uninstrument()

    assert not hasattr(library.Model.wrapped, "__wrapped__")
    for function in (library.Model.run, library.fetch):
        assert unprobed(function.__code__) is function.__code__


class TimeLimitError(Exception):
    """Raised by a handler of a signal."""


def ends_in_c() -> bool:
    return 3**1_000_000 > 0


def collects() -> None:
    deque(map(gc.collect, itertools.repeat(0, 20_000)), maxlen=0)


def is_interrupted_in_ours() -> None:
    try:
        while True:
            pass
    except Exception:  # noqa: BLE001 - as in a wrapper
        log_failure("testing")


@pytest.mark.parametrize("work", [ends_in_c, collects, is_interrupted_in_ours])
def test_what_a_signal_handler_raises_reaches_the_host(work: Callable[[], object], reported: set[str]) -> None:
    def limit(*_: object) -> None:
        raise TimeLimitError

    def run() -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
        work()

    # Those of JAX and of Hypothesis are functions of Python, in which it would end.
    others, gc.callbacks[:] = gc.callbacks[:], []
    stalls.watch()
    ends_in_c.__code__ = probed(ends_in_c.__code__, timed("forward").probe)
    before = signal.signal(signal.SIGVTALRM, limit)
    try:
        with stagelens.request("limited"), pytest.raises(TimeLimitError):
            run()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        gc.callbacks[:] = others
        ends_in_c.__code__ = unprobed(ends_in_c.__code__)

    assert reported == set()


def resets_itself(_: int, __: object) -> None:
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    raise TimeLimitError


class Handler:
    def __call__(self, *_: object) -> None:
        raise TimeLimitError


@pytest.mark.parametrize("handler", [resets_itself, functools.partial(resets_itself), Handler(), Handler().__call__])
def test_every_kind_of_signal_handler_is_known(handler: Any, reported: set[str]) -> None:
    def is_interrupted() -> None:
        try:
            signal.raise_signal(signal.SIGVTALRM)
        except TimeLimitError:
            log_failure("testing")

    before = signal.signal(signal.SIGVTALRM, handler)
    with pytest.raises(TimeLimitError):
        is_interrupted()
    signal.signal(signal.SIGVTALRM, before)

    assert reported == set()


def test_a_class_ends_although_its_method_is_timed(toy: ToyInstrumentor) -> None:
    def made() -> weakref.ref[type]:
        class Model:
            def run(self) -> None:
                """Do nothing."""

        toy.replace(Model, "run", timed("forward"))
        return weakref.ref(Model)

    end = made()
    gc.collect()

    assert end() is None


def test_a_property_is_patched_and_restored() -> None:
    class Owner:
        held = 1

        @property
        def value(self) -> int:
            """Return the value."""
            return self.held

        @value.setter
        def value(self, value: int) -> None:
            self.held = value

    before, patching, owner = vars(Owner)["value"], ToyInstrumentor(), Owner()
    patching.replace(Owner, "value", lambda original: lambda owner: -original(owner))
    owner.value = 5

    assert (owner.value, owner.held) == (-5, 5)
    assert vars(Owner)["value"].__doc__ == before.__doc__

    patching.uninstrument()

    assert vars(Owner)["value"] is before


def test_a_class_that_may_not_change_is_skipped() -> None:
    before = vars(dict)["get"]
    ToyInstrumentor().replace(dict, "get", lambda original: original)

    assert vars(dict)["get"] is before


@pytest.mark.usefixtures("toy")
def test_timed_calls_are_stages_whether_they_return_or_raise(finished: Finished) -> None:
    library: Any = importlib.import_module("toy_library")
    outside = library.Model().run(1), asyncio.run(library.fetch(2))
    with stagelens.request("toy"):
        inside = library.Model().run(x=3), asyncio.run(library.fetch(x=4))
        wrapped = library.Model().wrapped(), asyncio.run(library.Model().wrapped_async())
        with pytest.raises(TypeError):
            library.Model().wrapped(1)

    assert (outside, inside, wrapped) == ((1, 2), (3, 4), ("wrapped", "wrapped"))
    assert finished.stages() == ["forward", "dependency", *["serialize"] * 3]
