"""Metric, attribute and header names on the wire.

OpenTelemetry semantic conventions where one exists (service.*, deployment.environment.name, http.route, error.type);
`inference.*` where none does.
"""

from __future__ import annotations

# Metrics. All three are base-2 exponential histograms keyed by seconds, delta temporality.
REQUEST_DURATION = "inference.request.duration"
STAGE_DURATION = "inference.stage.duration"
# Not counts: bucket i holds the microseconds that requests whose end-to-end latency falls into bucket i spent in the stage.
STAGE_TIME = "inference.stage.time"
METRICS = (REQUEST_DURATION, STAGE_DURATION, STAGE_TIME)

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
STAGE = "inference.stage"
DOMINANT = "inference.stage.dominant"
ERROR_TYPE = "error.type"
HTTP_STATUS = "http.response.status_code"

STATUS_OK = "ok"
STATUS_ERROR = "error"

# Attributes of the root span of a kept trace.
KEPT_BECAUSE = "stagelens.kept.because"
# Nanoseconds of the request's wall time that belong to the stage, one attribute each: stagelens.stage.<key>.
STAGE_SELF_PREFIX = "stagelens.stage."

SCOPE = "stagelens"

# "<instance id>:<sequence number>", unique for each export of a process; a retry repeats it and is counted once.
BATCH_HEADER = "X-Stagelens-Batch"
