"""Script that prints facts about its interpreter, run as `python -c` with the text of this file.

The syntax is plain, because any interpreter may run the script, even an old one. No module of the program is imported.
"""

# ruff: noqa: PLC0415, UP031, ANN - it must run in any interpreter

import json
import os
import sys

# Marker before the result, which separates it from other output at the start.
MARK = "stagelens-doctor:"
SHOWN = ("OTEL_", "PYTHON", "STAGELENS_", "TMPDIR")


def _distributions():
    try:
        from importlib.metadata import distributions
    except ImportError:  # before Python 3.8, which is not supported anyway
        return {}
    # The first one on the path is the one that is imported.
    versions = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            versions.setdefault(name.lower().replace("_", "-"), distribution.version)
    return versions


def _thread_error():
    import threading

    try:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    except Exception as error:
        return str(error)
    return ""


def _stagelens():
    # Loaded by our sitecustomize, or by one that loads entry points.
    loaded = "stagelens.instrumentors.instrumentor" in sys.modules
    try:
        from importlib import import_module

        stagelens = import_module("stagelens")
        import_module("stagelens.instrumentors.agent.worker")
    except Exception as error:
        return {"loaded": loaded, "error": "%s: %s" % (type(error).__name__, error)}
    return {"loaded": loaded, "error": "", "version": stagelens.__version__, "file": stagelens.__file__}


def _facts():
    hook = sys.modules.get("sitecustomize")
    return {
        "executable": sys.executable,
        "version": list(sys.version_info[:3]),
        "implementation": sys.implementation.name,
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        "ignores_environment": bool(sys.flags.ignore_environment),
        "no_site": bool(sys.flags.no_site),
        "no_user_site": bool(sys.flags.no_user_site),
        "sitecustomize": getattr(hook, "__file__", None) or "",
        "stagelens": _stagelens(),
        "thread_error": _thread_error(),
        "distributions": _distributions(),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(SHOWN)},
    }


if __name__ == "__main__":
    sys.stdout.write("%s%s\n" % (MARK, json.dumps(_facts())))
