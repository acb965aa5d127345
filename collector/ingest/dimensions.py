"""Attributes as dimensions: which series a point or a trace belongs to, and text that is safe to store and to show."""

from __future__ import annotations

from ...core import names
from ...store import Series
from ...store.series import COLD, WARM
from ..otlp.model import Attributes, Scalar
from .validation import Reason, RejectedError

MAX_VALUE_CHARS = 200
MAX_STAGE_CHARS = 64
UNKNOWN_SERVICE = "unknown_service"

_POINT_KEYS = (names.MODEL, names.MODEL_VERSION, names.ROUTE, names.DEVICE, names.COLD)


class SeriesReader:
    """Turns the attributes of points into series, for one resource.

    Args:
        resource: The attributes of the resource.
    """

    def __init__(self, resource: Attributes) -> None:
        self._service = text(resource.get(names.SERVICE_NAME, "")) or UNKNOWN_SERVICE
        self._version = text(resource.get(names.SERVICE_VERSION, ""))
        self._environment = text(resource.get(names.ENVIRONMENT, ""))
        # The points of an export share few series: one for each stage and metric.
        self._known: dict[tuple[Scalar, ...], Series] = {}

    @property
    def process(self) -> tuple[str, str, str]:
        """What series take from the resource: service, version and environment."""
        return self._service, self._version, self._environment

    def series(self, attributes: Attributes, *, error: bool = False) -> Series:
        """Return the series *attributes* belong to.

        Args:
            attributes: Of the point or of the root span.
            error: The status when `inference.status` is not there.

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
            msg = f"{names.STATUS} must be {names.STATUS_OK!r} or {names.STATUS_ERROR!r}, got {text(status)!r}"
            raise RejectedError(Reason.STATUS, msg)
        model, model_version, route, device, cold = (text(attributes.get(name, "")) for name in _POINT_KEYS)
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


def text(value: Scalar) -> str:
    r"""Return *value* as text of at most `MAX_VALUE_CHARS` printable characters; others show as U+FFFD.

    >>> text(7), text(True), text("a\x00b")
    ('7', 'true', 'a�b')
    """
    if isinstance(value, str):
        shown = value[:MAX_VALUE_CHARS]
    else:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
    if shown.isprintable():
        return shown
    return "".join(character if character.isprintable() else "\ufffd" for character in shown)


def stage_name(value: Scalar | None, key: str) -> str:
    """Return *value* as the name of a stage.

    Args:
        value: What the attribute holds, None if it is missing.
        key: The attribute's name, for the message.

    Raises:
        RejectedError: It is no text of 1 to `MAX_STAGE_CHARS` printable characters.
    """
    if isinstance(value, str) and 0 < len(value) <= MAX_STAGE_CHARS and value.isprintable():
        return value
    shown = "nothing" if value is None else repr(text(value)[:40])
    msg = f"{key} must be 1 to {MAX_STAGE_CHARS} printable characters, got {shown}"
    raise RejectedError(Reason.STAGE, msg)
