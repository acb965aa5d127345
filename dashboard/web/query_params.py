"""Validation of API parameters: an invalid value is an error with its fix, whereas a page uses the default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...core.errors import StagelensError
from ..view import is_moment

BAD_REQUEST, NOT_FOUND = 400, 404


class BadRequestError(StagelensError):
    """API request with an invalid parameter.

    Args:
        error: Description of the error.
        key: Name of the parameter, header or field; "" for none.
        fix: Valid alternative.
        status: HTTP status of the response.
    """

    def __init__(self, error: str, *, key: str = "", fix: str = "", status: int = BAD_REQUEST) -> None:
        super().__init__(error)
        self.key = key
        self.fix = fix
        self.status = status


def check_keys(given: Mapping[str, str], allowed: Iterable[str]) -> None:
    """Reject unknown parameters and invalid times.

    Raises:
        BadRequestError: A key is invalid; the error names the first one.
    """
    known = sorted(allowed)
    for key in given:
        if key not in known:
            msg = f"there is no parameter {key}"
            raise BadRequestError(msg, key=key, fix=f"one of {', '.join(known)}")
    for key in ("from", "to"):
        if given.get(key) and not is_moment(given[key]):
            msg = f"{key} is {given[key]!r}, which is no time"
            raise BadRequestError(
                msg,
                key=key,
                fix="now, now-6h, milliseconds of the epoch, or ISO 8601 such as 2026-11-20T12:00Z, from 1970 to 2199",
            )


def percentiles(text: str) -> tuple[float, ...]:
    """Parse percentiles such as `50,99,99.9`.

    Raises:
        BadRequestError: One of them is not a number from 0 to below 100.

    >>> percentiles("50,99.9")
    (0.5, 0.999)
    """
    try:
        found = tuple(round(float(each) / 100, 9) for each in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= each < 1 for each in found):
        msg = f"p is {text!r}"
        raise BadRequestError(
            msg, key="p", fix="percentiles from 0 to below 100 with commas between them, such as 50,90,99"
        )
    return found


def required(given: Mapping[str, str], key: str) -> str:
    """Return the value of *key*.

    Raises:
        BadRequestError: The key is missing.
    """
    value = given.get(key, "")
    if not value:
        msg = f"{key} is missing"
        raise BadRequestError(msg, key=key, fix=f"add {key}=…")
    return value
