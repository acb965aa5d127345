"""All settings of Stagelens in one list, from which options and the tables in docs/configuration.md are made."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable, or two that differ by signal, which may also be an *option* of the server's commands.

    *default* is written as by a user; *meaning* is Markdown whose links start at docs/.
    """

    variable: str
    default: str
    meaning: str
    option: str = ""

    @property
    def help(self) -> str:
        """Text of the option in `--help`: the meaning without Markdown, the default and the variable."""
        meaning = _LINK.sub(r"\1", self.meaning).replace("`", "")
        return f"{meaning} (default {self.default or 'none'}) [{self.variable}]"


PROBES = Setting(
    "STAGELENS_PROBES",
    "",
    "paths that count as [health probes](concepts.md#health-probes) besides the known ones, such as `/status,/internal/*`; "
    "requests to a path with `!`, such as `!/ping`, are those of users; `none` counts every probe as a request",
)

AGENT = (
    Setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "http://127.0.0.1:4318",
        "URL of the collector; the agent appends `/v1/metrics` and `/v1/traces`",
    ),
    Setting(
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "",
        "URL for metrics or traces; the agent appends nothing to this URL",
    ),
    Setting(
        "OTEL_EXPORTER_OTLP_HEADERS",
        "",
        "headers of every export, in the form `key=value,key=value`, such as `authorization=Bearer%20<token>`",
    ),
    Setting("OTEL_EXPORTER_OTLP_CERTIFICATE", "CAs of the system", "file with the CA certificates to trust"),
    Setting(
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, OTEL_EXPORTER_OTLP_CLIENT_KEY",
        "",
        "files with the client certificate and its key (mTLS); the agent reloads them after a failed export",
    ),
    Setting(
        "OTEL_CONFIG_FILE",
        "",
        "[declarative configuration](https://opentelemetry.io/docs/specs/otel/configuration/) of OpenTelemetry; as in the SDK, "
        "its endpoint, headers, TLS files and resource replace all `OTEL_*` variables; needs `opentelemetry-configuration`",
    ),
    Setting("OTEL_EXPORTER_OTLP_TIMEOUT", "10000", "timeout of one export, in milliseconds"),
    Setting("OTEL_SERVICE_NAME", "name of the script", "name of the service on every page"),
    Setting(
        "OTEL_RESOURCE_ATTRIBUTES",
        "",
        "version, environment and other attributes, such as `service.version=2.0.0,deployment.environment.name=prod`",
    ),
    Setting("OTEL_SDK_DISABLED", "false", "`true` disables recording"),
    Setting("STAGELENS_SERVICE_VERSION", "", "version of the service; overrides `service.version`"),
    Setting(
        "STAGELENS_STAGES",
        "",
        "your functions to time as stages, such as `preprocess=serve:prepare,postprocess=serve:describe`",
        option="--stage",
    ),
    Setting(
        "STAGELENS_ATTRIBUTES",
        "",
        "[attributes](concepts.md#attributes) in headers, such as `tenant=header:x-tenant,plan=baggage:plan`",
    ),
    PROBES,
    Setting("STAGELENS_EXPORT_INTERVAL", "10s", "time between two exports"),
    Setting(
        "STAGELENS_BUFFER_SIZE",
        "16MiB",
        "size of the buffer for an unreachable collector; if it is full, the agent drops traces first, then the oldest "
        "counts, and reports the number of lost requests",
    ),
    Setting("STAGELENS_KEEP_SLOW", "4", "maximum number of slow requests retained per series and export"),
    Setting("STAGELENS_KEEP_ERRORS", "10", "maximum number of failed requests retained per series and export"),
    Setting("STAGELENS_KEEP_COLD", "2", "maximum number of cold requests retained per series and export"),
    Setting("STAGELENS_KEEP_UNIFORM", "2", "maximum number of random requests retained per series and export"),
    Setting(
        "STAGELENS_OVERHEAD_BUDGET",
        "1%,100us",
        "maximum [agent cost per request](overhead.md): a share of the request time, a time, or both (the larger limit "
        "applies); above the limit, the agent records less; `0` or `none` disables the limit",
    ),
    Setting(
        "STAGELENS_PROFILE",
        "on",
        "`off` disables the [sampling of call stacks of slow requests, and of waits for locks](architecture.md#tail-profiler)",
    ),
    Setting("STAGELENS_HARDWARE", "true", "`false` disables [metrics of CPU, memory, threads and GPUs](hardware.md)"),
    Setting(
        "STAGELENS_FORCE_TRACE",
        "",
        "value of the header `X-Force-Trace` that retains a request as a trace; by default, the agent ignores the header",
    ),
    Setting(
        "STAGELENS_TRUSTED_PROXIES",
        "",
        "proxies whose header [`X-Request-Start`](concepts.md#the-wait-at-a-proxy) counts: addresses and networks such as "
        "`10.0.0.7,10.1.0.0/16`, `unix` for a Unix socket, `*` for all clients; by default, the agent ignores the header",
    ),
    Setting("STAGELENS_PROPAGATE", "true", "`false` stops adding `traceparent` and `tracestate` to outgoing calls"),
    Setting(
        "STAGELENS_PROPAGATE_TO",
        "",
        "hosts outside private networks that get `tracestate` with the [name of your service](data.md#data-that-leaves-the-machine), "
        "such as `*.example.com,api.example.org`",
    ),
    Setting(
        "STAGELENS_SERVER_TIMING",
        "false",
        "`true` adds a `Server-Timing` header with [stage durations](reported.md#report-times-to-callers) to the responses of ASGI services",
    ),
)

