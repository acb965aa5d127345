"""`stagelens snapshot`: write the image of a page of a running dashboard, over its API."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx

from ..core.errors import StagelensError
from ..core.settings.field_types import secret_from_env

_DEFAULT_URL = "http://127.0.0.1:8600"
_TIMEOUT_SECONDS = 60.0
_UNAUTHORIZED = 401
_PNG = b"\x89PNG"
_EPILOG = """\
  stagelens snapshot /s/checkout checkout.png
  stagelens snapshot "https://stagelens.example.com/s/checkout?from=now-1h" -

The token is in STAGELENS_DASHBOARD_TOKEN, or in the file that STAGELENS_DASHBOARD_TOKEN_FILE names.
"""


def main(words: Sequence[str], env: Mapping[str, str]) -> int:
    """Write the image of a page."""
    given = _parser().parse_args(words)
    page = urlsplit(given.page)
    base = f"{page.scheme}://{page.netloc}" if page.netloc else given.url or env.get("STAGELENS_DASHBOARD_URL", "")
    query = dict(parse_qsl(page.query))
    query |= {key: value for key, value in (("from", given.start), ("to", given.end)) if value}
    asked = urlencode({**query, "path": page.path or "/", "format": "png"})
    token = secret_from_env(env, "STAGELENS_DASHBOARD_TOKEN", "STAGELENS_DASHBOARD_TOKEN_FILE")
    png = _fetch((base or _DEFAULT_URL).rstrip("/"), f"/api/v1/view?{asked}", token)
    if given.file == "-":
        sys.stdout.buffer.write(png)
        return 0
    try:
        Path(given.file).write_bytes(png)
    except OSError as error:
        msg = f"{given.file} cannot be written: {error.strerror}"
        raise StagelensError(msg) from error
    return 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "stagelens snapshot",
        description="Write the image of a page of a running dashboard as PNG.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("page", metavar="PAGE", help="path of the page, such as /s/checkout, or its complete URL")
    made.add_argument("file", metavar="FILE", help="file to write; - writes to standard output")
    made.add_argument("--url", help=f"URL of the dashboard [STAGELENS_DASHBOARD_URL] (default {_DEFAULT_URL})")
    made.add_argument("--from", dest="start", metavar="TIME", help="start of the window, such as now-6h (the default)")
    made.add_argument("--to", dest="end", metavar="TIME", help="end of the window (default now)")
    return made


def _fetch(base: str, address: str, token: str) -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        # Redirects are not followed, because the token is for this host.
        response = httpx.get(base + address, headers=headers, timeout=_TIMEOUT_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        msg = f"there is no dashboard at {base} ({error}).\n    Start one with `stagelens up`, or set --url"
        raise StagelensError(msg) from error
    if response.status_code == _UNAUTHORIZED:
        what = "refuses the token" if token else "needs a token"
        msg = f"the dashboard at {base} {what}.\n    Set STAGELENS_DASHBOARD_TOKEN to the token of this dashboard"
        raise StagelensError(msg)
    if not response.is_success:
        msg = f"the dashboard at {base} responded {response.status_code}{_reason(response.content)}"
        raise StagelensError(msg)
    if not response.content.startswith(_PNG):
        msg = f"the response of {base} is no image; check that it is a Stagelens dashboard"
        raise StagelensError(msg)
    return response.content


def _reason(body: bytes) -> str:
    try:
        found = json.loads(body)
        return f": {found['error']}\n    {found['cure']}"
    except (ValueError, KeyError, TypeError):
        return ""
