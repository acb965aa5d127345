"""Formats of the API: validated parameters, strict JSON, CSV without formulas, and JSON responses including errors.

An invalid parameter is an error with its fix, whereas a page uses the default and shows the error.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import singledispatch
from types import NoneType
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from flask import Response, request

from ...core.errors import StagelensError
from ..access import ForbiddenError

BAD_REQUEST, FORBIDDEN, NOT_FOUND = 400, 403, 404
_MAX_PERCENTILES = 100
# Columns such as `wait (ms)` and `wait [ms]` contain their unit; columns of the store have the unit as a suffix.
_UNIT = re.compile(r"(?P<name>.+?)\s*[(\[](?P<unit>[^()\[\]]+)[)\]]\s*")
_NAMED_UNITS = {"_seconds": "s", "_bytes": "B", "_ratio": "ratio"}
# Spreadsheets interpret text that starts with these as a formula; tab and carriage return because they are trimmed first.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class BadRequestError(StagelensError):
    def __init__(self, error: str, *, key: str = "", fix: str = "", status: int = BAD_REQUEST) -> None:
        super().__init__(error)
        self.key = key
        self.fix = fix
        self.status = status


def refuse(error: str, key: str = "", fix: str = "", status: int = BAD_REQUEST) -> NoReturn:
    raise BadRequestError(error, key=key, fix=fix, status=status)


def check_keys(given: Mapping[str, str], allowed: Iterable[str]) -> None:
    names = sorted(allowed)
    for key in given:
        if key not in names:
            refuse(f"there is no parameter {key}", key, f"one of {', '.join(names)}")


def percentiles(text: str) -> tuple[float, ...]:
    """Parse percentiles such as `50,99,99.9`.

    Raises:
        BadRequestError: One of them is not a number from 0 to below 100, or is probably a ratio.

    >>> percentiles("50,99.9")
    (0.5, 0.999)
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if len(numbers) > _MAX_PERCENTILES or not all(0 <= number < 100 for number in numbers):  # noqa: PLR2004 - per cent
        fix = f"at most {_MAX_PERCENTILES} percentiles from 0 to below 100, separated by commas, such as 50,90,99"
        refuse(f"p is {text[:60]!r}", "p", fix)
    ratio = next((number for number in numbers if 0 < number < 1), None)
    if ratio is not None:
        refuse(
            f"p is {text[:60]!r}, but percentiles are in percent",
            "p",
            f"write {ratio * 100:.6g} for p{ratio * 100:.6g}",
        )
    return tuple(round(number / 100, 9) for number in numbers)


def required(given: Mapping[str, str], key: str) -> str:
    value = given.get(key, "")
    if not value:
        refuse(f"{key} is missing", key, f"add {key}=…")
    return value


_log = logging.getLogger(__name__)


@singledispatch
def to_plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    return str(value)


@to_plain.register(bool | int | str | NoneType)
def _as_it_is(value: Any) -> Any:
    return value


@to_plain.register
def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


@to_plain.register(np.generic | np.ndarray)
def _array(value: Any) -> Any:
    return to_plain(value.tolist())


@to_plain.register
def _length(value: timedelta) -> float:
    return value.total_seconds()


@to_plain.register
def _moment(value: datetime) -> str:
    # Whole microseconds: a pandas timestamp would have nine digits, which few parsers accept.
    whole = value.to_pydatetime(warn=False) if isinstance(value, pd.Timestamp) else value
    aware = whole.astimezone(UTC) if whole.tzinfo else whole.replace(tzinfo=UTC)
    return aware.isoformat().replace("+00:00", "Z")


@to_plain.register(type(pd.NaT) | type(pd.NA))
def _unknown(value: Any) -> None:  # noqa: ARG001 - part of the singledispatch signature
    return None


@to_plain.register
def _named(value: Mapping) -> dict[str, Any]:  # pyright: ignore[reportMissingTypeArgument] - singledispatch takes a class
    return {str(key): to_plain(element) for key, element in value.items()}


@to_plain.register(list | tuple | set | frozenset)
def _several(value: Iterable[Any]) -> list[Any]:
    return [to_plain(element) for element in value]


def columns(frame: pd.DataFrame) -> list[dict[str, str]]:
    return [_column(str(column)) for column in frame.columns]


def rows(frame: pd.DataFrame) -> list[list[Any]]:
    return [[to_plain(cell) for cell in row] for row in frame.itertuples(index=False, name=None)]


def as_json(value: Any) -> str:
    return json.dumps(to_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def file_name(parts: Iterable[str], kind: str) -> str:
    """Return a portable file name made of *parts*.

    >>> file_name(["s", "ocr/5&api"], "csv")
    'stagelens-s-ocr-5-api.csv'
    """
    return "-".join(["stagelens", *re.findall(r"[A-Za-z0-9]+", " ".join(parts))]) + f".{kind}"


def table_json(frame: pd.DataFrame) -> dict[str, Any]:
    return {"columns": columns(frame), "rows": rows(frame)}


def as_csv(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    r"""Return a table as CSV (RFC 4180), with text that a spreadsheet would run as a formula quoted.

    >>> as_csv(["service", "p99"], [["=1+1", -0.5]])
    "service,p99\r\n'=1+1,-0.5\r\n"
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([_harmless(cell) for cell in head])
    writer.writerows([_harmless(to_plain(cell)) for cell in line] for line in lines)
    return out.getvalue()


def _harmless(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _column(name: str) -> dict[str, str]:
    match = _UNIT.fullmatch(name)
    if match:
        return {"name": match["name"], "unit": match["unit"]}
    unit = next((unit for end, unit in _NAMED_UNITS.items() if name.endswith(end)), None)
    return {"name": name, "unit": unit} if unit else {"name": name}


def json_response(value: Any, status: int = 200) -> Response:
    return Response(as_json(value), status, mimetype="application/json")


def with_json_errors(respond: Callable[..., Response]) -> Callable[..., Response]:
    """Wrap the view *respond* so that errors are returned as JSON with the problem, its location and the fix."""

    def safely(**values: str) -> Response:
        try:
            return respond(**values)
        except BadRequestError as error:
            return error_response(str(error), error.key, error.fix, error.status)
        except ForbiddenError as error:
            what, _, fix = str(error).partition("; ")
            return error_response(what, "", fix, FORBIDDEN)
        except StagelensError as error:
            return error_response(str(error), "", "try again later", 503)
        except Exception as error:  # noqa: BLE001 - API clients get JSON for any error
            _log.exception("%r failed", request.path)
            return error_response(f"{type(error).__name__}; see the log of the dashboard", "", "", 500)

    return safely


def error_response(error: str, key: str, fix: str, status: int) -> Response:
    return json_response({"error": error, "key": key, "fix": fix}, status)