LOGS = (
    Setting(
        "STAGELENS_LOG_LEVEL", "info", "minimum log level: `debug`, `info`, `warning` or `error`", option="--log-level"
    ),
    Setting(
        "STAGELENS_LOG_FORMAT",
        "text",
        "format of the log: `text`, or `json` with [one object per line](prometheus.md#logs)",
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
        "URL of a ClickHouse database for the histograms: `clickhousedb://user:password@host/database`",
        option="--points",
    ),
    Setting(
        "STAGELENS_STORAGE_BUDGET",
        "10GiB",
        "maximum size of the store, at least `16MiB`; with `0` or `none`, only the retention limits the size",
    ),
    Setting("STAGELENS_RETENTION_10S", "24h", "retention of histograms with 10 s resolution"),
    Setting("STAGELENS_RETENTION_1M", "14d", "retention of histograms with 1 and 10 min resolution"),
    Setting("STAGELENS_RETENTION_1H", "395d", "retention of histograms with 1 h, 6 h and 1 day resolution"),
    Setting("STAGELENS_RETENTION_TRACES", "7d", "retention of traces"),
)

COLLECTOR = (
    Setting("STAGELENS_COLLECTOR_HOST", "127.0.0.1", "bind address of the collector", option="--collector-host"),
    Setting("STAGELENS_COLLECTOR_PORT", "4318", "port for OTLP/HTTP; 0 picks a free port", option="--collector-port"),
    Setting(
        "STAGELENS_COLLECTOR_GRPC_PORT",
        "4317",
        "port for OTLP/gRPC; 0 picks a free port, and is the default if the HTTP port is 0; `off` disables gRPC",
        option="--collector-grpc-port",
    ),
    Setting(
        "STAGELENS_COLLECTOR_TOKEN",
        "",
        "shared secret of all senders; required if the bind address is not loopback and the collector file has no "
        "`access:` ([authentication of senders](security.md#collector-access))",
    ),
    Setting("STAGELENS_COLLECTOR_TOKEN_FILE", "", "file with the shared secret of all senders"),
    Setting(
        "STAGELENS_COLLECTOR_CONFIG",
        "",
        "YAML file with authentication (`access:`), `rules:` for spans, targets to `scrape:` and output for "
        "`prometheus:`; [reloaded on change](security.md#collector-protections)",
        option="--collector-config",
    ),
    Setting("STAGELENS_COLLECTOR_OPEN", "false", "`true` accepts unauthenticated senders on any bind address"),
    PROBES,
    Setting("STAGELENS_MAX_BODY", "8MiB", "maximum size of an export before decompression"),
    Setting("STAGELENS_MAX_INFLATED", "32MiB", "maximum size of an export after decompression"),
    Setting("STAGELENS_QUEUE_BATCHES", "1000", "maximum number of exports that wait for the store"),
    Setting("STAGELENS_QUEUE_SIZE", "32MiB", "maximum total size of the waiting exports after decompression"),
    Setting(
        "STAGELENS_TRACES",
        "tail",
        "requests [assembled from spans](traces.md#from-spans-to-requests) that are retained as traces: "
        "`all`, or `tail` (slow and failed requests, and a few random requests)",
    ),
    Setting("STAGELENS_SPANS_WAITING", "256MiB", "buffer for incomplete traces; if it is full, senders get status 429"),
    Setting(
        "STAGELENS_MAY_CALL",
        "public, private, loopback",
        "[egress allow-list](security.md#egress-allow-list) for scrape targets, webhooks and the mail server; "
        " values are `public`, `private`, `loopback`, `metadata`, networks and host names",
    ),
)

