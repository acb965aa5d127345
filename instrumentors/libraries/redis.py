"""Redis: times the commands and pipelines of redis-py, also those of clusters and of asyncio.

- A command includes the wait for a connection, its retries, and the response.
- Stagelens does not read commands, keys or values.
"""

from __future__ import annotations

from types import MappingProxyType

from .dependency_common import DependencyInstrumentor

_CLIENT = (
    "Redis.execute_command",
    "Pipeline.execute",
    "Pipeline.immediate_execute_command",
)
_CLUSTER = ("RedisCluster.execute_command", "ClusterPipeline.execute")


class RedisInstrumentor(DependencyInstrumentor):
    """Instrumentor of the clients of redis-py."""

    library = "redis"
    title = "Redis"
    service = "redis"
    stages = MappingProxyType({"dependency": "a command, or the execution of a pipeline"})
    not_timed = ("messages of `PubSub` and `monitor`, because they belong to no request",)
    tested = MappingProxyType({"redis": "8.1.0"})
    calls = MappingProxyType(
        {
            "redis.client": {"dependency": _CLIENT},
            "redis.asyncio.client": {"dependency": _CLIENT},
            "redis.cluster": {"dependency": _CLUSTER},
            "redis.asyncio.cluster": {"dependency": _CLUSTER},
        }
    )
