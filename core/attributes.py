"""Attributes of requests: what the agent knows of each request without reading its content, and what the user names.

Numbers are counted by band: one of bytes or tokens ends at four times its start, one of a count at twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from .text import PairKey, is_whole_number

# Scale of the histograms of attributes: 4 buckets per doubling, each 19 % wide, because every attribute has its own histograms.
ATTRIBUTE_SCALE = 2
# Maximum number of attributes that the user names, and of the values of each attribute of a process; further values are `__other__`.
MAX_NAMED, MAX_VALUES = 8, 50

Kind = Literal["text", "count", "tokens", "bytes"]
# Start of the stored place of a scraped engine, which may count the same requests as the spans of the engine at another place.
SCRAPED = "@"
_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


@dataclass(frozen=True, slots=True)
class Attribute:
    key: str  # Name on the wire and in the store
    label: str  # Name on pages, within a sentence
    kind: Kind = "text"  # Kind of its values; all but texts are counted by size band

    @property
    def is_number(self) -> bool:
        return self.kind != "text"


# Counted by the agent.
REQUEST_SIZE = Attribute("request_size", "request size", "bytes")
RESPONSE_SIZE = Attribute("response_size", "response size", "bytes")
BATCH_SIZE = Attribute("batch_size", "batch size", "count")
INPUT_TOKENS = Attribute("input_tokens", "input tokens", "tokens")
OUTPUT_TOKENS = Attribute("output_tokens", "output tokens", "tokens")
# Number of requests that the process was working on when the request arrived, and of jobs that waited in its queue.
CONCURRENCY = Attribute("concurrency", "concurrent requests", "count")
QUEUE_LENGTH = Attribute("queue_length", "queue length", "count")
# Service that sent the request.
CALLER = Attribute("caller", "caller")
# Process that served the request; the agent sends the name without a value, and the collector adds the place.
REPLICA = Attribute("replica", "replica")
COUNTED = (
    REQUEST_SIZE,
    RESPONSE_SIZE,
    BATCH_SIZE,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    CONCURRENCY,
    QUEUE_LENGTH,
    CALLER,
    REPLICA,
)
# Dimensions of every series.
DIMENSIONS = (
    Attribute("version", "version"),
    Attribute("environment", "environment"),
    Attribute("model", "model"),
    Attribute("model_version", "model version"),
    Attribute("route", "route"),
    Attribute("device", "device"),
    Attribute("status", "status"),
    Attribute("cold", "cold start"),
)
BY_KEY = MappingProxyType({attribute.key: attribute for attribute in (*COUNTED, *DIMENSIONS)})


def attribute(key: str) -> Attribute:
    return BY_KEY.get(key) or Attribute(key, key)


# Key under which the requests with a value of an attribute are counted.
attribute_key = PairKey("=")
split_attribute_key = attribute_key.split


# Key under which the time in a stage of the requests of the replica at a place is counted; "" for the place of a stage alone.
replica_stage_key = PairKey(";")
split_replica_stage_key = replica_stage_key.split


def band_of(kind: Kind, number: int) -> str:
    """Return the band that holds *number* (>= 0): its lowest number.

    >>> band_of("count", 5), band_of("bytes", 5000), band_of("bytes", 0)
    ('4', '4096', '0')
    """
    power = number.bit_length() - 1
    if kind != "count":
        power -= power % 2
    return str(1 << power) if number > 0 else "0"


def band_end(kind: Kind, start: int) -> int:
    return start * (2 if kind == "count" else 4) - 1 if start else 0


def value_label(key: str, value: str) -> str:
    """Return *value* of the attribute *key* as it is shown.

    >>> value_label("request_size", "1048576"), value_label("batch_size", "4"), value_label("tenant", "acme"), value_label("tenant", "")
    ('1-4 MB', '4-7', 'acme', 'none')
    """
    kind = attribute(key).kind
    if kind == "text" or not is_whole_number(value):
        return value or "none"
    return range_label(kind, int(value), band_end(kind, int(value)))


def range_label(kind: Kind, first: int, last: int) -> str:
    """Return the numbers from *first* to *last*, the start and the end of bands, as they are shown.

    >>> range_label("bytes", 1024, 4095), range_label("count", 1, 1), range_label("bytes", 256, 1023)
    ('1-4 kB', '1', '256 B-1 kB')
    """
    if kind != "bytes":
        return str(first) if first == last else f"{first:,}-{last:,}"
    low, high = bytes_label(first), bytes_label(last + 1)
    same = low.split(" ")[1] == high.split(" ")[1]
    return f"{low.split(' ')[0]}-{high}" if first and same else f"{low}-{high}" if last else low


def bytes_label(size: int) -> str:
    """Return *size*, a whole number of its unit, with the unit.

    >>> bytes_label(0), bytes_label(4096)
    ('0 B', '4 kB')
    """
    return next((f"{size // unit} {name}" for unit, name in _UNITS if size >= unit), f"{size} B")
