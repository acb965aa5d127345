"""Names of the latency histograms on the collector's /metrics: metric families, labels and classic buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .names import AGENT_COST, FIRST_TOKEN, OUTPUT_TOKEN, REQUEST_DURATION, STAGE_DURATION, SUSPECT_REPORT

# Optional labels by their names in the settings; `service_name` and `status` are always present. Kubernetes service discovery
# uses `service` and `namespace` for its targets, so these names are avoided.
LABELS = {
    "version": "service_version",
    "environment": "environment",
    "model": "model",
    "model_version": "model_version",
    "route": "route",
    "device": "device",
}
# Default labels, of low cardinality whatever the number of routes and models.
DEFAULT_LABELS = ("version", "environment")
# Upper bounds of the classic buckets, from about 1 ms to 256 s. [seconds]
LADDER = tuple(2.0**power for power in range(-10, 9))
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class MetricFamily:
    name: str  # Name in Prometheus
    text: str  # Help text
    source: str  # OTLP metric whose points are counted, one of `names.METRICS`
    key: str  # Label for the key of data points; "" if the points of all keys are added up


FAMILIES = (
    MetricFamily("stagelens_request_duration_seconds", "Requests by latency.", REQUEST_DURATION, ""),
    MetricFamily(
        "stagelens_stage_duration_seconds",
        "Requests that had a stage, by time in it; the sums of all stages add up to the request time.",
        STAGE_DURATION,
        "stage",
    ),
    MetricFamily(
        "stagelens_first_token_seconds", "Requests by the time to their first token.", FIRST_TOKEN, "definition"
    ),
    MetricFamily(
        "stagelens_output_token_seconds",
        "Requests by their mean time from one token to the next.",
        OUTPUT_TOKEN,
        "definition",
    ),
    MetricFamily(
        "stagelens_agent_cost_seconds", "Requests by agent overhead, and by recording level.", AGENT_COST, "level"
    ),
    MetricFamily(
        "stagelens_suspect_report_seconds", "Calls with invalid server timings, by duration.", SUSPECT_REPORT, "dialect"
    ),
)


def format_labels(labels: Sequence[tuple[str, str]]) -> str:
    r"""Return *labels* in the text format of Prometheus, without the braces.

    >>> format_labels([("route", '/a"b')])
    'route="/a\\"b"'
    """
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
