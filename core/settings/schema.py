"""All settings of Stagelens in one list.

The options of the command line and the tables in docs/configuration.md come from this list; tests/test_docs.py compares them.
The `config` modules of the packages read the values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting: an environment variable, which may also be an option of the command line.

    Args:
        variable: Environment variable; two variables that differ by signal, separated by a comma.
        default: Default value as a user would write it; "" for none.
        meaning: Description, in Markdown whose links start at docs/.
        option: Option of the server's commands; "" for none.
    """

    variable: str
    default: str
    meaning: str
    option: str = ""

    @property
    def help(self) -> str:
        """Help text of the command line option, with default and variable."""
        meaning = _LINK.sub(r"\1", self.meaning).replace("`", "")
        return f"{meaning} (default {self.default or 'none'}) [{self.variable}]"


AGENT = (
    Setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "http://127.0.0.1:4318",
        "the collector; `/v1/metrics` and `/v1/traces` are added",
    ),
    Setting(
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "",
        "URL of one signal, used unchanged",
    ),
    Setting(
        "OTEL_EXPORTER_OTLP_HEADERS",
        "",
        "`key=value,key=value`, sent with every post, such as `authorization=Bearer%20<token>`",
    ),
    Setting("OTEL_EXPORTER_OTLP_CERTIFICATE", "the system's", "file of the authorities to trust over https"),
    Setting(
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, OTEL_EXPORTER_OTLP_CLIENT_KEY",
        "",
        "files of the certificate to show over https (mTLS), and of its key; read again after a failed attempt",
    ),
    Setting("OTEL_EXPORTER_OTLP_TIMEOUT", "10000", "of one post, in milliseconds"),
    Setting("OTEL_SERVICE_NAME", "the script's name", "the service on every page"),
    Setting("OTEL_RESOURCE_ATTRIBUTES", "", "`service.version=2.0.0,deployment.environment.name=prod` and any other"),
    Setting("OTEL_SDK_DISABLED", "false", "`true` records nothing"),
    Setting("STAGELENS_SERVICE_VERSION", "", "instead of `service.version` among the resource attributes"),
    Setting(
        "STAGELENS_STAGES",
        "",
        "your functions as stages: `preprocess=serve:prepare,postprocess=serve:describe`",
        option="--stage",
    ),
    Setting("STAGELENS_EXPORT_INTERVAL", "10s", "export interval"),
    Setting(
        "STAGELENS_BUFFER_SIZE",
        "16MiB",
        "buffer for an unreachable collector; when full, traces are dropped first, then the oldest counts, which are reported as lost",
    ),
    Setting("STAGELENS_KEEP_SLOW", "4", "traces retained per series and interval: the slowest"),
    Setting("STAGELENS_KEEP_ERRORS", "10", "… of failed requests: all, up to this number"),
    Setting("STAGELENS_KEEP_COLD", "2", "… of requests with loading or warm-up"),
    Setting("STAGELENS_KEEP_UNIFORM", "2", "… drawn at random"),
    Setting(
        "STAGELENS_OVERHEAD_BUDGET",
        "1%,100us",
        "maximum [agent cost per request](overhead.md): a share of its time, a time, or both "
        "(the larger limit applies); above it, detail is reduced; `0` or `none`: no limit",
    ),
    Setting(
        "STAGELENS_HARDWARE",
        "true",
        "`false` disables [host metrics](hardware.md): CPU, memory, threads, GPUs",
    ),
    Setting(
        "STAGELENS_FORCE_TRACE",
        "",
        "a request whose header `X-Force-Trace` has this value is retained; unset, the header is ignored",
    ),
    Setting("STAGELENS_PROPAGATE", "true", "`false` sends no `traceparent` with the calls a request makes"),
    Setting(
        "STAGELENS_SERVER_TIMING",
        "false",
        "`true`: responses of ASGI services report [how long each stage took](reported.md#telling-others) in `Server-Timing`",
    ),
)

LOGS = (
    Setting(
        "STAGELENS_LOG_LEVEL",
        "info",
        "minimum log level: `debug`, `info`, `warning` or `error`",
        option="--log-level",
    ),
    Setting(
        "STAGELENS_LOG_FORMAT",
        "text",
        "`json` logs one object a line: [prometheus.md](prometheus.md#logs)",
        option="--log-format",
    ),
)

STORE = (
    Setting(
        "STAGELENS_DATABASE",
        "sqlite:///stagelens.db",
        "URL of the store: `sqlite:///path/to/stagelens.db` or `postgresql://user:password@host/database`",
        option="--database",
    ),
    Setting(
        "STAGELENS_POINTS",
        "",
        "a ClickHouse for the histograms: `clickhousedb://user:password@host/database`",
        option="--points",
    ),
    Setting(
        "STAGELENS_STORAGE_BUDGET",
        "10GiB",
        "maximum size of the store, at least `16MiB`; `0` or `none`: limited only by the retention",
    ),
    Setting("STAGELENS_RETENTION_10S", "24h", "retention of the 10 s tier"),
    Setting("STAGELENS_RETENTION_1M", "14d", "… of the 1 min tier"),
    Setting("STAGELENS_RETENTION_1H", "395d", "… of the 1 h tier"),
    Setting("STAGELENS_RETENTION_TRACES", "7d", "… of retained traces"),
)

