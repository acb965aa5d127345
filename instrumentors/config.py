"""Settings of the agent: the environment variables of OpenTelemetry where one exists, else `STAGELENS_*`.

`core/settings/schema.py` lists the settings. An invalid value is logged once, with the accepted form, and the default is used.
"""

from __future__ import annotations

import logging
import os.path
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from ..core import health_probes, names
from ..core.errors import ConfigError
from ..core.health_probes import ProbePolicy
from ..core.settings.values import parse_duration, parse_size
from ..core.text import printable
from .config_file import apply_config_file

if TYPE_CHECKING:
    import ssl

logger = logging.getLogger("stagelens")
T = TypeVar("T")
# https://www.rfc-editor.org/rfc/rfc9110#name-fields: the field name, and the characters that are safe in its value.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(r"[\t\x20-\x7e]*")
DEFAULT_ENDPOINT = "http://127.0.0.1:4318"
# With a shorter interval the exports themselves would be a significant load.
MIN_INTERVAL_SECONDS = 0.1
# Longer numbers are mistakes, and Python limits the length of numbers that it parses.
MAX_DIGITS = 9
# Per series and export interval: bounds the memory for retained traces.
MAX_RETAINED = 100
_BUDGET = (
    "a share of a request's time, a time, or both (the larger limit applies), such as 1%,100us; or 0 for no budget"
)


@dataclass(frozen=True, slots=True)
class ClientTlsFiles:
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None

    def context(self) -> ssl.SSLContext:
        import ssl  # noqa: PLC0415 - not needed by a process that exports nothing

        context = ssl.create_default_context(cafile=self.certificate)
        if self.client_certificate is not None:
            # Without this, a key with a password would prompt for the password on the terminal of the host.
            context.load_cert_chain(self.client_certificate, self.client_key, password="")
        return context


def _problem(key: str, text: str, form: str) -> str:
    return f"{key} is {text!r}; write {form}"


def _require(is_valid: object, key: str, text: str, form: str) -> None:
    if not is_valid:
        raise ConfigError(_problem(key, text, form))


@dataclass(frozen=True, slots=True)
class OverheadBudget:
    share: float = 0.01
    absolute_ns: float = 100_000.0

    @classmethod
    def parse(cls, text: str, key: str) -> OverheadBudget | None:
        """Parse `1%`, `100us` or both, separated by a comma; return None (no budget) for `0` or `none`."""
        if text.lower() in {"0", "none"}:
            return None
        share = absolute_ns = 0.0
        try:
            for part in text.split(","):
                if part.strip().endswith("%"):
                    share = float(part.strip()[:-1]) / 100
                    _require(0 < share <= 1, key, text, _BUDGET)
                else:
                    absolute_ns = parse_duration(part, key).total_seconds() * 1e9
        except (ConfigError, ValueError) as error:
            raise ConfigError(_problem(key, text, _BUDGET)) from error
        _require(bool(share or absolute_ns), key, text, _BUDGET)
        return cls(share, absolute_ns)

    def allows_ns(self, duration_ns: float) -> float:
        return max(self.share * duration_ns, self.absolute_ns)

    def __str__(self) -> str:
        parts = (f"{100 * self.share:.3g} % of the request time", f"{self.absolute_ns / 1000:.3g} us")
        return " or ".join(part for part, wanted in zip(parts, (self.share, self.absolute_ns), strict=True) if wanted)


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    slow: int = 4
    errors: int = 10
    uniform: int = 2
    cold: int = 2
    forced: int = 50


@dataclass(frozen=True, slots=True)
class AgentConfig:
    metrics_url: str = f"{DEFAULT_ENDPOINT}/v1/metrics"
    traces_url: str = f"{DEFAULT_ENDPOINT}/v1/traces"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    trust: ClientTlsFiles = field(default_factory=ClientTlsFiles)
    timeout_seconds: float = 10.0
    resource: Mapping[str, str] = field(default_factory=lambda: {names.SERVICE_NAME: "python"})
    enabled: bool = True
    interval_seconds: float = 10.0
    buffer_bytes: int = 16 * 1024**2
    keep: SamplingLimits = field(default_factory=SamplingLimits)
    budget: OverheadBudget | None = field(default_factory=OverheadBudget)
    hardware: bool = True
    profile: bool = True
    probes: ProbePolicy = field(default_factory=ProbePolicy)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AgentConfig:
        """Read the settings from *env* and its file `OTEL_CONFIG_FILE`; an invalid value is logged and replaced by its default."""
        read = _Reader(apply_config_file(env, warns=True))
        base = read("OTEL_EXPORTER_OTLP_ENDPOINT", _url, DEFAULT_ENDPOINT).rstrip("/")
        limits = SamplingLimits()
        return cls(
            metrics_url=read("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", _url, f"{base}/v1/metrics"),
            traces_url=read("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", _url, f"{base}/v1/traces"),
            headers=read("OTEL_EXPORTER_OTLP_HEADERS", _pairs_unseen, {}),
            trust=_trust(read),
            timeout_seconds=read("OTEL_EXPORTER_OTLP_TIMEOUT", _milliseconds, 10.0),
            resource=_resource(read),
            enabled=not read("OTEL_SDK_DISABLED", _boolean, default=False),
            interval_seconds=read("STAGELENS_EXPORT_INTERVAL", _interval, 10.0),
            buffer_bytes=read("STAGELENS_BUFFER_SIZE", parse_size, 16 * 1024**2),
            keep=SamplingLimits(
                slow=read("STAGELENS_KEEP_SLOW", _count, limits.slow),
                errors=read("STAGELENS_KEEP_ERRORS", _count, limits.errors),
                uniform=read("STAGELENS_KEEP_UNIFORM", _count, limits.uniform),
                cold=read("STAGELENS_KEEP_COLD", _count, limits.cold),
            ),
            budget=read("STAGELENS_OVERHEAD_BUDGET", OverheadBudget.parse, OverheadBudget()),
            hardware=read("STAGELENS_HARDWARE", _boolean, default=True),
            profile=read("STAGELENS_PROFILE", _switch, default=True),
            probes=read(health_probes.VARIABLE, ProbePolicy.parse, ProbePolicy()),
        )


