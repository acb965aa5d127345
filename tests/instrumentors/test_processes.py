"""Processes: however a child comes about, it reports its own requests, never its parent's, and ends as it would without us."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stagelens.instrumentors import recorder, session
from stagelens.instrumentors.session import Session
from tests.instrumentors.conftest import Sink, until

HEAD = """
import asyncio, concurrent.futures, multiprocessing, os, signal, subprocess, sys, threading, time
import stagelens

def serve(name, count=1):
    for _ in range(count):
        with stagelens.request(name), stagelens.stage("forward"):
            pass
    return os.getpid()

def wait_until_aggregated():
    while stagelens.instrumentors.recorder.pending:
        time.sleep(0.01)

def wait_for(child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def serve_in_a_child():
    child = os.fork()
    if child == 0:
        serve("child")
        stagelens.instrumentors.recorder.flush()
        os._exit(0)
    wait_for(child)

def main():
"""
TAIL = """
if __name__ == "__main__":
    main()
"""

THROUGH_THE_END = """
    with stagelens.request("outer"):
        serve("inside")
        child = os.fork()
        if child == 0:
            serve("child", 2)
    if child == 0:
        serve("child")
        return
    wait_for(child)
    serve("parent", 4)
"""
FROM_A_THREAD = """
    with stagelens.request("outer"):
        thread = threading.Thread(target=serve_in_a_child)
        thread.start()
        thread.join()
"""
# The child cancels the tasks it has copies of, and all of them run through the end of their request.
FROM_A_TASK = """
    async def wait():
        async with stagelens.request("outer"):
            await asyncio.sleep(0.2)
    async def fork():
        await asyncio.sleep(0)
        async with stagelens.request("outer"):
            child = os.fork()
            if child == 0:
                raise asyncio.CancelledError
        wait_for(child)
    async def both():
        await asyncio.gather(wait(), fork())
    try:
        asyncio.run(both())
    except asyncio.CancelledError:
        serve("child")
"""
# What a generator holds open is attached to no context in which the fork happens.
INSIDE_A_STREAM = """
    @stagelens.request("outer")
    def stream():
        yield 1
        yield 2
    running = stream()
    next(running)
    child = os.fork()
    list(running)
    if child:
        wait_for(child)
    else:
        serve("child")
"""
DAEMON = """
    serve("parent")
    child = os.fork()
    if child == 0:
        serve("between")
        os.setsid()
        if os.fork():
            os._exit(0)
        serve("daemon", 2)
        return
    wait_for(child)
"""
SUBPROCESS = """
    script = "import stagelens\\nwith stagelens.request('child'): pass"
    with stagelens.request("outer"):
        subprocess.run([sys.executable, "-c", script], preexec_fn=os.getpid, check=True)
"""
PROCESS = """
    context = multiprocessing.get_context("{way}")
    with stagelens.request("outer"):
        child = context.Process(target=serve, args=("child", 2))
        child.start()
        child.join()
    assert child.exitcode == 0
"""
EXECUTOR = """
    context = multiprocessing.get_context("{way}")
    serve("parent")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool, stagelens.request("outer"):
        list(pool.map(serve, ["child"] * 3))
"""
POOL = """
    serve("parent")
    pool = multiprocessing.get_context("{way}").Pool(1)
    pool.map(serve, ["child"] * 3)
    pool.close()
    pool.join()
"""
# The thread is in the middle of loading what the first `stagelens.request` needs; it goes on as soon as the fork begins.
FIRST_USE = """
    loading, forking = threading.Event(), threading.Event()
    class Held:
        def find_spec(self, name, path, target=None):
            if name == "stagelens.instrumentors.api":
                loading.set()
                forking.wait()
    sys.meta_path.insert(0, Held())
    os.register_at_fork(before=forking.set)
    thread = threading.Thread(target=serve, args=("parent",))
    thread.start()
    loading.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        serve("child")
        return
    wait_for(child)
    thread.join()
"""

WAYS = ("fork", "spawn", "forkserver")
# From Python 3.14 on a forked child has no running event loop, with or without instrumentation, and waits for its tasks forever.
_NO_TASKS_IN_CHILDREN = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="a child forked from a task hangs on Python 3.14"
)
CASES = {
    "through the end": (THROUGH_THE_END, {"outer": 1, "child": 3, "parent": 4}),
    "from a thread": (FROM_A_THREAD, {"outer": 1, "child": 1}),
    "from a task": (FROM_A_TASK, {"outer": 2, "child": 1}),
    "inside a stream": (INSIDE_A_STREAM, {"outer": 1, "child": 1}),
    "daemon": (DAEMON, {"parent": 1, "between": 1, "daemon": 2}),
    "during the first use": (FIRST_USE, {"parent": 1, "child": 1}),
    "subprocess": (SUBPROCESS, {"outer": 1, "child": 1}),
    **{f"process by {way}": (PROCESS.format(way=way), {"outer": 1, "child": 2}) for way in WAYS},
    # A job of a request, whose own requests are inside that one.
    **{f"executor by {way}": (EXECUTOR.format(way=way), {"parent": 1, "outer": 1}) for way in WAYS},
    **{f"pool by {way}": (POOL.format(way=way), {"parent": 1, "child": 3}) for way in WAYS},
}


def run(script: str, tmp_path: Path, sink: Sink, **variables: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "job.py"
    path.write_text(script)
    command = [sys.executable, "-m", "stagelens", "run", "--", sys.executable, "-W", "error", str(path)]
    env = sink.environment(**{"STAGELENS_EXPORT_INTERVAL": "30000d", **variables})
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)


def counted(sink: Sink) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name, _, point in sink.points():
        if name == "inference.request.duration":
            counts[point["attributes"]["http.route"]] += int(point["count"])
    return dict(counts)


def reporters(sink: Sink) -> dict[str, int]:
    instances = {
        (point["attributes"]["http.route"], resource["service.instance.id"]) for _, resource, point in sink.points()
    }
    return dict(Counter(route for route, _ in instances))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=_NO_TASKS_IN_CHILDREN if case == "from a task" else ()) for case in CASES]
)
def test_every_child_reports_only_its_own_requests(case: str, tmp_path: Path, sink: Sink) -> None:
    script, expected = CASES[case]
    done = run(HEAD + script + TAIL, tmp_path, sink)
    until(lambda: sum(counted(sink).values()) >= sum(expected.values()), "every request")

    assert (done.returncode, done.stderr) == (0, "")
    assert counted(sink) == expected
    assert reporters(sink) == dict.fromkeys(expected, 1)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists the threads of a process")
def test_a_process_without_requests_forks_with_one_thread(tmp_path: Path, sink: Sink) -> None:
    script = """
    import flask, queue, urllib.request
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for way in ("fork", "forkserver"):
            child = multiprocessing.get_context(way).Process(target=int)
            child.start()
            child.join()
    print(len(os.listdir("/proc/self/task")), caught)
"""
    done = run(f"import warnings{HEAD}{script}{TAIL}", tmp_path, sink)

    assert (done.stdout, done.stderr, sink.posts) == ("1 []\n", "", [])


FORKS_UNDER_LOAD = """
    stop = threading.Event()
    served = []
    def load():
        while not stop.is_set():
            served.append(serve("parent"))
            if len(stagelens.instrumentors.recorder.pending) > 1000:
                wait_until_aggregated()
    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        time.sleep(0.02)
        serve_in_a_child()
    stop.set()
    for thread in threads:
        thread.join()
    print(len(served))
"""


def test_a_fork_during_an_export_loses_nothing_and_does_not_deadlock(tmp_path: Path, sink: Sink) -> None:
    done = run(HEAD + FORKS_UNDER_LOAD + TAIL, tmp_path, sink, STAGELENS_EXPORT_INTERVAL="1s")
    served = int(done.stdout)

    until(lambda: sum(counted(sink).values()) >= served + 20, "every request")

    assert (done.returncode, done.stderr) == (0, "")
    assert counted(sink) == {"parent": served, "child": 20}
    assert len(sink.instances()) == 21


HANGS = """
    with stagelens.request("hangs"):
        sys.stdin.read()
"""


def test_the_first_request_is_reported_while_it_hangs(tmp_path: Path, sink: Sink) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(HEAD + HANGS + TAIL)
    with subprocess.Popen([sys.executable, script], env=sink.environment(), stdin=subprocess.PIPE) as process:
        until(lambda: "inference.request.open.time" in {name for name, _, _ in sink.points()}, "the open request")
        assert counted(sink) == {}
        process.communicate(b"")

    assert counted(sink) == {"hangs": 1}


THREADS = """
    print([thread.name for thread in threading.enumerate()])
    with stagelens.request("first"):
        print(threading.active_count(), flush=True)
    child = os.fork()
    if child == 0:
        print(threading.active_count(), flush=True)
        os._exit(0)
    wait_for(child)
"""


def test_there_is_no_thread_before_the_first_request(tmp_path: Path, sink: Sink) -> None:
    done = run(HEAD + THREADS + TAIL, tmp_path, sink)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["['MainThread']", "2", "1"]


@pytest.mark.parametrize(
    ("ending", "code", "last"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise LookupError('planted')", 1, "LookupError: planted"),
        ("os.kill(os.getpid(), 15)", -15, ""),
        # What Python says then, it says only if no module is being loaded meanwhile. Who starts us in the background may
        # have us ignore the signal.
        (
            "signal.signal(2, signal.default_int_handler); wait_until_aggregated(); os.kill(os.getpid(), 2)",
            -2,
            "KeyboardInterrupt",
        ),
        ("threading.Thread(target=time.sleep, args=(0.05,)).start()", 0, ""),
    ],
)
def test_a_process_without_a_collector_exits_unchanged(
    tmp_path: Path, sink: Sink, ending: str, code: int, last: str
) -> None:
    script = HEAD + f"    serve('last', 300)\n    {ending}\n" + TAIL
    nowhere = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TIMEOUT": "600000"}
    done = run(script, tmp_path, sink, **nowhere)

    assert done.returncode == code
    assert (done.stderr.splitlines() or [""])[-1] == last
    assert "stagelens" not in done.stderr


GEVENT = """
{before}
from gevent import monkey
{after}
import gevent, os, sys, threading
from concurrent.futures import ThreadPoolExecutor
def handle(name):
    with stagelens.request(name):
        for _ in range(3):
            with stagelens.stage(name):
                gevent.sleep(0.001)
        thread = threading.Thread(target=stagelens.stage(name)(gevent.sleep), args=(0.001,))
        thread.start()
        thread.join()
        pool.submit(stagelens.stage(name)(gevent.sleep), 0.001).result()
        gevent.spawn(int).join()
seen = []
finish = recorder.finish
def kept(marks, *rest):
    if marks[records.START] >= 0:  # no calibration request of the agent
        seen.append((rest[2], {{key for key in marks[3::3] if key[0] != "@"}} - {{"queue"}}, marks[3::3].count(rest[2])))
    finish(marks, *rest)
api.finish = kept
with ThreadPoolExecutor(2) as pool:
    gevent.joinall([gevent.spawn(handle, f"r{{number % 8}}") for number in range(40)], raise_error=True)
assert len(seen) == 40
assert all(stages == {{name}} and count == 5 for name, stages, count in seen), seen
assert recorder.current.get() is None
child = os.fork()
if child == 0:
    with stagelens.request("child"):
        gevent.sleep(0.001)
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
"""
IMPORT = "import stagelens\nfrom stagelens.instrumentors import api, recorder, records"
PATCH = "monkey.patch_all()"


@pytest.mark.parametrize("order", ["patched before", "patched after"])
def test_requests_of_greenlets_do_not_mix(order: str, tmp_path: Path, sink: Sink) -> None:
    before, after = ("", f"{PATCH}\n{IMPORT}") if order == "patched before" else (IMPORT, PATCH)
    done = run(GEVENT.format(before=before, after=after), tmp_path, sink)

    assert (done.returncode, done.stderr) == (0, "")

    until(lambda: sum(counted(sink).values()) >= 41, "every request")

    assert counted(sink) == {**{f"r{number}": 5 for number in range(8)}, "child": 1}
    assert len(sink.instances()) == 2


INHERITED = """
from gevent import monkey
monkey.patch_all()
import os, time
import stagelens
from stagelens.instrumentors import recorder
def handle(name):
    with stagelens.request(name):
        pass
for _ in range(recorder.WAKE_AT):
    handle("parent")
time.sleep(0.05)  # our threads are greenlets: they count it now
handle("parent")
child = os.fork()
for _ in range(150):
    handle("parent" if child else "child")
    time.sleep(0.01)
if child == 0:
    recorder.flush(30)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
recorder.flush(30)
"""


def test_a_forked_child_does_not_run_greenlets_of_its_parent(tmp_path: Path, sink: Sink) -> None:
    done = run(INHERITED, tmp_path, sink, STAGELENS_EXPORT_INTERVAL="1s")

    assert (done.returncode, done.stderr) == (0, "")
    assert counted(sink) == {"parent": recorder.WAKE_AT + 151, "child": 150}
    assert len(sink.instances()) == 2


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are known from /proc")
def test_a_process_that_ignores_sigterm_is_killed_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    # A signal that is ignored stays ignored in what a shell starts.
    script = "trap '' TERM; sleep 600 & trap - TERM; wait"
    monkeypatch.setattr(session, "END_SECONDS", 0.0)
    with Session(["sh", "-c", script], os.environ) as command:
        until(lambda: len(command.processes()) == 2, "the process that the shell starts")
        started = {each.pid for each in command.processes()}

    until(lambda: started.isdisjoint(each.pid for each in session.processes()), "the end of both")
