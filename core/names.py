"""Metric, attribute and header names on the wire.

Names follow the OpenTelemetry semantic conventions where a convention exists (service.*, deployment.environment.name,
http.route, error.type); other names start with `inference.*`.
"""

from __future__ import annotations

from types import MappingProxyType

# Metrics: base-2 exponential histograms with delta temporality. Values of these three are in seconds.
REQUEST_DURATION = "inference.request.duration"
STAGE_DURATION = "inference.stage.duration"
# Bucket i holds no count, but the time in the stage of requests whose end-to-end latency is in bucket i. [microseconds]
STAGE_TIME = "inference.stage.time"

# Streamed responses: time from the start of the request to its first token, from one token to the next, and the longest wait
# for the next part of the response; one series for each definition of measurement, which never mix. [seconds]
FIRST_TOKEN = "inference.first_token.duration"
OUTPUT_TOKEN = "inference.output_token.duration"
STREAM_GAP = "inference.stream.gap"
# Like STAGE_TIME, up to the first token: bucket i holds the microseconds in the stage, before the first token, of requests
# whose time to the first token is in bucket i.
FIRST_TOKEN_TIME = "inference.first_token.time"
# Input and output tokens of a request. [tokens]
TOKENS = "inference.tokens"
# Time to the first token by bucket of input tokens, and mean time between tokens by bucket of output tokens
# (`core.histogram`). [seconds]
FIRST_TOKEN_BY_INPUT = "inference.first_token.by_input"
OUTPUT_TOKEN_BY_OUTPUT = "inference.output_token.by_output"

# Time of the model in a request (stages forward and prefill), by bucket of the batch size. [seconds]
BATCH_DURATION = "inference.batch.duration"

# Duration of failed outbound calls of requests, by kind of failure, whatever the status of the request. [seconds]
FAILED_CALL = "inference.failed_call.duration"

# Duration of outbound calls whose server reported implausible times, which are not used; by dialect of the report. [seconds]
SUSPECT_REPORT = "inference.suspect_report.duration"

# Like STAGE_TIME, by cause of a stall and the stage in which it happened (`core.stages`). Stalls overlap the stages; requests
# without stalls have none.
STALL_TIME = "inference.stall.time"

# Like STAGE_TIME, by stage and call stack (`core.code_stack`), estimated from samples: bucket i holds microseconds of sampled
# requests whose latency is in bucket i. Only sampled requests are in it, so it divides a stage and does not measure it.
PROFILE_TIME = "inference.profile.time"

# Latency by the value of an attribute of the request (`core.attributes`), at the scale of attributes. [seconds]
REQUEST_BY_ATTRIBUTE = "inference.request.by_attribute"
# Like STAGE_TIME, at the scale of attributes; the collector counts it by replica.
REPLICA_STAGE_TIME = "inference.replica.stage.time"

# Like STAGE_TIME, of requests that have not ended: bucket i holds the microseconds that requests of this age were seen open, so a
# request that stays open adds 10 s to each bucket of 10 s of the store. The collector counts it by replica.
OPEN_TIME = "inference.request.open.time"
# The same in reports between the regular ones, which say that the request is open and do not count it again. [microseconds]
NOTED_US = 1

# Metrics of inference engines, which have fixed Prometheus buckets or only sums. An observation in (low, high] is counted at `low`
# in the first metric of a pair and at `high` in the second: the true quantile lies between the quantiles of the two. Sums are
# exact. [seconds]
ENGINE_REQUEST = ("inference.engine.request.low", "inference.engine.request.high")
ENGINE_STAGE = ("inference.engine.stage.low", "inference.engine.stage.high")
ENGINE_FIRST_TOKEN = ("inference.engine.first_token.low", "inference.engine.first_token.high")
ENGINE_OUTPUT_TOKEN = ("inference.engine.output_token.low", "inference.engine.output_token.high")
# Tokens, as that many values of zero; and runs of a model by batch size, of which only the sum is known.
ENGINE_TOKENS = "inference.engine.tokens"
ENGINE_BATCH = "inference.engine.batch"

