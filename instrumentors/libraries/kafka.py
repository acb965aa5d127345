"""Kafka: times the waits of kafka-python, confluent-kafka and aiokafka for the brokers.

- A client sends a message in the background. The request waits where it flushes, or waits for the future of the message.
- A call below 20 µs is not recorded.
- Stagelens does not read messages, keys or topics.
"""
# The classes of confluent-kafka are written in C, and their methods cannot be replaced. Subclasses take their place, before the
# package takes the classes from its extension, so that all of it has the same ones.

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import Hook
from .dependency_common import DependencyInstrumentor


def _methods(owner: str, *names: str) -> dict[str, Sequence[str]]:
    return {"dependency": [f"{owner}.{name}" for name in names]}


_CONFLUENT = MappingProxyType({"Producer": ("flush", "poll", "produce"), "Consumer": ("poll", "consume", "commit")})


class KafkaInstrumentor(DependencyInstrumentor):
    """Instrumentor of the producers and consumers of the three clients."""

    library = "kafka"
    title = "Kafka"
    service = "kafka"
    stages = MappingProxyType(
        {
            "dependency": "`send`, `produce`, `flush`, `poll`, `consume`, `getone`, `getmany` and `commit`, and `get` of a future of kafka-python"
        }
    )
    not_timed = (
        "`await` on the future that `send` of aiokafka returns, except in `send_and_wait`",
        "deliveries whose failure only a callback of confluent-kafka reports: they are no failed calls",
        "confluent-kafka, if it was imported before `stagelens.instrument()`",
    )
    tested = MappingProxyType({"kafka-python": "3.0.12", "confluent-kafka": "2.16.1", "aiokafka": "0.14.0"})
    calls = MappingProxyType(
        {
            "kafka.producer.kafka": _methods("KafkaProducer", "send", "flush"),
            "kafka.producer.future": _methods("FutureRecordMetadata", "get"),
            "kafka.consumer.group": _methods("KafkaConsumer", "poll", "commit"),
            "aiokafka.producer.producer": _methods("AIOKafkaProducer", "start", "send", "send_and_wait", "flush"),
            "aiokafka.consumer.consumer": _methods("AIOKafkaConsumer", "start", "getone", "getmany", "commit"),
            "confluent_kafka.deserializing_consumer": _methods("DeserializingConsumer", "poll", "consume"),
            "confluent_kafka.aio.producer._AIOProducer": _methods("AIOProducer", "flush", "poll", "produce"),
            "confluent_kafka.aio._AIOConsumer": _methods("AIOConsumer", "poll", "consume", "commit"),
        }
    )

    def hooks(self) -> Mapping[str, Hook]:
        return {**super().hooks(), "confluent_kafka.cimpl": self._confluent, "confluent_kafka": self._package}

    def _confluent(self, module: ModuleType) -> None:
        # Not where the package has the original classes already: it would have two of the same name.
        if not hasattr(sys.modules.get("confluent_kafka"), "Producer"):
            for name, names in _CONFLUENT.items():
                self.replace(module, name, functools.partial(self._subclass, names))

    def _package(self, module: ModuleType) -> None:
        for patch in [each for each in self._patches if getattr(module, each.name, None) is each.replacement]:
            self._patches.append(patch._replace(owner=module))

    def _subclass(self, names: Sequence[str], original: type[Any]) -> type[Any]:
        make = self.wrapper("dependency")
        found = {name: vars(original)[name] for name in names if name in vars(original)}
        attributes = {name: functools.update_wrapper(make(method), method) for name, method in found.items()}
        described = {name: getattr(original, name) for name in ("__doc__", "__module__", "__qualname__")}
        return type(original.__name__, (original,), {**attributes, **described})
