"""Threads and thread pools: their parts of a request, their waits, and no other changes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import multiprocessing.dummy
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio.to_thread
import gevent.threadpool
import pytest
import uvloop
from opentelemetry.instrumentation.threading import ThreadingInstrumentor

from stagelens.instrumentors import records
from stagelens.instrumentors.api import request, stage
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries import executors
from stagelens.instrumentors.libraries.executors import ExecutorInstrumentor
from tests.instrumentors.libraries.drivers import instrumenting

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = ExecutorInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")


# A pool whose only thread is busy until the event is set.
Busy: TypeAlias = tuple[ThreadPoolExecutor, threading.Event]
theirs: ContextVar[str] = ContextVar("theirs", default="")


@stage("forward")
def work(value: int = 0) -> int:
    return value


@stage("forward")
async def later() -> None: ...


def routes(finished: Finished) -> dict[str, list[str]]:
    """Return the stages of each request by its name."""
    return {route: [key for key in marks[3::3] if key[0] != "@"] for marks, _, _, route, *_ in finished}


def run(thread: threading.Thread) -> None:
    thread.start()
    thread.join(30)

    assert not thread.is_alive()


@pytest.fixture
def busy() -> Generator[Busy]:
    started, release = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        release.wait(30)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)

        assert started.wait(30)

        yield pool, release
        release.set()


def test_the_wait_for_a_busy_pool_is_queue_and_its_waiting_jobs_are_counted(finished: Finished, busy: Busy) -> None:
    pool, release = busy
    for _ in range(2):
        pool.submit(work)
    with request("waits"):
        handed_over = records.clock()
        jobs = [pool.submit(work, value=value) for value in range(3)]
        released = records.clock()
        release.set()
        assert [job.result(30) for job in jobs] == [0, 1, 2]
    waited = next(mark for mark in finished.marks() if mark[0] == "queue")

    assert handed_over <= waited[1] <= released <= waited[2]
    assert [value for key, value, _ in finished.marks() if key == "@queue_length"] == [2]


def test_waiting_for_its_own_jobs_is_not_queue(finished: Finished) -> None:
    with ThreadPoolExecutor(1) as pool, request("map"), stage("preprocess"):
        pause = threading.Event()
        list(pool.map(lambda _: pause.wait(0.01), range(5)))
    queue = sum(end - start for key, start, end in finished.marks() if key == "queue")
    (whole,) = [end - start for key, start, end in finished.marks() if key == "preprocess"]

    assert whole >= 50_000_000
    assert queue < whole - 40_000_000


def test_a_cancelled_job_is_queue_until_its_cancellation(finished: Finished, busy: Busy) -> None:
    pool, _ = busy

    async def impatient() -> None:
        async with request("impatient"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(pool, work), 0.01)

    asyncio.run(impatient())
    (_, start, end) = next(mark for mark in finished.marks() if mark[0] == "queue")

    assert finished.stages() == ["queue"]
    assert end - start >= 9_000_000


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_jobs_of_a_loop_wait_in_queue(finished: Finished, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def handle() -> None:
        async with request("async"):
            await asyncio.get_running_loop().run_in_executor(None, work)
            await asyncio.to_thread(work)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(handle())

    assert finished.stages() == ["queue", "forward", "queue@loop"] * 2


def test_a_pool_thread_is_part_of_no_request(finished: Finished) -> None:
    with ThreadPoolExecutor(1) as pool:
        for name in ("first", "second"):
            with request(name):
                pool.submit(work).result()
        assert pool.submit(records.current.get).result() is None

    assert routes(finished) == {"first": ["queue", "forward"], "second": ["queue", "forward"]}


def test_shared_library_threads_are_part_of_no_request(finished: Finished) -> None:
    own: list[threading.Thread] = []
    # Of other tests.
    before = threading.enumerate()

    async def handle() -> None:
        async with request("first"):
            await anyio.to_thread.run_sync(int)
            with ThreadPool(1) as pool, ThreadPoolExecutor(1) as executor:
                pool.apply(int)
                executor.submit(int).result()
                new = (thread for thread in threading.enumerate() if thread not in before)
                own.extend(thread for thread in new if executors.serves_all(thread))

    asyncio.run(handle())

    assert {type(thread).__name__ for thread in own} == {"WorkerThread", "DummyProcess", "Thread"}
    assert len(finished) == 1


def test_a_job_that_starts_after_its_request_runs_outside(finished: Finished, busy: Busy) -> None:
    pool, release = busy
    with request("leaves"):
        job = pool.submit(lambda: (work(), records.current.get()))
    release.set()

    assert job.result(30) == (0, None)
    assert finished.stages() == []


class Worker(threading.Thread):
    def run(self) -> None:
        work()


@pytest.mark.parametrize(
    "make",
    [
        lambda: threading.Thread(target=work),
        lambda: threading.Thread(target=work, daemon=True),
        Worker,
        lambda: threading.Timer(0.001, work),
        lambda: multiprocessing.dummy.Process(target=work),
        lambda: threading.Thread(target=asyncio.run, args=(later(),)),
    ],
    ids=["plain", "daemon", "subclass", "timer", "dummy", "loop"],
)
def test_a_thread_of_a_request_is_part_of_it(finished: Finished, make: Callable[[], threading.Thread]) -> None:
    with request("starts"):
        thread = make()
        run(thread)

    assert finished.stages() == ["forward"]
    assert "run" not in vars(thread)


def test_a_thread_outliving_its_request_starts_separate_requests(finished: Finished) -> None:
    go = threading.Event()

    def serve() -> None:
        go.wait(30)
        work()
        with request("later"):
            work()

    with request("early"):
        thread = threading.Thread(target=serve)
        thread.start()
    before = list(finished[0][0])
    go.set()
    thread.join(30)

    assert before[6:] == []
    assert routes(finished)["later"] == ["forward"]


def test_other_context_variables_are_unchanged(finished: Finished) -> None:
    seen: list[str] = []
    token = theirs.set("of the request")
    with ThreadPoolExecutor(1) as pool, request("context"):
        run(threading.Thread(target=lambda: seen.append(theirs.get())))
        pool.submit(lambda: seen.append(theirs.get())).result()
        pool.submit(theirs.set, "left behind").result()
        pool.submit(lambda: seen.append(theirs.get())).result()
    theirs.reset(token)

    assert seen == ["", "", "left behind"]
    assert len(finished) == 1


def test_a_callback_left_with_a_future_runs_in_the_request(finished: Finished) -> None:
    early, late = Future[None](), Future[None]()
    with request("callback"):
        for future in (early, late):
            future.add_done_callback(lambda _: work())
        token = records.current.set(None)
        run(threading.Thread(target=early.set_result, args=(None,)))
        records.current.reset(token)
    late.set_result(None)

    assert finished.stages() == ["forward"]


def test_a_multiprocessing_thread_pool_propagates_the_request(finished: Finished) -> None:
    with request("makes"):
        pool = ThreadPool(2)
    with pool, request("uses"):
        assert pool.apply(work, (1,)) == 1
        assert pool.map(work, [1, 2]) == [1, 2]
        assert pool.starmap(work, [(1,)]) == [1]
        assert list(pool.imap(func=work, iterable=[1, 2])) == [1, 2]
        assert sorted(pool.imap_unordered(work, [1, 2], chunksize=2)) == [1, 2]
        assert pool.apply_async(work).get(30) == 0

    pool.join()

    assert routes(finished)["makes"] == []
    assert routes(finished)["uses"].count("forward") == 9
    assert set(routes(finished)["uses"]) == {"queue", "forward"}


def test_the_gevent_pool_propagates_the_request(finished: Finished) -> None:
    pool = gevent.threadpool.ThreadPoolExecutor(1)
    with request("gevent"):
        assert pool.submit(work, 3).result() == 3

    pool.shutdown()

    assert finished.stages() == ["queue", "forward"]


def test_results_exceptions_and_refusals_are_unchanged(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    # Its name from Python 3.13 on, and the one before.
    begins = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
    with request("fails"):
        with ThreadPoolExecutor(1) as pool, pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result()
        with pytest.raises(RuntimeError, match="shutdown"):
            pool.submit(work)
        with pytest.raises(TypeError):
            pool.submit()  # pyright: ignore[reportCallIssue]
        with monkeypatch.context() as patch:
            patch.setattr(threading, begins, refuse)
            with pytest.raises(RuntimeError, match="start new"):
                threading.Thread(target=work).start()

    assert records.current.get() is None
    assert finished[0][4] == ""


def test_a_retained_future_releases_its_request(finished: Finished) -> None:
    class Late:
        pass

    with request("caches"), ThreadPoolExecutor(1) as pool:
        marks = records.current.get()
        late = Late()
        assert marks is not None
        marks.extend(("@late", late, 0))
        gone = weakref.ref(late)
        future = pool.submit(work)
        future.add_done_callback(lambda _: work())
    del marks, late
    finished.clear()
    gc.collect()

    assert future.result() == 0
    assert gone() is None


def test_an_agent_failure_is_logged_once_and_threads_and_jobs_run(
    finished: Finished, reported: set[str], make_fail: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make_fail(executors, "serves_all")
    make_fail(executors, "has_capacity")
    with caplog.at_level(logging.WARNING, "stagelens"), ThreadPoolExecutor(1) as pool, request("broken"):
        for _ in range(2):
            run(threading.Thread(target=work))

            assert pool.submit(work, 5).result() == 5

    assert finished.stages() == ["forward", "forward"]
    parts = {"passing a request to a thread", "reading the length of a queue", "timing the wait for a thread"}
    assert reported == parts
    assert sum(record.name == "stagelens" for record in caplog.records) == len(parts)


@pytest.mark.parametrize("is_first", [True, False])
def test_opentelemetry_and_stagelens_both_propagate_context(
    finished: Finished, instrumented: Instrumentor, is_first: bool
) -> None:
    from opentelemetry import context  # noqa: PLC0415 - only here

    instrumented.uninstrument()
    modules: list[Any] = [instrumented, ThreadingInstrumentor()]
    token = context.attach(context.set_value("key", "value"))
    seen: list[object] = []

    def record_context() -> None:
        seen.append(context.get_value("key"))
        work()

    with instrumenting(*modules[:: 1 if is_first else -1]), ThreadPoolExecutor(1) as pool, request("both"):
        pool.submit(record_context).result()
        for thread in (threading.Thread(target=record_context), threading.Timer(0.001, record_context)):
            run(thread)
    context.detach(token)

    assert seen == ["value"] * 3
    assert finished.stages() == ["queue", "forward", "forward", "forward"]


@pytest.mark.parametrize("order", ["PATCH; INSTRUMENT", "INSTRUMENT; PATCH"])
def test_threads_under_gevent_are_part_of_the_request(order: str) -> None:
    instrument = "from stagelens.instrumentors.libraries.executors import ExecutorInstrumentor as I; I().instrument()"
    script = f"""
