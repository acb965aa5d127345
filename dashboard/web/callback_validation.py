"""Validation of the Dash callback request: a body that no page sends is rejected before Dash fails on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Flask, Response, request

CALLBACK_PATH = "/_dash-update-component"
# Addresses and the `seen` state have at most a few kB.
MAX_BODY_BYTES = 1024 * 1024

# Signature of the one callback, as `app` registers it: outputs, inputs and state with their value types.
_OUTPUT = "..made.data...seen.data.."
_ENDS: Mapping[str, list[tuple[str, str, type]]] = {
    "outputs": [("made", "data", object), ("seen", "data", object)],
    "inputs": [("url", "pathname", str), ("url", "search", str), ("tick", "data", dict)],
    "state": [("seen", "data", dict)],
}


def reject_invalid_callbacks(server: Flask) -> None:
    """Reject requests to `CALLBACK_PATH` on *server* that no page sends (400), and bodies that are too large."""
    server.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    def refuse() -> Response | None:
        if request.path != CALLBACK_PATH or request.method != "POST" or _is_call(_parsed_body()):
            return None
        return Response("This request is not valid for a page of this dashboard.", 400, mimetype="text/plain")

    server.before_request(refuse)


def _parsed_body() -> Any:
    try:
        return request.get_json(silent=True)
    except RecursionError:  # a page sends nothing that deep
        return None


def _is_call(body: Any) -> bool:
    return (
        isinstance(body, dict)
        and body.get("output") == _OUTPUT
        and _are_texts(body.get("changedPropIds"))
        and all(_fit(body.get(name), ends) for name, ends in _ENDS.items())
    )


def _fit(given: Any, ends: list[tuple[str, str, type]]) -> bool:
    return (
        isinstance(given, list)
        and len(given) == len(ends)
        and all(_is_end(each, *end) for each, end in zip(given, ends, strict=True))
    )


def _is_end(given: Any, name: str, prop: str, kind: type) -> bool:
    return (
        isinstance(given, dict)
        and (given.get("id"), given.get("property")) == (name, prop)
        and isinstance(given.get("value"), kind | None)
    )


def _are_texts(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(each, str) for each in given)
