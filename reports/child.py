"""The command of a run as a child of ours: as near to being all alone as a child can be.

It stays in our process group, so that the terminal is its own: what is typed there (Ctrl-C, Ctrl-Z) it gets by itself. What
others send us is passed on. It is forked before anything of the server is loaded, while there is one thread, and becomes the
command as soon as there is something to send to. When we are killed it goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn

_PASSED_ON = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
}
_HEARD = _PASSED_ON | {signal.SIGCHLD}
# What a terminal sends goes to all of its group.
_TYPED = {signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH}
# asm-generic/siginfo.h: no process has sent it.
_SI_KERNEL = 0x80
# linux/prctl.h: processes below us that lose their parent become ours.
_PR_SET_CHILD_SUBREAPER = 36
# What the child says before it becomes the command, and after that has failed.
_NOW, _FAILED = b"!", b"?"


class Child:
    """A process that waits to become the command. While there is one, signals to us wait until they are asked for.

    Args:
        become: Becomes the command, which sends to the given endpoint, or where it would anyway if that is empty; returns an
            exit code if it fails.
    """

    def __init__(self, become: Callable[[str], int]) -> None:
        _adopt_orphans()
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        self._gate, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            self._gate.close()
            _wait_and_become(become, theirs, self._mask)
        theirs.close()
        # Inherited as ignored, it would leave us without an exit code.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def start(self, endpoint: str) -> None:
        """Let it become the command, which sends to *endpoint*; "" for where it would anyway."""
        with contextlib.suppress(OSError):  # somebody has ended it already
            self._gate.sendall(f"{endpoint}\n".encode())
            self._gate.shutdown(socket.SHUT_WR)

    def give_up(self) -> None:
        """Let it end without becoming the command."""
        self._gate.close()
        self.wait()
        self.release()

    def wait(self) -> int:
        """Wait until it has ended, and pass on what is sent to us.

        Returns:
            Its exit code; below zero the signal that ended it.
        """
        while (code := self._ended()) is None:
            number, was_typed = _heard()
            if number != signal.SIGCHLD and not was_typed:
                os.kill(self.pid, number)
        return code

    @property
    def has_begun(self) -> bool:
        """Whether it, which has ended, was the command before."""
        with contextlib.suppress(OSError):
            return self._gate.recv(2, socket.MSG_WAITALL) == _NOW
        return False

    def wait_for_the_rest(self, seconds: float, tell: Callable[[], None]) -> None:
        """Wait for what it has left running: until a signal comes, and *seconds* at most; *tell* before that."""
        end, left = time.monotonic() + seconds, seconds
        if _has_children():
            tell()
        while left > 0 and _has_children():
            heard = signal.sigtimedwait(_HEARD, left)
            left = end - time.monotonic() if heard is None or heard.si_signo == signal.SIGCHLD else 0

    def release(self) -> None:
        """Have signals mean to us what they meant before; those that wait are forgotten."""
        while signal.sigpending() & _HEARD:
            signal.sigwait(_HEARD)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _ended(self) -> int | None:
        while (found := _reaped()) is not None and found[0]:
            if found[0] == self.pid:
                return os.waitstatus_to_exitcode(found[1])
        return None


def end_like(code: int) -> int:
    """End as a command with this exit code did: by the signal, where one ended it; return the code to end with else."""
    if code >= 0:
        return code
    import resource  # noqa: PLC0415 - the command has left its core already, if any

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # nobody can say what to do on SIGKILL
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.Signals(-code)})
    os.kill(os.getpid(), -code)
    # The first process of a container outlives it.
    return 128 - code


def _wait_and_become(become: Callable[[str], int], gate: socket.socket, mask: set[int | signal.Signals]) -> NoReturn:
    code = 1
    try:
        # Python's own handler would not outlive `exec` either, and until then print a traceback.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        said = gate.makefile().readline()
        if said:
            gate.sendall(_NOW)
            code = become(said.strip())
    finally:
        # Nobody gets here who has become the command.
        with contextlib.suppress(OSError):
            gate.sendall(_FAILED)
        os._exit(code)


def _heard() -> tuple[int, bool]:
    """Wait for a signal; return it, and whether the child has it too."""
    if hasattr(signal, "sigwaitinfo"):
        heard = signal.sigwaitinfo(_HEARD)
        return heard.si_signo, heard.si_code == _SI_KERNEL
    number = signal.sigwait(_HEARD)
    return number, number in _TYPED


def _has_children() -> bool:
    found = _reaped()
    while found is not None and found[0]:
        found = _reaped()
    return found is not None


def _reaped() -> tuple[int, int] | None:
    """Return a child that has ended and its status; the number 0 where none has, None where there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None


def _adopt_orphans() -> None:
    # Only Linux can; elsewhere what the command leaves running is not waited for.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
