"""Metric, attribute and header names on the wire.

OpenTelemetry semantic conventions where one exists (service.*, deployment.environment.name, http.route, error.type);
`inference.*` where none does.
"""

from __future__ import annotations

from types import MappingProxyType

# Metrics. All are base-2 exponential histograms, delta temporality. These three are keyed by seconds.
REQUEST_DURATION = "inference.request.duration"
STAGE_DURATION = "inference.stage.duration"
# Not counts: bucket i holds the microseconds that requests whose end-to-end latency falls into bucket i spent in the stage.
STAGE_TIME = "inference.stage.time"

# Requests that answer bit by bit. Times in seconds: from the start of the request to its first token, from one token to the
# next, and the longest wait for the next part of the answer; each by the definition it was measured by, which never mix.
FIRST_TOKEN = "inference.first_token.duration"
OUTPUT_TOKEN = "inference.output_token.duration"
STREAM_GAP = "inference.stream.gap"
# The twin of STAGE_TIME, up to the first token: bucket i holds the microseconds that requests whose first token came after
# a time in bucket i had spent in the stage by then.
FIRST_TOKEN_TIME = "inference.first_token.time"
# Tokens a request took in and put out, not seconds.
TOKENS = "inference.tokens"
# The time to the first token by how many tokens the request took in, and the mean time from one token to the next by how
# many it put out, in bands (`core.histogram`). [seconds]
FIRST_TOKEN_BY_INPUT = "inference.first_token.by_input"
OUTPUT_TOKEN_BY_OUTPUT = "inference.output_token.by_output"

# Requests by the time their model ran (the stages forward and prefill), by the band their batch size is in, in seconds.
BATCH_DURATION = "inference.batch.duration"

# Calls out of requests that failed, whatever the request made of it, by what happened: how long each took, in seconds.
FAILED_CALL = "inference.failed_call.duration"

# Calls out of requests whose server's word about them cannot be true and is not used, by its dialect, in seconds.
SUSPECT_REPORT = "inference.suspect_report.duration"

# As STAGE_TIME, by what held those requests up meanwhile and the stage that was theirs then (`core.stages`). On top of the
# stages, not among them; there is none where nothing did.
STALL_TIME = "inference.stall.time"

# What engines say of themselves in Prometheus' fixed buckets, or by sums alone. An observation in (low, high] is counted at `low`
# in the first of a pair and at `high` in the second: the true quantile lies between the quantiles of the two, and is never
# guessed at. Their sums are exact. [seconds]
ENGINE_REQUEST = ("inference.engine.request.low", "inference.engine.request.high")
ENGINE_STAGE = ("inference.engine.stage.low", "inference.engine.stage.high")
ENGINE_FIRST_TOKEN = ("inference.engine.first_token.low", "inference.engine.first_token.high")
ENGINE_OUTPUT_TOKEN = ("inference.engine.output_token.low", "inference.engine.output_token.high")
# Tokens, not seconds, as so many values of zero; and runs of a model by batch size, of which only the sum is told.
ENGINE_TOKENS = "inference.engine.tokens"
ENGINE_BATCH = "inference.engine.batch"

# What the agent itself cost, by what it recorded then (`AGENT_LEVELS`): requests by how much longer each took for being
# recorded, as the agent estimates it, and by the CPU time its own threads spent for each. [seconds]
AGENT_COST = "stagelens.agent.cost"
AGENT_BACKGROUND = "stagelens.agent.background"

# What machines do (`core.hardware`): only in the store. An observation is the value of a measure at a place in an export.
HARDWARE = "inference.hardware"

# Whose "counts" are microseconds, and which therefore have no sum.
TIME_METRICS = (STAGE_TIME, FIRST_TOKEN_TIME, STALL_TIME)

# Requests the agent could not count, by reason; a monotonic delta sum.
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
# Of requests in which something was loaded or warmed up: true. Others do not carry it.
COLD = "inference.cold"
STAGE = "inference.stage"
DOMINANT = "inference.stage.dominant"
DEFINITION = "inference.definition"
TOKEN_TYPE = "inference.token.type"
CALL_FAILURE = "inference.call.failure"
DIALECT = "inference.report.dialect"
STALL = "inference.stall"
TOKENS_IN, TOKENS_OUT = "input", "output"
TOKEN_BAND = "inference.token.band"
PROVIDER = "inference.provider"
BATCH_SIZE = "inference.batch.size"
BATCH_BAND = "inference.batch.band"
AGENT_LEVEL = "stagelens.agent.level"
METHOD = "http.request.method"
ERROR_TYPE = "error.type"
HTTP_STATUS = "http.response.status_code"

