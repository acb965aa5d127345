"""Attributes of points become series, stages and other keys.

Identities (series, metric and stage) are cached, because exports repeat the same attributes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from ...core import names, stages
from ...core.attributes import REPLICA, attribute_key, replica_stage_key, split_attribute_key, split_replica_stage_key
from ...core.code_stack import MAX_FRAMES
from ...core.hardware import HOST, OPEN, POD, PROCESS_ID, Of, hardware_key, place, split_hardware_key
from ...core.histogram import BATCH_SIZES, TOKEN_COUNTS
from ...core.stages import STALL_CAUSES, split_stall_key
from ...store import Series
from ...store.points import Identity
from ...store.series import COLD, WARM
from ..otlp.model import Attributes, Scalar
from ..otlp.protobuf_encoding import read_attributes
from .validation import MAX_STAGE_CHARS, MAX_VALUE_CHARS, UNKNOWN_SERVICE, Reason, RejectedError, printable_text

# Limits of the cache, at most a few tens of megabytes; two thousand series need fewer entries.
MAX_REMEMBERED, MAX_REMEMBERED_BYTES = 50_000, 512
# Keys of stacks are at most 24 frames long, each with at most 120 characters for each of its three names.
MAX_STACK_CHARS = 10_000
# Metrics whose keys may contain the place of the process, so that processes of one service do not share identities.
_BY_PLACE = frozenset({names.REQUEST_BY_ATTRIBUTE, names.REPLICA_STAGE_TIME, names.OPEN_TIME})
# Attributes whose values are size buckets.
_SIZE_BUCKETS = {names.BATCH_BAND: BATCH_SIZES, names.TOKEN_BAND: TOKEN_COUNTS}
_POINT_KEYS = (names.MODEL, names.MODEL_VERSION, names.ROUTE, names.DEVICE, names.COLD)
_ATTRIBUTE_NAME = re.compile(r"[a-z0-9_.-]{1,40}")


def place_of(resource: Attributes, of: Of = "process", device: str = "") -> str:
    """Return the name of the process, or of its machine or device, in the format of `core.hardware.place`."""
    instance = printable_text(resource.get(names.SERVICE_INSTANCE, ""))
    host = printable_text(resource.get(POD) or resource.get(HOST) or instance)
    process = printable_text(resource.get(PROCESS_ID) or instance)
    return place(of, host, process, device)


class SeriesReader:
    def __init__(self, resource: Attributes) -> None:
        self._service = printable_text(resource.get(names.SERVICE_NAME, "")) or UNKNOWN_SERVICE
        self._version = printable_text(resource.get(names.SERVICE_VERSION, ""))
        self._environment = printable_text(resource.get(names.ENVIRONMENT, ""))
        self._resource = resource
        # The points of an export have few distinct series.
        self._known: dict[tuple[Scalar, ...], Series] = {}

    @property
    def process(self) -> tuple[str, str, str]:
        return self._service, self._version, self._environment

    @cached_property
    def place(self) -> str:
        """Host and process of the resource, which identify the replica; "" if the resource has neither."""
        replica = place_of(self._resource)
        return "" if replica == place("process", "", "", "") else replica

    def series(self, attributes: Attributes, *, error: bool = False) -> Series:
        status = attributes.get(names.STATUS)
        if status is None:
            status = names.STATUS_ERROR if error or names.ERROR_TYPE in attributes else names.STATUS_OK
        key = (*(attributes.get(name, "") for name in _POINT_KEYS), status)
        series = self._known.get(key)
        if series is None:
            series = self._known[key] = self._build(attributes, status)
        return series

    def _build(self, attributes: Attributes, status: Scalar) -> Series:
        if status not in names.STATUSES:
            msg = f"{names.STATUS} must be one of {', '.join(names.STATUSES)}, got {printable_text(status)!r}"
            raise RejectedError(Reason.STATUS, msg)
        model, model_version, route, device, cold = (printable_text(attributes.get(name, "")) for name in _POINT_KEYS)
        return Series(
            service=self._service,
            version=self._version,
            environment=self._environment,
            model=model,
            model_version=model_version,
            route=route,
            device=device,
            status=str(status),
            cold=COLD if cold == "true" else WARM,
        )


def stage_name(value: Scalar | None, key: str) -> str:
    if isinstance(value, str) and 0 < len(value) <= MAX_STAGE_CHARS and value.isprintable():
        return value
    shown = "nothing" if value is None else repr(printable_text(value)[:40])
    msg = f"{key} must be 1 to {MAX_STAGE_CHARS} printable characters, got {shown}"
    raise RejectedError(Reason.STAGE, msg)


def stack_of(value: Scalar | None) -> str:
    if not isinstance(value, str) or len(value) > MAX_STACK_CHARS or not value.isprintable():
        msg = f"{names.PROFILE_STACK} must be a text of at most {MAX_STACK_CHARS} printable characters"
        raise RejectedError(Reason.STAGE, msg)
    stage, *frames = value.split(";")
    stage_name(stage, f"the stage in {names.PROFILE_STACK}")
    if not frames or not all(frames) or len(frames) > MAX_FRAMES:
        msg = f"{names.PROFILE_STACK} must be a stage and 1 to {MAX_FRAMES} frames, separated by semicolons"
        raise RejectedError(Reason.STAGE, msg)
    return value


class SeriesCache:
    """Cache of the identities of points by their serialized attributes. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], dict[bytes, Identity]] = {}
        self._shared: dict[tuple[object, ...], Identity] = {}
        self._size = 0

    def of(self, reader: SeriesReader, metric: str, attributes: Sequence[bytes]) -> list[Identity | RejectedError]:
        """Return the identity of each point of *metric*, or why its attributes are invalid."""
        if self._size > MAX_REMEMBERED:
            self._known, self._shared, self._size = {}, {}, 0
        process = (*reader.process, metric, reader.place if metric in _BY_PLACE else "")
        self._size += process not in self._known
        cached = self._known.setdefault(process, {})
        identities = map(cached.get, attributes)
        return [
            identity or self._read(reader, metric, sent, cached)
            for identity, sent in zip(identities, attributes, strict=True)
        ]

    def _read(
        self, reader: SeriesReader, metric: str, sent: bytes, cached: dict[bytes, Identity]
    ) -> Identity | RejectedError:
        attributes = read_attributes(sent)
        try:
            key = (reader.series(attributes), metric, stage_of(metric, attributes, reader.place))
        except RejectedError as error:
            return error
        self._size += 1
        identity = self._shared.setdefault(key, Identity(*key))
        if len(sent) <= MAX_REMEMBERED_BYTES:
            cached[sent] = identity
        return identity


