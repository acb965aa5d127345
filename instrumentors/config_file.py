"""Declarative configuration of OpenTelemetry: settings of the agent in the file `OTEL_CONFIG_FILE`.

The SDK reads its configuration from this file alone, and ignores the `OTEL_*` variables (specification:
https://opentelemetry.io/docs/specs/otel/configuration/sdk/). So does the agent. The package that reads the file is the one of the SDK;
whoever uses such a file has it installed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urljoin

from ..core import names
from ..core.import_lock import import_lock

VARIABLE = "OTEL_CONFIG_FILE"
_DEFAULT_ENDPOINT = "http://localhost:4318/v1/"
# Attributes of the SDK itself, and the id by which the SDK would know this process: the agent has its own.
_OF_THE_SDK = ("telemetry.", names.SERVICE_INSTANCE)
_UNKNOWN_SERVICE = "unknown_service"
logger = logging.getLogger("stagelens")


def apply_config_file(env: Mapping[str, str], *, warns: bool = False) -> dict[str, str]:
    """Return *env* with the settings of its configuration file as variables, in place of all `OTEL_*` variables."""
    variables = {key: value for key, value in env.items() if key != VARIABLE}
    path = env.get(VARIABLE, "").strip()
    if not path:
        return variables
    settings, problem = _read(path)
    if problem and warns:
        logger.warning("stagelens: %s", problem)
    if settings is None:
        return variables
    return {key: value for key, value in variables.items() if not key.startswith("OTEL_")} | settings


@functools.cache
def _read(path: str) -> tuple[dict[str, str] | None, str]:
    otherwise = "The OTEL_* variables are used"
    try:
        # A fork during this import would leave the child without it.
        with import_lock:
            from opentelemetry.configuration import load_config_file  # noqa: PLC0415 - optional, slow
            from opentelemetry.configuration.file import create_resource  # noqa: PLC0415
    except Exception:
        fix = "pip install opentelemetry-configuration"
        return None, f"{VARIABLE} is set, but opentelemetry-configuration is not installed; {fix}. {otherwise}"
    try:
        config = load_config_file(path)
        exporters = dict(reversed(list(_http_exporters(config))))
        settings = _general_settings(config, create_resource(config.resource).attributes) | _exporter_settings(
            exporters
        )
    except Exception as error:  # also that of a detector of resources
        return None, f"{VARIABLE} names {path!r}, which cannot be used: {_reason(error)}. {otherwise}"
    if not exporters:
        return settings, f"{path} has no otlp_http exporter; exports go to the default endpoint"
    if _are_alike(*exporters.values()):
        return settings, ""
    return (
        settings,
        f"{path} has exporters with different headers or TLS files; metrics and traces go where its metrics go",
    )


def _reason(error: Exception) -> str:
    cause: Any = error.__cause__
    mark = getattr(cause, "problem_mark", None)
    if mark is not None:
        return f"it is no valid YAML, line {mark.line + 1}"
    if hasattr(cause, "json_path"):
        # These two messages of jsonschema have only the names of keys.
        named = cause.validator in ("required", "additionalProperties")
        return f"{cause.message if named else 'the value is invalid'} ({cause.json_path}, {cause.validator})"
    return str(error) if cause is None else type(error).__name__


def _general_settings(config: Any, attributes: Mapping[str, object]) -> dict[str, str]:
    return {
        "OTEL_SDK_DISABLED": "true" if config.disabled else "false",
        "OTEL_RESOURCE_ATTRIBUTES": _as_text(attributes),
    }


def _as_text(attributes: Mapping[str, object]) -> str:
    texts = {key: str(value) for key, value in attributes.items() if not key.startswith(_OF_THE_SDK)}
    if texts.get(names.SERVICE_NAME, "").startswith(_UNKNOWN_SERVICE):
        # Not in the file: the agent names the service after its script.
        del texts[names.SERVICE_NAME]
    return ",".join(f"{key}={quote(value)}" for key, value in texts.items())


def _http_exporters(config: Any) -> Iterator[tuple[str, Any]]:
    for processor in (config.tracer_provider.processors if config.tracer_provider else None) or ():
        chosen = processor.batch or processor.simple
        if chosen is not None and chosen.exporter.otlp_http is not None:
            yield "traces", chosen.exporter.otlp_http
    for reader in (config.meter_provider.readers if config.meter_provider else None) or ():
        if reader.periodic is not None and reader.periodic.exporter.otlp_http is not None:
            yield "metrics", reader.periodic.exporter.otlp_http


def _exporter_settings(exporters: Mapping[str, Any]) -> dict[str, str]:
    first = next((exporters[signal] for signal in ("metrics", "traces") if signal in exporters), None)
    if first is None:
        return {}
    endpoints = {
        signal: exporter.endpoint or f"{_DEFAULT_ENDPOINT}{signal}"
        for signal, exporter in exporters.items()
        if _are_alike(first, exporter)
    }
    tls = first.tls
    given = {
        "METRICS_ENDPOINT": endpoints.get("metrics") or _beside(endpoints["traces"], "metrics"),
        "TRACES_ENDPOINT": endpoints.get("traces") or _beside(endpoints["metrics"], "traces"),
        "HEADERS": _headers(first),
        "TIMEOUT": first.timeout,
        "CERTIFICATE": tls and tls.ca_file,
        "CLIENT_CERTIFICATE": tls and tls.cert_file,
        "CLIENT_KEY": tls and tls.key_file,
    }
    return {
        f"OTEL_EXPORTER_OTLP_{key}": str(value) for key, value in given.items() if value is not None and value != ""
    }


def _are_alike(*exporters: Any) -> bool:
    return all(
        exporter.tls == exporters[0].tls and _headers(exporter) == _headers(exporters[0]) for exporter in exporters
    )


def _beside(endpoint: str, signal: str) -> str:
    """Return the address of *signal* at the receiver of another signal, whose address is *endpoint*.

    >>> _beside("http://collector:4318/base/v1/metrics", "traces"), _beside("http://collector:4318/in", "traces")
    ('http://collector:4318/base/v1/traces', 'http://collector:4318/v1/traces')
    """
    base, separator, _ = endpoint.rpartition("/v1/")
    return f"{base}/v1/{signal}" if separator else urljoin(endpoint, f"/v1/{signal}")


def _headers(exporter: Any) -> str:
    pairs = [f"{header.name}={quote(header.value)}" for header in exporter.headers or () if header.value is not None]
    return ",".join([*filter(None, [exporter.headers_list]), *pairs])
