"""Ends of processes, with and without exit handlers: all requests are reported first, and the process ends as it would without us."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from tests.instrumentors.conftest import Sink, until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="signals are watched on Linux")

HEAD = """
import multiprocessing, os, signal, sys, threading, time
import stagelens
from stagelens.instrumentors import recorder
def serve(count):
    for _ in range(count):
        with stagelens.request("job"), stagelens.stage("forward"):
            pass
def is_caught():
    with open("/proc/self/status") as status:
        (caught,) = [int(line.split()[1], 16) for line in status if line.startswith("SigCgt")]
    return bool(caught >> signal.SIGTERM - 1 & 1)
def ready():
    print("ready", flush=True)
def main():
    serve(96)
    assert {signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)} == {signal.SIG_DFL}
"""
TAIL = """
if __name__ == "__main__":
    main()
"""


def start(script: str, sink: Sink, **variables: str) -> subprocess.Popen[str]:
    script = HEAD + "".join(f"    {line}\n" for line in script.splitlines()) + TAIL
    command = [sys.executable, "-m", "stagelens", "run", "--", sys.executable, "-W", "error", "-c", script]
    env = sink.environment(**{"STAGELENS_EXPORT_INTERVAL": "36500d", **variables})
    return subprocess.Popen(
        command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


SIGNALLED = {
    "a loop": "ready()\nwhile True: pass",
    "a wait": "ready()\ntime.sleep(300)",
    "pause": "ready()\nsignal.pause()\nsys.exit(3)",
    "a handler that the host has removed": """
signal.signal(signal.SIGTERM, int)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
while not is_caught():
    recorder.background.wake()
    time.sleep(0.01)
ready()
time.sleep(300)""",
}


@LINUX
@pytest.mark.parametrize(("case", "times"), [*((case, 1) for case in SIGNALLED), ("a wait", 3)])
def test_a_signal_with_its_default_action_ends_the_process_after_its_report(case: str, times: int, sink: Sink) -> None:
    number = signal.SIGHUP if case == "a wait" else signal.SIGTERM
    with start(SIGNALLED[case], sink) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

        for _ in range(times):
            process.send_signal(number)

        assert (process.wait(120), process.stdout.read()) == (-number, "")
    assert sink.requests() == 96


ENDED = {
    "end": ("", 0, 96),
    "sys.exit": ("sys.exit(3)", 3, 96),
    "kill": ("os.kill(os.getpid(), signal.SIGTERM)\nserve(7)", -signal.SIGTERM, 96),
    "raise": ("signal.raise_signal(signal.SIGTERM)\nserve(7)", -signal.SIGTERM, 96),
    "exit": ("os._exit(7)", 7, 96),
    "exec": ("os.execl(sys.executable, sys.executable, '-c', 'raise SystemExit(5)')", 5, 96),
    "fork": ("if os.fork() == 0:\n    serve(4)\n    os._exit(0)\nassert os.wait()[1] == 0", 0, 100),
    "flush": ("assert stagelens.flush(60)\nos.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, 96),
    "pool": ("with multiprocessing.get_context('fork').Pool(2) as pool:\n    pool.map(serve, [2] * 50)", 0, 196),
    "handler": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))\nos.kill(os.getpid(), signal.SIGTERM)\nserve(7)",
        4,
        96,
    ),
    "child": (
        "child = os.fork()\nif child == 0: time.sleep(300)\nos.kill(child, 15); assert os.wait()[1] == 15",
        0,
        96,
    ),
}


@LINUX
@pytest.mark.parametrize("case", ENDED)
def test_a_process_ends_as_without_us_after_its_report(case: str, sink: Sink) -> None:
    script, status, count = ENDED[case]
    with start(script, sink) as process:
        assert process.stdout is not None
        assert (process.stdout.read(), process.wait(120)) == ("", status)

    until(lambda: sink.requests() >= count, "every request")
    assert sink.requests() == count


@LINUX
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGTERM)", "os._exit(0)", "return"])
def test_requests_that_are_open_at_the_end_count_as_failed(end: str, sink: Sink) -> None:
    script = f"""