COLLECTOR = (
    Setting("STAGELENS_COLLECTOR_HOST", "127.0.0.1", "address for OTLP", option="--collector-host"),
    Setting("STAGELENS_COLLECTOR_PORT", "4318", "port for OTLP/HTTP; 0 picks a free port", option="--collector-port"),
    Setting(
        "STAGELENS_COLLECTOR_GRPC_PORT",
        "4317",
        "port for OTLP/gRPC; 0 picks a free port (implied if the HTTP port is 0); `off` disables gRPC",
        option="--collector-grpc-port",
    ),
    Setting(
        "STAGELENS_COLLECTOR_TOKEN",
        "",
        "shared secret of all senders; required off loopback, "
        "unless the file has `access:`: [authentication of senders](security.md#who-may-send-to-the-collector)",
    ),
    Setting("STAGELENS_COLLECTOR_TOKEN_FILE", "", "a file with the secret instead"),
    Setting(
        "STAGELENS_COLLECTOR_CONFIG",
        "",
        "a YAML file with `access:`, `rules:`, `scrape:`, `prometheus:` and `forward:`: authentication, span rules, scrape "
        "targets, Prometheus output and [forwarding](forwarding.md); [read again when it changes](security.md#what-holds-there)",
        option="--collector-config",
    ),
    Setting("STAGELENS_COLLECTOR_OPEN", "false", "`true`: accept unauthenticated senders on any bind address"),
    Setting("STAGELENS_MAX_BODY", "8MiB", "maximum request size, as received"),
    Setting("STAGELENS_MAX_INFLATED", "32MiB", "maximum request size, inflated"),
    Setting("STAGELENS_QUEUE_BATCHES", "1000", "maximum number of requests that wait for the store"),
    Setting("STAGELENS_QUEUE_SIZE", "32MiB", "maximum total size of these requests, inflated"),
    Setting(
        "STAGELENS_TRACES",
        "tail",
        "which requests made of [spans of others](traces.md#from-spans-to-requests) are retained as traces: "
        "`tail` (the slowest, errors, a few others) or `all`",
    ),
    Setting(
        "STAGELENS_SPANS_WAITING",
        "256MiB",
        "buffer for incomplete traces; when full, senders get 429",
    ),
    Setting(
        "STAGELENS_MAY_CALL",
        "public, private, loopback",
        "[egress allow-list](security.md#whom-the-server-may-call) (targets, destinations, webhooks, the mail "
        "server): kinds of addresses, of which there is also `metadata`, networks, names",
    ),
)

DASHBOARD = (
    Setting("STAGELENS_DASHBOARD_HOST", "127.0.0.1", "address of the pages", option="--dashboard-host"),
    Setting("STAGELENS_DASHBOARD_PORT", "8600", "port of the pages; 0 picks a free port", option="--dashboard-port"),
    Setting(
        "STAGELENS_DASHBOARD_TOKEN",
        "",
        "shared secret of all readers; required off loopback, unless "
        "one of the next three is set: [authentication of readers](security.md)",
    ),
    Setting("STAGELENS_DASHBOARD_TOKEN_FILE", "", "a file with the secret instead"),
    Setting(
        "STAGELENS_DASHBOARD_USERS",
        "",
        "a file of names and hashed passwords; `stagelens dashboard --add-user NAME` writes it",
    ),
    Setting(
        "STAGELENS_DASHBOARD_PROXY_HEADER",
        "",
        "header in which a proxy names the signed-in user, such as `X-Forwarded-User`",
    ),
    Setting(
        "STAGELENS_DASHBOARD_TRUSTED_PROXIES",
        "",
        "proxies whose header is trusted: addresses and networks, `10.0.0.5,10.1.0.0/16`",
    ),
    Setting(
        "STAGELENS_DASHBOARD_BEHIND_PROXY",
        "0",
        "`1`: disable login; only an authenticating proxy can reach the dashboard",
    ),
    Setting(
        "STAGELENS_DASHBOARD_HOSTS",
        "",
        "allowed Host headers, `stagelens.example.com`; others get 421",
    ),
    Setting(
        "STAGELENS_PRICES",
        "",
        "a file with the hourly cost of services, [read again when it changes](capacity.md); without "
        "one no cost is shown",
        option="--prices",
    ),
    Setting(
        "STAGELENS_TRACER_URL",
        "",
        "the address of a trace in a tracing backend of yours, `https://jaeger.example/trace/{trace_id}`: a button on "
        "each retained request",
        option="--tracer",
    ),
)

ALERTS = (
    Setting("STAGELENS_DASHBOARD_URL", "the dashboard's own address", "base URL of links in alerts"),
    Setting(
        "STAGELENS_SLO_FILE",
        "slo.yaml, if there is one",
        "[objectives](slos.md) and [channels](alerts.md)",
        option="--slo",
    ),
    Setting("STAGELENS_ALERT_INTERVAL", "10s", "interval of the evaluation of objectives"),
)

ALERT_METRICS = (
    Setting(
        "STAGELENS_ALERTS_METRICS_PORT",
        "",
        "port on which the alerts serve [their own metrics](alerts.md#watching-the-alerts), 0 picks a "
        "free port; `stagelens up` also has them among the collector's",
        option="--metrics-port",
    ),
    Setting("STAGELENS_ALERTS_METRICS_HOST", "127.0.0.1", "its address", option="--metrics-host"),
)
