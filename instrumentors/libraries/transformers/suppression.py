"""Calls below a call: a library that times its own calls keeps the client underneath from timing them once more.

A client of an inference server has a stage of its own for the way there; the HTTP or gRPC client it is built on would
mark the same time as `dependency`, and, being the inner one, own it. So, with the marks already in hand:

    token = quiet()
    try:
        return original(self, *args)
    finally:
        end(token)

Nothing inside is recorded, and no `traceparent` is added: the outer library sends its own. Never across a `yield`.
"""

from __future__ import annotations

from contextvars import Token

from ...records import Marks, current


def quiet() -> Token[Marks | None]:
    """Hide the running request from all that this context calls, until `recorder.end` is given the token."""
    return current.set(None)