# Cost of the agent, by recording level (`AGENT_LEVELS`): estimated time added to each request, and CPU time of the agent's
# threads for each request. [seconds]
AGENT_COST = "stagelens.agent.cost"
AGENT_BACKGROUND = "stagelens.agent.background"

# Duration of health probes (`core.health_probes`), which no other metric counts; all of it has the stage `untimed`. [seconds]
PROBE_DURATION = "inference.probe.duration"
# Number of spans and exports that a collector did not count, by reason (`store.collectors.LOSSES`), as that many values of zero; a
# metric only in the store.
COLLECTOR_LOST = "stagelens.collector.lost"

# Hardware values (`core.hardware`), a metric only in the store. An observation is the value of a measure at a place in an export.
HARDWARE = "inference.hardware"

# Metrics whose "counts" are microseconds, and which therefore have no sum.
TIME_METRICS = (STAGE_TIME, FIRST_TOKEN_TIME, STALL_TIME, PROFILE_TIME, REPLICA_STAGE_TIME, OPEN_TIME)

# Requests that the agent could not count, by reason; a monotonic delta sum.
REQUESTS_DROPPED = "stagelens.requests.dropped"

# Resource attributes.
SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE = "service.instance.id"
ENVIRONMENT = "deployment.environment.name"

# Data point and span attributes.
MODEL = "inference.model.name"
MODEL_VERSION = "inference.model.version"
ROUTE = "http.route"
DEVICE = "inference.device"
STATUS = "inference.status"
# "true" for requests in which something was loaded or warmed up; missing otherwise.
COLD = "inference.cold"
STAGE = "inference.stage"
DOMINANT = "inference.stage.dominant"
DEFINITION = "inference.definition"
TOKEN_TYPE = "inference.token.type"
CALL_FAILURE = "inference.call.failure"
# https://opentelemetry.io/docs/specs/semconv/registry/attributes/server/: host of an outbound call, on its span.
SERVER = "server.address"
# The same as a service, which programs with OpenTelemetry may name.
PEER_SERVICE = "peer.service"
DIALECT = "inference.report.dialect"
REPLICA = "inference.replica"
STALL = "inference.stall"
PROFILE_STACK = "inference.profile.stack"
ATTRIBUTE = "inference.attribute"
TOKENS_IN, TOKENS_OUT = "input", "output"
TOKEN_BAND = "inference.token.band"
PROVIDER = "inference.provider"
BATCH_SIZE = "inference.batch.size"
BATCH_BAND = "inference.batch.band"
AGENT_LEVEL = "stagelens.agent.level"
METHOD = "http.request.method"
ERROR_TYPE = "error.type"
HTTP_STATUS = "http.response.status_code"

# Attribute that distinguishes the points of each metric within a series, and units other than seconds.
METRICS = MappingProxyType(
    {
        REQUEST_DURATION: DOMINANT,
        STAGE_DURATION: STAGE,
        STAGE_TIME: STAGE,
        FIRST_TOKEN: DEFINITION,
        OUTPUT_TOKEN: DEFINITION,
        STREAM_GAP: DEFINITION,
        FIRST_TOKEN_TIME: STAGE,
        TOKENS: TOKEN_TYPE,
        FAILED_CALL: CALL_FAILURE,
        SUSPECT_REPORT: DIALECT,
        BATCH_DURATION: BATCH_BAND,
        FIRST_TOKEN_BY_INPUT: TOKEN_BAND,
        OUTPUT_TOKEN_BY_OUTPUT: TOKEN_BAND,
        AGENT_COST: AGENT_LEVEL,
        AGENT_BACKGROUND: AGENT_LEVEL,
        STALL_TIME: STALL,
        PROFILE_TIME: PROFILE_STACK,
        REQUEST_BY_ATTRIBUTE: ATTRIBUTE,
        REPLICA_STAGE_TIME: STAGE,
        OPEN_TIME: REPLICA,
        PROBE_DURATION: DOMINANT,
    }
)
UNITS = MappingProxyType({**dict.fromkeys(TIME_METRICS, "us"), TOKENS: "{token}"})

