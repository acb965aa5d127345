"""`stagelens run` without a collector: run the command as a child, collect its telemetry, and report at its end.

The child stays in this process group, so that it receives terminal signals (Ctrl-C, Ctrl-Z) directly. Other signals
sent to this process are forwarded. The child is forked before any server module is loaded, while there is one thread, and
executes the command as soon as an OTLP endpoint is available. If this process is killed, the child continues.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

from ..instrumentors.config import DEFAULT_ENDPOINT
from ..instrumentors.config_file import apply_config_file
from ..instrumentors.run import PID_VARIABLE, RunOutputs, become
from .files import check_writable

if TYPE_CHECKING:
    from .temp_collector import TemporaryCollector


_FORWARDED = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
}
_SIGNALS = _FORWARDED | {signal.SIGCHLD}
# Signals that the terminal sends to the whole process group.
_TERMINAL_SIGNALS = {signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH}
# asm-generic/siginfo.h: signals with this code were sent by the kernel, not by a process.
_SI_KERNEL = 0x80
# linux/prctl.h: orphaned descendants become children of this process.
_PR_SET_CHILD_SUBREAPER = 36
# Bytes that the child sends before it executes the command, and if the execution failed.
_STARTED, _FAILED = b"!", b"?"
# Variables that would override the endpoint or protocol.
_OVERRIDDEN_VARIABLES = {
    f"OTEL_EXPORTER_OTLP_{signal}_{what}" for signal in ("METRICS", "TRACES") for what in ("ENDPOINT", "PROTOCOL")
}
# Export interval of the agents: within this time, processes left running by the command have sent data. [seconds]
_CHILDREN_SECONDS = 10.0
_STDERR = 2
_WAITING_FOR_CHILDREN = f"waiting at most {_CHILDREN_SECONDS:g} s for processes left running by the command"


class Child:
    """Forked process that waits to execute the command.

    While it exists, signals to this process are blocked except in `wait`.
    """

    def __init__(self, become: Callable[[str], int]) -> None:
        _become_subreaper()
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._gate, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            self._gate.close()
            _wait_and_become(become, theirs, self._mask)
        theirs.close()
        # With an inherited SIG_IGN, the exit code of the child would be lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def start(self, endpoint: str) -> None:
        with contextlib.suppress(OSError):  # the child has already exited
            self._gate.sendall(f"{endpoint}\n".encode())
            self._gate.shutdown(socket.SHUT_WR)

    def cancel(self) -> None:
        self._gate.close()
        self.wait()
        self.release()

    def wait(self) -> int:
        while (code := self._ended()) is None:
            number, was_typed = _wait_for_signal()
            if number != signal.SIGCHLD and not was_typed:
                os.kill(self.pid, number)
        return code

    @property
    def has_started(self) -> bool:
        with contextlib.suppress(OSError):
            return self._gate.recv(2, socket.MSG_WAITALL) == _STARTED
        return False

    def wait_for_children(self, seconds: float, report: Callable[[], None]) -> None:
        """Wait up to *seconds*, or until a signal, for processes that the command left running; call *report* first."""
        end, left = time.monotonic() + seconds, seconds
        if _has_children():
            report()
        while left > 0 and _has_children():
            received = signal.sigtimedwait(_SIGNALS, left)
            left = end - time.monotonic() if received is None or received.si_signo == signal.SIGCHLD else 0

    def release(self) -> None:
        while signal.sigpending() & _SIGNALS:
            signal.sigwait(_SIGNALS)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _ended(self) -> int | None:
        while (reaped := _reap_child()) is not None and reaped[0]:
            if reaped[0] == self.pid:
                return os.waitstatus_to_exitcode(reaped[1])
        return None


def exit_like(code: int) -> int:
    """Exit like a command with exit code *code*: raise its signal if *code* is negative, else return the code."""
    if code >= 0:
        return code
    import resource  # noqa: PLC0415 - the command has already written its core dump, if any

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.Signals(-code)})
    os.kill(os.getpid(), -code)
    # The first process of a container does not die from the signal.
    return 128 - code


def _wait_and_become(become: Callable[[str], int], gate: socket.socket, mask: set[int | signal.Signals]) -> NoReturn:
    code = 1
    try:
        # Python's own handler would not survive `exec`, and would print a traceback before it.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        line = gate.makefile().readline()
        if line:
            gate.sendall(_STARTED)
            code = become(line.strip())
    finally:
        # Reached only if the command could not be executed.
        with contextlib.suppress(OSError):
            gate.sendall(_FAILED)
        os._exit(code)


def _wait_for_signal() -> tuple[int, bool]:
    if hasattr(signal, "sigwaitinfo"):
        received = signal.sigwaitinfo(_SIGNALS)
        return received.si_signo, received.si_code == _SI_KERNEL
    number = signal.sigwait(_SIGNALS)
    return number, number in _TERMINAL_SIGNALS


def _has_children() -> bool:
    reaped = _reap_child()
    while reaped is not None and reaped[0]:
        reaped = _reap_child()
    return reaped is not None


def _reap_child() -> tuple[int, int] | None:
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None


def _become_subreaper() -> None:
    # Linux only; on other systems, processes left running by the command are not waited for.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main(command: list[str], env: dict[str, str], outputs: RunOutputs) -> int:
    for option, path in (("--save", outputs.save), ("--report", outputs.report)):
        if path is not None:
            check_writable(path, option)
    if not outputs.requested:
        _print_status(
            f"no collector at {DEFAULT_ENDPOINT}: the run is only summarized at its end; to see it on the dashboard, start `stagelens up` first"
        )
    _open_closed_streams()
    child = Child(lambda endpoint: become(command, child_environment(endpoint, env)))
    with ExitStack() as stack:
        here = _start_collector(stack, child, outputs)
        code, succeeded = _run_child(child, command, here, outputs)
    return exit_like(code) or (0 if succeeded or not outputs.requested else 1)


def _start_collector(stack: ExitStack, child: Child, outputs: RunOutputs) -> TemporaryCollector | None:
    try:
        from .temp_collector import temporary_collector  # noqa: PLC0415 - see the module docstring

        return stack.enter_context(temporary_collector())
    except Exception as error:
        if outputs.requested:
            child.cancel()
            raise
        _print_status(f"the run was not saved: {error}")
        return None


def _run_child(
    child: Child, command: list[str], here: TemporaryCollector | None, outputs: RunOutputs
) -> tuple[int, bool]:
    started = datetime.now(UTC)
    child.start(here.endpoint if here else "")
    code = child.wait()
    ended = datetime.now(UTC)
    try:
        if here is None or not child.has_started:
            return code, True
        child.wait_for_children(_CHILDREN_SECONDS, lambda: _print_status(_WAITING_FOR_CHILDREN))
        child.release()
        from .run_output import write_run_outputs  # noqa: PLC0415 - see the module docstring
        from .saved_run import Run  # noqa: PLC0415

        return code, write_run_outputs(here, Run(command, started, ended, code if code >= 0 else 128 - code), outputs)
    except KeyboardInterrupt:
        return code, False
    except Exception as error:  # noqa: BLE001 - the exit code of the command matters more than its report
        _print_status(f"could not summarize the run: {type(error).__name__}: {error}")
        return code, False
    finally:
        child.release()


def child_environment(endpoint: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the child: *env* with all telemetry sent to *endpoint*."""
    child_env = {**env, PID_VARIABLE: str(os.getpid())}
    if not endpoint:
        return child_env
    here = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    return {
        name: value for name, value in apply_config_file(child_env).items() if name not in _OVERRIDDEN_VARIABLES
    } | here


def _open_closed_streams() -> None:
    """Open closed standard streams on /dev/null, so that no other file, such as the database, gets their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(number)
    sys.stdout, sys.stderr = (
        stream or os.fdopen(number, "w", closefd=False) for number, stream in ((1, sys.stdout), (_STDERR, sys.stderr))
    )


def _print_status(text: str) -> None:
    print(f"stagelens run: {text}", file=sys.stderr, flush=True)
