"""`stagelens run` without a collector: the run is kept here, and told when it is over.

Of the server nothing is loaded before the command has its process: see `child`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..instrumentors.config import DEFAULT_ENDPOINT
from ..instrumentors.run import PID_VARIABLE, Kept, become
from .atomic_write import check_writable
from .child import Child, end_like

if TYPE_CHECKING:
    from .temp_collector import Keeping

# What says where else, or how else, the run would send.
_OTHER_WAYS = {
    f"OTEL_EXPORTER_OTLP_{signal}_{what}" for signal in ("METRICS", "TRACES") for what in ("ENDPOINT", "PROTOCOL")
}
# As long as agents take from one export to the next: what the command leaves running has sent something by then. [seconds]
_PATIENCE_SECONDS = 10.0
_STDERR = 2
_LEFT_RUNNING = f"waiting {_PATIENCE_SECONDS:g} s at most for what the command has left running"


def main(command: list[str], env: dict[str, str], kept: Kept) -> int:
    """Run *command* in *env* as a child, keep what it sends, and make of it what *kept* says.

    Returns:
        The exit code of the command; 1 where it succeeded and something that was asked for could not be made. A signal that
        ended it ends us, too.

    Raises:
        StagelensError: It cannot be kept, and somebody asks for it: the command was not started.
    """
    for option, path in (("--save", kept.save), ("--report", kept.report)):
        if path is not None:
            check_writable(path, option)
    if not kept.asked:
        _tell(
            f"nothing listens on {DEFAULT_ENDPOINT}: this run is summed up when it ends, and sent there once a collector listens"
        )
    _fill_streams()
    child = Child(lambda endpoint: become(command, _sending_to(endpoint, env)))
    with ExitStack() as stack:
        here = _keeping(stack, child, kept)
        code, made = _run(child, command, here, kept)
    return end_like(code) or (0 if made or not kept.asked else 1)


def _keeping(stack: ExitStack, child: Child, kept: Kept) -> Keeping | None:
    """Return where the run is kept; None where that is not possible and nobody has asked."""
    try:
        from .temp_collector import keeping  # noqa: PLC0415 - the module's docstring says why

        return stack.enter_context(keeping("" if kept.asked else DEFAULT_ENDPOINT))
    except Exception as error:
        if kept.asked:
            child.give_up()
            raise
        _tell(f"the run is not kept: {error}")
        return None


def _run(child: Child, command: list[str], here: Keeping | None, kept: Kept) -> tuple[int, bool]:
    """Return the exit code of the command, and whether all was made of the run that was asked for."""
    begun = datetime.now(UTC)
    child.start(here.endpoint if here else "")
    code = child.wait()
    ended = datetime.now(UTC)
    try:
        if here is None or not child.has_begun:
            return code, True
        child.wait_for_the_rest(_PATIENCE_SECONDS, lambda: _tell(_LEFT_RUNNING))
        child.release()
        from .output import Run, tell  # noqa: PLC0415 - as above

        return code, tell(here, Run(command, begun, ended, code if code >= 0 else 128 - code), kept)
    except KeyboardInterrupt:
        return code, False
    except Exception as error:  # noqa: BLE001 - how the command ended matters more than what is said about it
        _tell(f"the run cannot be told: {type(error).__name__}: {error}")
        return code, False
    finally:
        child.release()


def _sending_to(endpoint: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* for the process that becomes the command, with all it counts sent to *endpoint*."""
    own = {**env, PID_VARIABLE: str(os.getpid())}
    if not endpoint:
        return own
    here = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    return {name: value for name, value in own.items() if name not in _OTHER_WAYS} | here


def _fill_streams() -> None:
    """Open what is closed of our stdin, stdout and stderr: else the next file would be it, such as the database."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(number)
    sys.stdout, sys.stderr = (
        stream or os.fdopen(number, "w", closefd=False) for number, stream in ((1, sys.stdout), (_STDERR, sys.stderr))
    )


def _tell(text: str) -> None:
    print(f"stagelens run: {text}", file=sys.stderr, flush=True)
