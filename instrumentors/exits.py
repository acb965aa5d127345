"""Ends of a process that run no exit handlers: `os._exit`, `os.execve`, and signals with the default action, such as SIGTERM.

The handler of a signal is that of `faulthandler.register`, in C, which runs at once whatever the main thread does; to `signal` it is
none. It writes to a socket. A thread at the other end sends the records, restores the default action, and raises the signal again.
Others meanwhile have no effect: `timeout` sends two at once, to the process and to its group.
"""

from __future__ import annotations

import _socket
import atexit
import contextlib
import faulthandler
import itertools
import logging
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from ..core.import_lock import import_lock
from .instrumentor import Instrumentor, Probed, log_failure, unpatched
from .probes import Probe

# Those that end a process on purpose, without a core dump. SIGINT has a handler of Python, unless the host restores its default.
SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# A `ucred`: process, user and group of the sender.
_CREDENTIALS: Final = struct.Struct("3i")
_POLL_SECONDS: Final = 0.01
# Without our patch.
_kill = os.kill
_logger = logging.getLogger("stagelens")


class ExitInstrumentor(Instrumentor):
    """Patches of the functions that end or replace this process, and of those that return only if a signal does not end it."""

    def before_exit(self, flush: Callable[[], object], flush_at_end: Callable[[], object]) -> None:
        self.replace(os, "_exit", Probed(Probe(partial(_end, flush_at_end))))
        for name in ("execv", "execve"):  # which may fail
            self.replace(os, name, Probed(Probe(partial(_end, flush))))

    def after_signal(self) -> None:
        for owner, name in ((os, "kill"), (os, "killpg"), (signal, "pause"), (signal, "raise_signal")):
            self.replace(owner, name, Probed(Probe(bool, await_end)))


def watch(flush: Callable[[], object], flush_at_end: Callable[[], object]) -> None:
    atexit.unregister(_end)
    atexit.register(_end, flush_at_end)
    ExitInstrumentor().before_exit(flush, flush_at_end)
    watch_signals(flush_at_end)
    if _signals is None:
        _logger.info("stagelens: a signal may end this process without a last export; call stagelens.flush() before it")


def watch_signals(flush_at_end: Callable[[], object]) -> None:
    """Call *flush_at_end* before a signal ends this process; to be repeated, because the host may restore the default action later."""
    global _signals  # noqa: PLW0603 - of this process
    try:
        if _signals is None and _is_supported():
            _signals = Signals(flush_at_end)
        if _signals is not None:
            _signals.take_defaults()
    except Exception:
        log_failure("watching for the signals that end this process")


def _end(flush: Callable[[], object]) -> None:
    flush()
    await_end()
    last = getattr(sys, "last_traceback", None)
    if last and last.tb_frame.f_back is None and sys.last_type is KeyboardInterrupt and not hasattr(sys, "ps1"):
        # Python ends by SIGINT after this error. It forgets that when it runs the text of code, as the imports of `flush` do.
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt", {})  # noqa: S102 - a fixed text


def await_end(*_: object) -> None:
    """Do not return if a signal is about to end this process: without us the process would have ended by it before."""
    while _signals is not None and _signals.received:
        time.sleep(_POLL_SECONDS)


