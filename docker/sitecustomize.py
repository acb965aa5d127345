"""Starts Stagelens in a Python process of a workload, from the folder that an init container copied there.

It lies where the OpenTelemetry Operator's PYTHONPATH leads. What a program brings itself goes before what is in that
folder: PYTHONPATH alone would put our packages in front of its own. Any interpreter may find this file, also an old one:
the syntax is plain.
"""

# ruff: noqa: PTH118, PTH120, PTH100 - it must load quickly, in any interpreter

import importlib
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_FOLDER = os.path.abspath(os.path.join(_HERE, *[os.pardir] * 3))
_AUTOLOAD = os.path.join(_FOLDER, "stagelens", "instrumentors", "autoload")

# The first Python process of the container says so when nothing can be timed; what it starts keeps quiet.
os.environ.setdefault("STAGELENS_RUN_PID", str(os.getpid()))
sys.path[:] = [_AUTOLOAD] + [entry for entry in sys.path if entry not in (_HERE, _FOLDER)] + [_FOLDER]
# From here on it is as `stagelens run` does it.
del sys.modules["sitecustomize"]
importlib.import_module("sitecustomize")
