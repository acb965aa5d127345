"""Instruments libraries in a process of its own and prints as JSON what came of it.

- `examine.py TRIGGER`: what of that library is patched, and what of it is not as it was. Every attribute of the modules
  and classes that could be patched is remembered before: no claim of ours about what was patched is trusted.
- `examine.py`: what of each library is patched when it is imported after `stagelens.instrument()`.
- `examine.py TRIGGER TRIGGER ...`: the same of these libraries, without the others.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import pickle
import sys
import warnings
from collections.abc import Callable, Collection, Generator, Iterator
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from callers import looks_at_caller
from calls import refused
from stand_ins import noticed

from stagelens.instrumentors.bootstrap import LIBRARIES, instrument
from stagelens.instrumentors.instrumentor import Instrumentor, Patch, innermost

DESCRIPTION: Final = ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__")
KINDS: Final = (
    inspect.isroutine,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
    inspect.isgeneratorfunction,
    inspect.isclass,
)
ABSENT: Final = object()
# The place of a probe is this of a function.
CODE: Final = "__code__"
# Py_TPFLAGS_BASETYPE: the class can have subclasses.
BASETYPE: Final = 1 << 10


class Place(NamedTuple):
    owner: Any
    name: str

    @property
    def attribute(self) -> Any:
        return self.owner.__code__ if self.name == CODE else vars(self.owner).get(self.name, ABSENT)

    @property
    def described(self) -> Any:
        """Return what a program would describe: a function with another code is that function."""
        return self.owner if self.name == CODE else self.attribute

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__qualname__', self.owner.__name__)}.{self.name}"


def introspection(place: Place) -> dict[str, Any]:
    attribute = place.described
    function = function_in(attribute)
    return {
        "type": type(attribute).__name__ if attribute is not function else "",
        "signature": str(value_or_error(inspect.signature, function)),
        "source": str(value_or_error(inspect.getsource, function)),
        # What has no public name is sent to no other process.
        "pickled": is_private(place) or value_or_error(is_pickled, function) is True,
        **{kind.__name__: kind(function) for kind in KINDS},
        # Such as `cache_clear` of a cached function.
        "attributes": [name for name in dir(function) if not name.startswith("_")],
        # A function written in C has no annotations, and ours has empty ones.
        **{name: repr(described(function, name) or ABSENT) for name in DESCRIPTION},
    }


def is_private(place: Place) -> bool:
    return (place.owner.__name__ if place.name == CODE else place.name).startswith("_")


def described(function: Any, name: str) -> Any:
    """Return an attribute; None for the annotations of a class, which Python would add to it."""
    return None if isinstance(function, type) and name == "__annotations__" else getattr(function, name, None)


def is_pickled(function: Any) -> bool:
    return pickle.loads(pickle.dumps(function)) is function  # noqa: S301 - made in this very line


def value_or_error(question: Callable[[Any], Any], value: Any) -> Any:
    try:
        return question(value)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same with us
        return type(error).__name__


def function_in(attribute: Any) -> Any:
    return attribute.__func__ if isinstance(attribute, (classmethod, staticmethod)) else attribute


def loaded(instrumentor: Instrumentor) -> list[ModuleType]:
    modules: list[ModuleType] = []
    for name in instrumentor.hooks():
        with contextlib.suppress(ImportError):
            modules.append(importlib.import_module(name))
    return modules


def attributes(modules: list[ModuleType]) -> dict[Place, Any]:
    packages = {module.__name__.partition(".")[0] for module in modules}
    around = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in packages]
    owners: dict[int, Any] = {id(module): module for module in around}
    for module in modules:
        for value in list(vars(module).values()):
            if isinstance(value, type):
                owners |= {id(base): base for base in value.__mro__}
    # A module's own books, such as the registry of warnings it has given, are not its attributes.
    places = [
        Place(owner, name)
        for owner in owners.values()
        for name in list(vars(owner))
        if not (name.startswith("__") and isinstance(owner, ModuleType))
    ]
    functions = {id(function): function for place in places for function in (function_of(place.attribute),)}
    places += [Place(function, CODE) for function in functions.values() if isinstance(function, FunctionType)]
    return {place: place.attribute for place in places}


def function_of(attribute: Any) -> Any:
    return innermost(attribute.fget if isinstance(attribute, property) else function_in(attribute))


def changed(before: dict[Place, Any]) -> list[Place]:
    return [place for place, attribute in before.items() if place.attribute is not attribute]


@contextlib.contextmanager
def unheard(noise: list[str]) -> Generator[None]:
    printed = io.StringIO()
    with (
        warnings.catch_warnings(record=True) as warned,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        warnings.simplefilter("always")
        yield
    noise += [str(warning.message) for warning in warned]
    noise += printed.getvalue().splitlines()


def overridden(place: Place) -> bool:
    if not isinstance(place.owner, type) or not place.owner.__flags__ & BASETYPE:
        return True

    def override() -> None: ...

    replaced = type(place.owner)("Replaced", (place.owner,), {place.name: override})
    inheriting = type(place.owner)("Inheriting", (place.owner,), {})
    found = inspect.getattr_static(inheriting, place.name)
    return inspect.getattr_static(replaced, place.name) is override and found is place.attribute


class Examination:
    def __init__(self, trigger: str) -> None:
        self.noise: list[str] = []
        library = next(each for each in LIBRARIES if each.trigger == trigger)
        with unheard(self.noise):
            self._instrumentor = library.load()()
        self._modules = loaded(self._instrumentor)
        self._before = attributes(self._modules)
        self._makes: dict[Place, Callable[[Any], Any]] = {}
        with unheard(self.noise):
            self._instrumentor.replace = self._replacing(self._instrumentor.replace)
            self._instrumentor.instrument()
        self._patched = changed(self._before)
        self.patched = patches(type(self._instrumentor))

    def broken(self) -> dict[str, list[str]]:
        """Return the violated guarantees; the library is unchanged afterwards."""
        with_us = {place: introspection(place) for place in self._patched}
        broken = {
            "escapes the examination": sorted(set(map(str, self._patched)) ^ set(self.patched)),
            "refuses a call": [f"{place} {what}" for place in self._patched for what in self._refused(place)],
            "replaces a class": [str(place) for place in self._patched if isinstance(self._before[place], type)],
            "is between a function and its caller": [
                f"{place}: {what}"
                for place in self._wrapped()
                for what in looks_at_caller(function_in(self._before[place]), place.owner)
            ],
            "cannot be overridden": [str(place) for place in self._patched if not overridden(place)],
            "patched twice": self._twice(),
            "not restored": self._restored(),
        }
        without_us = {place: introspection(place) for place in self._patched}
        broken["looks different"] = [
            f"{place} {what}"
            for place in self._patched
            for what, value in with_us[place].items()
            if value != without_us[place][what]
        ]
        broken["is noticed"] = [
            f"{place} {what}"
            for place in self._wrapped()
            for what in noticed(function_in(self._before[place]), self._makes[place])
        ]
        self._instrumentor.instrument()
        broken["not patched again"] = [str(place) for place in set(self._patched) ^ set(changed(self._before))]
        broken["not restored again"] = self._restored()
        return {what: where for what, where in broken.items() if where}

    def _replacing(self, replace: Callable[..., None]) -> Callable[..., None]:
        def noting(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
            self._makes[Place(owner, name)] = make
            replace(owner, name, make)

        return noting

    def _wrapped(self) -> Iterator[Place]:
        for place in self._patched:
            if place.name != CODE and place in self._makes and not isinstance(self._before[place], (type, property)):
                yield place

    def _refused(self, place: Place) -> Iterator[str]:
        return (
            iter(()) if place.name == CODE else refused(function_in(self._before[place]), function_in(place.attribute))
        )

    def _twice(self) -> list[str]:
        once = attributes(self._modules)
        for again in (self._instrumentor, type(self._instrumentor)()):
            again.instrument()
        return [str(place) for place in changed(once)]

    def _restored(self) -> list[str]:
        with unheard(self.noise):
            self._instrumentor.uninstrument()
        # A library may import more of itself meanwhile, and keep names that its `__getattr__` has found.
        known = {id(place.owner) for place in self._before}
        now = {place for place in attributes(self._modules) if id(place.owner) in known}
        added = [
            place
            for place in now - self._before.keys()
            if not isinstance(place.attribute, ModuleType) and not hasattr(place.owner, "__getattr__")
        ]
        return [str(place) for place in (*changed(self._before), *added)]


def examine(trigger: str) -> dict[str, Any]:
    examination = Examination(trigger)
    broken = examination.broken()
    return {"patched": examination.patched, "broken": broken, "noise": examination.noise}


def instrument_first(triggers: Collection[str]) -> dict[str, list[str]]:
    """Return what is patched of each library; of those with these *triggers*, if there are any."""
    instrument()
    patched: dict[str, list[str]] = {}
    for library in LIBRARIES:
        if triggers and library.trigger not in triggers:
            continue
        # Those that `make` puts beside the others may not be there.
        with contextlib.suppress(ImportError):
            importlib.import_module(library.trigger)
        instrumentor = library.load()
        loaded(instrumentor())
        patched[library.trigger] = patches(instrumentor)
    return patched


def patches(instrumentor: type[Instrumentor]) -> list[str]:
    own: list[Patch] = vars(instrumentor)["_patches"]
    places = [Place(patch.owner, patch.name) for patch in own]
    return sorted(map(str, [*places, *(Place(function, CODE) for function in vars(instrumentor)["_probes"])]))


if __name__ == "__main__":
    _, *named = sys.argv
    json.dump(examine(*named) if len(named) == 1 else instrument_first(named), sys.stdout)
