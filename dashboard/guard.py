"""Who may read, and what a page may load: host check, token, headers.

A page loads nothing from outside its own host and runs no script but ours (`Content-Security-Policy`). On loopback the
`Host` header must name this machine: a web site that points its own name at 127.0.0.1 must not read the dashboard
through its visitor's browser (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from urllib.parse import urlencode, urlsplit

from flask import Flask, Response, redirect, request
from werkzeug.wrappers import Response as AnyResponse

from . import health
from .config import DashboardConfig, is_loopback

COOKIE = "stagelens_session"
_MONTH_SECONDS = 30 * 86_400


def protect(server: Flask, config: DashboardConfig, script_hashes: Sequence[str]) -> None:
    """Put the checks in front of every request to *server* and the headers on every answer."""
    policy = _policy(script_hashes)

    def check() -> AnyResponse | None:
        if is_loopback(config.host) and not config.behind_proxy and not is_own_host(request.host):
            return _refusal(421, f"This is the Stagelens dashboard of {config.host}, not {request.host}.")
        # Who watches over a process has no token to bring, and learns nothing of the data.
        return _check_token(config.token) if config.token and request.path != health.PATH else None

    def add_headers(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        return response

    server.before_request(check)
    server.after_request(add_headers)


def is_own_host(host: str) -> bool:
    """Say whether the `Host` header *host*, with or without a port, names this machine itself.

    >>> is_own_host("127.0.0.1:8600"), is_own_host("[::1]:8600"), is_own_host("evil.example")
    (True, True, False)
    """
    return is_loopback(urlsplit(f"//{host}").hostname or "")


def session_value(token: str) -> str:
    """Return what the cookie holds: derived from *token*, so that the cookie does not give the token away."""
    return hmac.new(token.encode(), b"stagelens dashboard session", hashlib.sha256).hexdigest()


def _check_token(token: str) -> AnyResponse | None:
    offered = request.args.get("token")
    if offered is not None and hmac.compare_digest(offered.encode(), token.encode()):
        return _sign_in(token)
    if hmac.compare_digest(request.cookies.get(COOKIE, ""), session_value(token)):
        return None
    if offered is not None:
        return _refusal(401, "That token is not the one of this dashboard.")
    # A strict cookie stays at home when the click came from another site; a click from here brings it.
    return _refusal(
        401,
        "This dashboard asks for its token: open it once with ?token=… at the end of the address. "
        "If you did so before and came here from another site, use the link.",
        link=True,
    )


def _sign_in(token: str) -> AnyResponse:
    """Answer with the cookie and the same address without the token, so that it stays out of the history."""
    left = [(key, value) for key, value in request.args.items(multi=True) if key != "token"]
    response = redirect(request.path + ("?" + urlencode(left) if left else ""))
    response.set_cookie(
        COOKIE,
        session_value(token),
        max_age=_MONTH_SECONDS,
        httponly=True,
        samesite="Strict",
        secure=request.is_secure,
    )
    return response


def _refusal(status: int, reason: str, *, link: bool = False) -> Response:
    again = '<p><a href="">Open the dashboard</a></p>' if link else ""
    # The reason may quote the Host header.
    safe = reason.replace("&", "&amp;").replace("<", "&lt;")
    page = f"<!doctype html><html lang=en><title>Stagelens</title><main><h1>Stagelens</h1><p>{safe}</p>{again}</main>"
    return Response(page, status, mimetype="text/html")


def _policy(script_hashes: Sequence[str]) -> str:
    # Inline styles: Plotly and the widths of bars need them; a style can load nothing, the other rules see to that.
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' {' '.join(script_hashes)}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "form-action 'none'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )
