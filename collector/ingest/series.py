"""Series of points and traces: from attributes to dimensions, with a cache, because exports repeat the same attributes."""

from __future__ import annotations

from collections.abc import Sequence

from ...core import names, stages
from ...core.histogram import BATCH_SIZES, TOKEN_COUNTS
from ...core.stages import STALL_CAUSES, split_stall_key
from ...store import Series
from ...store.records import Identity
from ...store.series import COLD, WARM
from ..otlp.model import Attributes, Scalar
from ..otlp.protobuf_encoding import read_attributes
from .validation import Reason, RejectedError, printable_text

MAX_STAGE_CHARS = 64
UNKNOWN_SERVICE = "unknown_service"

_POINT_KEYS = (names.MODEL, names.MODEL_VERSION, names.ROUTE, names.DEVICE, names.COLD)


class SeriesReader:
    """Converts the attributes of points of one resource into series.

    Args:
        resource: Attributes of the resource.
    """

    def __init__(self, resource: Attributes) -> None:
        self._service = printable_text(resource.get(names.SERVICE_NAME, "")) or UNKNOWN_SERVICE
        self._version = printable_text(resource.get(names.SERVICE_VERSION, ""))
        self._environment = printable_text(resource.get(names.ENVIRONMENT, ""))
        # The points of an export have few distinct series.
        self._known: dict[tuple[Scalar, ...], Series] = {}

    @property
    def process(self) -> tuple[str, str, str]:
        """The dimensions that come from the resource: service, version and environment."""
        return self._service, self._version, self._environment

    def series(self, attributes: Attributes, *, error: bool = False) -> Series:
        """Return the series of *attributes*.

        Args:
            attributes: Attributes of the point or root span.
            error: Whether the status is an error if `inference.status` is missing.

        Raises:
            RejectedError: `inference.status` is neither `ok` nor `error`.
        """
        status = attributes.get(names.STATUS)
        if status is None:
            status = names.STATUS_ERROR if error or names.ERROR_TYPE in attributes else names.STATUS_OK
        key = (*(attributes.get(name, "") for name in _POINT_KEYS), status)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._build(attributes, status)
        return found

    def _build(self, attributes: Attributes, status: Scalar) -> Series:
        if status not in (names.STATUS_OK, names.STATUS_ERROR):
            msg = (
                f"{names.STATUS} must be {names.STATUS_OK!r} or {names.STATUS_ERROR!r}, got {printable_text(status)!r}"
            )
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
    """Return *value* as the name of a stage.

    Args:
        value: Value of the attribute, None if it is missing.
        key: Name of the attribute, for the message.

    Raises:
        RejectedError: *value* is not a text of 1 to `MAX_STAGE_CHARS` printable characters.
    """
    if isinstance(value, str) and 0 < len(value) <= MAX_STAGE_CHARS and value.isprintable():
        return value
    shown = "nothing" if value is None else repr(printable_text(value)[:40])
    msg = f"{key} must be 1 to {MAX_STAGE_CHARS} printable characters, got {shown}"
    raise RejectedError(Reason.STAGE, msg)


# Together a few tens of megabytes at most; two thousand series need fewer entries.
MAX_REMEMBERED, MAX_REMEMBERED_BYTES = 50_000, 512

# Attributes whose values are size buckets.
_SIZE_BUCKETS = {names.BATCH_BAND: BATCH_SIZES, names.TOKEN_BAND: TOKEN_COUNTS}


class SeriesCache:
    """Identities of points by their attributes, parsed or serialized. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], dict[bytes, Identity]] = {}
        self._shared: dict[tuple[object, ...], Identity] = {}
        self._size = 0

    def of(
        self, reader: SeriesReader, metric: str, attributes: Sequence[bytes] | Sequence[Attributes]
    ) -> list[Identity | None]:
        """Return the identity of each point of *metric*, None for invalid attributes.

        Args:
            reader: Series reader of the sending process.
            metric: Name of the metric.
            attributes: Attributes of each point, parsed or serialized.

        Raises:
            WireError: Serialized attributes are malformed.
        """
        if self._size > MAX_REMEMBERED:
            self._known, self._shared, self._size = {}, {}, 0
        process = (*reader.process, metric)
        self._size += process not in self._known
        known = self._known.setdefault(process, {})
        found = [known.get(one) if isinstance(one, bytes) else None for one in attributes]
        if None in found:
            for number, one in enumerate(attributes):
                found[number] = found[number] or self._read(reader, metric, one, known)
        return found

    def _read(
        self, reader: SeriesReader, metric: str, sent: bytes | Attributes, known: dict[bytes, Identity]
    ) -> Identity | None:
        attributes = read_attributes(sent) if isinstance(sent, bytes) else sent
        try:
            key = (reader.series(attributes), metric, stage_of(metric, attributes))
        except RejectedError:
            return None
        self._size += isinstance(sent, bytes) or key not in self._shared
        identity = self._shared.setdefault(key, Identity(*key))
        if isinstance(sent, bytes) and len(sent) <= MAX_REMEMBERED_BYTES:
            known[sent] = identity
        return identity


def stage_of(metric: str, attributes: Attributes) -> str:
    """Return the key of a point within its series: a stage, or another value that *metric* defines, such as a size bucket.

    Raises:
        RejectedError: The attribute that *metric* needs is missing or invalid.
    """
    key = names.METRICS[metric]
    value = attributes.get(key, stages.OVERHEAD if key == names.DOMINANT else None)
    if key in _SIZE_BUCKETS and value not in _SIZE_BUCKETS[key].names:
        msg = f"{key} must be one of {', '.join(_SIZE_BUCKETS[key].names)}, got {'nothing' if value is None else repr(printable_text(value)[:40])}"
        raise RejectedError(Reason.STAGE, msg)
    name = stage_name(value, key)
    if key == names.STALL and (split_stall_key(name)[0] not in STALL_CAUSES or not split_stall_key(name)[1]):
        msg = f"{key} must be one of {', '.join(STALL_CAUSES)}, a colon and a stage, got {name[:40]!r}"
        raise RejectedError(Reason.STAGE, msg)
    return name
