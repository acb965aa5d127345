"""All settings of Stagelens in one list.

The command line takes its options from here, and docs/configuration.md its tables; tests/test_docs.py compares them. The
`config` modules of the packages read the values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable that may also be an option of the command line.

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
        """Help text of the command line option."""
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
        "one of the two on its own, taken as it stands",
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
        "functions of yours as stages: `preprocess=serve:prepare,postprocess=serve:describe`",
        option="--stage",
    ),
    Setting("STAGELENS_EXPORT_INTERVAL", "10s", "how often to post"),
    Setting(
        "STAGELENS_BUFFER_SIZE",
        "16MiB",
        "what may wait for a collector that does not answer; beyond it traces go, then the oldest counts, told as lost",
    ),
    Setting("STAGELENS_KEEP_SLOW", "4", "traces kept a series and interval: the slowest"),
    Setting("STAGELENS_KEEP_ERRORS", "10", "… of failed requests: all of them, up to so many"),
    Setting("STAGELENS_KEEP_COLD", "2", "… of requests that loaded or warmed up something"),
    Setting("STAGELENS_KEEP_UNIFORM", "2", "… drawn at random"),
    Setting(
        "STAGELENS_OVERHEAD_BUDGET",
        "1%,100us",
        "what the agent may [cost a request](overhead.md): a share of its time, a time, or both, of which the larger holds; "
        "past it less is recorded; `0` or `none`: never less",
    ),
    Setting(
        "STAGELENS_HARDWARE",
        "true",
        "`false` tells nothing of [the machine](hardware.md): CPU, memory, threads, GPUs",
    ),
    Setting(
        "STAGELENS_FORCE_TRACE",
        "",
        "a request whose header `X-Force-Trace` holds this very text is kept; unset, the header does nothing",
    ),
    Setting("STAGELENS_PROPAGATE", "true", "`false` sends no `traceparent` with the calls a request makes"),
    Setting(
        "STAGELENS_SERVER_TIMING",
        "false",
        "`true`: answers of ASGI services tell [how long each stage took](reported.md#telling-others) in `Server-Timing`",
    ),
)

LOGS = (
    Setting(
        "STAGELENS_LOG_LEVEL",
        "info",
        "what is logged: `debug`, `info`, `warning` or `error` and what is worse",
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
        "where everything is kept: `sqlite:///path/to/stagelens.db` or `postgresql://user:password@host/database`",
        option="--database",
    ),
    Setting(
        "STAGELENS_POINTS",
        "",
        "a ClickHouse that keeps the histograms instead: `clickhousedb://user:password@host/database`",
        option="--points",
    ),
    Setting(
        "STAGELENS_STORAGE_BUDGET",
        "10GiB",
        "how large the store may be, at least `16MiB`; `0` or `none`: as large as its retention makes it",
    ),
    Setting("STAGELENS_RETENTION_10S", "24h", "how long the 10 s tier is kept"),
    Setting("STAGELENS_RETENTION_1M", "14d", "… the 1 min tier"),
    Setting("STAGELENS_RETENTION_1H", "395d", "… the 1 h tier"),
    Setting("STAGELENS_RETENTION_TRACES", "7d", "… kept traces"),
)

COLLECTOR = (
    Setting("STAGELENS_COLLECTOR_HOST", "127.0.0.1", "address for OTLP", option="--collector-host"),
    Setting("STAGELENS_COLLECTOR_PORT", "4318", "port for OTLP/HTTP; 0 takes a free one", option="--collector-port"),
    Setting(
        "STAGELENS_COLLECTOR_GRPC_PORT",
        "4317",
        "port for OTLP/gRPC; 0 takes a free one (as it does by itself where HTTP does), `off` does without",
        option="--collector-grpc-port",
    ),
    Setting(
        "STAGELENS_COLLECTOR_TOKEN",
        "",
        "the secret that senders share; beyond loopback this, or `access:` in the file, is needed: [who may "
        "send](security.md#who-may-send-to-the-collector)",
    ),
    Setting("STAGELENS_COLLECTOR_TOKEN_FILE", "", "a file that holds it instead"),
    Setting(
        "STAGELENS_COLLECTOR_CONFIG",
        "",
        "a YAML file with `access:`, `rules:`, `scrape:`, `prometheus:` and `forward:`: who may send, how spans are read, "
        "what is scraped, told to Prometheus and [sent on](forwarding.md); [read again when it changes](security.md#what-holds-there)",
        option="--collector-config",
    ),
    Setting(
        "STAGELENS_COLLECTOR_OPEN", "false", "`true`: who shows no token or certificate is let in, wherever it listens"
    ),
    Setting("STAGELENS_MAX_BODY", "8MiB", "the largest request, as it comes"),
    Setting("STAGELENS_MAX_INFLATED", "32MiB", "the largest request, inflated"),
    Setting("STAGELENS_QUEUE_BATCHES", "1000", "how many requests may wait for the store"),
    Setting("STAGELENS_QUEUE_SIZE", "32MiB", "how much they may hold together, inflated"),
    Setting(
        "STAGELENS_TRACES",
        "tail",
        "which requests made of [spans of others](traces.md#from-spans-to-requests) are kept as traces: "
        "`tail` (the slowest, errors, a few others) or `all`",
    ),
    Setting(
        "STAGELENS_SPANS_WAITING",
        "256MiB",
        "how much room spans may take that wait for their requests to be whole; past it senders are told to come back",
    ),
    Setting(
        "STAGELENS_MAY_CALL",
        "public, private, loopback",
        "[whom the server may call](security.md#whom-the-server-may-call) (targets, destinations, webhooks, the mail "
        "server): kinds of addresses, of which there is also `metadata`, networks, names",
    ),
)

DASHBOARD = (
    Setting("STAGELENS_DASHBOARD_HOST", "127.0.0.1", "address of the pages", option="--dashboard-host"),
    Setting("STAGELENS_DASHBOARD_PORT", "8600", "their port; 0 takes a free one", option="--dashboard-port"),
    Setting(
        "STAGELENS_DASHBOARD_TOKEN",
        "",
        "the secret that readers share; off loopback this, or one of the next three, is needed: [who may "
        "read](security.md)",
    ),
    Setting("STAGELENS_DASHBOARD_TOKEN_FILE", "", "a file that holds it instead"),
    Setting(
        "STAGELENS_DASHBOARD_USERS",
        "",
        "a file of names and hashed passwords; `stagelens dashboard --add-user NAME` writes it",
    ),
    Setting(
        "STAGELENS_DASHBOARD_PROXY_HEADER",
        "",
        "the header in which a proxy says who has signed in, such as `X-Forwarded-User`",
    ),
    Setting(
        "STAGELENS_DASHBOARD_TRUSTED_PROXIES",
        "",
        "whose header is believed: addresses and networks, `10.0.0.5,10.1.0.0/16`",
    ),
    Setting(
        "STAGELENS_DASHBOARD_BEHIND_PROXY",
        "0",
        "`1`: nobody but a proxy that signs people in can reach the dashboard, which asks nothing",
    ),
    Setting(
        "STAGELENS_DASHBOARD_HOSTS",
        "",
        "the names it is called by, `stagelens.example.com`; under any other it answers nothing",
    ),
    Setting(
        "STAGELENS_PRICES",
        "",
        "a file that says what services cost an hour, [read again when it changes](capacity.md); without "
        "one no cost is shown",
        option="--prices",
    ),
    Setting(
        "STAGELENS_TRACER_URL",
        "",
        "the address of a trace in a tracing backend of yours, `https://jaeger.example/trace/{trace_id}`: a "
        "button on each kept request",
        option="--tracer",
    ),
)

ALERTS = (
    Setting("STAGELENS_DASHBOARD_URL", "the dashboard's own address", "where links in alerts lead"),
    Setting(
        "STAGELENS_SLO_FILE",
        "slo.yaml, if there is one",
        "[objectives](slos.md) and [channels](alerts.md)",
        option="--slo",
    ),
    Setting("STAGELENS_ALERT_INTERVAL", "10s", "how often the objectives are evaluated"),
)

ALERT_METRICS = (
    Setting(
        "STAGELENS_ALERTS_METRICS_PORT",
        "",
        "a port at which the alerts serve [their own metrics](alerts.md#watching-the-alerts), 0 for a free "
        "one; `stagelens up` also has them among the collector's",
        option="--metrics-port",
    ),
    Setting("STAGELENS_ALERTS_METRICS_HOST", "127.0.0.1", "its address", option="--metrics-host"),
)
