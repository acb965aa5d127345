"""Startup hook that instruments every Python process of `stagelens run` before the program runs.

Any interpreter may find this file on PYTHONPATH, even an old one or one without Stagelens: the syntax is plain, and nothing
here may stop the program.
"""

# ruff: noqa: PLC0415, PTH100, PTH110, PTH115, PTH118, PTH120, PTH123, UP031, SIM105, ANN - it must load quickly, in any interpreter

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


_OLDEST = (3, 11)


def _report(text):  # pyright: ignore[reportMissingParameterType]
    try:
        sys.stderr.write(text)
    except Exception:
        # Such as a stream that the parent process has closed, which is None.
        pass


def _is_the_program():
    """Return whether this is the program of the command, which may start it by a shell or launcher such as `uv run`."""
    command = os.environ.get("STAGELENS_RUN_PID")
    process = str(os.getpid())
    try:
        with open("/proc/self/cmdline", "rb") as words:
            # A line in a start script that asks for a port or a path.
            is_helper = words.read().split(b"\0")[1:2] == [b"-c"]
        while process != command and not is_helper:
            with open("/proc/%s/stat" % process) as file:
                process = file.read().rpartition(")")[2].split()[1]
            # What a Python program starts may use any interpreter.
            if process in ("0", "1") or "python" in os.readlink("/proc/%s/exe" % process):
                return False
    except Exception:
        pass  # Not on Linux, or a process of another user.
    return process == command


def _fix(python):  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
    root = os.path.dirname(os.path.dirname(_HERE))
    source = root if os.path.exists(os.path.join(root, "pyproject.toml")) else "stagelens"
    # Set for what `uv run` starts.
    return ("uv run --with %s ..." % source) if os.environ.get("UV") else "%s -m pip install %s" % (python, source)


def _instrument():
    python = sys.executable
    if sys.version_info < _OLDEST:
        if _is_the_program():
            _report(
                "stagelens run: nothing is timed, %s is Python %d.%d and Stagelens needs %d.%d. "
                "fix: run the service with Python %d.%d or newer\n"
                % (python, sys.version_info[0], sys.version_info[1], _OLDEST[0], _OLDEST[1], _OLDEST[0], _OLDEST[1])
            )
        return
    try:
        import stagelens

        stagelens.instrument()
    except ImportError as error:
        if _is_the_program():
            _report(
                "stagelens run: nothing is timed, %s cannot load stagelens (%s). fix: %s\n"
                % (python, error, _fix(python))
            )
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
