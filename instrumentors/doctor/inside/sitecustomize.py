"""Startup hook that records the imports of each process of `stagelens doctor --run`, after our other `sitecustomize`.

Each process writes a file of its own, with a line for each instrumented library or other tracer as soon as it is imported and
our hooks have run. Nothing here may stop the program.
"""

# ruff: noqa: PLC0415, PTH100, PTH120, PTH118, PTH123, UP031, ANN - it must load quickly, in any interpreter

import functools
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_BEFORE = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "autoload")


def _run_the_next():
    """Load the user's `sitecustomize` that our two files shadow; its errors propagate as usual."""
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) not in (_HERE, _BEFORE)]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _write(line: str):
    # A forked child writes its own file.
    with open(os.path.join(os.environ["STAGELENS_DOCTOR"], str(os.getpid())), "a") as file:
        file.write(line + "\n")


def _watch():
    from stagelens.instrumentors import bootstrap, import_hooks

    _write("begun")
    os.register_at_fork(after_in_child=lambda: _write("begun"))
    for library in bootstrap.LIBRARIES:
        # Registered after the hook of the instrumentor, so that the patches are already applied.
        import_hooks.when_imported(library.trigger, functools.partial(_imported, library.trigger))


def _imported(library: str, _: object):
    _write("library %s" % library)


try:
    _watch()
except Exception as error:
    if sys.stderr is not None:
        sys.stderr.write("stagelens doctor: this process cannot be inspected (%r).\n" % (error,))
_run_the_next()