# Metric to the attribute that tells its points apart within a series, and the units of those that are not in seconds.
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
    }
)
UNITS = MappingProxyType({**dict.fromkeys(TIME_METRICS, "us"), TOKENS: "{token}"})

# How a first token is found; times by one definition never mix with those by another.
BY_GENERATE = "generate"
BY_FIRST_CHUNK = "first_chunk"
BY_TRITON_RESPONSE = "triton_first_response"
BY_CLIENT_CHUNK = "client_first_chunk"
BY_CLIENT_CONTENT = "client_first_content"
BY_ENGINE = "engine"
BY_ENGINE_GAP = "engine_gap"
DEFINITIONS = MappingProxyType(
    {
        BY_GENERATE: "until generate of transformers had the first new token",
        BY_FIRST_CHUNK: "until the first part of the answer was handed to the server",
        BY_TRITON_RESPONSE: "until the first response of a Triton stream came in",
        BY_CLIENT_CHUNK: "until who asked a model had the first part of its answer, as their client says",
        BY_CLIENT_CONTENT: "until the client of a model's API had the first part of the answer with content in it",
        BY_ENGINE: "as the engine measures it, request by request",
        BY_ENGINE_GAP: "as the engine measures it, token by token",
    }
)

# What the agent records, dearest first: all; no traces; neither traces nor what requests say of themselves beside their
# model (tokens, batch sizes, failed calls); requests alone, without stages; nothing. A process that records nothing says so
# by one 0 an export.
AGENT_LEVELS = ("all", "no_traces", "no_facts", "requests_only", "nothing")

STATUS_OK = "ok"
STATUS_ERROR = "error"

# Attributes of the root span of a kept trace.
KEPT_BECAUSE = "stagelens.kept.because"
# Nanoseconds of the request's wall time that belong to the stage, one attribute each: stagelens.stage.<key>.
STAGE_SELF_PREFIX = "stagelens.stage."
# How the stage was timed, where it was not by a clock around the call: gpu, launch, reported or averaged.
TIMING = "stagelens.timing"
# Whose words about calls of the request cannot be true and were not used.
SUSPECT = "stagelens.report.suspect"
# Which part of its stage a span is, where there are several: the body of a response, which came after its headers.
PART = "stagelens.part"
# Nanoseconds of a span in which something held it up (`core.stages`): stagelens.stall.<cause>, and of a root by the stage
# that was its own then: stagelens.stall.<cause>.<stage>.
STALL_PREFIX = "stagelens.stall."
# What the process went through around the request: in how many nanoseconds; how often a thread was taken off its CPU, a page
# had to be read from a disk, and torch gave back memory of a device because it had none left.
AROUND = (
    "stagelens.around",
    "stagelens.around.switches",
    "stagelens.around.major_faults",
    "stagelens.around.allocator_retries",
)

# How old the process was when the request began, on the root. [nanoseconds]
REPLICA_AGE = "stagelens.replica.age"
# Of a span that is a phase of a cold start, in a request or outside (`core.stages`), and no part of a kept trace: which, how
# many nanoseconds of it were spent in no other phase, and what shapes a first run was given.
LOAD_PHASE = "stagelens.load.phase"
LOAD_OWN = "stagelens.load.own"
INPUT_SHAPE = "inference.input.shape"

SCOPE = "stagelens"
# Of the same spans, where they go through the user's own OpenTelemetry SDK.
KEPT_SCOPE = "stagelens.kept"
# On a span of the user's own: an agent of ours counts the request it is in.
COUNTED = "stagelens.counted"

# "<instance id>:<sequence number>", unique for each export of a process; a retry repeats it and is counted once.
BATCH_HEADER = "X-Stagelens-Batch"
# The collectors a body has passed that is sent on, by what their stores call themselves, separated by commas.
VIA_HEADER = "X-Stagelens-Via"
