"""Which of the formats somebody who scrapes is answered in: text, or protobuf where they rather have that."""

from __future__ import annotations

from . import protobuf, text

PROTOBUF, TEXT = protobuf.MEDIA_TYPE, text.MEDIA_TYPE
_WANTED = {"proto": "io.prometheus.client.MetricFamily", "encoding": "delimited"}


def chosen(accept: str) -> str:
    """Return the media type to answer with, by the header Accept.

    >>> chosen("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,*/*;q=0.1")
    'application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited'
    >>> chosen("text/html")
    'text/plain; version=0.0.4; charset=utf-8'
    """
    native = plain = 0.0
    for offer in accept.split(","):
        kind, *given = (part.strip() for part in offer.split(";"))
        parameters = {key.strip(): value.strip(' "') for key, _, value in (each.partition("=") for each in given)}
        weight = _weight(parameters.get("q", "1"))
        if kind == "application/vnd.google.protobuf" and parameters.items() >= _WANTED.items():
            native = max(native, weight)
        elif kind in ("text/plain", "text/*", "*/*"):
            plain = max(plain, weight)
    return PROTOBUF if native > plain else TEXT


def _weight(written: str) -> float:
    try:
        return min(max(float(written), 0.0), 1.0)
    except ValueError:
        return 0.0
