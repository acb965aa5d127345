"""What points are about, by their attributes: read once and remembered, for exports say the same again and again."""

from __future__ import annotations

from collections.abc import Sequence

from ...core import names, stages
from ...store.point_columns import Identity
from ..otlp.model import Attributes
from ..otlp.protobuf_encoding import read_attributes
from .dimensions import SeriesReader, stage_name, text
from .validation import Reason, RejectedError

# With what they are remembered by, a few tens of megabytes at the very most: two thousand series have fewer.
MAX_REMEMBERED, MAX_REMEMBERED_BYTES = 50_000, 512

# Attributes whose values are bands of sizes.
_BANDS = {names.BATCH_BAND: BATCH_SIZES, names.TOKEN_BAND: TOKEN_COUNTS}


class Identities:
    """What was read before. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], dict[bytes, Identity]] = {}
        self._shared: dict[tuple[object, ...], Identity] = {}
        self._size = 0

    def of(
        self, reader: SeriesReader, metric: str, attributes: Sequence[bytes] | Sequence[Attributes]
    ) -> list[Identity | None]:
        """Return what points of *metric* are about; None where it cannot be believed.

        Args:
            reader: Of the process that sent them.
            metric: Their metric.
            attributes: Of each, read or serialized.

        Raises:
            WireError: They are neither.
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
    """Return what tells a point apart within its series: a stage, or by what the metric says, such as a definition.

    Raises:
        RejectedError: It is not what *metric* needs.
    """
    key = names.METRICS[metric]
    value = attributes.get(key, stages.OVERHEAD if key == names.DOMINANT else None)
    if key in _BANDS and value not in _BANDS[key].names:
        msg = f"{key} must be one of {', '.join(_BANDS[key].names)}, got {'nothing' if value is None else repr(text(value)[:40])}"
        raise RejectedError(Reason.STAGE, msg)
    name = stage_name(value, key)
    if key == names.STALL and (split_stall_key(name)[0] not in STALL_CAUSES or not split_stall_key(name)[1]):
        msg = f"{key} must be one of {', '.join(STALL_CAUSES)}, a colon and a stage, got {name[:40]!r}"
        raise RejectedError(Reason.STAGE, msg)
    return name
