"""Scrape configuration: the section `scrape:` of the collector's file, and the rules for the metrics of inference engines.

A target has an address, an interval and an engine. Rules read requests, stages and tokens, with units and labels. Those of a known
engine are one file in `engines/`; user rules have the same keys, under `rules:` of a target.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx

from ...core.egress import ENV, CallTls, EgressPolicy, file_at, is_header, read_call_tls
from ...core.errors import StagelensError
from ...core.names import BY_ENGINE, DEFINITIONS, TOKENS_IN, TOKENS_OUT
from ...core.settings import yaml_config
from ...core.settings.yaml_config import Document, Fields, Place, meant

# Seconds per unit.
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# Default unit by the suffix of a metric name.
_BY_SUFFIX = {"_seconds": "s", "_ms": "ms", "_milliseconds": "ms", "_us": "us", "_microseconds": "us", "_ns": "ns"}
# Series dimensions that labels may provide.
DIMENSIONS = ("version", "model", "model_version", "route", "status")
_TOKENS = (TOKENS_IN, TOKENS_OUT)
_READS = ("request", "stages", "first_token", "output_token", "tokens")
# Suffixes of the samples of histograms and (the last suffix) counters.
_SUFFIXES = ("_bucket", "_sum", "_count", "_created", "_total")


@dataclass(frozen=True, slots=True)
class SourceMetric:
    """Metric of an exposition that a rule reads.

    Args:
        names: Names of a histogram, summary or counter in different versions; the first one present counts.
        count: For a duration that is a plain counter: names of the counter of the timed events.
        unit_seconds: Seconds per unit.
        definition: Definition of a token time, one of `names.DEFINITIONS`.
    """

    names: tuple[str, ...]
    count: tuple[str, ...] = ()
    unit_seconds: float = 1.0
    definition: str = BY_ENGINE


@dataclass(frozen=True, slots=True)
class Engine:
    """Rules of an engine.

    Args:
        key: Name in the configuration.
        label: Display name.
        request: Metrics of the duration of requests.
        stages: Metrics of the time in each stage.
        first_token: Metrics of the time to the first token.
        output_token: Metrics of the time per output token.
        tokens: Metrics of the number of tokens, by `names.TOKENS_IN` and `names.TOKENS_OUT`: counters, or the `_sum` of a
            histogram.
        labels: Labels that provide each of `DIMENSIONS`; the first one present counts.
        without: Label values of excluded samples, for example of health checks that the engine counts as requests.
        sources: URLs of the documentation of the metrics.
    """

    key: str
    label: str
    request: SourceMetric | None = None
    stages: Mapping[str, SourceMetric] = field(default_factory=dict[str, SourceMetric])
    first_token: tuple[SourceMetric, ...] = ()
    output_token: tuple[SourceMetric, ...] = ()
    tokens: Mapping[str, SourceMetric] = field(default_factory=dict[str, SourceMetric])
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    without: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    sources: tuple[str, ...] = ()

    def all_sources(self) -> Iterator[SourceMetric]:
        """Yield every metric that the rules read."""
        if self.request:
            yield self.request
        yield from self.stages.values()
        yield from self.first_token
        yield from self.output_token
        yield from self.tokens.values()

    def wanted(self) -> frozenset[str]:
        """Return the names of all metrics that the rules read, without suffix."""
        return frozenset(base_of(name) for source in self.all_sources() for name in (*source.names, *source.count))


def base_of(sample: str) -> str:
    """Return the name of the metric that *sample* belongs to, without suffix.

    >>> base_of("vllm:e2e_request_latency_seconds_bucket"), base_of("ts_inference_requests_total")
    ('vllm:e2e_request_latency_seconds', 'ts_inference_requests')
    """
    for suffix in _SUFFIXES:
        if sample.endswith(suffix):
            return sample.removesuffix(suffix)
    return sample


def read_engine(fields: Fields, key: str) -> Engine:
    """Read the rules of the engine *key* from *fields*; errors become problems of the document."""
    label = fields.text("name", default=key)
    request = _source(fields, "request", fields.value("request"))
    stages = _by_key(fields, "stages")
    tokens = _by_key(fields, "tokens")
    for kind in tokens:
        if kind not in _TOKENS:
            fields.complain(f"{fields.name('tokens')} has {kind!r}; write one of {', '.join(_TOKENS)}", "tokens")
    engine = Engine(
        key,
        label,
        request,
        stages,
        _several(fields, "first_token"),
        _several(fields, "output_token"),
        {kind: source for kind, source in tokens.items() if kind in _TOKENS},
        _labels(fields),
        _without(fields),
        tuple(fields.texts("sources")),
    )
    if not any(fields.has(each) for each in _READS):
        fields.complain(f"{label} reads nothing; add `request: my_request_duration_seconds`, or `stages:`")
    fields.finish()
    return engine


def _by_key(fields: Fields, key: str) -> dict[str, SourceMetric]:
    if not fields.has(key):
        return {}
    inner = fields.mapping(key, example="queue: my_queue_seconds")
    if inner is None or inner.broken:
        return {}
    found = {each: _source(inner, each, inner.value(each)) for each in inner.keys}
    return {each: source for each, source in found.items() if source is not None}


def _several(fields: Fields, key: str) -> tuple[SourceMetric, ...]:
    value = fields.value(key)
    # A list of texts is one source metric with several names; a list of mappings is several source metrics.
    each = value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else [value]
    return tuple(source for item in each if (source := _source(fields, key, item)) is not None)


def _source(fields: Fields, key: str, value: Any) -> SourceMetric | None:
    """Read a source metric: a name, a list of names, or a mapping with more options."""
    if value is None:
        return None
    given: dict[Any, Any] = value if isinstance(value, dict) else {"names": value}
    found, count = _names(given.get("names")), _names(given.get("count", []))
    unit = given.get("unit") or (_unit_of(found[0]) if found else "s")
    definition = given.get("definition", BY_ENGINE)
    unknown = set(given) - {"names", "count", "unit", "definition"}
    example = f"`{key}: my_queue_seconds` or `{key}: {{names: [my_queue], unit: ms}}`"
    if not found or count is None or unknown:
        fields.complain(f"{fields.name(key)} does not name metrics; write {example}", key)
    elif unit not in UNITS:
        fields.complain(f"{fields.name(key)}.unit is {unit!r}; write one of {', '.join(UNITS)}", key)
    elif definition not in DEFINITIONS:
        known = ", ".join(DEFINITIONS)
        fields.complain(f"{fields.name(key)}.definition is {definition!r}; write one of {known}", key)
    else:
        return SourceMetric(found, count, UNITS[unit], definition)
    return None


def _names(value: Any) -> tuple[str, ...] | None:
    each = value if isinstance(value, list) else [value]
    return tuple(each) if all(isinstance(name, str) and name for name in each) else None


def _unit_of(name: str) -> str:
    return next((unit for suffix, unit in _BY_SUFFIX.items() if name.removesuffix("_total").endswith(suffix)), "s")


def _labels(fields: Fields) -> dict[str, tuple[str, ...]]:
    inner = fields.mapping("labels", example="model: model_name") if fields.has("labels") else None
    if inner is None or inner.broken:
        return {}
    found = {name: tuple(inner.texts(name)) for name in DIMENSIONS}
    inner.finish()
    return {name: labels for name, labels in found.items() if labels}


def _without(fields: Fields) -> dict[str, tuple[str, ...]]:
    inner = fields.mapping("without", example="path: [/health, /metrics]") if fields.has("without") else None
    if inner is None or inner.broken:
        return {}
    return {label: tuple(inner.texts(label)) for label in inner.keys}


@cache
def engines() -> Mapping[str, Engine]:
    """Return the built-in engines by key.

    Raises:
        StagelensError: A built-in file is invalid.
    """
    found: dict[str, Engine] = {}
    for file in sorted((files(f"{__package__}") / "engines").iterdir(), key=lambda each: each.name):
        key = file.name.removesuffix(".yaml")
        document = yaml_config.parse(file.read_text(encoding="utf-8"))
        found[key] = read_engine(Fields(document, (), document.value, example="name: vLLM"), key)
        if document.problems:
            problem = document.problems[0]
            msg = f"{file.name}:{problem.line}: {problem.text}"
            raise StagelensError(msg)
    return found


def detect(samples: Collection[str]) -> list[Engine]:
    """Return the engines that have metrics among the sample names *samples*."""
    bases = {base_of(name) for name in samples}
    return [engine for engine in engines().values() if not engine.wanted().isdisjoint(bases)]


AUTO, GENERIC = "auto", "generic"
DEFAULT_EVERY_SECONDS = 10.0
MIN_EVERY_SECONDS, MAX_EVERY_SECONDS = 1.0, 300.0
_CURE = f"{ENV} lists allowed addresses, and `allow_link_local: true` allows a metadata service to this target"


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """A scrape target.

    Args:
        url: URL of the exposition; also identifies the target.
        service: `service.name` of the metrics.
        engine: Engine of the target; None to detect the engine.
        version: `service.version` of the metrics.
        environment: `deployment.environment.name` of the metrics.
        every: Scrape interval. [seconds]
        headers: Headers sent with each request.
        token_file: File with a bearer token, read for each request.
        token_env: Environment variable with the bearer token, as an alternative to *token_file*.
        tls: TLS verification and client certificate.
        link_local: Whether metadata services of clouds are allowed.
        statistics_url: URL of Triton statistics with batch sizes; None for no statistics.
    """

    url: str
    service: str
    engine: Engine | None = None
    version: str = ""
    environment: str = ""
    every: float = DEFAULT_EVERY_SECONDS
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    token_file: Path | None = None
    token_env: str = ""
    tls: CallTls = field(default_factory=CallTls)
    link_local: bool = False
    statistics_url: str | None = None


def read_targets(document: Document, place: Place, value: Any, egress_policy: EgressPolicy) -> tuple[ScrapeTarget, ...]:
    """Read the section `scrape:`; invalid targets, and targets that *egress_policy* denies, become problems of the document."""
    fields = Fields(document, place, value, example="targets: []")
    found: dict[str, ScrapeTarget] = {}
    for at, item in fields.items("targets"):
        target = _target(Fields(document, at, item, example="url: http://llm:8000/metrics"), egress_policy)
        if target is None:
            continue
        if target.url in found:
            Fields(document, at, item).complain(f"{target.url} is a target already; name each once", "url")
        found.setdefault(target.url, target)
    fields.finish()
    return tuple(found.values())


def _target(fields: Fields, egress_policy: EgressPolicy) -> ScrapeTarget | None:
    if fields.broken:
        return None
    link_local = fields.value("allow_link_local") is True
    allowed = egress_policy.with_kind("metadata") if link_local else egress_policy
    url = _url(fields, "url", "http://llm:8000/metrics", allowed)
    statistics = _url(fields, "statistics_url", "", allowed)
    target = ScrapeTarget(
        url=url,
        service=fields.text("service", example="llm"),
        engine=_engine(fields),
        version=fields.text("version"),
        environment=fields.text("environment"),
        every=_every(fields),
        headers=_headers(fields),
        token_file=file_at(fields, "bearer_token_file"),
        token_env=fields.text("bearer_token_env"),
        tls=read_call_tls(fields),
        link_local=link_local,
        statistics_url=statistics or None,
    )
    fields.finish()
    return target if url and target.service else None


def _url(fields: Fields, key: str, example: str, egress_policy: EgressPolicy) -> str:
    written = fields.address(key, example=example)
    if not written:
        return ""
    try:
        url = httpx.URL(written)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL("")
    if not url.host:
        fields.complain(f"{fields.name(key)} is no address; write one such as http://llm:8000/metrics", key)
    elif url.userinfo:
        # The URL may contain a password, so the message does not repeat it.
        fields.complain(f"{fields.name(key)} has a user in it; use bearer_token_file or bearer_token_env", key)
    elif why := egress_policy.denial_reason(url.host):
        fields.complain(f"{fields.name(key)} is {why}, which is not allowed; {_CURE}", key)
    else:
        return str(url)
    return ""


def _engine(fields: Fields) -> Engine | None:
    named = fields.text("engine", default=AUTO)
    given = fields.mapping("rules", example="request: my_request_seconds")
    if named == GENERIC or given is not None:
        if given is None:
            fields.missing("rules", "{request: my_request_duration_seconds}")
        elif named not in (GENERIC, AUTO):
            fields.complain(f"{fields.name('rules')} go with `engine: {GENERIC}`, not with {named!r}", "rules")
        elif not given.broken:
            return read_engine(given, GENERIC)
        return None
    known = engines()
    if named != AUTO and named not in known:
        allowed = (AUTO, GENERIC, *known)
        fix = f"write one of {', '.join(allowed)}{meant(named, allowed)}"
        fields.complain(f"{fields.name('engine')} is {named!r}; {fix}", "engine")
    return known.get(named)


def _every(fields: Fields) -> float:
    given = fields.duration("every", example="10s", required=False)
    seconds = given.total_seconds() if given else DEFAULT_EVERY_SECONDS
    if not MIN_EVERY_SECONDS <= seconds <= MAX_EVERY_SECONDS or math.isnan(seconds):
        limits = f"{MIN_EVERY_SECONDS:g}s to {MAX_EVERY_SECONDS:g}s"
        fields.complain(f"{fields.name('every')} is {seconds:g}s; write {limits}, such as 10s", "every")
        return DEFAULT_EVERY_SECONDS
    return seconds


def _headers(fields: Fields) -> dict[str, str]:
    if not fields.has("headers"):
        return {}
    inner = fields.mapping("headers", example="X-Scope-OrgID: team")
    if inner is None or inner.broken:
        return {}
    found = {name: inner.text(name) for name in inner.keys}
    for name, value in found.items():
        if not is_header(name, value):
            inner.complain(f"{inner.name(name)} is no header; write plain letters", name)
    return found
