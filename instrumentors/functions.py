"""The user's own functions as stages, named on the command line: `stagelens run --stage preprocess=serve:prepare -- …`.

A named function is patched when its module is imported. The script itself is never imported by its name: its functions are patched
before the first request starts. The entry point is for `opentelemetry-instrument`, which replaces our `sitecustomize`.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, ClassVar, Final, NamedTuple

from ..core.errors import ConfigError
from . import recorder
from .instrumentor import Hook, Instrumentor, timed
from .probes import unprobed
from .recorder_state import state

# Comma-separated stage=module:function, as `--stage` writes it.
VARIABLE = "STAGELENS_STAGES"

_logger = logging.getLogger("stagelens")


class NamedStage(NamedTuple):
    stage: str
    module: str
    path: str


def parse(text: str) -> list[NamedStage]:
    """Parse `stage=module:function, …`.

    >>> parse("preprocess=serve:prepare")
    [NamedStage(stage='preprocess', module='serve', path='prepare')]
    """
    return [_parse_one(entry.strip()) for entry in text.split(",") if entry.strip()]


def _parse_one(entry: str) -> NamedStage:
    stage, equals, target = entry.partition("=")
    module, colon, path = target.partition(":")
    names = [stage, *module.split("."), *path.split(".")]
    if not equals or not colon or not all(name.isidentifier() for name in names):
        msg = f"{VARIABLE} (--stage) has {entry!r}; write stage=module:function, such as preprocess=serve:prepare"
        raise ConfigError(msg)
    return NamedStage(stage, module, path)


def _send_originals(module: ModuleType) -> None:
    reducers: dict[type, Callable[[CodeType], object]] = module.Pickler._dispatch_table  # noqa: SLF001 - there is no public way
    reduce = reducers[CodeType]
    reducers[CodeType] = lambda code: reduce(unprobed(code))


# Also inside of libraries that send functions to other processes.
CLOUDPICKLE_HOOKS: Final = dict.fromkeys(
    (f"{owner}cloudpickle.cloudpickle" for owner in ("", "joblib.externals.", "pyspark.", "ray.")), _send_originals
)


class FunctionInstrumentor(Instrumentor):
    # Functions that were not found yet, by module.
    _unmatched: ClassVar[dict[str, list[NamedStage]]] = {}

    def hooks(self) -> Mapping[str, Hook]:
        try:
            named = parse(os.environ.get(VARIABLE, ""))
        except ConfigError as error:
            _logger.warning("stagelens: %s", error)
            return {}
        by_module: defaultdict[str, list[NamedStage]] = defaultdict(list)
        for entry in named:
            by_module[entry.module].append(entry)
        if by_module:
            self._unmatched.update(by_module)
            state.before_first_request(self._patch_script)
            atexit.register(self._report_unmatched)
        hooks = {module: functools.partial(self._patch_functions, entries) for module, entries in by_module.items()}
        return hooks | (CLOUDPICKLE_HOOKS if hooks else {})

    def uninstrument(self, **more: Any) -> None:
        self._unmatched.clear()
        super().uninstrument(**more)

    def _patch_script(self) -> None:
        script = sys.modules["__main__"]
        entries = self._unmatched.get(_script_name(script))
        if entries:
            self._patch_functions(entries, script)

    def _report_unmatched(self) -> None:
        for module, entries in self._unmatched.items() if recorder.background.started else ():
            for entry in entries:
                _logger.warning(
                    "stagelens: --stage %s=%s:%s stayed empty: this process never imported %s; write the module name that the program imports",
                    *entry,
                    module,
                )

    def _patch_functions(self, entries: list[NamedStage], module: ModuleType) -> None:
        from .api import stage  # noqa: PLC0415 - most processes do not need it

        self._unmatched.pop(entries[0].module, None)
        for entry in entries:
            *classes, name = entry.path.split(".")
            owner: object | None = functools.reduce(lambda outer, part: getattr(outer, part, None), classes, module)
            function = vars(owner).get(name) if owner is not None else None
            # A callable object (a model, a cached function) has further attributes and methods, and is not replaced.
            if not isinstance(function, (FunctionType, BuiltinFunctionType)):
                _logger.warning(
                    "stagelens: --stage %s=%s:%s is not a plain function or method; use stagelens.stage() in the code",
                    *entry,
                )
                continue
            # Of a generator each step is timed.
            is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
            self.replace(owner, name, (stage if is_generator else timed)(entry.stage))


def _script_name(script: ModuleType) -> str:
    spec = script.__spec__
    if spec is not None:
        return spec.name.removesuffix(".__main__")
    file = getattr(script, "__file__", None)
    return Path(file).stem if file else ""