DASHBOARD = (
    Setting("STAGELENS_DASHBOARD_HOST", "127.0.0.1", "bind address of the dashboard", option="--dashboard-host"),
    Setting(
        "STAGELENS_DASHBOARD_PORT", "8600", "port of the dashboard; 0 picks a free port", option="--dashboard-port"
    ),
    Setting(
        "STAGELENS_DASHBOARD_TOKEN",
        "",
        "shared secret of all readers; required if the bind address is not loopback and no users or proxy are configured "
        "([authentication of readers](security.md#dashboard-access))",
    ),
    Setting("STAGELENS_DASHBOARD_TOKEN_FILE", "", "file with the shared secret of all readers"),
    Setting(
        "STAGELENS_DASHBOARD_USERS",
        "",
        "file with user names and password hashes; `stagelens dashboard --add-user NAME` adds a user",
    ),
    Setting(
        "STAGELENS_DASHBOARD_PROXY_HEADER",
        "",
        "header in which an authenticating proxy sends the user name, such as `X-Forwarded-User`",
    ),
    Setting(
        "STAGELENS_DASHBOARD_PROXY_GROUPS_HEADER",
        "",
        "header in which the proxy sends the groups of the user, separated by commas, such as `X-Forwarded-Groups`",
    ),
    Setting(
        "STAGELENS_DASHBOARD_TRUSTED_PROXIES",
        "",
        "addresses and networks of trusted proxies, such as `10.0.0.5,10.1.0.0/16`",
    ),
    Setting(
        "STAGELENS_DASHBOARD_BEHIND_PROXY",
        "0",
        "`1` disables login, for a dashboard that only an authenticating proxy can reach",
    ),
    Setting(
        "STAGELENS_DASHBOARD_HOSTS",
        "",
        "allowed names in the `Host` header, such as `stagelens.example.com`; other names get status 421",
    ),
    Setting(
        "STAGELENS_DASHBOARD_ACCESS",
        "",
        "file with the [roles of readers](security.md#roles), reloaded on change; without it, every reader may do everything",
    ),
    Setting(
        "STAGELENS_PRICES",
        "",
        "file with the hourly cost of services, [reloaded on change](capacity.md); without it, no cost is shown",
        option="--prices",
    ),
    Setting(
        "STAGELENS_TRACER_URL",
        "",
        "URL of a trace in your tracing backend, such as `https://jaeger.example/trace/{trace_id}`, for a link on each "
        "retained trace",
        option="--tracer",
    ),
    Setting(
        "STAGELENS_SOURCE_URL",
        "",
        "URL of a line of your code, such as `https://github.com/acme/shop/blob/{version}/{file}#L{line}`, for a link on "
        "each [sampled function](dashboard.md#links-to-the-source); also `{service}`, `{module}`, `{function}`",
    ),
)

ALERTS = (
    Setting("STAGELENS_DASHBOARD_URL", "address of the dashboard", "base URL of links in notifications"),
    Setting(
        "STAGELENS_SLO_FILE",
        "slo.yaml, if it exists",
        "file with [objectives](slos.md) and [channels](alerts.md)",
        option="--slo",
    ),
    Setting(
        "STAGELENS_ALERT_INTERVAL",
        "10s",
        "time between two evaluations of the objectives; one minute for services without new data",
    ),
)

ALERT_METRICS = (
    Setting(
        "STAGELENS_ALERTS_METRICS_PORT",
        "",
        "port of the [alert metrics](alerts.md#watching-the-alerts); 0 picks a free port; `stagelens up` also serves these "
        "metrics on the port of the collector",
        option="--metrics-port",
    ),
    Setting("STAGELENS_ALERTS_METRICS_HOST", "127.0.0.1", "bind address of the alert metrics", option="--metrics-host"),
)
