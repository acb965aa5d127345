"""Thresholds of `stagelens compare`: `p99:+10%,stage:queue:+5ms,ttft:p50:+20ms,errors:+1%`.

[stage:NAME:|ttft:|tpot:][pNN:]+LIMIT      LIMIT in %, us, ms or s; pNN may be omitted after a name and defaults to p99
errors:+LIMIT                              LIMIT in % of all requests: +1% allows an increase from 2 % to 3 %
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType

from ..core.errors import ConfigError
from ..core.names import FIRST_TOKEN, OUTPUT_TOKEN
from ..dashboard.ui.format import percentile

# Measures of streaming requests: time to first token, and time per output token.
MEASURES = MappingProxyType({"ttft": FIRST_TOKEN, "tpot": OUTPUT_TOKEN})

_ERRORS = "errors"
_DEFAULT_QUANTILE = 0.99
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,6})?)")
_LIMIT = re.compile(r"\+(\d{1,12}(?:\.\d{1,12})?)\s*(%|us|µs|ms|s)")
_EXAMPLES = "p99:+10%, p50:+2ms, stage:queue:+5ms, stage:forward:p50:+10%, ttft:p99:+10% or errors:+1%"


@dataclass(frozen=True, slots=True)
class Threshold:
    """Maximum increase of a latency, a stage time or the error rate from A to B.

    Args:
        text: Threshold as written.
        stage: Key of the stage; "" for none.
        measure: A key of `MEASURES`, or "errors"; "" for none.
        quantile: Percentile; unused for errors. [0..1]
        limit: Maximum increase: as a ratio of A's value, in seconds, or as a share of all requests.
        is_relative: Whether *limit* is a ratio of A's value.
    """

    text: str
    stage: str
    measure: str
    quantile: float
    limit: float
    is_relative: bool

    @property
    def subject(self) -> str:
        """Name of the limited value, such as `p99`, `queue p99`, `TTFT p99` or `errors`."""
        if self.is_of_errors:
            return _ERRORS
        return f"{self.stage or self.measure.upper()} {percentile(self.quantile)}".lstrip()

    @property
    def is_of_requests(self) -> bool:
        """Whether the threshold limits the latency of whole requests."""
        return not (self.stage or self.measure)

    @property
    def is_of_errors(self) -> bool:
        """Whether the threshold limits the share of failed requests."""
        return self.measure == _ERRORS

    def allowed(self, before: float) -> float:
        """Return the maximum increase in the unit of A's value, which is *before*."""
        return self.limit * before if self.is_relative else self.limit


def read_thresholds(text: str) -> list[Threshold]:
    """Parse comma-separated thresholds.

    Raises:
        ConfigError: A threshold is invalid, or *text* has none.

    >>> [each.subject for each in read_thresholds("p99:+10%,stage:queue:+5ms,stage:forward:p50:+1%,ttft:p90:+5ms")]
    ['p99', 'queue p99', 'forward p50', 'TTFT p90']
    """
    found = [_threshold(part.strip()) for part in text.split(",") if part.strip()]
    if not found:
        raise _threshold_error(text, "it is empty")
    return found


def read_percentile(text: str) -> float:
    """Return the quantile, between 0 and 1, of a percentile such as `p99.9`.

    Raises:
        ConfigError: *text* is not a percentile.
    """
    found = _PERCENTILE.fullmatch(text.strip())
    if found is None or not 0 < float(found[1]) < 100:  # noqa: PLR2004 - per cent
        msg = f"{text!r} is no percentile between p0 and p100"
        raise ConfigError(msg)
    return float(found[1]) / 100


def _threshold(text: str) -> Threshold:
    *about, limit = text.split(":")
    if [each.strip() for each in about] == [_ERRORS]:
        return _error_threshold(text, limit)
    stage = measure = ""
    if about[:1] == ["stage"]:
        stage, about = (about[1].strip() if len(about) > 1 else ""), about[2:]
        if not stage:
            raise _threshold_error(text, "it names no stage")
    elif about and about[0].strip() in MEASURES:
        measure, about = about[0].strip(), about[1:]
    if len(about) > 1 or not (about or stage or measure):
        raise _threshold_error(text, "it names no measure" if not about else f"{':'.join(about)!r} is no percentile")
    found = _LIMIT.fullmatch(limit.strip())
    if found is None:
        raise _threshold_error(text, f"{limit!r} is no limit: it begins with + and ends with %, us, ms or s")
    number, unit = float(found[1]), found[2]
    limit_seconds = number / 100 if unit == "%" else number * _SECONDS[unit]
    return Threshold(text, stage, measure, _quantile(text, about), limit_seconds, unit == "%")


def _error_threshold(text: str, limit: str) -> Threshold:
    found = _LIMIT.fullmatch(limit.strip())
    if found is None or found[2] != "%":
        raise _threshold_error(text, f"{limit!r} is no share of all requests: it begins with + and ends with %")
    return Threshold(text, "", _ERRORS, _DEFAULT_QUANTILE, float(found[1]) / 100, is_relative=False)


def _quantile(text: str, about: list[str]) -> float:
    try:
        return read_percentile(about[0]) if about else _DEFAULT_QUANTILE
    except ConfigError as error:
        raise _threshold_error(text, str(error)) from None


def _threshold_error(text: str, why: str) -> ConfigError:
    return ConfigError(f"--fail-on {text!r}: {why}; write thresholds such as {_EXAMPLES}, with commas between them")