opened = threading.Event()
def hang():
    with stagelens.request("hanging"):
        opened.set()
        time.sleep(300)
threading.Thread(target=hang, daemon=True).start()
opened.wait()
if os.fork() == 0:
    serve(1)
    os._exit(0)
os.wait()
{end}"""
    with start(script, sink) as process:
        process.wait(120)

    assert (sink.requests(inference_status="ok"), sink.requests(inference_status="error")) == (97, 1)
    assert sink.requests(http_route="hanging", inference_status="error") == 1


@LINUX
@pytest.mark.parametrize(
    "end",
    ["os.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()", "os.read(0, 1)", "if os.fork(): sys.exit(os.wait()[1])"],
)
def test_a_host_that_closes_all_files_ends_as_without_us(end: str, sink: Sink) -> None:
    script = f"""
assert stagelens.flush(60)
os.closerange(3, 256)
pipes = [os.pipe() for _ in range(20)]
for _, end in pipes: os.write(end, b"x")
while is_caught(): pass
{end}
[os.read(start, 1) for start, _ in pipes]"""
    with start(script, sink) as process:
        status = -signal.SIGTERM if "kill" in end else 0

        assert (process.communicate("x", 120)[0], process.returncode) == ("", status)


def test_a_flush_that_is_not_acknowledged_says_so(sink: Sink) -> None:
    script = "sys.exit(stagelens.flush(60) + stagelens.flush(0))"
    with start(script, sink, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1") as process:
        assert process.wait(120) == 0


FORK_AT_END = """
from stagelens.instrumentors import exits
recorder.flush.__defaults__ = (1,)
def fork():
    while not exits._signals.received:
        pass
    if os.fork() == 0:
        os.write(1, b"left")
        os._exit(0)
threading.Thread(target=fork, daemon=True).start()
os.kill(os.getpid(), signal.SIGTERM)
"""


@LINUX
def test_no_child_begins_after_the_signal_that_ends_its_parent(sink: Sink) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with start(FORK_AT_END, sink, OTEL_EXPORTER_OTLP_ENDPOINT=address) as process:
            assert (process.communicate(timeout=120)[0], process.returncode) == ("", -signal.SIGTERM)


def test_a_disabled_process_sends_nothing(sink: Sink) -> None:
    with start("", sink, OTEL_SDK_DISABLED="true") as process:
        assert (process.communicate(timeout=120)[0], process.returncode) == ("", 0)

    assert sink.posts == []


def test_a_running_process_reports_every_interval(sink: Sink) -> None:
    with start("for line in sys.stdin: serve(int(line))", sink, STAGELENS_EXPORT_INTERVAL="100ms") as process:
        assert process.stdin is not None
        total = 96
        for count in (5, 700, 1):
            print(count, file=process.stdin, flush=True)
            total += count
            until(lambda total=total: sink.requests() == total)
        process.communicate("2\n", 120)

    assert sink.requests() == total + 2


PLANTED = """
from stagelens.instrumentors.agent import aggregate
def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
take = aggregate.Aggregator.take
def broken(self):
    aggregate.Aggregator.take = take
    raise {error}("planted")
aggregate.Aggregator.take = broken
serve(2)
until(lambda: aggregate.Aggregator.take is take)
{then}
"""
DIED = """
until(lambda: "stagelens" not in [thread.name for thread in threading.enumerate()])
serve(300)
until(lambda: not recorder.pending)
"""


@pytest.mark.parametrize(
    ("error", "then", "logged", "count"), [("ValueError", "", 1, 98), ("SystemExit", DIED, 0, 398)]
)
def test_the_background_thread_survives_an_error_or_is_replaced(
    sink: Sink, error: str, then: str, logged: int, count: int
) -> None:
    script = PLANTED.format(error=error, then=then)
    with start(script, sink, STAGELENS_EXPORT_INTERVAL="100ms") as process:
        output, _ = process.communicate(timeout=120)

    assert process.returncode == 0
    assert output.count("the background thread had an error and continues") == logged
    assert output.count("ValueError: planted") == logged
    assert logged or not output
    assert (sink.requests(), len(sink.instances())) == (count, 1)
