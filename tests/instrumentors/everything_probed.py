"""Runs tests of Python itself with a probe in every function that they test, and prints as JSON what the probes counted."""

from __future__ import annotations

import collections
import contextlib
import gc
import importlib
import json
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

from stagelens.instrumentors.probes import Probe, can_be_probed, probed

NAMES = ["argparse", "configparser", "contextlib", "fractions", "functools", "json", "string", "textwrap", "typing"]
MODULES = [importlib.import_module(name) for name in (*NAMES, "json.decoder", "json.encoder")]
TESTS = [f"test.test_{name}" for name in (*NAMES, "contextlib_async")]
counts: collections.Counter[str] = collections.Counter()


class Token:
    def __init__(self, *_: Any) -> None:
        counts["entered"] += 1

    def __del__(self) -> None:
        counts["ended"] += 1


def leave(_: Token, __: Any) -> None:
    counts["left"] += 1


def failed(_: Token, __: BaseException) -> None:
    counts["failed"] += 1


def functions() -> Iterator[types.FunctionType]:
    for module in MODULES:
        for owner in (module, *(var for var in vars(module).values() if isinstance(var, type))):
            for value in vars(owner).values():
                function = getattr(value, "fget", None) or getattr(value, "__func__", value)
                if can_be_probed(function, Probe(Token)) and function.__module__ == module.__name__:
                    yield function


if __name__ == "__main__":
    found = {id(function): function for function in functions()}
    for function in found.values():
        parameters = min(function.__code__.co_argcount, 3)
        function.__code__ = probed(function.__code__, Probe(Token, leave, failed, parameters))
    suite = unittest.defaultTestLoader.loadTestsFromNames(TESTS)
    with contextlib.redirect_stdout(sys.stderr):
        result = unittest.TextTestRunner().run(suite)
    gc.collect()
    counted = {"functions": len(found), **counts}
    print(json.dumps(counted))
    sys.exit(not result.wasSuccessful())