from gevent import monkey
{order.replace("INSTRUMENT", instrument).replace("PATCH", "monkey.patch_all()")}
import threading
from stagelens.instrumentors import recorder
marks, token = recorder.begin()
thread = threading.Thread(target=lambda: print(recorder.current.get() is marks))
thread.start()
thread.join()
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert completed.stdout == "True\n"


def test_instrumenting_loads_no_pool() -> None:
    script = """
import sys
from stagelens.instrumentors.libraries.executors import ExecutorInstrumentor
ExecutorInstrumentor().instrument()
print(sorted({"concurrent.futures", "multiprocessing", "gevent", "asyncio"} & set(sys.modules)))
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert completed.stdout == "[]\n"


class Sends(ThreadPoolExecutor):
    """A pool that sends its jobs elsewhere, and here keeps them."""

    def __init__(self) -> None:
        super().__init__(1)
        self.jobs: list[Any] = []

    def _adjust_thread_count(self) -> None:
        item = vars(self)["_work_queue"].get()
        # A triple since Python 3.14.
        self.jobs.append(item.fn if hasattr(item, "fn") else item.task[0])


class SendsToInterpreters(Sends):
    @classmethod
    def prepare_context(cls, *_: Any) -> Any:
        return lambda: None, lambda fn, args, kwargs: (fn, args, kwargs)


def test_a_job_for_another_interpreter_is_unchanged(finished: Finished) -> None:
    pool = SendsToInterpreters()
    with request("interpreters"):
        pool.submit(work)

    assert pool.jobs == [work]
    assert finished.stages() == []


def test_a_job_and_a_callback_are_pickled_as_what_the_user_has_passed() -> None:
    pool, future, function = Sends(), Future[None](), cast(Any, abs)
    with request("pickles"):
        pool.submit(function, -1)
        future.add_done_callback(function)
    pickled = pickle.dumps([*pool.jobs, *vars(future)["_done_callbacks"]])

    functions = pickle.loads(pickled)  # noqa: S301 - our own

    assert [function(-1) for function in functions] == [1, 1]
    assert b"stagelens" not in pickled


@pytest.mark.skipif(sys.version_info < (3, 14), reason="InterpreterPoolExecutor is part of Python 3.14")
def test_an_interpreter_pool_works_in_a_request(finished: Finished) -> None:
    with concurrent.futures.InterpreterPoolExecutor(1) as pool, request("interpreters"):  # pyright: ignore[reportAttributeAccessIssue]
        assert pool.submit(abs, -1).result(60) == 1

    assert len(finished) == 1


def test_nothing_is_put_on_futures_and_threads(finished: Finished) -> None:
    seen: list[set[str]] = []
    thread = threading.Thread(target=lambda: seen.append(set(vars(thread))))
    plain = set(vars(thread)) - {"_target", "_args", "_kwargs"}
    with request("looks"), ThreadPoolExecutor(1) as pool:
        run(thread)
        future = pool.submit(work)
        future.result(30)

    assert seen[0] - {"_target", "_args", "_kwargs"} == plain
    assert vars(future).keys() == vars(Future()).keys()
    assert finished.stages() == ["queue", "forward"]


@pytest.mark.parametrize("module", ["loky.process_executor", "joblib.pool", "billiard.pool"])
def test_threads_of_other_pools_are_shared(module: str) -> None:
    assert executors.serves_all(type("Manages", (threading.Thread,), {"__module__": module})())
