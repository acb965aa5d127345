"""`Instrumentor`: the base class of all instrumented libraries, and its patches, which import hooks apply.

A subclass declares `library`, and in `targets` what it replaces. A new library needs a file in `libraries/`
(`libraries/_template.py` is a commented example) and a line in `bootstrap.LIBRARIES`. Nothing of ours may raise into the host: a
failure is logged once, and the library runs unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from .import_hooks import Hook, forget, when_imported
from .probes import Probe, can_be_probed, probed, unprobed
from .records import Marks, clock, current, has_capacity

# A row of `Instrumentor.targets`.
Target: TypeAlias = tuple[str, Callable[[Any], Any], str]

# Objects around a function, each around the other.
MAX_LAYERS: Final = 16
# https://docs.python.org/3/c-api/typeobj.html#c.Py_TPFLAGS_IMMUTABLETYPE
_IMMUTABLE_TYPE: Final = 1 << 8

_logger = logging.getLogger("stagelens")
_reported: set[str] = set()
# Shorter calls are not recorded: the clock and the record would be a tenth of their time.
MIN_CALL_NS: Final = 20_000


def log_failure(what: str) -> None:
    """Log the current exception, the first time *what* fails; raise it again if a signal handler of the host raised it."""
    error = sys.exception()
    if error is not None and _is_of_a_signal(error):
        raise error
    if what in _reported:
        return
    _reported.add(what)
    if error is not None:
        # Our code may fail while an exception of the host propagates; the host reports that one.
        error.__suppress_context__ = True
    _logger.warning(
        "stagelens: %s failed; it is disabled, and the service is not affected. Please report this:",
        what,
        exc_info=error,
    )


def _is_of_a_signal(error: BaseException) -> bool:
    """Return whether a handler of a signal raised *error* while our code ran: it gets the frame that it interrupts, that of its caller."""
    trace = error.__traceback__
    while trace is not None:
        caller = trace.tb_frame.f_back
        for value in trace.tb_frame.f_locals.values() if caller is not None else ():
            # With `*args` it is in a tuple.
            if value is caller or (type(value) is tuple and any(argument is caller for argument in value)):
                return True
        trace = trace.tb_next
    return False


class Patch(NamedTuple):
    owner: Any
    name: str
    original: Any
    replacement: Any

    def is_applied(self) -> bool:
        return vars(self.owner).get(self.name) is self.replacement

    def is_reloaded(self) -> bool:
        """Return whether the attribute is the library's original again, as after a reload, and not a wrapper around ours."""
        present = _function(vars(self.owner).get(self.name))
        return not hasattr(present, "__wrapped__") and _identity(present) == _identity(_function(self.original))


