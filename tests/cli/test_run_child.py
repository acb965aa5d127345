"""The command as a child: signals, exit codes, the terminal and what is left behind, as if it were all alone."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.programs import TIMEOUT_SECONDS, Terminal, script

# What `stagelens run` does with its child, and nothing of the server.
PARENT = script(
    """
    import os, sys
    from stagelens.cli.supervisor import Child, exit_like

    child = Child(lambda endpoint: os.execvp(sys.argv[1], sys.argv[1:]))
    child.start("http://127.0.0.1:1")
    code = child.wait()
    child.wait_for_children(60, lambda: print("waiting", flush=True))
    child.release()
    print("begun" if child.has_started else "not begun", flush=True)
    sys.exit(exit_like(code))
    """
)


def parent(*command: str) -> list[str]:
    return [sys.executable, "-c", PARENT, *command]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(parent(*command), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)


@pytest.mark.parametrize("code", [0, 1, 126, 255])
def test_the_exit_code_of_the_command_is_passed_through(code: int) -> None:
    done = run("sh", "-c", f"exit {code}")

    assert (done.returncode, done.stdout) == (code, "begun\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL])
def test_a_signal_that_ends_the_command_ends_stagelens(number: signal.Signals, tmp_path: Path) -> None:
    done = subprocess.run(
        parent("sh", "-c", f"kill -{number.value} $$"), cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (-number, "begun\n")


# Says which signals it gets, until SIGTERM.
LISTENER = script(
    """
    import signal

    every = {signal.Signals[name] for name in "SIGHUP SIGINT SIGQUIT SIGUSR1 SIGUSR2 SIGWINCH SIGTERM".split()}
    signal.pthread_sigmask(signal.SIG_BLOCK, every)
    print("ready", flush=True)
    heard = None
    while heard != signal.SIGTERM:
        heard = signal.sigwait(every)
        print(signal.Signals(heard).name, flush=True)
    """
)


def test_signals_to_stagelens_reach_the_command() -> None:
    names = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGTERM"]
    with subprocess.Popen(parent(sys.executable, "-c", LISTENER), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        received = [process.stdout.readline().strip()]
        for name in names:
            process.send_signal(signal.Signals[name])
            received.append(process.stdout.readline().strip())
        rest = process.stdout.read()

    assert received == ["ready", *names]
    assert (rest, process.returncode) == ("begun\n", 0)


def test_signals_that_are_ignored_stay_ignored() -> None:
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, signal.pthread_sigmask(0, []))"
    done = run("nohup", sys.executable, "-c", code)
    # What a library has blocked in this process is inherited all the way down.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    assert done.stdout == f"True {blocked}\nbegun\n"


def test_ctrl_c_reaches_the_command_once() -> None:
    with Terminal(parent(sys.executable, "-c", LISTENER)) as terminal:
        terminal.read_until("ready")
        terminal.type("\x03")
        terminal.read_until("SIGINT")
        terminal.process.terminate()
        rest = terminal.read_until("begun")

        assert "SIGINT" not in rest
        assert "SIGTERM" in rest
        assert terminal.end() == 0


def test_the_command_has_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "echo.py").write_text("while True:\n    print('heard', input().upper(), flush=True)\n")
    with Terminal(["bash", "--norc", "--noediting", "-i"]) as terminal:
        python, folder = shlex.quote(sys.executable), shlex.quote(str(tmp_path))
        terminal.type(f"cd {folder} && {python} parent.py {python} echo.py 2>&1\n")
        terminal.type("one\n")
        terminal.read_until("heard ONE")
        terminal.type("\x1a")
        terminal.read_until("Stopped")
        # The first character after it may be lost between bash and who was in the foreground.
        terminal.type("\nfg\n")
        terminal.type("two\n")
        terminal.read_until("heard TWO")
        terminal.type("\x04")
        terminal.read_until("begun")
        terminal.type("exit 5\n")

        assert terminal.end() == 5


@pytest.mark.parametrize("patient", [True, False])
def test_child_processes_of_the_command_are_waited_for(patient: bool) -> None:
    command = parent("sh", "-c", "exec 3<&0; (read line <&3; echo last) & exit 3")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        if not patient:
            process.terminate()
            lines.append(process.stdout.readline())
        process.stdin.write("\n")
        process.stdin.close()
        lines += process.stdout

    assert lines == ["waiting\n", *(("last\n", "begun\n") if patient else ("begun\n", "last\n"))]
    assert process.returncode == 3


def test_a_missing_command_does_not_start() -> None:
    done = run("no-such-program")

    assert done.stdout == "not begun\n"
    assert done.returncode == 1
