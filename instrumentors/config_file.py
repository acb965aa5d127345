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
from urllib.parse import quote

from ..core import names
from ..core.errors import ConfigError

VARIABLE = "OTEL_CONFIG_FILE"
_EXPORTER = "OTEL_EXPORTER_OTLP_"
_DEFAULT_ENDPOINT = "http://localhost:4318/v1/"
# Attributes of the SDK itself, and the id by which the SDK would know this process: the agent has its own.
_OF_THE_SDK = ("telemetry.", names.SERVICE_INSTANCE)
_UNKNOWN_SERVICE = "unknown_service"
logger = logging.getLogger("stagelens")


def apply_config_file(env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* with the settings of its configuration file as variables, in place of all `OTEL_*` variables.

    Without a file, or with a file that cannot be read, the result equals *env* without the file; the reason is logged.
    """
    own = {key: value for key, value in env.items() if key != VARIABLE}
    path = env.get(VARIABLE, "").strip()
    if not path:
        return own
    try:
        found = _read(path)
    except ConfigError as error:
        logger.warning("stagelens: %s. The OTEL_* variables are used", error)
        return own
    return {key: value for key, value in own.items() if not key.startswith("OTEL_")} | found


@functools.cache
def _read(path: str) -> dict[str, str]:
    """Return the settings in the file at *path* as variables.

    Raises:
        ConfigError: The file cannot be read, or the package that reads it is missing.
    """
    try:
        from opentelemetry.configuration import ConfigurationError, load_config_file  # noqa: PLC0415 - optional, slow
        from opentelemetry.configuration.file import create_resource  # noqa: PLC0415
    except ImportError as error:
        msg = f"{VARIABLE} is set, but opentelemetry-configuration is not installed; pip install opentelemetry-configuration"
        raise ConfigError(msg) from error
    try:
        config = load_config_file(path)
        attributes = create_resource(config.resource).attributes
    except (ConfigurationError, OSError, TypeError, ValueError) as error:
        msg = f"{VARIABLE} names {path!r}, which cannot be used: {error}"
        raise ConfigError(msg) from error
    found = {
        "OTEL_SDK_DISABLED": "true" if config.disabled else "false",
        "OTEL_RESOURCE_ATTRIBUTES": _as_text(attributes),
    }
    exporters = dict(reversed(list(_http_exporters(config))))
    if not exporters:
        logger.warning("stagelens: %s has no otlp_http exporter; exports go to the default endpoint", path)
    for signal, exporter in exporters.items():
        found |= _exporter_settings(signal, exporter)
    return found | _other_signal(found)


def _as_text(attributes: Mapping[str, object]) -> str:
    kept = {key: str(value) for key, value in attributes.items() if not key.startswith(_OF_THE_SDK)}
    if kept.get(names.SERVICE_NAME, "").startswith(_UNKNOWN_SERVICE):
        # Not in the file: the agent names the service after its script.
        del kept[names.SERVICE_NAME]
    return ",".join(f"{key}={quote(value)}" for key, value in kept.items())


def _http_exporters(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the OTLP/HTTP exporters of *config* with their signal, metrics first."""
    for reader in (config.meter_provider.readers if config.meter_provider else None) or ():
        if reader.periodic is not None and reader.periodic.exporter.otlp_http is not None:
            yield "METRICS", reader.periodic.exporter.otlp_http
    for processor in (config.tracer_provider.processors if config.tracer_provider else None) or ():
        chosen = processor.batch or processor.simple
        if chosen is not None and chosen.exporter.otlp_http is not None:
            yield "TRACES", chosen.exporter.otlp_http


def _exporter_settings(signal: str, exporter: Any) -> dict[str, str]:
    tls = exporter.tls
    given = {
        f"{signal}_ENDPOINT": exporter.endpoint or f"{_DEFAULT_ENDPOINT}{signal.lower()}",
        "HEADERS": _headers(exporter),
        "TIMEOUT": exporter.timeout,
        "CERTIFICATE": tls and tls.ca_file,
        "CLIENT_CERTIFICATE": tls and tls.cert_file,
        "CLIENT_KEY": tls and tls.key_file,
    }
    return {f"{_EXPORTER}{key}": str(value) for key, value in given.items() if value is not None and value != ""}


def _headers(exporter: Any) -> str:
    """Return the headers of *exporter* in the form of the variable; those of the list have the lower priority."""
    pairs = [f"{each.name}={quote(each.value)}" for each in exporter.headers or () if each.value is not None]
    return ",".join([*filter(None, [exporter.headers_list]), *pairs])


def _other_signal(found: Mapping[str, str]) -> dict[str, str]:
    """Return the endpoint of the signal without an exporter: that of the other one, with the path of its own."""
    made: dict[str, str] = {}
    for missing, given in (("METRICS", "TRACES"), ("TRACES", "METRICS")):
        own, other = f"{_EXPORTER}{missing}_ENDPOINT", found.get(f"{_EXPORTER}{given}_ENDPOINT", "")
        base = other.removesuffix(f"/v1/{given.lower()}")
        if own not in found and base != other:
            made[own] = f"{base}/v1/{missing.lower()}"
    return made