class Instrumentor:
    """Base class of an instrumented library. Patches belong to the class, so several instances patch only once.

    Attributes:
        library: Import name of the library.
        title: Name of the library in the documentation.
        stages: Description of each stage by its key; one line each.
        facts: Facts about a request that the instrumentor records, such as "model".
        not_timed: Operations that are not timed although a reader might expect it, with an alternative if there is one.
        tested: Versions of the distributions in the tests.
    """

    library: ClassVar[str] = ""
    title: ClassVar[str] = ""
    stages: ClassVar[Mapping[str, str]] = MappingProxyType({})
    facts: ClassVar[Sequence[str]] = ()
    not_timed: ClassVar[Sequence[str]] = ()
    tested: ClassVar[Mapping[str, str]] = MappingProxyType({})
    _patches: ClassVar[list[Patch]]
    # The code with a probe of each function.
    _probes: ClassVar[WeakKeyDictionary[FunctionType, CodeType]]
    _overrides: ClassVar[list[tuple[type, str]]]
    _waiting: ClassVar[dict[str, Hook]]

    def __init_subclass__(cls) -> None:
        cls.stages, cls.tested = MappingProxyType(cls.stages), MappingProxyType(cls.tested)
        cls._patches, cls._probes, cls._overrides, cls._waiting = [], WeakKeyDictionary(), [], {}

    def targets(self) -> Iterable[Target]:
        """Return what is replaced: place, what makes the replacement of an original, and names separated by spaces.

        The place is an import name. With ":Class" it is a class of the module, or several separated by spaces; with
        ":Class.__mro__" also its base classes. A class or name that another version does not have is skipped.
        """
        return ()

    def hooks(self) -> Mapping[str, Hook]:
        """Return the function that patches each module of the library, by import name; it runs after the import."""
        return dict.fromkeys((location.partition(":")[0] for location, _, _ in self.targets()), self._patch)

    def _patch(self, module: ModuleType) -> None:
        for location, make, names in self.targets():
            name, _, paths = location.partition(":")
            for owner in _owners(module, paths) if name == module.__name__ else ():
                for attribute in names.split():
                    self.replace(owner, attribute, make)

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the library without a version constraint: missing attributes are skipped."""
        return (self.library,)

    def instrument(self, **_: Any) -> None:
        """Patch the library, now if it is imported, else on its import."""
        if self._waiting:
            return
        self._waiting.update((name, _failing_open(hook)) for name, hook in self.hooks().items())
        for name, hook in self._waiting.items():
            when_imported(name, hook)

    def uninstrument(self, **_: Any) -> None:
        """Restore the original objects; an attribute that was wrapped again by others stays unchanged."""
        for name, hook in self._waiting.items():
            forget(name, hook)
        self._waiting.clear()
        for patch in reversed(self._patches):
            if patch.is_applied():
                setattr(patch.owner, patch.name, patch.original)
                self._patches.remove(patch)
        for function, code in list(self._probes.items()):
            if function.__code__ is code:
                function.__code__ = unprobed(code)
                del self._probes[function]
        while self._overrides:
            delattr(*self._overrides.pop())

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace attribute *name* of *owner*, a module or class, by `make(original)`.

        For a class method, a static method or a property, *make* gets the underlying function. A missing or inherited attribute
        is skipped: another version of the library, or the base class, defines it; so is a class written in C that may not change,
        such as those of gevent. A function of Python that is only `Probed` stays the same object.
        """
        original = vars(owner).get(name)
        function = innermost(_function(original))
        if isinstance(make, Probed) and can_be_probed(function, make.probe):
            self._probe(function, make.probe)
            return
        present = [patch for patch in self._patches if patch.owner is owner and patch.name == name]
        is_fixed = isinstance(owner, type) and owner.__flags__ & _IMMUTABLE_TYPE
        if original is None or is_fixed or not all(patch.is_reloaded() for patch in present):
            return
        replacement = _replacement(owner, original, make)
        setattr(owner, name, replacement)
        self._patches.append(Patch(owner, name, original, replacement))

    def _probe(self, function: FunctionType, probe: Probe) -> None:
        if self._probes.get(function) is not function.__code__:
            self._probes[function] = function.__code__ = probed(function.__code__, probe)

    def override(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        """Define method *name* of class *owner* as `make(inherited)`, because the type that has it cannot be patched."""
        if name not in vars(owner):
            inherited = getattr(owner, name)
            setattr(owner, name, _as_wrapper_of(make(inherited), inherited))
            self._overrides.append((owner, name))


class TimedCall:
    __slots__ = ("marks", "stage", "started")

    def __init__(self, marks: Marks, stage: str) -> None:
        self.marks, self.stage, self.started = marks, stage, clock()

    def end(self) -> None:
        if has_capacity(self.marks):
            self.marks.extend((self.stage, self.started, clock()))


class LongCall(TimedCall):
    """A call that is recorded if it lasts at least `MIN_CALL_NS`."""

    __slots__ = ()

    def end(self) -> None:
        ended = clock()
        if ended - self.started >= MIN_CALL_NS and has_capacity(self.marks):
            self.marks.extend((self.stage, self.started, ended))


class Probed:
    """Observer of the calls of a function that changes none of them: `Instrumentor.replace` adds *probe* to a function of Python.

    A function in C, and a function that no module or class holds, get a wrapper that does the same: call this object with them, with
    *is_async* for one that returns a coroutine although it is no coroutine function.
    """

    def __init__(self, probe: Probe, *, is_async: bool = False) -> None:
        self.probe = probe
        self._is_async = is_async

    @classmethod
    def until_end(cls, enter: Callable[..., object], parameters: int = 0) -> Probed:
        """Return one that ends the tokens of *enter*, which have a method `end` without parameters, however the call ends."""
        return cls(Probe(enter, end, end, parameters))

    def __call__(self, original: Any) -> Any:
        is_async = self._is_async or inspect.iscoroutinefunction(original)
        return (_observed_async if is_async else _observed)(original, self.probe)


def end(token: Any, _: object) -> None:
    if token is not None:
        token.end()


# An exception of a signal handler, in *leave*, leads to *failed*. The token is released because a traceback keeps the frame.
def _observed(original: Any, probe: Probe) -> Any:
    enter, leave, failed, parameters = probe
    defaults = _defaults(original, parameters)

    def call(*args: Any, **options: Any) -> Any:
        token = enter(*_given(defaults, args, options)) if parameters else enter()
        if token is None:
            return original(*args, **options)
        try:
            value = original(*args, **options)
            if leave is not None:
                leave(token, value)
        except BaseException as error:
            if failed is not None:
                failed(token, error)
            raise
        else:
            return value
        finally:
            del token

    return call


def _observed_async(original: Any, probe: Probe) -> Any:
    enter, leave, failed, parameters = probe
    defaults = _defaults(original, parameters)

    async def call(*args: Any, **options: Any) -> Any:
        token = enter(*_given(defaults, args, options))
        if token is None:
            return await original(*args, **options)
        try:
            value = await original(*args, **options)
            if leave is not None:
                leave(token, value)
        except BaseException as error:
            if failed is not None:
                failed(token, error)
            raise
        else:
            return value
        finally:
            del token

    return call


def _defaults(original: Any, parameters: int) -> list[tuple[str, Any]]:
    """Return the names of the first *parameters* of *original*, or of what it wraps, with their defaults; "" where it has none."""
    named: list[tuple[str, Any]] = []
    with contextlib.suppress(TypeError, ValueError):
        for name, parameter in inspect.signature(original).parameters.items():
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                named.append((name, None if parameter.default is parameter.empty else parameter.default))
    return [*named, *[("", None)] * parameters][:parameters]


def _given(defaults: list[tuple[str, Any]], args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*args, *(options.get(name, default) for name, default in defaults[len(args) :]))[: len(defaults)]


def enter(call: Callable[[Marks, str], object], stage: str) -> object:
    """Return the token of a *call* that is a stage, None outside of requests."""
    marks = current.get()
    return None if marks is None else call(marks, stage)


def timed(stage: str) -> Probed:
    """Return what records every call of a function as a stage of the running request."""
    # Not a closure: some pools pickle the code of the functions of a script.
    return Probed.until_end(functools.partial(enter, TimedCall, stage))


def timed_async(stage: str) -> Probed:
    """Return the same, for a callable that returns a coroutine."""
    return Probed(timed(stage).probe, is_async=True)


def timed_call(stage: str) -> Probed:
    """Return what records the calls of a function as a stage of the running request, except calls shorter than `MIN_CALL_NS`.

    A call inside a call of the same stage changes nothing: the stage has the time of the outer call.
    """
    return Probed.until_end(functools.partial(enter, LongCall, stage))


class CallsInstrumentor(Instrumentor):
    """Base class of a library that needs no more than `timed_call` around its functions.

    Attributes:
        calls: Rows of `targets`, with the stage instead of what makes the replacement.
    """

    calls: ClassVar[Sequence[tuple[str, str, str]]] = ()

    def targets(self) -> Iterable[Target]:
        return [(location, self.wrapper(stage), names) for location, stage, names in self.calls]

    def wrapper(self, stage: str) -> Probed:
        return timed_call(stage)


def _owners(module: ModuleType, paths: str) -> Iterator[Any]:
    for path in paths.split():
        owner = functools.reduce(lambda outer, name: getattr(outer, name, None), path.split("."), module)
        yield from owner if isinstance(owner, tuple) else () if owner is None else (owner,)
    if not paths:
        yield module


def _identity(function: Any) -> tuple[str | None, str | None]:
    return getattr(function, "__module__", None), getattr(function, "__qualname__", None)


def _replacement(owner: Any, original: Any, make: Callable[[Any], Any]) -> Any:
    if isinstance(original, (classmethod, staticmethod)):
        function = _function(original)
        return type(original)(_as_wrapper_of(make(function), function))
    if isinstance(original, property) and original.fget is not None:
        return original.getter(_as_wrapper_of(make(original.fget), original.fget))
    if isinstance(original, type):
        # A subclass, which inherits the rest.
        return make(original)
    return _as_wrapper_of(make(_callable(owner, original)), original)


def _as_wrapper_of(replacement: Any, original: Any) -> Any:
    assigned = functools.WRAPPER_ASSIGNMENTS
    if getattr(original, "__qualname__", "") is None:
        # A method by nanobind has no name, which a function in Python must have.
        assigned, replacement.__qualname__ = [name for name in assigned if name != "__qualname__"], ""
    functools.update_wrapper(replacement, original, assigned)
    # A function or method written in C may lack both, and those of our wrapper are not its own.
    if not hasattr(original, "__annotations__"):
        replacement.__annotations__ = {}
    if not hasattr(original, "__module__"):
        replacement.__module__ = None
    # OpenTelemetry instrumentations recognize their own wrappers by these attributes, so our wrapper must not have them.
    for name in [name for name in vars(replacement) if name.startswith("opentelemetry_")]:
        delattr(replacement, name)
    return replacement


def _function(attribute: Any) -> Any:
    if isinstance(attribute, property):
        return attribute.fget
    return attribute.__func__ if isinstance(attribute, (classmethod, staticmethod)) else attribute


def innermost(function: Any) -> Any:
    """Return the function of Python in an object around it, such as a cache, a dispatcher of NumPy or a proxy of wrapt."""
    # Not by `__getattr__` of the object, which may do anything.
    with contextlib.suppress(Exception):
        for _ in range(MAX_LAYERS):
            if isinstance(function, (FunctionType, type, ModuleType)):
                break
            function = object.__getattribute__(function, "__wrapped__")
    return function


def _callable(owner: Any, original: Any) -> Any:
    """Return *original* as a function that takes the instance first; objects wrapped by wrapt need this."""
    get = getattr(type(original), "__get__", None)
    if get is None or not isinstance(owner, type):
        return original
    return get(original, None, owner)


def _failing_open(hook: Hook) -> Hook:
    def run(module: ModuleType) -> None:
        try:
            hook(module)
        except Exception:
            log_failure(f"instrumenting {module.__name__}")

    return run


@functools.cache
def unpatched(module: str, name: str) -> Callable[..., Any]:
    """Return a function as it was before gevent replaced it."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return getattr(import_module(module), name) if monkey is None else monkey.get_original(module, name)
