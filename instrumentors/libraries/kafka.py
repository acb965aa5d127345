"""Kafka: times the wait of producers of kafka-python and aiokafka.

- `send` puts a message into a buffer: it waits for the topic's metadata, or for room in the buffer.
- Stagelens does not read topics, keys or messages.
"""

from __future__ import annotations

from types import MappingProxyType

from ..instrumentor import CallsInstrumentor


class KafkaInstrumentor(CallsInstrumentor):
    """Instrumentor of the producers."""

    library = "kafka"
    title = "Kafka"
    stages = MappingProxyType(
        {"dependency": "`send`, `send_and_wait`, `flush`, and the wait for a delivery with `get`"}
    )
    not_timed = (
        "consumers: a poll is not part of a request",
        "`await` of the future that `send` of aiokafka returns; use `send_and_wait`",
        "confluent-kafka: its producer is a C type",
    )
    tested = MappingProxyType({"kafka-python": "3.0.12", "aiokafka": "0.14.0"})
    calls = MappingProxyType(
        {
            "kafka.producer.kafka": {"dependency": ("KafkaProducer.send", "KafkaProducer.flush")},
            "kafka.producer.future": {"dependency": ("FutureRecordMetadata.get",)},
            "aiokafka.producer.producer": {
                "dependency": ("AIOKafkaProducer.send", "AIOKafkaProducer.send_and_wait", "AIOKafkaProducer.flush")
            },
        }
    )
