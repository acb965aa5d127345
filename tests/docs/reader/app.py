"""The service of a reader of the documentation, where a page just says `app:app`."""

from __future__ import annotations

from starlette.applications import Starlette

app = Starlette()