class Signals:
    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._pid = os.getpid()
        self._action = _action_reader()
        # The C handler of `faulthandler`; set at the first registration.
        self._ours: int | None = None
        self._is_ending = False
        self._sockets = {int(signum): _socket_pair() for signum in SIGNALS}
        self._inodes = self._read_inodes()
        ExitInstrumentor().after_signal()
        # No `threading.Thread`: under gevent that is a greenlet, which waits for the host.
        unpatched("_thread", "start_new_thread")(self._run, ())

    @property
    def received(self) -> bool:
        return self._is_ending or (self._has_sockets() and bool(self._poll(0)))

    def take_defaults(self) -> None:
        if self.received:
            return
        if not self._has_sockets():
            self.restore()
            return
        for signum, (_, sender) in self._sockets.items():
            if not self._action(signum):
                # Without this, `faulthandler` takes the signal to be registered although the host has replaced the handler.
                faulthandler.unregister(signum)
                faulthandler.register(signum, sender.fileno(), all_threads=False)
                self._ours = self._action(signum)
                if signal.getsignal(signum) != signal.SIG_DFL:
                    # The host has set its handler in this moment.
                    self._restore(signum)

    def restore(self) -> None:
        for signum in self._sockets:
            self._restore(signum)

    def close(self) -> None:
        """Undo everything in a forked child, which inherits the handler but not the thread."""
        self.restore()
        if self._has_sockets():
            for end in itertools.chain(*self._sockets.values()):
                end.close()

    def _restore(self, signum: int) -> None:
        if self._ours and self._action(signum) == self._ours:
            faulthandler.unregister(signum)

    def _has_sockets(self) -> bool:
        """Return whether the host has not closed all files that it does not know: their numbers are those that it opens next."""
        if self._read_inodes() == self._inodes:
            return True
        for end in itertools.chain(*self._sockets.values()):
            # At the exit it would close what has its number now, with a warning.
            end.detach()
        return False

    def _read_inodes(self) -> list[int]:
        with contextlib.suppress(OSError):
            return [os.fstat(end.fileno()).st_ino for end in itertools.chain(*self._sockets.values())]
        return []

    def _poll(self, timeout_ms: int | None = None) -> list[int]:
        poll = unpatched("select", "poll")()
        signals = {pair[0].fileno(): signum for signum, pair in self._sockets.items() if pair[0].fileno() >= 0}
        for file in signals:
            poll.register(file, select.POLLIN)
        return [signals[file] for file, _ in poll.poll(timeout_ms)]

    def _run(self) -> None:
        try:
            while True:
                received = self._poll()
                if not self._has_sockets():
                    return
                for signum in received:
                    self._pass_on(signum)
        finally:
            self.restore()

    def _pass_on(self, signum: int) -> None:
        receiver, _ = self._sockets[signum]
        _, ancillary, *_ = receiver.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_PEEK)
        pid, *_ = _CREDENTIALS.unpack(ancillary[0][2])
        # A child has the handler of its parent until its fork handlers have run or it executes another program.
        self._is_ending = pid == self._pid
        if self._is_ending:
            self._flush()
            self.restore()
        with contextlib.suppress(BlockingIOError):
            while True:
                receiver.recv(1)
        with contextlib.suppress(ProcessLookupError):
            _kill(pid, signum)
        # Still here as the first process of a container, or if the host has set a handler meanwhile.
        self._is_ending = False


_signals: Signals | None = None
_is_forked = False


def _in_child() -> None:
    global _signals, _is_forked  # noqa: PLW0603 - the child has its own
    _is_forked = True
    if _signals is not None:
        _signals.close()
    _signals = None


# A child that begins after a signal to the whole group would not get it, and outlive the group.
os.register_at_fork(before=await_end, after_in_child=_in_child)


def _is_supported() -> bool:
    """Return whether `faulthandler` reports each signal: on a thread of Python only, and the kernel prefers the main thread."""
    # After a fork the main thread is the one that forked, under its former name.
    is_main = _is_forked or threading.main_thread().native_id == os.getpid()
    return sys.platform == "linux" and is_main


def _action_reader() -> Callable[[int], int | None]:
    """Return a function that reads the C handler of a signal: None for the default action."""
    with import_lock:
        import ctypes  # noqa: PLC0415 - not every process that is instrumented loads it

    return ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(("PyOS_getsig", ctypes.pythonapi))


def _socket_pair() -> tuple[_socket.socket, _socket.socket]:
    # Closing one end wakes the thread at the other one, and each write has credentials.
    receiver, sender = _socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    for end in (receiver, sender):
        end.setblocking(False)
    return receiver, sender
