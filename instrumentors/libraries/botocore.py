"""boto3: times the calls of AWS clients, such as S3, and the bodies that they return.

- A call includes its retries. boto3 and aws-cli call botocore, which Stagelens times.
- Stagelens does not read parameters, keys of objects or bodies.
"""

from __future__ import annotations

from types import MappingProxyType

from .dependency_common import DependencyInstrumentor


class BotocoreInstrumentor(DependencyInstrumentor):
    """Instrumentor of the clients of botocore."""

    library = "botocore"
    title = "boto3"
    service = "boto3"
    stages = MappingProxyType({"dependency": "a call of a client, and reading the body of a response"})
    not_timed = ("aiobotocore",)
    tested = MappingProxyType({"boto3": "1.44.8"})
    calls = MappingProxyType(
        {
            "botocore.client": {"dependency": ("BaseClient._make_api_call",)},
            "botocore.response": {"dependency": ("StreamingBody.read", "StreamingBody.readinto")},
        }
    )
