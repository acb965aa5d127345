"""Request guard: host check, sign-in, authentication, origin of writes, shape of callbacks, and security headers.

A page loads nothing from other hosts and runs no foreign script (`Content-Security-Policy`). The `Host` header must name
this machine or a configured host; otherwise a site whose DNS name points to 127.0.0.1 could read the dashboard through the
browser of a visitor (DNS rebinding). Writes need a CSRF token of a page.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.resources import files
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import flask
from flask import Flask, Response, redirect, request
from jinja2 import Environment, Template
from werkzeug.local import LocalProxy
from werkzeug.wrappers import Response as AnyResponse

from ...core.addresses import is_loopback, is_same_origin, parse_authority, parse_ip
from ..access import LiveAccess, ReaderAccess
from ..config import DashboardConfig
from ..source import Source
from ..view import API_PREFIX
from . import signed_endpoints, wsgi_front
from .api_formats import error_response
from .audit_log import AuditLog
from .auth import COOKIE, LENGTH_SECONDS, Authenticator, CsrfTokens, Principal, RevokedSessions, TooManyAttemptsError

CSRF_HEADER = "X-CSRF-Token"
_SAFE = ("GET", "HEAD", "OPTIONS")
# Larger forms would take long to parse; `next` is the longest field.
_MAX_FORM_BYTES = 8192
# Inline styles are needed by Plotly and for bar widths; the other rules prevent styles from loading anything.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_WRONG = 401
_WRONG_TOKEN = "Wrong token."  # noqa: S105 - a message


def protect(
    server: Flask, config: DashboardConfig, access: LiveAccess, signed_out: RevokedSessions, *, audit_log: AuditLog
) -> None:
    is_private = config.is_private
    server.config["MAX_CONTENT_LENGTH"] = wsgi_front.MAX_BODY_BYTES
    authenticator = Authenticator(config, access, signed_out)
    server.extensions["stagelens authenticator"] = authenticator
    server.extensions["stagelens csrf"] = CsrfTokens()

    def check() -> AnyResponse | None:
        if not _is_allowed_host(request.host, config.hosts, is_private=is_private):
            fix = "" if is_private else " Set the allowed names in STAGELENS_DASHBOARD_HOSTS."
            return refused_response(421, f"This is the Stagelens dashboard of {config.host}, not {request.host}.{fix}")
        # Health probes have no credentials, and their responses contain no data. Chart requests are signed; the check is by
        # endpoint, not by path, so that no other route is open.
        if request.path in wsgi_front.PROBE_PATHS or request.endpoint == signed_endpoints.CHART_ENDPOINT:
            return None
        if request.method not in _SAFE and (foreign := _cross_site_response(config)) is not None:
            return foreign
        # Slack and PagerDuty requests are signed.
        is_signed = request.method == "POST" and request.path in signed_endpoints.HOOK_PATHS
        if is_signed or (request.path == SIGN_IN and config.takes_secrets):
            return None
        return _authenticate(config, authenticator, audit_log)

    if config.takes_secrets:
        add_signin_routes(server, config, authenticator, audit_log)
    server.before_request(check)
    server.after_request(_with_security_headers)


def _with_security_headers(response: Response) -> Response:
    response.headers.setdefault("Content-Security-Policy", _POLICY)
    if response.mimetype == "text/html":
        # The page contains current data for this reader, so caches must not reuse it unchecked.
        response.headers.setdefault("Cache-Control", "private, no-cache")
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
    return response


def current_principal() -> Principal:
    return flask.g.stagelens_reader


def current_access() -> ReaderAccess:
    return flask.g.stagelens_access


def source_of_reader(source: Source) -> Source:
    def current() -> Source:
        if "stagelens_source" not in flask.g:
            flask.g.stagelens_source = source.of_reader(current_access())
        return flask.g.stagelens_source

    return cast("Source", LocalProxy(current))


def dashboard_url() -> str:
    scheme = "https" if flask.current_app.extensions["stagelens authenticator"].is_https(request) else "http"
    return f"{scheme}://{request.host}"


def requested_path() -> str:
    path = str(request.environ.get("REQUEST_URI") or request.environ.get("RAW_URI") or "").partition("?")[0]
    return path if path.startswith("/") else quote(request.path)


def has_session() -> bool:
    return (
        flask.has_request_context()
        and bool(current_principal().bound_to)
        and request.cookies.get(COOKIE) == current_principal().bound_to
    )


def csrf_token() -> str:
    return _csrf_tokens().token(current_principal().bound_to)


def is_trusted_write() -> bool:
    return current_principal().by_token or _csrf_tokens().accepts(
        request.headers.get(CSRF_HEADER, ""), current_principal().bound_to
    )


def _authenticate(config: DashboardConfig, authenticator: Authenticator, audit_log: AuditLog) -> AnyResponse | None:
    try:
        entered = signin_from_url(authenticator, audit_log) if config.token else None
        if entered is not None:
            return entered
        principal = authenticator.authenticate(request)
    except TooManyAttemptsError as error:
        return too_many_response(error)
    if principal is None:
        return unauthenticated_response(config, authenticator)
    access = authenticator.access_of(principal)
    flask.g.stagelens_reader, flask.g.stagelens_access = principal, access
    if access.grants or request.path == SIGN_OUT:
        return None
    return refused_response(403, f"You may see no environment; {access.grantors} can grant you a role.")


def _is_allowed_host(host: str, hosts: Collection[str], *, is_private: bool) -> bool:
    _, name, _ = parse_authority(host)
    if is_private or is_loopback(name):
        return is_loopback(name)
    # DNS rebinding needs a host name; IP addresses are safe.
    return not hosts or name in hosts or parse_ip(name) is not None


def _cross_site_response(config: DashboardConfig) -> AnyResponse | None:
    refused = refused_response(403, "This request came from a page of another site.")
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        return refused
    origin = request.headers.get("Origin")
    # A configured name counts with any port, because proxies that listen on another port pass on the name alone.
    if origin is None or is_same_origin(origin, request.host):
        return None
    scheme, name, _ = parse_authority(origin)
    return None if scheme and name in config.hosts else refused


def _csrf_tokens() -> Any:
    return flask.current_app.extensions["stagelens csrf"]


SIGN_IN, SIGN_OUT = "/signin", "/signout"


def add_signin_routes(
    server: Flask, config: DashboardConfig, authenticator: Authenticator, audit_log: AuditLog
) -> None:
    def sign_in() -> AnyResponse:
        request.max_content_length = _MAX_FORM_BYTES
        try:
            to = _local_path(request.values.get("next", ""))
        except ValueError:
            return refused_response(400, "The address after sign-in is not valid.")
        if request.method == "GET":
            return signin_form(config, to)
        name = request.form.get("name", "").strip()
        try:
            session = authenticator.sign_in(request, name, request.form.get("secret", ""))
        except TooManyAttemptsError as error:
            return too_many_response(error)
        if session is None:
            # Some type their password as the name.
            is_known = authenticator.users is not None and authenticator.users.line(name) is not None
            audit_log.sign_in_failed(name if is_known else "unknown name")
            return signin_form(config, to, "Wrong name or password.", _WRONG)
        audit_log.signed_in(name)
        return _with_session(redirect(to, 303), session, authenticator)

    def sign_out() -> AnyResponse:
        authenticator.sign_out(request)
        response = redirect(SIGN_IN, 303)
        response.delete_cookie(COOKIE)
        return response

    server.add_url_rule(SIGN_IN, "sign in", sign_in, methods=["GET", "POST"])
    server.add_url_rule(SIGN_OUT, "sign out", sign_out, methods=["POST"])


def signin_from_url(authenticator: Authenticator, audit_log: AuditLog) -> AnyResponse | None:
    offered = None if _is_cross_site() else request.args.get("token")
    session = None if offered is None else authenticator.sign_in(request, "", offered)
    if session is None:
        return None
    audit_log.signed_in("")
    left = [(key, value) for key, value in request.args.items(multi=True) if key != "token"]
    path = _local_path(requested_path())
    return _with_session(redirect(path + ("?" + urlencode(left) if left else "")), session, authenticator)


def _is_cross_site() -> bool:
    return request.headers.get("Sec-Fetch-Site") == "cross-site"


def unauthenticated_response(config: DashboardConfig, authenticator: Authenticator) -> Response:
    if not config.takes_secrets:
        return refused_response(_WRONG, f"Not signed in: the proxy sent no {config.proxy_header}.")
    if request.path.startswith(API_PREFIX):
        response = error_response("not signed in", "Authorization", _how_to_authenticate(config), _WRONG)
        # Browsers do not get this header, because they would open their own password dialog.
        if authenticator.users and "Sec-Fetch-Mode" not in request.headers:
            response.headers["WWW-Authenticate"] = 'Basic realm="Stagelens", charset="UTF-8"'
        return response
    wrong = ""
    if "token" in request.args:
        is_cross_site = _is_cross_site()
        wrong = "A link from another site cannot sign you in: enter the token here." if is_cross_site else _WRONG_TOKEN
    asked = f"{requested_path()}?{request.query_string.decode(errors='replace')}".rstrip("?")
    return signin_form(config, _local_path(asked) if not wrong else "/", wrong, _WRONG)


def signin_form(config: DashboardConfig, to: str, wrong: str = "", status: int = 200) -> Response:
    offered = {"users": bool(config.users), "token": bool(config.token)}
    return _page(status, "Sign in", action=SIGN_IN, to=to, wrong=wrong, **offered)


def refused_response(status: int, reason: str) -> Response:
    if request.path.startswith(API_PREFIX):
        return error_response(reason, "", "", status)
    return _page(status, "Not signed in" if status == _WRONG else "Refused", reason=reason)


def too_many_response(error: TooManyAttemptsError) -> Response:
    seconds = str(int(error.wait_seconds) + 1)
    response = refused_response(429, f"Too many failed logins. Try again in {seconds} s.")
    response.headers["Retry-After"] = seconds
    return response


def _page(status: int, name: str, **values: str | bool) -> Response:
    response = Response(_template().render(name=name, **values), status, mimetype="text/html")
    response.headers["Cache-Control"] = "no-store"
    return response


@cache
def _template() -> Template:
    text = (files(__package__ or "") / "signin.html").read_text(encoding="utf-8")
    return Environment(autoescape=True).from_string(text)


def _with_session(response: AnyResponse, session: str, authenticator: Authenticator) -> AnyResponse:
    # Lax: links from notifications must use the existing session; writes need a CSRF token as well.
    response.set_cookie(
        COOKIE, session, max_age=LENGTH_SECONDS, httponly=True, samesite="Lax", secure=authenticator.is_https(request)
    )
    return response


def _how_to_authenticate(config: DashboardConfig) -> str:
    token = ["Authorization: Bearer TOKEN"] if config.token else []
    return " or ".join([*token, "Authorization: Basic …"] if config.users else token)


def _local_path(address: str) -> str:
    parts = urlsplit(address)
    safe = address.startswith("/") and not address.startswith(("//", "/\\")) and not parts.netloc
    return address if safe and address.isprintable() else "/"
