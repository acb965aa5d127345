"""Requests to scrape targets, limited in time and size.

Redirects are not followed and proxies of the environment are not used: only the configured address receives the token.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import NamedTuple

import httpx

from ...core.egress import CheckedTransport, EgressDeniedError, EgressPolicy
from ...core.errors import StagelensError, WireError
from ..otlp.model import BodyTooLargeError
from ..server.bodies import inflate
from .config import ScrapeTarget
from .exposition import OPENMETRICS

TIMEOUT_SECONDS = 5.0
# Size limit of a response: a vLLM server exposes 100 kB, a Ray node with many deployments a few MB.
MAX_BYTES = 16 * 1024**2
_ACCEPT = f"text/plain;version=0.0.4;q=1,{OPENMETRICS};version=1.0.0;q=0.5,*/*;q=0.1"


class FetchError(StagelensError):
    """A request to a target failed, or its response cannot be used."""


class TargetResponse(NamedTuple):
    text: str
    media_type: str


async def fetch(url: str, target: ScrapeTarget, env: Mapping[str, str]) -> TargetResponse:
    """Request *url*, one of the URLs of *target*.

    Raises:
        FetchError: The request fails or times out, the response is an error or too large, or egress is denied.
    """
    parsed = httpx.URL(url)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            transport = CheckedTransport(
                _egress_policy(target, env), verify=parsed.scheme == "https" and target.tls.context()
            )
            async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=None) as client:  # noqa: S113 - the limit above is for all of it
                return await _read_response(client, client.build_request("GET", parsed, headers=_headers(target, env)))
    except EgressDeniedError as error:
        raise FetchError(str(error)) from error
    except httpx.ConnectError as error:
        msg = f"it cannot be connected to ({error})"
        raise FetchError(msg) from error
    except TimeoutError as error:
        msg = f"it did not respond within {TIMEOUT_SECONDS:g} s"
        raise FetchError(msg) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ssl.SSLError, UnicodeError) as error:
        msg = f"it did not respond ({error or type(error).__name__})"
        raise FetchError(msg) from error


async def _read_response(client: httpx.AsyncClient, request: httpx.Request) -> TargetResponse:
    response = await client.send(request, stream=True, follow_redirects=False)
    try:
        if response.is_redirect:
            msg = "it redirects, which is not followed; use the final address"
            raise FetchError(msg)
        if not response.is_success:
            msg = f"it returns {response.status_code} {response.reason_phrase}; check its address and token"
            raise FetchError(msg)
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > MAX_BYTES:
                break
        # The body was read up to the limit only: it exceeds the limit after inflating, or is truncated.
        text = inflate(bytes(body), response.headers.get("content-encoding", ""), MAX_BYTES).decode()
    except BodyTooLargeError as error:
        msg = f"its response is larger than {MAX_BYTES // 1024**2} MiB; drop metrics or labels at the target"
        raise FetchError(msg) from error
    except (WireError, UnicodeDecodeError) as error:
        msg = f"its response cannot be parsed ({error})"
        raise FetchError(msg) from error
    finally:
        await response.aclose()
    return TargetResponse(text, response.headers.get("content-type", ""))


def _egress_policy(target: ScrapeTarget, env: Mapping[str, str]) -> EgressPolicy:
    egress_policy = EgressPolicy.from_env(env)
    return egress_policy.with_kind("metadata") if target.allow_link_local else egress_policy


def _headers(target: ScrapeTarget, env: Mapping[str, str]) -> dict[str, str]:
    headers = {**target.headers, "accept": _ACCEPT, "accept-encoding": "gzip"}
    if token := _token(target, env):
        headers["authorization"] = f"Bearer {token}"
    return headers


def _token(target: ScrapeTarget, env: Mapping[str, str]) -> str:
    if target.bearer_token_file is not None:
        return target.bearer_token_file.read_text(encoding="ascii").strip()
    if target.bearer_token_env and not env.get(target.bearer_token_env):
        msg = f"the environment has no {target.bearer_token_env} for its token"
        raise FetchError(msg)
    return env[target.bearer_token_env] if target.bearer_token_env else ""