# Definitions of the first token; times with different definitions never mix.
BY_GENERATE = "generate"
BY_FIRST_CHUNK = "first_chunk"
BY_TRITON_RESPONSE = "triton_first_response"
BY_CLIENT_CHUNK = "client_first_chunk"
BY_CLIENT_CONTENT = "client_first_content"
BY_ENGINE = "engine"
BY_ENGINE_GAP = "engine_gap"
DEFINITIONS = MappingProxyType(
    {
        BY_GENERATE: "until generate had the first new token",
        BY_FIRST_CHUNK: "until the first part of the response was passed to the server",
        BY_TRITON_RESPONSE: "until the first response of a Triton stream arrived",
        BY_CLIENT_CHUNK: "until the client of a model had the first part of the response, as measured by the client",
        BY_CLIENT_CONTENT: "until the client of a model API had the first part of the response with content",
        BY_ENGINE: "measured by the engine, per request",
        BY_ENGINE_GAP: "measured by the engine, per token",
    }
)

# Recording levels of the agent, most expensive first: everything; no traces; neither traces nor details of requests other than
# the model (tokens, batch sizes, failed calls); requests without stages; nothing. A process that records nothing reports this
# with a single 0 in each export.
AGENT_LEVELS = ("all", "no_traces", "no_facts", "requests_only", "nothing")

STATUS_OK = "ok"
STATUS_ERROR = "error"
# The client had gone before the response was complete, as code 1 of gRPC and 499 of nginx.
STATUS_CANCELLED = "cancelled"
STATUSES = (STATUS_OK, STATUS_ERROR, STATUS_CANCELLED)

# Attributes of the root span of a retained trace.
RETAINED_BECAUSE = "stagelens.kept.because"
# Nanoseconds of the request's wall time that belong to the stage, one attribute each: stagelens.stage.<key>.
STAGE_SELF_PREFIX = "stagelens.stage."
# Timing method of the stage, unless a clock around the call: gpu, launch, reported, averaged or sampled.
TIMING = "stagelens.timing"
# Dialects of servers that reported implausible times for calls of the request, which are not used.
SUSPECT = "stagelens.report.suspect"
# Part of a stage that a span covers, if a stage has several parts: the body of a response after its headers.
PART = "stagelens.part"
# Nanoseconds of a span in which it was stalled (`core.stages`): stagelens.stall.<cause>, and for a root also by stage:
# stagelens.stall.<cause>.<stage>.
STALL_PREFIX = "stagelens.stall."
# Samples of the tail profiler in the request: lines of microseconds, a space, and the key of stage and stack (`core.code_stack`).
PROFILE = "stagelens.profile"
# Counters of the process around the request: length of the interval in nanoseconds, involuntary context switches, major page
# faults, and retries of torch's memory allocator after it ran out of device memory.
AROUND = (
    "stagelens.around",
    "stagelens.around.switches",
    "stagelens.around.major_faults",
    "stagelens.around.allocator_retries",
)

# Age of the process at the start of the request, on the root. [nanoseconds]
REPLICA_AGE = "stagelens.replica.age"
# Attributes of a span that is a phase of a cold start, in a request or outside (`core.stages`), and no part of a retained trace:
# the phase, its nanoseconds outside of other phases, and the input shapes of a first run.
LOAD_PHASE = "stagelens.load.phase"
LOAD_OWN = "stagelens.load.own"
INPUT_SHAPE = "inference.input.shape"

SCOPE = "stagelens"
# Scope of the same spans when they are exported by the user's own OpenTelemetry SDK.
RETAINED_SCOPE = "stagelens.kept"
# Marks a span of the user's own instrumentation: a Stagelens agent counts its request.
COUNTED = "stagelens.counted"

# "<instance id>:<sequence number>", unique for each export of a process; a retry repeats it and is counted once.
BATCH_HEADER = "X-Stagelens-Batch"
