"""How programs are answered: in JSON, also about what went wrong, where, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flask import Response, request

from ..core.errors import StagelensError
from .query_params import AskError
from .serialization import as_json

# What begins so is for programs.
PREFIX = "/api/"

_log = logging.getLogger(__name__)


def answer_json(value: Any, status: int = 200) -> Response:
    """Return *value* as the answer."""
    return Response(as_json(value), status, mimetype="application/json")


def explained(answer: Callable[..., Response]) -> Callable[..., Response]:
    """Return *answer* so that what goes wrong is said in JSON: what, where, and what to do."""

    def safely(**values: str) -> Response:
        try:
            return answer(**values)
        except AskError as error:
            return refusal(str(error), error.key, error.cure, error.status)
        except StagelensError as error:
            return refusal(str(error), "", "try again later", 503)
        except Exception as error:  # noqa: BLE001 - a program that asks gets JSON, whatever happened
            _log.exception("%r could not be answered", request.path)
            return refusal(f"{type(error).__name__}; the log of the dashboard says more", "", "", 500)

    return safely


def refusal(error: str, key: str, cure: str, status: int) -> Response:
    """Return the answer that says what is wrong."""
    return answer_json({"error": error, "key": key, "cure": cure}, status)