class _Reader:
    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def __call__(self, key: str, parse: Callable[[str, str], T], default: T) -> T:
        # The OpenTelemetry specification: an empty value is an unset one.
        text = self._env.get(key, "").strip()
        if not text:
            return default
        try:
            return parse(text, key)
        except ConfigError as error:
            logger.warning("stagelens: %s. The default is used: %s", error, default)
            return default


def _trust(read: _Reader) -> ClientTlsFiles:
    certificate, *pair = (
        read(f"OTEL_EXPORTER_OTLP_{name}", _file, None) for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
    )
    if None in pair and pair != [None, None]:
        logger.warning(
            "stagelens: no client certificate is sent to the collector: OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and "
            "OTEL_EXPORTER_OTLP_CLIENT_KEY must both name a file"
        )
        pair = [None, None]
    return ClientTlsFiles(certificate, *pair)


def _resource(read: _Reader) -> dict[str, str]:
    attributes = read("OTEL_RESOURCE_ATTRIBUTES", _pairs, {})
    # The workers of a server share the environment, so an instance id in it cannot distinguish them.
    attributes.pop(names.SERVICE_INSTANCE, None)
    name = read("OTEL_SERVICE_NAME", _text, attributes.get(names.SERVICE_NAME, "")) or script_name(sys.argv)
    attributes[names.SERVICE_NAME] = name
    version = read("STAGELENS_SERVICE_VERSION", _text, attributes.get(names.SERVICE_VERSION, ""))
    if version:
        attributes[names.SERVICE_VERSION] = version
    # A value that is not UTF-8 would have every export rejected.
    return {printable(key): printable(value) for key, value in attributes.items()}


def service_name(env: Mapping[str, str]) -> str:
    return _resource(_Reader(apply_config_file(env)))[names.SERVICE_NAME]


def script_name(argv: list[str]) -> str:
    """Return the default service name, which is the name of the script.

    >>> [script_name([path]) for path in ("/srv/app/serve.py", "/lib/uvicorn/__main__.py", "-c", "")]
    ['serve', 'uvicorn', 'python', 'python']
    """
    path = argv[0] if argv else ""
    stem = os.path.splitext(os.path.basename(path))[0]  # noqa: PTH119, PTH122 - importing pathlib would cost the host time
    if stem == "__main__":
        stem = os.path.basename(os.path.dirname(path))  # noqa: PTH119, PTH120 - as above
    return stem if stem and not stem.startswith("-") else "python"


def _text(text: str, _key: str) -> str:
    return text


def _url(text: str, key: str) -> str:
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and _sendable(text)
    except ValueError:
        valid = False
    if not valid:
        shown = f"is {text!r}" if "@" not in text else "is not a URL (not shown: it may contain a password)"
        msg = f"{key} {shown}; write an address such as {DEFAULT_ENDPOINT}"
        raise ConfigError(msg)
    return text


def _pairs(text: str, key: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    is_valid = all(sign and name.strip() for name, sign, _ in pairs)
    _require(is_valid, key, text, "pairs such as service.version=1.2,deployment.environment.name=prod")
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


def _pairs_unseen(text: str, key: str) -> dict[str, str]:
    try:
        pairs = _pairs(text, key)
    except ConfigError:
        pairs = None
    # A line break in a value would inject further headers.
    if pairs is None or not all(_TOKEN.fullmatch(name) and _LINE.fullmatch(value) for name, value in pairs.items()):
        msg = f"{key} cannot be read (its value is not shown: it may contain a secret); write pairs such as x-api-key=…"
        raise ConfigError(msg)
    return pairs


def _sendable(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _file(text: str, key: str) -> str:
    if not os.path.isfile(text):  # noqa: PTH113 - importing pathlib would cost the host time
        msg = f"{key} is {text!r}, which is not a file; write the path of a PEM file"
        raise ConfigError(msg)
    return text


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else -1


def _milliseconds(text: str, key: str) -> float:
    _require(_number(text) > 0, key, text, "milliseconds, such as 10000")
    return int(text) / 1000


def _boolean(text: str, key: str) -> bool:
    _require(text.lower() in {"true", "false"}, key, text, "true or false")
    return text.lower() == "true"


def _switch(text: str, key: str) -> bool:
    _require(text.lower() in {"on", "off", "true", "false"}, key, text, "on or off")
    return text.lower() in {"on", "true"}


def _interval(text: str, key: str) -> float:
    seconds = parse_duration(text, key).total_seconds()
    _require(seconds >= MIN_INTERVAL_SECONDS, key, text, f"at least {MIN_INTERVAL_SECONDS * 1000:g}ms")
    return seconds


def _count(text: str, key: str) -> int:
    _require(0 <= _number(text) <= MAX_RETAINED, key, text, f"a number from 0 to {MAX_RETAINED}")
    return int(text)
