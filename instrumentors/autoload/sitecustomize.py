"""Startup hook that instruments every Python process of `stagelens run` before the program runs.

Any interpreter may find this file on PYTHONPATH, even an old one or one without Stagelens: the syntax is plain, and nothing
here may stop the program.
"""

# ruff: noqa: PLC0415, PTH100, PTH110, PTH118, PTH120, UP031, ANN - it must load quickly, in any interpreter

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


_OLDEST = (3, 11)


def _report(text):  # pyright: ignore[reportMissingParameterType]
    try:  # noqa: SIM105 - see above
        sys.stderr.write(text)
    except Exception:
        # Such as a stream that the parent process has closed, which is None.
        pass


def _instrument():
    if sys.version_info < _OLDEST:
        if os.environ.get("STAGELENS_RUN_PID") == str(os.getpid()):
            _report(
                "stagelens run: nothing is timed, %s is Python %d.%d and Stagelens needs %d.%d.\n"
                % (sys.executable, sys.version_info[0], sys.version_info[1], _OLDEST[0], _OLDEST[1])
            )
            _report("    Run the service with Python %d.%d or newer.\n" % _OLDEST)
        return
    try:
        import stagelens

        stagelens.instrument()
    except ImportError as error:
        # The scripts that the command starts may use any interpreter: only the command itself reports an error.
        if os.environ.get("STAGELENS_RUN_PID") == str(os.getpid()):
            _report("stagelens run: nothing is timed, %s cannot load stagelens (%s).\n" % (sys.executable, error))
            root = os.path.dirname(os.path.dirname(_HERE))
            source = root if os.path.exists(os.path.join(root, "pyproject.toml")) else "stagelens"
            _report("    %s -m pip install %s\n" % (sys.executable, source))
    except Exception as error:
        _report("stagelens: nothing is timed, it failed to start (%r).\n" % (error,))


def _run_the_next():
    """Load the user's `sitecustomize` that this file shadows; its errors propagate as usual."""
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_instrument()
_run_the_next()
