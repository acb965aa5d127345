"""Queues, executors, pools and locks hold no argument, result or exception longer with us than without us."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import queue
import threading
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import ContextVar
from multiprocessing import get_context
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import pytest

from stagelens.instrumentors import recorder
from stagelens.instrumentors.api import request
from stagelens.instrumentors.libraries.executors import ExecutorInstrumentor
from stagelens.instrumentors.libraries.locks import LockInstrumentor
from stagelens.instrumentors.libraries.process_pools import ProcessPoolInstrumentor
from stagelens.instrumentors.libraries.queue_jobs import QueueRun
from stagelens.instrumentors.libraries.queues import QueueInstrumentor
from stagelens.instrumentors.records import current
from tests.instrumentors.libraries.drivers import instrumenting

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTORS = (ExecutorInstrumentor, LockInstrumentor, ProcessPoolInstrumentor, QueueInstrumentor)


class Thing:
    """Any object of the user, which functions written in C refuse."""


class Failure(Exception):  # noqa: N818 - a short name
    pass


class Watch:
    """Objects whose lifetime a scenario is about, by name, and what the user still holds."""

    def __init__(self) -> None:
        self._watched: dict[str, weakref.ref[Any]] = {}
        self.held: list[Any] = []

    def __call__(self, name: str, thing: Any) -> Any:
        # An exception in C accepts no weak reference.
        with contextlib.suppress(TypeError):
            self._watched[name] = weakref.ref(thing)
        return thing

    def alive(self) -> list[str]:
        return [name for name, reference in self._watched.items() if reference() is not None]

    @contextlib.contextmanager
    def holding(self) -> Generator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - `CancelledError` too
            self.held.append(self("exception", error))


def fail(thing: Any) -> None:
    """Hold nothing of the call in its own frame."""
    del thing
    raise Failure


def refuse_in_a_process(_: Any) -> None:
    raise Failure


def result(watch: Watch, finish: Callable[[Future[Any]], object], timeout: float | None = None) -> None:
    """Wait for a future that nothing but this call holds."""
    futures: list[Future[Any]] = [watch("future", Future())]
    queue.Queue[Any]().put(futures[0])
    finish(futures[0])
    with watch.holding():
        assert futures.pop().result(timeout)


def submit(watch: Watch, *, function: Any, holds_future: bool = False) -> None:
    with ThreadPoolExecutor(1) as pool:
        futures = [watch("future", pool.submit(function, watch("argument", Thing())))]
        if holds_future:
            watch.held.append(futures[0])
        with watch.holding():
            watch("result", futures.pop().result(30))


variable: ContextVar[Any] = ContextVar("variable")


def set_a_variable(watch: Watch, start: Callable[[Any], Any]) -> None:
    """Set a context variable in a thread, whose context ends with it, although the exception of the job is held."""

    def job(_: Any) -> None:
        variable.set(watch("value", Thing()))
        raise Failure

    with watch.holding():
        start(job)


def call_in_a_pool(job: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(job, None).result(30)


def call_back_in_a_pool(job: Any) -> None:
    failed: list[Any] = []

    def call_back(_: Any) -> None:
        try:
            job(None)
        except Failure as error:
            failed.append(error)
            raise

    with ThreadPoolExecutor(1) as pool:
        go = threading.Event()
        future = pool.submit(go.wait, 30)
        future.add_done_callback(call_back)
        go.set()
    raise failed.pop()


def submit_to_a_closed_pool(watch: Watch) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with watch.holding():
        pool.submit(fail, watch("argument", Thing()))


def submit_and_cancel(watch: Watch) -> None:
    go, started = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (started.set(), go.wait(30)))
        assert started.wait(30)
        future = watch("future", pool.submit(fail, watch("argument", Thing())))
        future.cancel()
        go.set()
    watch.held.append(future)


def map_in_a_thread_pool(watch: Watch) -> None:
    with ThreadPool(1) as pool:
        with watch.holding():
            pool.apply(int, (watch("argument", Thing()),))
        pool.close()
        pool.join()


def add_done_callback(watch: Watch, *, is_done: bool) -> None:
    future = watch("future", Future[None]())
    future.add_done_callback(functools.partial(fail, watch("argument", Thing())))
    if is_done:
        future.set_result(None)
    watch.held.append(future)


def run_in_executor(watch: Watch, *, function: Any) -> None:
    async def main() -> None:
        with watch.holding():
            loop = asyncio.get_running_loop()
            watch("result", await watch("future", loop.run_in_executor(None, function, watch("argument", Thing()))))

    asyncio.run(main())


def cancel(watch: Watch, make: Callable[[], Any]) -> None:
    """Cancel the task of the coroutine that *make* returns inside of an event loop."""

    async def main() -> None:
        tasks = [watch("task", asyncio.create_task(make()))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks[0].cancel()
        with watch.holding():
            await tasks.pop()

    asyncio.run(main())


def cancel_lock(watch: Watch) -> None:
    async def acquire_twice() -> None:
        locks = [watch("lock", asyncio.Lock())]
        await locks[0].acquire()
        await locks.pop().acquire()

    cancel(watch, acquire_twice)


def queue_is_empty(watch: Watch) -> None:
    with watch.holding():
        watch("queue", queue.Queue[Any]()).get(timeout=0.001)


def queue_is_full(watch: Watch) -> None:
    queues = [watch("queue", queue.Queue[Any](1))]
    queues[0].put(None)
    with watch.holding():
        queues.pop().put(watch("item", Thing()), timeout=0.001)


def start_a_thread(watch: Watch, *, function: Any) -> None:
    def hook(arguments: Any) -> None:
        if arguments.exc_value is not None:
            watch.held.append(watch("exception", arguments.exc_value))

    before, threading.excepthook = threading.excepthook, hook
    thread = watch("thread", threading.Thread(target=function, args=(watch("argument", Thing()),)))
    thread.start()
    thread.join(30)
    threading.excepthook = before


def start_a_thread_twice(watch: Watch) -> None:
    threads = [watch("thread", threading.Thread(target=int, args=()))]
    threads[0].start()
    threads[0].join(30)
    with watch.holding():
        threads.pop().start()


def wait_for_an_event(watch: Watch) -> None:
    events = [watch("event", threading.Event())]
    queue.Queue[Any]().put(events[0])
    with watch.holding():
        events.pop().wait("no number")  # pyright: ignore[reportArgumentType]


async def fail_in_a_task() -> None:
    raise Failure


def create_a_task(watch: Watch, *, make: Callable[[Watch], Any]) -> None:
    async def main() -> None:
        with watch.holding():
            await watch("task", asyncio.get_running_loop().create_task(make(watch)))

    asyncio.run(main())


def create_an_eager_task(watch: Watch) -> None:
    """As `asyncio.eager_task_factory` does: the job runs inside of `create_task`, whose frame its exception refers to."""

    class Task(Future[Any]):
        def __init__(self, coroutine: Any) -> None:
            super().__init__()
            try:
                coroutine.send(None)
            except Failure as error:
                self.set_exception(error)

        def set_name(self, _: Any) -> None: ...

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda _, coroutine, **__: watch("task", Task(coroutine)))  # pyright: ignore[reportArgumentType]
        loop.create_task(fail_in_a_task())  # noqa: RUF006 - it is done
        loop.set_task_factory(None)

    asyncio.run(main())


def submit_to_a_process(watch: Watch, *, argument: Callable[[], Any]) -> None:
    with ProcessPoolExecutor(1, get_context("fork")) as pool, watch.holding():
        watch("future", pool.submit(refuse_in_a_process, watch("argument", argument()))).result(60)


SCENARIOS: dict[str, Callable[[Watch], None]] = {
    "result of a failed future": functools.partial(result, finish=lambda future: future.set_exception(Failure())),
    "result of a future": functools.partial(result, finish=lambda future: future.set_result(1)),
    "result after a timeout": functools.partial(result, finish=lambda _: None, timeout=0),
    "result of a cancelled future": functools.partial(result, finish=lambda future: future.cancel()),
    "submit a function": functools.partial(submit, function=fail),
    "submit what does not fail": functools.partial(submit, function=lambda _: Thing()),
    "hold the future of a job": functools.partial(submit, function=int, holds_future=True),
    "a variable of a job": functools.partial(set_a_variable, start=call_in_a_pool),
    "a variable of a callback": functools.partial(set_a_variable, start=call_back_in_a_pool),
    "submit to a closed pool": submit_to_a_closed_pool,
    "submit and cancel": submit_and_cancel,
    "map in a thread pool": map_in_a_thread_pool,
    "callback of a future": functools.partial(add_done_callback, is_done=True),
    "callback of a pending future": functools.partial(add_done_callback, is_done=False),
    "run in an executor": functools.partial(run_in_executor, function=fail),
    "run in an executor what does not fail": functools.partial(run_in_executor, function=lambda _: Thing()),
    "cancel get": lambda watch: cancel(watch, lambda: watch("queue", asyncio.Queue[Any]()).get()),
    "cancel a lock": cancel_lock,
    "a queue is empty": queue_is_empty,
    "a queue is full": queue_is_full,
    "a thread": functools.partial(start_a_thread, function=lambda _: None),
    "a thread that fails": functools.partial(start_a_thread, function=fail),
    "a thread that is started twice": start_a_thread_twice,
    "wait for an event": wait_for_an_event,
    "a task of no coroutine": functools.partial(create_a_task, make=lambda watch: watch("coroutine", Thing())),
    "a failing task": functools.partial(create_a_task, make=lambda _: fail_in_a_task()),
    "an eager task": create_an_eager_task,
    "a process": functools.partial(submit_to_a_process, argument=Thing),
    "what cannot be sent": functools.partial(submit_to_a_process, argument=threading.Lock),
}


def in_no_request(scenario: Callable[[Watch], None], watch: Watch) -> None:
    scenario(watch)


def in_a_request(scenario: Callable[[Watch], None], watch: Watch) -> None:
    with request("any"):
        scenario(watch)


def in_a_worker(scenario: Callable[[Watch], None], watch: Watch) -> None:
    """While the worker has a job, whose request waits."""
    reply, jobs = Future[None](), queue.Queue[Any]()
    with request("any"):
        jobs.put(reply)

        def work() -> None:
            assert jobs.get() is reply
            marks = current.get()
            assert marks is None or type(marks[4]) is QueueRun
            scenario(watch)

        token = current.set(None)
        worker = threading.Thread(target=work)
        worker.start()
        current.reset(token)
        worker.join(60)
        # The run of the worker holds what it holds as long as its job.
        watch.held.append(reply)


def alive(scenario: Callable[[Watch], None], around: Any) -> tuple[list[str], list[str]]:
    """Return what is alive while the user holds the exception or the future of the scenario, and what after that."""
    watch = Watch()
    gc.collect()
    gc.disable()
    try:
        around(scenario, watch)
        before = watch.alive()
        watch.held.clear()
        return before, watch.alive()
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("around", [in_no_request, in_a_request, in_a_worker])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.usefixtures("finished")
def test_nothing_lives_longer_than_without_us(scenario: str, around: Any) -> None:
    without_us = alive(SCENARIOS[scenario], around)
    with instrumenting(*(instrumentor() for instrumentor in INSTRUMENTORS)):
        with_us = alive(SCENARIOS[scenario], around)

    assert with_us == without_us


def finish_in_a_queue() -> Any:
    jobs: queue.Queue[Any] = queue.Queue()
    future: Future[Any] = Future()
    jobs.put(future)
    thread = threading.Thread(target=lambda: jobs.get().set_result(None))
    token = current.set(None)
    thread.start()
    current.reset(token)
    future.result(30)
    thread.join(30)
    return future


def finish_in_a_process() -> Any:
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        future = pool.submit(int)
        future.result(60)
    return future


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("finish", [finish_in_a_queue, finish_in_a_process])
def test_a_retained_future_retains_nothing_of_ours(finished: Finished, finish: Callable[[], Any]) -> None:
    with instrumenting(*(instrumentor() for instrumentor in INSTRUMENTORS)):
        with request("any"):
            future = finish()
        tickets = [weakref.ref(job) for _, late, _ in finished.marks() if hasattr(late, "jobs") for job in late.jobs()]
        assert tickets
        finished.clear()
        recorder.forget_finished()
        gc.collect()

    assert future.done()
    assert [ticket() for ticket in tickets] == [None]
