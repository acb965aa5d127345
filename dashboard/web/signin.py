"""Sign-in and sign-out: form, session cookie, and responses to unauthenticated requests."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from urllib.parse import urlencode, urlsplit

from flask import Flask, Response, redirect, request
from jinja2 import Environment, Template
from werkzeug.wrappers import Response as AnyResponse

from ..config import DashboardConfig
from ..view import API_PREFIX
from .auth import COOKIE, Authenticator, TooManyAttemptsError
from .serialization import error_response
from .sessions import LENGTH_SECONDS

SIGN_IN, SIGN_OUT = "/signin", "/signout"
_WRONG = 401
_WRONG_TOKEN = "Wrong token."  # noqa: S105 - a message


def add_signin_routes(server: Flask, config: DashboardConfig, authenticator: Authenticator) -> None:
    """Add `SIGN_IN` and `SIGN_OUT` to *server*."""

    def sign_in() -> AnyResponse:
        try:
            to = _local_path(request.values.get("next", ""))
        except ValueError:
            return refused_response(400, "The address after sign-in is not valid.")
        if request.method == "GET":
            return signin_form(config, to)
        try:
            session = authenticator.sign_in(
                request, request.form.get("name", "").strip(), request.form.get("secret", "")
            )
        except TooManyAttemptsError as error:
            return too_many_response(error)
        if session is None:
            return signin_form(config, to, "Wrong name or password.", _WRONG)
        return _with_session(redirect(to, 303), session, authenticator)

    def sign_out() -> AnyResponse:
        authenticator.sign_out(request)
        response = redirect(SIGN_IN, 303)
        response.delete_cookie(COOKIE)
        return response

    server.add_url_rule(SIGN_IN, "sign in", sign_in, methods=["GET", "POST"])
    server.add_url_rule(SIGN_OUT, "sign out", sign_out, methods=["POST"])


def signin_from_url(authenticator: Authenticator) -> AnyResponse | None:
    """Sign in with a valid token in the URL, and redirect to the URL without the token.

    Tokens in links from other sites are ignored; otherwise invalid ones would lock the reader out through the throttle.
    """
    offered = None if _is_cross_site() else request.args.get("token")
    session = None if offered is None else authenticator.sign_in(request, "", offered)
    if session is None:
        return None
    left = [(key, value) for key, value in request.args.items(multi=True) if key != "token"]
    path = _local_path(request.path)
    return _with_session(redirect(path + ("?" + urlencode(left) if left else "")), session, authenticator)


def _is_cross_site() -> bool:
    return request.headers.get("Sec-Fetch-Site") == "cross-site"


def unauthenticated_response(config: DashboardConfig, authenticator: Authenticator) -> Response:
    """Return the sign-in form to browsers, and a JSON error with the fix to programs."""
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
        wrong = "Links from other sites cannot sign you in: enter the token here." if is_cross_site else _WRONG_TOKEN
    return signin_form(config, _local_path(request.full_path.rstrip("?")) if not wrong else "/", wrong, _WRONG)


def signin_form(config: DashboardConfig, to: str, wrong: str = "", status: int = 200) -> Response:
    """Return the page with the form for name and password, or for the token."""
    offered = {"users": bool(config.users), "token": bool(config.token)}
    return _page(status, "Sign in", action=SIGN_IN, to=to, wrong=wrong, **offered)


def refused_response(status: int, reason: str) -> Response:
    """Return the rejection of a request with its reason, as a page or as JSON for programs."""
    if request.path.startswith(API_PREFIX):
        return error_response(reason, "", "", status)
    return _page(status, "Not signed in" if status == _WRONG else "Refused", reason=reason)


def too_many_response(error: TooManyAttemptsError) -> Response:
    """Return the response to too many failed logins."""
    seconds = str(int(error.wait_seconds) + 1)
    response = refused_response(429, f"Too many attempts to sign in. Try again in {seconds} s.")
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
    """Return *address* if it is a local path of this dashboard, else "/".

    Raises:
        ValueError: The address cannot be parsed.
    """
    parts = urlsplit(address)
    safe = address.startswith("/") and not address.startswith(("//", "/\\")) and not parts.netloc
    return address if safe and address.isprintable() else "/"
