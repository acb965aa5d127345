"""Scrape configuration: the section `scrape:` of the collector's file, and the rules for the metrics of inference engines.

The rules of a known engine are one file in `engines/`; user rules have the same keys, under `rules:` of a target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from ...core.egress import CallSection, EgressPolicy, call_url, is_header
from ...core.errors import StagelensError
from ...core.names import BY_ENGINE, DEFINITIONS, TOKENS_IN, TOKENS_OUT
from ...core.settings import yaml_config
from ...core.settings.field_types import Duration, Entries, ExistingFile, Text, Texts, WebAddress, one_of, reject
from ...core.settings.section import Fault, Section, read_section
from ...core.settings.yaml_config import Document, Place, meant

# Seconds per unit.
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# Default unit by the suffix of a metric name.
_BY_SUFFIX = {"_seconds": "s", "_ms": "ms", "_milliseconds": "ms", "_us": "us", "_microseconds": "us", "_ns": "ns"}
_TOKENS = (TOKENS_IN, TOKENS_OUT)
_READS = frozenset({"request", "stages", "first_token", "output_token", "tokens"})
# Suffixes of the samples of histograms and (the last suffix) counters.
_SUFFIXES = ("_bucket", "_sum", "_count", "_created", "_total")
AUTO, GENERIC = "auto", "generic"
_MIN_EVERY, _MAX_EVERY = timedelta(seconds=1), timedelta(minutes=5)


def _names(value: Any) -> tuple[str, ...]:
    metric_names = value if isinstance(value, list | tuple) else [value]
    if not metric_names or not all(isinstance(name, str) and name for name in metric_names):
        reject("does not name metrics; write `my_queue_seconds` or `{names: [my_queue], unit: ms}`")
    return tuple(metric_names)


_Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class SourceMetric(Section):
    """Metric of an exposition that a rule reads; in YAML its names alone, or a mapping.

    Args:
        names: Names of a histogram, summary or counter in different versions; the first one present counts.
        count: For a duration that is a plain counter: names of the counter of the timed events.
        unit: Unit, one of `UNITS`; "" for the unit in the first name, or else seconds.
        definition: Definition of a token time, one of `names.DEFINITIONS`.
    """

    names: _Names = Field(examples=["my_queue"])
    count: _Names = ()
    unit: Annotated[str, one_of(UNITS)] = ""
    definition: Annotated[str, one_of(DEFINITIONS)] = BY_ENGINE

    @model_validator(mode="before")
    @classmethod
    def _from_names(cls, value: Any) -> Any:
        return value if isinstance(value, dict | SourceMetric) else {"names": _names(value)}

    @property
    def unit_seconds(self) -> float:
        name = self.names[0].removesuffix("_total")
        return UNITS[self.unit or next((unit for suffix, unit in _BY_SUFFIX.items() if name.endswith(suffix)), "s")]


def _sources(value: Any) -> Any:
    # A list of texts is one source metric with several names; a list of mappings is several source metrics.
    return value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else [value]


_Sources = Annotated[tuple[SourceMetric, ...], BeforeValidator(_sources)]


class DimensionLabels(Section):
    """Labels that provide the dimensions of series; of each dimension the first one present counts."""

    example = "model: model_name"

    version: Texts = ()
    model: Texts = ()
    model_version: Texts = ()
    route: Texts = ()
    status: Texts = ()


class Engine(Section):
    """Rules of an engine.

    Args:
        tokens: Metrics of the number of tokens, by `names.TOKENS_IN` and `names.TOKENS_OUT`: counters, or the `_sum` of a
            histogram.
        without: Label values of excluded samples, for example of health checks that the engine counts as requests.
    """

    example = "request: my_request_seconds"

    name: Text = GENERIC
    request: SourceMetric | None = None
    stages: Entries[SourceMetric] = Field(default={}, examples=["queue: my_queue_seconds"])
    first_token: _Sources = ()
    output_token: _Sources = ()
    tokens: Entries[SourceMetric] = Field(default={}, examples=["output: my_tokens_total"])
    labels: DimensionLabels = DimensionLabels()
    without: Entries[Texts] = Field(default={}, examples=["path: [/health, /metrics]"])
    sources: Texts = ()

    def faults(self) -> Iterator[Fault]:
        for kind in self.tokens:
            if kind not in _TOKENS:
                yield Fault("tokens", f"has {kind!r}; write one of {', '.join(_TOKENS)}")
        if not self.model_fields_set & _READS:
            yield Fault("", "selects no metric; add `request: my_request_duration_seconds`, or `stages:`")

    def all_sources(self) -> Iterator[SourceMetric]:
        if self.request:
            yield self.request
        yield from self.stages.values()
        yield from self.first_token
        yield from self.output_token
        yield from self.tokens.values()

    def wanted(self) -> frozenset[str]:
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


@cache
def engines() -> Mapping[str, Engine]:
    engine_by_key: dict[str, Engine] = {}
    for file in sorted((files(f"{__package__}") / "engines").iterdir(), key=lambda path: path.name):
        document = yaml_config.parse(file.read_text(encoding="utf-8"))
        engine = read_section(Engine, document, (), document.value)
        if engine is None or document.problems:
            problem = document.problems[0]
            msg = f"{file.name}:{problem.line}: {problem.text}"
            raise StagelensError(msg)
        engine_by_key[file.name.removesuffix(".yaml")] = engine
    return engine_by_key


def detect(samples: Collection[str]) -> dict[str, Engine]:
    bases = {base_of(name) for name in samples}
    return {key: engine for key, engine in engines().items() if not engine.wanted().isdisjoint(bases)}


class ScrapeTarget(CallSection):
    """A scrape target.

    Args:
        url: URL of the exposition; also identifies the target.
        engine: Key of the engine, `AUTO` to detect it, or `GENERIC` for the engine of `rules`.
        statistics_url: URL of Triton statistics with batch sizes; None for no statistics.
    """

    example = "url: http://llm:8000/metrics"

    url: WebAddress = Field(examples=["http://llm:8000/metrics"])
    service: Text = Field(examples=["llm"])
    engine: Text = AUTO
    rules: Engine | None = None
    version: Text = ""
    environment: Text = ""
    every: Duration = Field(default=timedelta(seconds=10), examples=["10s"])
    headers: Entries[Text] = Field(default={}, examples=["X-Scope-OrgID: team"], repr=False)
    bearer_token_file: ExistingFile | None = None
    bearer_token_env: Text = ""
    statistics_url: WebAddress | None = None

    @field_validator("url", "statistics_url")
    @classmethod
    def _callable(cls, value: str, info: ValidationInfo) -> str:
        url = call_url(value, info, "http://llm:8000/metrics")
        if url.userinfo:
            reject("contains a user; use bearer_token_file or bearer_token_env")
        return str(url)

    def faults(self) -> Iterator[Fault]:
        allowed = (AUTO, GENERIC, *engines())
        if self.rules and self.engine not in (AUTO, GENERIC):
            yield Fault("rules", f"are valid with `engine: {GENERIC}`, not with {self.engine!r}")
        elif self.engine == GENERIC and not self.rules:
            yield Fault("rules", "is missing; add `rules: {request: my_request_duration_seconds}`")
        elif self.engine not in allowed:
            fix = f"write one of {', '.join(allowed)}{meant(self.engine, allowed)}"
            yield Fault("engine", f"is {self.engine!r}; {fix}")
        if not _MIN_EVERY <= self.every <= _MAX_EVERY:
            limits = f"{_MIN_EVERY.total_seconds():g}s to {_MAX_EVERY.total_seconds():g}s"
            yield Fault("every", f"is {self.every.total_seconds():g}s; write {limits}, such as 10s")
        for name, value in self.headers.items():
            if not is_header(name, value):
                yield Fault(("headers", name), "is not a valid header; use ASCII characters")

    @property
    def engine_rules(self) -> Engine | None:
        return self.rules or engines().get(self.engine)


class _Scraping(Section):
    example = "targets: []"

    targets: tuple[ScrapeTarget, ...] = ()

    def faults(self) -> Iterator[Fault]:
        urls = [target.url for target in self.targets]
        for position, url in enumerate(urls):
            if url in urls[:position]:
                yield Fault(("targets", position, "url"), f"is {url}, which is another target too; list each URL once")


def read_targets(document: Document, path: Place, value: Any, egress_policy: EgressPolicy) -> tuple[ScrapeTarget, ...]:
    """Read the section `scrape:`; invalid targets, and targets that *egress_policy* denies, become problems of the document."""
    section = read_section(_Scraping, document, path, value, {"egress_policy": egress_policy})
    return section.targets if section else ()
