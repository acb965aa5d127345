"""Processes that send spans, by what they say of themselves."""

from __future__ import annotations

from ...core import names
from ..ingest.dimensions import UNKNOWN_SERVICE, text
from ..otlp.model import Attributes
from .columns import Source

# Semantic conventions before 1.27.
_OLD_ENVIRONMENT = "deployment.environment"
# What tells processes of a service apart where it gives them no id of its own.
_INSTANCES = (names.SERVICE_INSTANCE, "k8s.pod.uid", "k8s.pod.name", "container.id", "host.id", "host.name")
_PROCESS = "process.pid"


def source_of(resource: Attributes) -> Source:
    """Return the process that says *resource* of itself.

    >>> source_of({"service.name": "shop", "host.name": "a", "process.pid": 7})
    Source(service='shop', version='', environment='', instance='a 7')
    """
    instance = next((text(resource[key]) for key in _INSTANCES if key in resource), "")
    if names.SERVICE_INSTANCE not in resource and _PROCESS in resource:
        instance = f"{instance} {text(resource[_PROCESS])}".strip()
    return Source(
        service=text(resource.get(names.SERVICE_NAME, "")) or UNKNOWN_SERVICE,
        version=text(resource.get(names.SERVICE_VERSION, "")),
        environment=text(resource.get(names.ENVIRONMENT, resource.get(_OLD_ENVIRONMENT, ""))),
        instance=instance,
    )
