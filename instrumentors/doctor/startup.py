"""Checks of how the command starts: whether its interpreter lets us in."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator

from ...core.package import __version__
from .. import run
from .environment import OLDEST_OPENTELEMETRY, OLDEST_PYTHON, Finding, Interpreter, Look

BY_HAND = "import stagelens; stagelens.instrument()    # the first line of the program"


def program(look: Look) -> Iterator[Finding]:
    """Whether it is known what runs, and can be started."""
    target = look.target
    if target.lost:
        text, _, cure = target.lost.partition("\n")
        outside = f"stagelens doctor, and stagelens run, inside of what {target.name} starts"
        known = "It cannot be started" if cure else "It is not known what runs"
        yield Finding(f"{known}: {text}", cure.strip() or (outside if "somewhere" in text else ""))
    elif look.silence:
        yield Finding(f"{target.interpreter} cannot be asked: {look.silence}")


def age(look: Look) -> Iterator[Finding]:
    """Whether the interpreter and OpenTelemetry in it are new enough."""
    found = look.interpreter
    if found is None:
        return
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if tuple(found.version[:2]) < OLDEST_PYTHON:
        version = ".".join(map(str, found.version))
        yield Finding(
            f"{found.executable} is Python {version}; Stagelens needs {oldest}, and the program runs untimed.",
            f"send its OpenTelemetry spans to the collector instead, or use Python {oldest}",
        )
    for name in ("opentelemetry-api", "opentelemetry-sdk"):
        if (version := look.installed(name)) and _numbers(version) < OLDEST_OPENTELEMETRY:
            wanted = f"{name}>={'.'.join(map(str, OLDEST_OPENTELEMETRY))}"
            yield Finding(
                f"{name} {version} is too old, and the program runs untimed.",
                f"{found.executable} -m pip install {shlex.quote(wanted)}",
            )
    if found.implementation != "cpython" or not found.gil:
        kind = found.implementation if found.implementation != "cpython" else "Python without its lock"
        yield Finding(f"Stagelens was never tested with {kind}.", hurts=False)


def autoload(look: Look) -> Iterator[Finding]:
    """Whether we are loaded before the program, tried for real."""
    found = look.interpreter
    if found is None or tuple(found.version[:2]) < OLDEST_PYTHON:
        return
    ours, error = found.stagelens, str(found.stagelens.get("error", ""))
    # Of -E, -I, -S, an environment that is replaced, another sitecustomize.
    reason, cure = _kept_out(look, found)
    if not ours["loaded"] and reason:
        yield Finding(f"{reason}: nothing is timed.", cure)
    elif error:
        user = (
            "; what is installed for the user only is left out (PYTHONNOUSERSITE or -s)" if found.no_user_site else ""
        )
        yield Finding(
            f"{found.executable} cannot load stagelens ({error}){user}: nothing is timed.",
            f"{found.executable} -m pip install stagelens",
        )
    elif not ours["loaded"]:
        yield Finding(
            f"{found.sitecustomize or 'something'} runs as sitecustomize in place of ours: nothing is timed.", BY_HAND
        )
    elif ours["version"] != __version__:
        yield Finding(
            f"The program would load stagelens {ours['version']} from {ours['file']}; this is {__version__}.",
            hurts=False,
        )


def stages(look: Look) -> Iterator[Finding]:
    """Whether the functions that `--stage` names are there."""
    named = run.functions.parse(look.environment.get(run.functions.VARIABLE, ""))
    for stage, module, path in named:
        if look.sources.defines(module, path) is False:
            yield Finding(
                f"--stage {stage}={module}:{path} names nothing in {module}: the stage stays empty.",
                f"--stage {stage}={module}:FUNCTION, or :CLASS.METHOD, as {module} has it",
            )


def uwsgi(look: Look) -> Iterator[Finding]:
    """Whether uWSGI lets threads run, of which ours is one."""
    threads = ("--enable-threads", "--threads")
    if look.target.name == "uwsgi" and look.option(*threads) is None and not look.option("--ini"):
        yield Finding("uWSGI runs no threads by itself, and so nothing is sent.", "uwsgi --enable-threads …")


def _kept_out(look: Look, found: Interpreter) -> tuple[str, str]:
    if found.ignores_environment:
        flags = " ".join(flag for flag in look.target.flags if set("IE") & set(flag)) or "-I or -E"
        return f"{flags} has Python ignore PYTHONPATH, by which Stagelens comes in", f"leave {flags} out, or {BY_HAND}"
    if found.no_site:
        return "-S has Python load no sitecustomize, by which Stagelens comes in", f"leave -S out, or {BY_HAND}"
    if str(run.AUTOLOAD) not in found.environment.get("PYTHONPATH", "").split(os.pathsep):
        outer, inner = shlex.join(look.target.outer), shlex.join(look.target.inner)
        return "PYTHONPATH, by which Stagelens comes in, is replaced", f"{outer} stagelens run -- {inner}".strip()
    return "", ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