def stage_of(metric: str, attributes: Attributes, replica: str) -> str:
    """Return the key of a point within its series: a stage, or another value that *metric* defines, such as a size bucket."""
    key = names.METRICS[metric]
    value = attributes.get(key, stages.OVERHEAD if key == names.DOMINANT else None)
    if key in _SIZE_BUCKETS and value not in _SIZE_BUCKETS[key].names:
        msg = f"{key} must be one of {', '.join(_SIZE_BUCKETS[key].names)}, got {'nothing' if value is None else repr(printable_text(value)[:40])}"
        raise RejectedError(Reason.STAGE, msg)
    if key == names.PROFILE_STACK:
        return stack_of(value)
    if key == names.ATTRIBUTE:
        return _attribute_of(value, replica)
    if metric == names.REPLICA_STAGE_TIME:
        return _replica_stage_of(value, replica)
    if metric == names.OPEN_TIME:
        # In a saved run the value has its measure and its place already.
        return hardware_key(OPEN, split_hardware_key(printable_text(value or ""))[1] or replica)
    name = stage_name(value, key)
    if key == names.STALL and (split_stall_key(name)[0] not in STALL_CAUSES or not split_stall_key(name)[1]):
        msg = f"{key} must be one of {', '.join(STALL_CAUSES)}, a colon and a stage, got {name[:40]!r}"
        raise RejectedError(Reason.STAGE, msg)
    return name


def _attribute_of(value: Scalar | None, replica: str) -> str:
    """Return *value*, an attribute of a point, as the attribute of a request and its value; *replica* completes the replica."""
    name, text = split_attribute_key(value) if isinstance(value, str) and "=" in value else ("", "")
    if not _ATTRIBUTE_NAME.fullmatch(name) or len(text) > MAX_VALUE_CHARS or not text.isprintable():
        msg = (
            f"{names.ATTRIBUTE} must be `name=value`, with a name of 1 to 40 of a-z, 0-9, `_`, `.` and `-`, and a value of at "
            f"most {MAX_VALUE_CHARS} printable characters"
        )
        raise RejectedError(Reason.STAGE, msg)
    return attribute_key(name, text or replica if name == REPLICA.key else text)


def _replica_stage_of(value: Scalar | None, replica: str) -> str:
    """Return *value*, a stage, with the place *replica*; in a saved run *value* has its place already."""
    stage, sent_replica = split_replica_stage_key(value) if isinstance(value, str) else (value, "")
    return replica_stage_key(stage_name(stage, names.STAGE), printable_text(sent_replica) or replica)
