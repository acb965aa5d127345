"""Asking a target: within a time and a size, of an address that may be called, and nowhere else.

Redirects are not followed and proxies of the environment not used: only what is written in the configuration gets a token.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import NamedTuple

import httpx

from ...core.egress.addresses import MayCall, NotCalledError
from ...core.egress.transport import CheckedTransport
from ...core.errors import StagelensError, WireError
from ..otlp.model import TooLargeError
from ..server.body import inflate
from .config import Target
from .exposition import OPENMETRICS

TIMEOUT_SECONDS = 5.0
# A vLLM server exposes 100 kB, a Ray node with many deployments some MB.
MAX_BYTES = 16 * 1024**2
_ACCEPT = f"text/plain;version=0.0.4;q=1,{OPENMETRICS};version=1.0.0;q=0.5,*/*;q=0.1"


class FetchError(StagelensError):
    """The target gave no answer that can be read."""


class Answer(NamedTuple):
    """What a target answered.

    Args:
        text: The body.
        media_type: What it says it is.
    """

    text: str
    media_type: str


async def fetch(url: str, target: Target, env: Mapping[str, str]) -> Answer:
    """Return what is at *url*, one of *target*'s.

    Args:
        url: What to ask for.
        target: How to ask.
        env: Where its token may be.

    Raises:
        FetchError: There is no answer in time, it is an error, too large, or the address is not to be asked.
    """
    parsed = httpx.URL(url)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            transport = CheckedTransport(
                _may_call(target, env), verify=parsed.scheme == "https" and target.tls.context()
            )
            async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=None) as client:  # noqa: S113 - the limit above is for all of it
                return await _answer(client, client.build_request("GET", parsed, headers=_headers(target, env)))
    except NotCalledError as error:
        raise FetchError(str(error)) from error
    except httpx.ConnectError as error:
        msg = f"it cannot be connected to ({error})"
        raise FetchError(msg) from error
    except TimeoutError as error:
        msg = f"it did not answer within {TIMEOUT_SECONDS:g} s"
        raise FetchError(msg) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ssl.SSLError, UnicodeError) as error:
        msg = f"it did not answer ({error or type(error).__name__})"
        raise FetchError(msg) from error


async def _answer(client: httpx.AsyncClient, request: httpx.Request) -> Answer:
    response = await client.send(request, stream=True, follow_redirects=False)
    try:
        if response.is_redirect:
            msg = "it redirects elsewhere, which is not followed; write the address it redirects to"
            raise FetchError(msg)
        if not response.is_success:
            msg = f"it answers {response.status_code} {response.reason_phrase}; look at its address and token"
            raise FetchError(msg)
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > MAX_BYTES:
                break
        # What was cut is larger than that inflated, too, or ends early.
        text = inflate(bytes(body), response.headers.get("content-encoding", ""), MAX_BYTES).decode()
    except TooLargeError as error:
        msg = f"its answer is larger than {MAX_BYTES // 1024**2} MiB; drop metrics or labels there"
        raise FetchError(msg) from error
    except (WireError, UnicodeDecodeError) as error:
        msg = f"its answer cannot be read ({error})"
        raise FetchError(msg) from error
    finally:
        await response.aclose()
    return Answer(text, response.headers.get("content-type", ""))


def _may_call(target: Target, env: Mapping[str, str]) -> MayCall:
    may_call = MayCall.from_env(env)
    return may_call.also("metadata") if target.link_local else may_call


def _headers(target: Target, env: Mapping[str, str]) -> dict[str, str]:
    headers = {**target.headers, "accept": _ACCEPT, "accept-encoding": "gzip"}
    if token := _token(target, env):
        headers["authorization"] = f"Bearer {token}"
    return headers


def _token(target: Target, env: Mapping[str, str]) -> str:
    if target.token_file is not None:
        return target.token_file.read_text(encoding="ascii").strip()
    if target.token_env and not env.get(target.token_env):
        msg = f"the environment has no {target.token_env}, which its token is to be in"
        raise FetchError(msg)
    return env[target.token_env] if target.token_env else ""
